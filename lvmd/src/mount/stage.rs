//! Staging: from an LV to a mounted filesystem or an active device, and back. Every call may be repeated and
//! interrupted.

use std::io;

use crate::{
    dm::{self, Active},
    lvm::{
        command,
        report::{Group, Lv, ReportError},
    },
    mount::{
        attach::{self, AttachError, Shape},
        filesystem::{self, FilesystemError, Signature},
        options::{BadOption, Options},
        path::{Purpose, Target},
        superblock::Superblock,
        table::{Table, TableError},
    },
    name::{BadName, Bytes, FsUuid, Tag, VolumeKey, VolumeName},
    node::{GroupError, Node},
    plan::volumes::{Access, Format, Staging, StagingError, VolumeError, find, staging},
    run::{Run, RunError},
    turn::Subject,
};
use crds::device_class::FilesystemType;

#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Staging(#[from] StagingError),
    #[error(transparent)]
    Option(#[from] BadOption),
    #[error("seeing what came of it")]
    Report(#[from] ReportError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Filesystem(#[from] FilesystemError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("{path} is no path for {wanted}")]
    Purpose { path: String, wanted: &'static str },
    #[error("finding the volume's device")]
    Device(#[source] io::Error),
    #[error("LVM said nothing, and volume {name} is not active")]
    NotActive { name: String },
    #[error("LVM said nothing, and volume {name} has not the tags that were given to it")]
    NotTagged { name: String },
    #[error("volume {name} should carry {wanted} and carries {found}: nothing is touched")]
    OtherContent { name: String, wanted: String, found: String },
    #[error("volume {name} is not staged at {path}")]
    NotStaged { name: String, path: String },
    #[error("the mount at {path} is not that of volume {name}")]
    OtherMount { name: String, path: String },
    #[error("a task ended in a way that must not be")]
    Task(#[from] tokio::task::JoinError),
}

impl From<BadName> for StageError {
    fn from(err: BadName) -> Self {
        Self::Volume(err.into())
    }
}

/// What was staged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    pub filesystem: Option<(FilesystemType, FsUuid)>,
}

/// How a stage is asked for.
#[derive(Clone, Debug)]
pub struct Stage {
    pub key: VolumeKey,
    pub target: Target,
    pub access: Access,
    pub options: Options,
}

/// Whether a pod may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    Allowed,
    Refused,
}

impl<R: Run> Node<R> {
    /// The caller holds the volume's turn.
    pub async fn stage(&self, ask: &Stage) -> Result<Staged, StageError> {
        match (ask.access, ask.target.purpose()) {
            (Access::Filesystem(_), Purpose::Stage) | (Access::Block, Purpose::StageBlock) => {}
            (Access::Filesystem(_), _) => return Err(purpose(&ask.target, "staging a filesystem")),
            (Access::Block, _) => return Err(purpose(&ask.target, "staging a block device")),
        }
        let (group, lv, todo) = self.todo(ask).await?;
        let active = self.activate(&group, &lv, &ask.key).await?;
        match todo {
            Staging::Block => Ok(Staged::default()),
            Staging::BlockFirst => {
                wipe(&active).await?;
                self.tag(&group, &lv, &[], &[Tag::used()]).await?;
                Ok(Staged::default())
            }
            Staging::FormatFirst => {
                let kind = self.format_first(ask, &group, &lv, &active).await?;
                self.mount(ask, kind, &active).await
            }
            Staging::FormatAgain(kind, uuid) => {
                self.format_again(&ask.key, &active, kind, &uuid).await?;
                self.format(&group, &lv, &active, kind, &uuid).await?;
                self.mount(ask, (kind, uuid), &active).await
            }
            Staging::Mount(kind, uuid) => self.mount(ask, (kind, uuid), &active).await,
            Staging::MountWhatIsThere => {
                let kind = self.record(ask, &group, &lv, &active).await?;
                self.mount(ask, kind, &active).await
            }
        }
    }

    /// What was seen before is enough to mount what was made before. Whatever writes to an LV is decided by what LVM
    /// says now.
    async fn todo(&self, ask: &Stage) -> Result<(Group, Lv, Staging), StageError> {
        let key = &ask.key;
        if let Some(group) = self.group(&key.cluster, &key.class).await?
            && let Some(lv) = find(&group, key)?.cloned()
            && let Ok(todo @ (Staging::Mount(..) | Staging::Block)) = staging(&lv, ask.access)
        {
            return Ok((group, lv, todo));
        }
        let group = self.asked_group(&key.cluster, &key.class).await?;
        let group = group.ok_or_else(|| VolumeError::NoGroup { class: key.class.to_string() })?;
        let lv = find(&group, key)?.cloned().ok_or_else(|| VolumeError::NotFound { name: key.name.to_string() })?;
        let todo = staging(&lv, ask.access)?;
        Ok((group, lv, todo))
    }

    async fn activate(&self, group: &Group, lv: &Lv, key: &VolumeKey) -> Result<Active, StageError> {
        if let Some(active) = dm::of(&lv.uuid).map_err(StageError::Device)? {
            self.refresh(group, lv, &active).await?;
            return Ok(active);
        }
        let outcome = {
            let _turn = self.turns.wait(Subject::Group(key.class.to_string())).await;
            self.run.run(command::activate(group, lv)).await
        };
        match (dm::of(&lv.uuid).map_err(StageError::Device)?, outcome) {
            (Some(active), _) => Ok(active),
            (None, Err(err)) => Err(err.into()),
            (None, Ok(_)) => Err(StageError::NotActive { name: key.name.to_string() }),
        }
    }

    /// G3: an lvextend that was cut off may have left the kernel with the old size, or with a device that lets nothing
    /// through. Whoever opens or reads it then waits for ever, so this comes first.
    pub async fn refresh(&self, group: &Group, lv: &Lv, active: &Active) -> Result<(), StageError> {
        if !dm::is_stale(active, lv.size) {
            return Ok(());
        }
        tracing::warn!(volume = %lv.name, device = %active.kernel, "the kernel has not what LVM wrote: it is told anew");
        let _turn = self.turns.wait(Subject::Group(class_of(group))).await;
        self.run.run(command::refresh(group, lv)).await?;
        Ok(())
    }

    /// Nobody ever had this LV: its extents may still carry what their last owner wrote, which would be taken for this
    /// volume's own. Then it is marked as used and as being formatted, in one change of the metadata.
    async fn format_first(
        &self,
        ask: &Stage,
        group: &Group,
        lv: &Lv,
        active: &Active,
    ) -> Result<(FilesystemType, FsUuid), StageError> {
        let Access::Filesystem(kind) = ask.access else { return Err(purpose(&ask.target, "a filesystem")) };
        let least = Bytes(kind.smallest());
        if lv.size < least {
            return Err(FilesystemError::TooSmall { kind: kind.as_str(), least, size: lv.size }.into());
        }
        wipe(active).await?;
        let uuid = filesystem::new_uuid().map_err(StageError::Device)?;
        let making = Format::Making(kind, uuid.clone()).tag()?;
        let tags = making.into_iter().chain([Tag::used()]).collect::<Vec<_>>();
        self.tag(group, lv, &[], &tags).await?;
        self.format(group, lv, active, kind, &uuid).await?;
        Ok((kind, uuid))
    }

    /// Wipes what an interrupted mkfs left, if that is all there is.
    async fn format_again(
        &self,
        key: &VolumeKey,
        active: &Active,
        kind: FilesystemType,
        uuid: &FsUuid,
    ) -> Result<(), StageError> {
        let found = filesystem::signatures(&active.node(), &*self.run).await?;
        match foreign_signature(found, uuid) {
            None => wipe(active).await,
            Some(found) => Err(StageError::OtherContent {
                name: key.name.to_string(),
                wanted: format!("nothing but an unfinished {} with UUID {uuid}", kind.as_str()),
                found,
            }),
        }
    }

    async fn format(
        &self,
        group: &Group,
        lv: &Lv,
        active: &Active,
        kind: FilesystemType,
        uuid: &FsUuid,
    ) -> Result<(), StageError> {
        filesystem::make(kind, uuid, &active.node(), &*self.run).await?;
        let making = Format::Making(kind, uuid.clone()).tag()?;
        let made = Format::Made(kind, uuid.clone()).tag()?;
        self.tag(group, lv, making.as_slice(), made.as_slice()).await
    }

    /// An LV that was adopted says by its content what it is.
    async fn record(
        &self,
        ask: &Stage,
        group: &Group,
        lv: &Lv,
        active: &Active,
    ) -> Result<(FilesystemType, FsUuid), StageError> {
        let (found, _) = head(active).await?;
        match (found, ask.access) {
            (Some(found), Access::Filesystem(kind)) if found.kind == kind => {
                let made = Format::Made(kind, found.uuid.clone()).tag()?;
                self.tag(group, lv, &[], made.as_slice()).await?;
                Ok((kind, found.uuid))
            }
            (found, _) => Err(StageError::OtherContent {
                name: ask.key.name.to_string(),
                wanted: "a filesystem of the type that is asked for, since it was used before".to_owned(),
                found: found
                    .map_or_else(|| "none".to_owned(), |found| format!("{} {}", found.kind.as_str(), found.uuid)),
            }),
        }
    }

    /// The tags decide what is done with data, so it is read back that they are there.
    async fn tag(&self, group: &Group, lv: &Lv, remove: &[Tag], add: &[Tag]) -> Result<(), StageError> {
        let _turn = self.turns.wait(Subject::Group(class_of(group))).await;
        let outcome = self.run.run(command::change_tags(group, lv, remove, add)).await;
        let now = self.after(group).await?;
        let tags = now.and_then(|now| now.lvs.into_iter().find(|now| now.uuid == lv.uuid)).map(|lv| lv.tags);
        let done = tags.is_some_and(|tags| {
            add.iter().all(|tag| tags.contains(tag.as_str())) && !remove.iter().any(|tag| tags.contains(tag.as_str()))
        });
        match (done, outcome) {
            (true, _) => Ok(()),
            (false, Err(err)) => Err(err.into()),
            (false, Ok(_)) => Err(StageError::NotTagged { name: lv.name.clone() }),
        }
    }

    async fn mount(
        &self,
        ask: &Stage,
        (kind, uuid): (FilesystemType, FsUuid),
        active: &Active,
    ) -> Result<Staged, StageError> {
        let node = active.node();
        let (found, size) = head(active).await?;
        // A8: what is mounted is what was made, not what somebody has put there since.
        let found = match found {
            Some(found) if found.kind == kind && found.uuid == uuid => found,
            other => {
                return Err(StageError::OtherContent {
                    name: ask.key.name.to_string(),
                    wanted: format!("{} {uuid}", kind.as_str()),
                    found: other.map_or_else(
                        || "no filesystem that is known here".to_owned(),
                        |found| format!("{} {}", found.kind.as_str(), found.uuid),
                    ),
                });
            }
        };
        let staged = Staged { filesystem: Some((kind, uuid)) };
        let path = ask.target.path();
        let table = Table::read()?;
        match table.at(&path) {
            Some(mount) if mount.number == active.number => return Ok(staged),
            // Left by a device that is gone, or mounted by somebody else at a path that is ours.
            Some(_) => detach(&ask.target).await?,
            None => {}
        }
        // Mounted elsewhere, perhaps where only another mount namespace sees it: it was checked then, and e2fsck refuses.
        if table.of(active.number).next().is_none() && !held(active).await? {
            filesystem::check(kind, &node, &*self.run).await?;
        }
        let (options, target, device) = (ask.options.clone(), ask.target.clone(), node.clone());
        tokio::task::spawn_blocking(move || {
            let mount = attach::filesystem(kind.as_str(), &device, &options)?;
            attach::attach(&mount, &target, Shape::Folder)
        })
        .await??;
        match Table::read()?.at(&path) {
            Some(mount) if mount.number == active.number => {}
            Some(_) | None => {
                return Err(StageError::OtherMount {
                    name: ask.key.name.to_string(),
                    path: path.display().to_string(),
                });
            }
        }
        // G3: a grow that was interrupted between the LV and its filesystem is finished here.
        if filesystem::is_smaller(&found, size) && !ask.options.is_read_only() {
            filesystem::grow(kind, &node, &path, &*self.run).await?;
        }
        Ok(staged)
    }

    /// Unmounts, and deactivates the LV. The caller holds the volume's turn.
    pub async fn unstage(&self, name: &VolumeName, target: &Target) -> Result<(), StageError> {
        if !matches!(target.purpose(), Purpose::Stage | Purpose::StageBlock) {
            return Err(purpose(target, "staging"));
        }
        let mounted = Table::read()?.at(&target.path()).map(|mount| mount.number);
        if mounted.is_some() {
            detach(target).await?;
        }
        let active = match mounted.and_then(dm::behind) {
            Some(active) => Some(active),
            None => self.active(name).await?,
        };
        let Some(active) = active else { return Ok(()) };
        if held(&active).await.unwrap_or(true) {
            // Somebody's mount namespace may keep it for long: the volume is unstaged all the same, and its deletion
            // will name who holds it.
            tracing::warn!(volume = %name, device = %active.kernel, "unstaged, but still in use: it stays active");
            return Ok(());
        }
        self.deactivate(&active).await
    }

    async fn deactivate(&self, active: &Active) -> Result<(), StageError> {
        let group = match self.with_uuid(&active.group) {
            Some(group) => group,
            None => {
                self.look(&self.deny()).await.map_err(GroupError::Look)?;
                match self.with_uuid(&active.group) {
                    Some(group) => group,
                    // Its devices are gone: device-mapper's node is all that is left, and harmless.
                    None => return Ok(()),
                }
            }
        };
        let _turn = self.turns.wait(Subject::Group(class_of(&group))).await;
        let outcome = self.run.run(command::deactivate(&group, &Lv::from(active))).await;
        match (dm::of(&active.lv).map_err(StageError::Device)?, outcome) {
            (Some(_), Err(err)) => Err(err.into()),
            // Unmounted it is: that LVM left it active is not worth a failed call.
            (Some(_), Ok(_)) | (None, _) => Ok(()),
        }
    }

    /// The device of a volume of which only the name is known. The LV's tag counts, in groups that were seen; after a
    /// restart they are read once.
    pub async fn active(&self, name: &VolumeName) -> Result<Option<Active>, StageError> {
        if dm::all().map_err(StageError::Device)?.is_empty() {
            return Ok(None);
        }
        if self.with_volume(name).is_none() {
            self.look(&self.deny()).await.map_err(GroupError::Look)?;
        }
        match self.with_volume(name) {
            Some((_, lv)) => dm::of(&lv).map_err(StageError::Device),
            None => Ok(None),
        }
    }
}

pub fn purpose(target: &Target, wanted: &'static str) -> StageError {
    StageError::Purpose { path: target.path().display().to_string(), wanted }
}

/// What touches a disk may take as long as the disk likes: never on a thread that serves calls.
async fn wipe(active: &Active) -> Result<(), StageError> {
    let node = active.node();
    Ok(tokio::task::spawn_blocking(move || filesystem::wipe_ends(&node)).await??)
}

pub async fn held(active: &Active) -> Result<bool, StageError> {
    let device = active.clone();
    tokio::task::spawn_blocking(move || dm::is_held(&device)).await?.map_err(StageError::Device)
}

fn class_of(group: &Group) -> String {
    group.tag(crds::names::tag::CLASS).unwrap_or_default().to_owned()
}

pub async fn head(active: &Active) -> Result<(Option<Superblock>, Bytes), StageError> {
    let node = active.node();
    Ok(tokio::task::spawn_blocking(move || filesystem::read(&node)).await??)
}

pub async fn detach(target: &Target) -> Result<(), StageError> {
    let target = target.clone();
    Ok(tokio::task::spawn_blocking(move || attach::detach(&target)).await??)
}

/// What is not of the filesystem with this UUID.
fn foreign_signature(found: Vec<Signature>, uuid: &FsUuid) -> Option<String> {
    let foreign = found.into_iter().find(|one| one.uuid.as_deref() != Some(uuid.as_str()));
    foreign.map(|one| format!("a signature of {}", one.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_interrupted_mkfs_left_is_wiped() {
        let uuid = FsUuid::try_from("0f8e2f0c-7a5b-4c6d-9e0f-112233445566").unwrap();
        let one = |kind: &str, uuid: Option<&str>| vec![Signature { kind: kind.into(), uuid: uuid.map(str::to_owned) }];
        assert_eq!(foreign_signature(Vec::new(), &uuid), None);
        assert_eq!(foreign_signature(one("xfs", Some(uuid.as_str())), &uuid), None);
        assert!(foreign_signature(one("xfs", Some("another")), &uuid).is_some());
        // A14: a LUKS header is never overwritten.
        assert!(foreign_signature(one("crypto_LUKS", None), &uuid).is_some());
    }
}
