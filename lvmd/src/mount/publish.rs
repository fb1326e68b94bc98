//! Publishing: a staged volume at a path of a pod, and away again. Starts no program.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};

use crate::{
    dm::{self, Active},
    mount::{
        attach::{self, AttachError, Shape},
        filesystem,
        path::{Purpose, Target},
        stage::{StageError, Writing, detach, head, purpose},
        table::{Mount, Table},
    },
    name::{Bytes, VolumeName},
    node::Node,
    plan::volumes::Access,
    run::Run,
};

impl<R: Run> Node<R> {
    /// Shows the staged filesystem at a pod's path.
    pub async fn publish_filesystem(
        &self,
        name: &VolumeName,
        staging: &Target,
        target: &Target,
        writing: Writing,
    ) -> Result<(), StageError> {
        if (staging.purpose(), target.purpose()) != (Purpose::Stage, Purpose::Publish) {
            return Err(purpose(target, "publishing a filesystem"));
        }
        let table = Table::read()?;
        let staged = table.at(&staging.path()).ok_or_else(|| not_staged(name, staging))?;
        self.is_of(name, staged, staging)?;
        if let Some(there) = table.at(&target.path()) {
            // What is staged read-only can only be shown so.
            if there.number == staged.number && there.is_read_only() == (is_refused(writing) || staged.is_read_only()) {
                return Ok(());
            }
            // H2: left by a device that is gone, or by a call with other words.
            detach(target).await?;
        }
        let from = staging.open().map_err(|source| open_failed(staging, source))?;
        attach_clone(from, target.clone(), Shape::Folder, writing).await
    }

    /// Shows the volume's device at a pod's path. The caller is the only one who opens it.
    pub async fn publish_block(
        &self,
        name: &VolumeName,
        staging: &Target,
        target: &Target,
        writing: Writing,
    ) -> Result<(), StageError> {
        if (staging.purpose(), target.purpose()) != (Purpose::StageBlock, Purpose::PublishBlock) {
            return Err(purpose(target, "publishing a block device"));
        }
        let active = self.active(name).await?.ok_or_else(|| not_staged(name, staging))?;
        if Table::read()?.at(&target.path()).is_some() {
            if shows(target, &active) {
                return Ok(());
            }
            detach(target).await?;
        }
        let node = active.node();
        let from = open(&node, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        let from = from.map_err(|err| StageError::Device(err.into()))?;
        if number_of(&from) != Some(active.number) {
            let odd = std::io::Error::other(format!("{} is not the device that it was", node.display()));
            return Err(StageError::Device(odd));
        }
        attach_clone(from, target.clone(), Shape::File, writing).await
    }

    /// Takes the volume away from a pod's path, and removes what it was mounted on.
    pub async fn unpublish(&self, target: &Target) -> Result<(), StageError> {
        if !matches!(target.purpose(), Purpose::Publish | Purpose::PublishBlock) {
            return Err(purpose(target, "publishing"));
        }
        detach(target).await?;
        let target = target.clone();
        Ok(tokio::task::spawn_blocking(move || attach::remove(&target)).await??)
    }

    /// Grows the filesystem that is mounted at `target` to the size of its LV; gives that size.
    pub async fn grow_filesystem(
        &self,
        name: &VolumeName,
        target: &Target,
        access: Access,
    ) -> Result<Bytes, StageError> {
        if access == Access::Block {
            let active = self.active(name).await?.ok_or_else(|| not_staged(name, target))?;
            self.refreshed(name, &active).await?;
            return dm::size(&active).map(Bytes).ok_or_else(|| not_staged(name, target));
        }
        let table = Table::read()?;
        let mount = table.at(&target.path()).ok_or_else(|| not_staged(name, target))?;
        let active = self.is_of(name, mount, target)?;
        self.refreshed(name, &active).await?;
        let (found, size) = head(&active).await?;
        let found = found.ok_or_else(|| not_staged(name, target))?;
        // Not only where the filesystem looks smaller: of a mounted one the head on the disk may be an old one.
        filesystem::grow(found.kind, &active.node(), &target.path(), &*self.run).await?;
        Ok(size)
    }

    /// What LVM wrote last of this LV is what the kernel has.
    async fn refreshed(&self, name: &VolumeName, active: &Active) -> Result<(), StageError> {
        let Some((group, _)) = self.with_volume(name) else { return Ok(()) };
        match group.lvs.iter().find(|lv| lv.uuid == active.lv) {
            Some(lv) => self.refresh(&group, lv, active).await,
            None => Ok(()),
        }
    }

    /// The LV behind a mount, which must be that of the volume as far as it is known.
    fn is_of(&self, name: &VolumeName, mount: &Mount, target: &Target) -> Result<Active, StageError> {
        let other = || StageError::OtherMount { name: name.to_string(), path: target.path().display().to_string() };
        let active = dm::behind(mount.number).ok_or_else(other)?;
        match self.with_volume(name) {
            Some((_, lv)) if lv != active.lv => Err(other()),
            // After a restart it is not known yet, and kubelet's path names the volume.
            Some(_) | None => Ok(active),
        }
    }
}

fn is_refused(writing: Writing) -> bool {
    match writing {
        Writing::Refused => true,
        Writing::Allowed => false,
    }
}

fn not_staged(name: &VolumeName, at: &Target) -> StageError {
    StageError::NotStaged { name: name.to_string(), path: at.path().display().to_string() }
}

fn open_failed(target: &Target, source: std::io::Error) -> StageError {
    AttachError::Open { path: target.path().display().to_string(), source }.into()
}

async fn attach_clone(from: OwnedFd, target: Target, shape: Shape, writing: Writing) -> Result<(), StageError> {
    tokio::task::spawn_blocking(move || {
        let mount = attach::clone(&from).map_err(|err| AttachError::Mount {
            what: "the volume".to_owned(),
            path: target.path().display().to_string(),
            complaint: std::io::Error::from(err).to_string(),
        })?;
        attach::attach(&mount, &target, shape)?;
        match writing {
            Writing::Allowed => Ok(()),
            Writing::Refused => attach::make_read_only(&target),
        }
    })
    .await?
    .map_err(StageError::from)
}

fn number_of(place: &OwnedFd) -> Option<(u32, u32)> {
    let stat = fstat(place).ok()?;
    let device = FileType::from_raw_mode(stat.st_mode).is_block_device();
    device.then(|| (major(stat.st_rdev), minor(stat.st_rdev)))
}

fn shows(target: &Target, active: &Active) -> bool {
    target.open().is_ok_and(|place| number_of(&place) == Some(active.number))
}
