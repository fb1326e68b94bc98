//! Carries out a plan: one step after the other, each disk looked at once more right before it is written to.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, open};

use crate::{
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
    Begin { step: String, source: std::io::Error },
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
    // What is mounted, what is above and below these disks, and what is on them may have changed since the plan.
    let ids = step.disks().iter().map(BlankDisk::id).collect();
    let seen = node.looker.look_at(&ids, &node.run).await;
    let seen = seen.map_err(|source| StepError::Look { step: step.to_string(), source })?;
    let held = step.disks().iter().map(|disk| Held::take(disk, &seen)).collect::<Result<Vec<_>, _>>();
    let held = held.map_err(|(disk, now)| StepError::Changed { step: step.to_string(), disk, now })?;
    let devices = held.iter().map(|disk| (disk.node.as_path(), disk.size)).collect::<Vec<_>>();
    let (before, argv) = match step {
        Step::CreateGroup { class, group, extent, .. } => {
            (None, command::create_group(group, cluster, class, *extent, &devices))
        }
        Step::ExtendGroup { .. } => {
            let group = target(step, cluster, node).await?;
            let argv = devices.first().map(|(path, size)| command::extend_group(&group, path, *size));
            (Some(group), argv.ok_or_else(|| StepError::NoGroup { step: step.to_string() })?)
        }
    };
    let begin = |source| StepError::Begin { step: step.to_string(), source };
    node.looker.begun.begin(step.disks().iter().map(|disk| (disk.id(), disk.size()))).map_err(begin)?;
    let outcome = {
        let _exclusive = node.looker.exclusive.lock().await;
        node.run.run(argv).await
    };
    settle(step, cluster, node, &held, before.as_ref()).await.map_err(|err| match (err, outcome) {
        // What LVM said explains what is missing.
        (StepError::NotDone { step, .. }, Err(source)) => StepError::Run { step, source },
        (err, _) => err,
    })?;
    node.looker.begun.end(step.disks().iter().map(BlankDisk::id)).map_err(begin)
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
    node: PathBuf,
    size: Bytes,
    _file: Option<File>,
}

impl Held {
    fn take(disk: &BlankDisk, seen: &Seen) -> Result<Self, (String, String)> {
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
        let file = hold(&now.node, now.number).map_err(changed)?;
        Ok(Self { node: now.node.clone(), size: now.size, _file: Some(file) })
    }
}

/// Opens a device and makes sure that it is the one that was looked at.
fn hold(node: &Path, number: (u32, u32)) -> Result<File, String> {
    use std::os::unix::fs::MetadataExt;

    let file = open(node, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    let file = File::from(file.map_err(|err| format!("it can not be opened: {}", std::io::Error::from(err)))?);
    let rdev = file.metadata().map_err(|err| format!("it can not be read: {err}"))?.rdev();
    let now = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    if now == number { Ok(file) } else { Err("another device has its name".to_owned()) }
}

fn unfit(now: &Disk, before: &BlankDisk) -> Option<String> {
    if now.size != before.size() {
        return Some(format!("its size is {}", now.size));
    }
    if let Some(why) = &now.system {
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
