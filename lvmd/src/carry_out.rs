//! Carries out a plan: one step after the other, each disk looked at once more right before it is written to.

use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

use crate::{
    begun::Begun,
    disk::{BlankDisk, Claim, Content, Disk},
    lvm::{
        command,
        report::{Group, ReportError, groups},
    },
    name::{Bytes, ClusterId},
    node::{GroupError, Node},
    plan::groups::Step,
    run::{Run, RunError},
    seen::{LookError, Seen},
    turn::Subject,
};

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("could not {step}")]
    Run { step: String, source: RunError },
    #[error("would not {step}: {disk} is not what it was ({now})")]
    Changed { step: String, disk: String, now: String },
    #[error("could not {step}: LVM said nothing, and {group} is not as it should be")]
    NotDone { step: String, group: String },
    #[error("could not {step}: the list of devices that are begun can not be written")]
    Begin { step: String, source: io::Error },
    #[error("could not {step}: its group is not there any more")]
    NoGroup { step: String },
    #[error("could not {step}: its group can not be read")]
    Group { step: String, source: GroupError },
    #[error("could not look again before: {step}")]
    Look { step: String, source: LookError },
    #[error("could not see what came of: {step}")]
    Report { step: String, source: ReportError },
}

/// What was done, a sentence each, and what failed. A class whose step failed gets no further one; the others go on.
#[derive(Debug, Default)]
pub struct Done {
    pub done: Vec<String>,
    pub failed: Vec<StepError>,
}

pub async fn carry_out<R: Run>(steps: Vec<Step>, cluster: &ClusterId, node: &Node<R>) -> Done {
    let mut all = Done::default();
    let mut stopped = Vec::new();
    for step in steps {
        if stopped.contains(step.class()) {
            continue;
        }
        let _turn = node.turns.wait(Subject::Group(step.class().to_string())).await;
        tracing::info!(%step, "carrying out");
        match one(&step, cluster, node).await {
            Ok(()) => all.done.push(step.to_string()),
            Err(err) => {
                tracing::error!(error = runtime::chain(&err), "a step failed");
                stopped.push(step.class().clone());
                all.failed.push(err);
            }
        }
    }
    all
}

async fn one<R: Run>(step: &Step, cluster: &ClusterId, node: &Node<R>) -> Result<(), StepError> {
    // It may take a whole look, so it comes before the turn of whoever opens devices exclusively.
    let before = match step {
        Step::CreateGroup { .. } => None,
        Step::ExtendGroup { .. } => Some(target(step, cluster, node).await?),
    };
    // From the look to the command nobody else's look has a device open: LVM would take it for in use.
    let exclusive = node.looker.exclusive.lock().await;
    // What is mounted, what is above and below these disks, and what is on them may have changed since the plan.
    let ids = step.disks().iter().map(BlankDisk::id).collect();
    let seen = node.looker.look_at(&ids, &node.run, &exclusive).await;
    let seen = seen.map_err(|source| StepError::Look { step: step.to_string(), source })?;
    let mut held = Vec::new();
    for disk in step.disks() {
        let taken = Held::take(disk, &seen).await;
        held.push(taken.map_err(|(disk, now)| StepError::Changed { step: step.to_string(), disk, now })?);
    }
    let devices = held.iter().map(|disk| (disk.node.as_path(), disk.size)).collect::<Vec<_>>();
    let argv = match (step, &before) {
        (Step::CreateGroup { class, group, extent, .. }, _) => {
            Some(command::create_group(group, cluster, class, *extent, &devices))
        }
        (Step::ExtendGroup { .. }, Some(group)) => {
            devices.first().map(|(path, size)| command::extend_group(group, path, *size))
        }
        (Step::ExtendGroup { .. }, None) => None,
    };
    let argv = argv.ok_or_else(|| StepError::NoGroup { step: step.to_string() })?;
    let all = step.disks().iter().map(|disk| (disk.id().to_owned(), disk.size())).collect::<Vec<_>>();
    list(step, node, move |begun| begun.begin(all.iter().map(|(id, size)| (id.as_str(), *size)))).await?;
    let outcome = node.run.run(argv).await;
    drop(exclusive);
    let settled = settle(step, cluster, node, &held, before.as_ref()).await;
    let left = match &settled {
        Ok(()) => Vec::new(),
        Err(_) => half_made(&held, node).await,
    };
    // What was not even made a PV, or is in a group: if it is a PV in no group one day, that was somebody else.
    let over = held.iter().map(|disk| disk.id.clone()).filter(|id| !left.contains(id)).collect::<Vec<_>>();
    let listed = list(step, node, move |begun| begun.end(over.iter().map(String::as_str))).await;
    settled.map_err(|err| match (err, outcome) {
        // What LVM said explains what is missing.
        (StepError::NotDone { step, .. }, Err(source)) => StepError::Run { step, source },
        (err, _) => err,
    })?;
    listed
}

/// Writes the list of what is begun: on the disk, so not on a thread that serves calls.
async fn list<R: Run>(
    step: &Step,
    node: &Node<R>,
    write: impl FnOnce(&Begun) -> io::Result<()> + Send + 'static,
) -> Result<(), StepError> {
    let begun = node.looker.begun.clone();
    let written = tokio::task::spawn_blocking(move || write(&begun)).await;
    let written = written.map_err(io::Error::other).and_then(|written| written);
    written.map_err(|source| StepError::Begin { step: step.to_string(), source })
}

/// Which of these are PVs in no group by now. All of them where that can not be told.
async fn half_made<R: Run>(held: &[Held], node: &Node<R>) -> Vec<String> {
    let mut left = Vec::new();
    for disk in held {
        let alone = groups(&*node.run, &[disk.node.as_path()]).await;
        if alone.map_or(true, |found| !found.orphans.is_empty()) {
            left.push(disk.id.clone());
        }
    }
    left
}

/// LVM's exit code says nothing: whether a step was done is read from the group.
async fn settle<R: Run>(
    step: &Step,
    cluster: &ClusterId,
    node: &Node<R>,
    held: &[Held],
    before: Option<&Group>,
) -> Result<(), StepError> {
    let nodes = before.into_iter().flat_map(Group::nodes).chain(held.iter().map(|disk| disk.node.as_path()));
    let now = groups(&*node.run, &nodes.collect::<Vec<_>>()).await;
    let now = now.map_err(|source| StepError::Report { step: step.to_string(), source })?.groups;
    let done = now.into_iter().find(|group| {
        let members = group.nodes().collect::<Vec<_>>();
        is_target(group, step, cluster) && held.iter().all(|disk| members.contains(&disk.node.as_path()))
    });
    match done {
        Some(group) => {
            node.remember(&group);
            Ok(())
        }
        None => Err(StepError::NotDone { step: step.to_string(), group: step.group().to_string() }),
    }
}

/// The group that a step extends, as it is now.
async fn target<R: Run>(step: &Step, cluster: &ClusterId, node: &Node<R>) -> Result<Group, StepError> {
    let group = node.asked_group(cluster, step.class()).await;
    let group = group.map_err(|source| StepError::Group { step: step.to_string(), source })?;
    group.filter(|group| is_target(group, step, cluster)).ok_or_else(|| StepError::NoGroup { step: step.to_string() })
}

fn is_target(group: &Group, step: &Step, cluster: &ClusterId) -> bool {
    let tagged = group.has_tag(crds::names::tag::CLUSTER, cluster.as_str())
        && group.has_tag(crds::names::tag::CLASS, step.class().as_str());
    let uuid = match step {
        Step::CreateGroup { .. } => None,
        Step::ExtendGroup { uuid, .. } => uuid.as_ref(),
    };
    tagged && group.name == *step.group() && uuid.is_none_or(|uuid| group.uuid == *uuid)
}

/// A disk that was just seen to be blank, and is held open: as long as it is, the kernel gives its name and number to
/// no other device. Not exclusively, since LVM opens it so.
struct Held {
    id: String,
    node: PathBuf,
    size: Bytes,
    _file: File,
}

impl Held {
    async fn take(disk: &BlankDisk, seen: &Seen) -> Result<Self, (String, String)> {
        let name = || disk.path().display().to_string();
        let changed = |now: String| (name(), now);
        let mut same = seen.disks.iter().filter(|now| now.id == disk.id());
        let now = match (same.next(), same.next()) {
            (Some(now), None) => now,
            (None, _) => return Err(changed("it is gone".to_owned())),
            (Some(_), Some(_)) => return Err(changed("another device has its identity".to_owned())),
        };
        if let Some(why) = unfit(now, disk) {
            return Err(changed(why));
        }
        let file = hold(now.node.clone(), now.number).await.map_err(changed)?;
        Ok(Self { id: now.id.clone(), node: now.node.clone(), size: now.size, _file: file })
    }
}

/// Opens a device and makes sure that it is the one that was looked at. A disk that hangs keeps its own thread.
async fn hold(node: PathBuf, number: (u32, u32)) -> Result<File, String> {
    let held = tokio::task::spawn_blocking(move || held(&node, number)).await;
    held.unwrap_or_else(|err| Err(format!("opening it failed: {err}")))
}

fn held(node: &Path, number: (u32, u32)) -> Result<File, String> {
    let file = open(node, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    let file = File::from(file.map_err(|err| format!("it can not be opened: {}", io::Error::from(err)))?);
    let rdev = file.metadata().map_err(|err| format!("it can not be read: {err}"))?.rdev();
    let now = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    if now == number { Ok(file) } else { Err("another device has its name".to_owned()) }
}

fn unfit(now: &Disk, before: &BlankDisk) -> Option<String> {
    if now.size != before.size() {
        return Some(format!("its size is {}", now.size));
    }
    if let Some(why) = now.system.as_ref().or(now.inner.as_ref()) {
        return Some(why.clone());
    }
    if now.partitions > 0 || !now.above.is_empty() {
        return Some("something is made of it".to_owned());
    }
    match now.content() {
        Content::Blank => None,
        Content::Unknown(why) => Some(why.clone()),
        Content::Claimed(Claim::Signature(kind) | Claim::Partitions(kind)) => {
            Some(format!("it has a signature of {kind}"))
        }
        Content::Claimed(Claim::PhysicalVolume(uuid)) => Some(format!("it is the LVM PV {uuid}")),
        Content::Claimed(Claim::InUse) => Some("it is in use".to_owned()),
        Content::Claimed(Claim::NotZero) => Some("it is not zero".to_owned()),
        Content::Claimed(Claim::NotLookedAt) => Some("it was not looked at".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{CWD, mkfifoat};

    use super::*;
    use crate::{dm::Active, mount::stage, name::LvmUuid};

    /// Opening a FIFO waits for its other end, as opening a disk that hangs waits for the disk. There is one thread
    /// here, so whatever waited on it would stop the clock.
    #[tokio::test]
    async fn a_disk_that_hangs_keeps_no_thread_that_serves_calls() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("disk");
        mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).unwrap();
        let uuid = LvmUuid::try_from("5msPhe-D07h-wdog-0mch-9kH0-9fag-xrEOKs").unwrap();
        let active = Active {
            kernel: format!("..{}", fifo.display()),
            number: (252, 0),
            group: uuid.clone(),
            lv: uuid,
            name: "vg-lv".to_owned(),
        };
        let short = Duration::from_millis(50);
        assert!(tokio::time::timeout(short, hold(fifo.clone(), (252, 0))).await.is_err());
        assert!(tokio::time::timeout(short, stage::head(&active)).await.is_err());
        assert!(tokio::time::timeout(short, stage::held(&active)).await.is_err());
        // Lets the three threads go.
        drop(File::options().write(true).open(&fifo).unwrap());
    }
}
