//! One look at the node: its devices, what is on them, and its volume groups. Writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt, stream};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    begun::Begun,
    disk::{
        Claim, Content, Disk,
        list::{ListError, describe, list},
        look::{Depth, Eyes},
        select::device_type,
        system,
    },
    lvm::report::{Group, Groups, ReportError, groups},
    mount::table::{Table, TableError},
    name::LvmUuid,
    run::Run,
};

/// Everything that one look found.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub disks: Vec<Disk>,
    pub groups: Vec<Group>,
    /// PVs of which two devices show the same UUID: copies of one disk, or two paths to it.
    pub doubled: BTreeSet<LvmUuid>,
}

impl Seen {
    /// The group that a device is a PV of.
    pub fn group_of(&self, disk: &Disk) -> Option<&Group> {
        let Content::Claimed(Claim::PhysicalVolume(uuid)) = disk.content() else { return None };
        self.groups.iter().find(|group| group.pvs.iter().any(|pv| pv.uuid == *uuid))
    }

    pub fn is_doubled(&self, group: &Group) -> bool {
        group.pvs.iter().any(|pv| self.doubled.contains(&pv.uuid))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("finding the devices that this node runs from")]
    System(#[source] std::io::Error),
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// What a look needs besides the node itself.
#[derive(Clone, Debug)]
pub struct Looker {
    pub eyes: Eyes,
    pub kubelet_root: PathBuf,
    pub begun: Begun,
    /// Whoever opens devices exclusively: a look, or a command that writes to one for the first time. Two of them at
    /// once would each take a disk for in use because of the other.
    pub exclusive: Arc<Mutex<()>>,
}

impl Looker {
    /// Looks at everything. Of devices that `deny` names only LVM's label is read: to be denied bars a device from being
    /// taken, and a group that lies on some is used all the same.
    pub async fn look(&self, deny: &[String], run: &Arc<impl Run>) -> Result<Seen, LookError> {
        let depth = |disk: &Disk| match (may_be_opened(disk), disk.denied(deny)) {
            (false, _) => Depth::None,
            (true, Some(_)) => Depth::Label,
            (true, None) => Depth::All,
        };
        let disks = {
            // Not held while LVM reports: each device answers in its time, LVM may not.
            let exclusive = self.exclusive.lock().await;
            self.disks(run, depth, &exclusive).await?
        };
        let (mut disks, found) = with_groups(disks, run).await?;
        if !self.begun.read().is_empty() {
            let exclusive = self.exclusive.lock().await;
            self.take_up(&mut disks, &found.orphans, &exclusive).await;
        }
        Ok(seen(disks, found.groups))
    }

    /// Looks at these devices once more, right before something is written to them.
    pub async fn look_at(
        &self,
        ids: &BTreeSet<&str>,
        run: &Arc<impl Run>,
        exclusive: &MutexGuard<'_, ()>,
    ) -> Result<Seen, LookError> {
        let asked = |disk: &Disk| may_be_opened(disk) && ids.contains(disk.id.as_str());
        let depth = |disk: &Disk| if asked(disk) { Depth::All } else { Depth::None };
        let disks = self.disks(run, depth, exclusive).await?;
        let (mut disks, found) = with_groups(disks, run).await?;
        self.take_up(&mut disks, &found.orphans, exclusive).await;
        Ok(seen(disks, found.groups))
    }

    /// All devices, each looked at as deep as `depth` says.
    async fn disks(
        &self,
        run: &Arc<impl Run>,
        depth: impl Fn(&Disk) -> Depth,
        _exclusive: &MutexGuard<'_, ()>,
    ) -> Result<Vec<Disk>, LookError> {
        let system = system::read(&Table::read()?, &self.kubelet_root).map_err(LookError::System)?;
        let disks = describe(&list(run).await?, &system, &self.kubelet_root);
        // Eight at a time: enough to hide a slow one, few enough for a controller with a hundred disks.
        let looks = disks.into_iter().map(|mut disk| {
            // One that udev has not finished with stays unknown.
            let unsettled = matches!(disk.content(), Content::Unknown(_));
            let depth = if unsettled { Depth::None } else { depth(&disk) };
            async move {
                self.eyes.look(&mut disk, depth, run).await;
                disk
            }
        });
        Ok(stream::iter(looks).buffered(8).collect().await)
    }

    /// What an own step left half-made counts as blank, if it is still nobody's.
    async fn take_up(&self, disks: &mut [Disk], orphans: &[LvmUuid], _exclusive: &MutexGuard<'_, ()>) {
        let begun = self.begun.read();
        for disk in disks {
            if begun.get(&disk.id).is_some_and(|size| *size == disk.size) {
                disk.take_up(orphans, self.eyes.is_free(disk).await);
            }
        }
    }
}

/// The volume groups on these devices.
async fn with_groups(disks: Vec<Disk>, run: &Arc<impl Run>) -> Result<(Vec<Disk>, Groups), LookError> {
    let pvs = disks.iter().filter(|disk| matches!(disk.content(), Content::Claimed(Claim::PhysicalVolume(_))));
    let nodes = pvs.map(|disk| disk.node.as_path()).collect::<Vec<&Path>>();
    let found = groups(run, &nodes).await?;
    Ok((disks, found))
}

fn seen(disks: Vec<Disk>, groups: Vec<Group>) -> Seen {
    let mut labels = BTreeMap::<&LvmUuid, usize>::new();
    for disk in &disks {
        if let Content::Claimed(Claim::PhysicalVolume(uuid)) = disk.content() {
            *labels.entry(uuid).or_default() += 1;
        }
    }
    let doubled = labels.into_iter().filter(|(_, times)| *times > 1).map(|(uuid, _)| uuid.clone()).collect();
    Seen { disks, groups, doubled }
}

/// What can not be a PV of this node's is not opened at all: a CD-ROM, a floppy (whose drive takes seconds to say that
/// it is empty), the boot areas of an eMMC, what a pod has in its volume.
fn may_be_opened(disk: &Disk) -> bool {
    disk.size.0 > 0 && device_type(&disk.kind).is_some() && disk.odd().is_none() && disk.inner.is_none()
}
