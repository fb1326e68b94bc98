//! One look at the node: its devices, what is on them, and its volume groups. Writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt, stream};
use tokio::sync::Mutex;

use crate::{
    begun::Begun,
    disk::{
        Claim, Content, Disk,
        list::{ListError, describe, list},
        look::Eyes,
        select::device_type,
        system,
    },
    lvm::report::{Group, ReportError, groups},
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
    /// Looks at everything but the content of devices that `deny` names.
    pub async fn look(&self, deny: &[String], run: &Arc<impl Run>) -> Result<Seen, LookError> {
        let disks = self.disks(run, |disk| is_worth_a_look(disk, deny)).await?;
        self.with_groups(disks, run).await
    }

    /// Looks at these devices once more, right before something is written to them.
    pub async fn look_at(&self, ids: &BTreeSet<&str>, run: &Arc<impl Run>) -> Result<Seen, LookError> {
        let disks = self.disks(run, |disk| ids.contains(disk.id.as_str())).await?;
        self.with_groups(disks, run).await
    }

    /// All devices, and the content of those that are `wanted`.
    async fn disks(&self, run: &Arc<impl Run>, wanted: impl Fn(&Disk) -> bool) -> Result<Vec<Disk>, LookError> {
        let system = system::read(&Table::read()?, &self.kubelet_root).map_err(LookError::System)?;
        let disks = describe(&list(run).await?, &system);
        // Not held while LVM reports: each device answers in its time, LVM may not.
        let _exclusive = self.exclusive.lock().await;
        // Eight at a time: enough to hide a slow one, few enough for a controller with a hundred disks.
        let looks = disks.into_iter().map(|mut disk| {
            // One that udev has not finished with stays unknown.
            let wanted = wanted(&disk) && !matches!(disk.content(), Content::Unknown(_));
            async move {
                if wanted {
                    self.eyes.look(&mut disk, run).await;
                }
                disk
            }
        });
        Ok(stream::iter(looks).buffered(8).collect().await)
    }

    async fn with_groups(&self, mut disks: Vec<Disk>, run: &Arc<impl Run>) -> Result<Seen, LookError> {
        let mut labels = BTreeMap::<LvmUuid, Vec<PathBuf>>::new();
        for disk in &disks {
            if let Content::Claimed(Claim::PhysicalVolume(uuid)) = disk.content() {
                labels.entry(uuid.clone()).or_default().push(disk.node.clone());
            }
        }
        let nodes = labels.values().flatten().map(PathBuf::as_path).collect::<Vec<&Path>>();
        let found = groups(run, &nodes).await?;
        let begun = self.begun.read();
        for disk in &mut disks {
            if begun.get(&disk.id).is_some_and(|size| *size == disk.size) {
                disk.take_up(&found.orphans);
            }
        }
        let doubled = labels.into_iter().filter(|(_, nodes)| nodes.len() > 1).map(|(uuid, _)| uuid).collect();
        Ok(Seen { disks, groups: found.groups, doubled })
    }
}

/// What a deny list names is not opened at all, nor is what can not be a PV: a CD-ROM, a floppy (whose drive takes
/// seconds to say that it is empty), the boot areas of an eMMC.
fn is_worth_a_look(disk: &Disk, deny: &[String]) -> bool {
    disk.size.0 > 0 && device_type(&disk.kind).is_some() && disk.odd().is_none() && disk.denied(deny).is_none()
}
