//! The node that lvmd looks after: what its calls share, and the groups it has seen.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crds::{names::tag, storage_cluster::Discovery};

use crate::{
    begun::Begun,
    disk::look::Eyes,
    lvm::{
        metadata,
        report::{Group, ReportError, groups},
    },
    mount::stats::Asked,
    name::{ClassName, ClusterId, LvmUuid, VolumeName},
    run::Run,
    seen::{LookError, Looker, Seen},
    turn::Turns,
};

pub struct Node<R> {
    pub run: Arc<R>,
    pub looker: Looker,
    pub turns: Turns,
    pub asked: Asked,
    /// The folder in which LVM keeps its copies of metadata.
    lvm: PathBuf,
    known: Mutex<Known>,
    /// The deny list of the last plan.
    deny: Mutex<Vec<String>>,
}

/// The groups that were seen last.
#[derive(Default)]
struct Known {
    groups: Vec<Entry>,
    /// Whether the kernel's events are heard: without them nothing that was seen is trusted later.
    hears: bool,
    /// How often others' changes were heard of.
    changes: u64,
}

struct Entry {
    group: Group,
    /// Nothing was heard of a change since, but lvmd's own.
    trusted: bool,
    /// The last look found two devices that show the same PV of it. Only another whole look can tell that this ended:
    /// LVM is told of one of the two, and knows nothing of the other.
    doubled: bool,
}

impl Known {
    fn put(&mut self, group: Group, changes: u64, doubled: bool) {
        let trusted = self.hears && self.changes == changes && group.missing == 0 && !doubled;
        self.groups.retain(|known| known.group.uuid != group.uuid);
        self.groups.push(Entry { group, trusted, doubled });
    }

    /// As [`Known::put`], of a group that was asked for by itself.
    fn update(&mut self, group: Group, changes: u64) {
        let doubled = self.groups.iter().any(|known| known.group.uuid == group.uuid && known.doubled);
        self.put(group, changes, doubled);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("this node has {count} volume groups of DeviceClass {class}: nothing is done to any of them")]
    Several { class: ClassName, count: usize },
    #[error("two devices show the same PV of volume group {0}: nothing is done to it")]
    Doubled(String),
}

impl<R: Run> Node<R> {
    pub fn new(run: Arc<R>, kubelet_root: PathBuf, state: &Path) -> Self {
        let looker =
            Looker { eyes: Eyes::default(), kubelet_root, begun: Begun::below(state), exclusive: Arc::default() };
        Self {
            run,
            looker,
            turns: Turns::default(),
            asked: Asked::default(),
            lvm: state.join("lvm"),
            known: Mutex::default(),
            deny: Mutex::new(Discovery::default().deny),
        }
    }

    /// From now on somebody calls [`Node::changed`] when others may have changed something.
    pub fn hears(&self) {
        self.known().hears = true;
    }

    /// Others may have changed groups or devices: what was seen is not trusted any more.
    pub fn changed(&self) {
        let mut known = self.known();
        known.changes += 1;
        known.groups.iter_mut().for_each(|entry| entry.trusted = false);
    }

    /// Looks at everything, and remembers the groups.
    pub async fn look(&self, deny: &[String]) -> Result<Seen, LookError> {
        deny.clone_into(&mut self.deny.lock().unwrap_or_else(PoisonError::into_inner));
        let changes = self.known().changes;
        let seen = self.looker.look(deny, &self.run).await?;
        let mut known = self.known();
        known.groups.clear();
        for group in &seen.groups {
            known.put(group.clone(), changes, seen.is_doubled(group));
        }
        drop(known);
        Ok(seen)
    }

    /// What the last plan was told to leave alone.
    pub fn deny(&self) -> Vec<String> {
        self.deny.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The group of a class, from memory where that is trusted. For decisions that LVM itself checks once more.
    pub async fn group(&self, cluster: &ClusterId, class: &ClassName) -> Result<Option<Group>, GroupError> {
        {
            let known = self.known();
            let mut ours = known.groups.iter().filter(|entry| is_ours(&entry.group, cluster, class));
            if let (Some(entry), None) = (ours.next(), ours.next())
                && entry.trusted
            {
                return Ok(Some(entry.group.clone()));
            }
        }
        self.asked_group(cluster, class).await
    }

    /// The group of a class as it is now: one LVM process where its devices are known, a whole look otherwise. `None`:
    /// no device of this node shows such a group.
    pub async fn asked_group(&self, cluster: &ClusterId, class: &ClassName) -> Result<Option<Group>, GroupError> {
        let known = {
            let known = self.known();
            let ours = known.groups.iter().filter(|entry| is_ours(&entry.group, cluster, class));
            ours.map(|entry| (entry.group.clone(), entry.doubled)).collect::<Vec<_>>()
        };
        if let [(known, false)] = known.as_slice()
            && let Ok(Some(now)) = self.again(known).await
            && now.missing == 0
            && is_ours(&now, cluster, class)
        {
            return Ok(Some(now));
        }
        let seen = self.look(&self.deny()).await?;
        let mut found = seen.groups.iter().filter(|group| is_ours(group, cluster, class));
        match (found.next(), found.count()) {
            (None, _) => Ok(None),
            (Some(group), 0) if seen.is_doubled(group) => Err(GroupError::Doubled(group.name.to_string())),
            (Some(group), 0) => Ok(Some(group.clone())),
            (Some(_), more) => Err(GroupError::Several { class: class.clone(), count: more + 1 }),
        }
    }

    /// A group that was seen before, as LVM says it is now. `None`: its devices are not what they were.
    pub async fn again(&self, before: &Group) -> Result<Option<Group>, ReportError> {
        let changes = self.known().changes;
        let nodes = before.nodes().collect::<Vec<_>>();
        let now = groups(&*self.run, &nodes).await?.groups.into_iter().find(|group| group.uuid == before.uuid);
        if let Some(now) = &now {
            self.known().update(now.clone(), changes);
        }
        Ok(now)
    }

    /// A group after an own command: from LVM's copy of what it committed, else by asking.
    pub async fn after(&self, before: &Group) -> Result<Option<Group>, ReportError> {
        let changes = self.known().changes;
        match metadata::read(&self.lvm, before) {
            Some(now) => {
                let mut known = self.known();
                // Where others changed it too, the next one to need it asks.
                let trusted = known.groups.iter().any(|entry| entry.group.uuid == now.uuid && entry.trusted);
                let changes = if trusted { changes } else { changes.wrapping_sub(1) };
                known.update(now.clone(), changes);
                Ok(Some(now))
            }
            None => self.again(before).await,
        }
    }

    /// Remembers a group that was just reported.
    pub fn remember(&self, group: &Group) {
        let mut known = self.known();
        let changes = known.changes;
        known.update(group.clone(), changes);
    }

    /// The group with the LV that carries a volume's name, from what was seen last: for calls that say no more of a
    /// volume than its name. Names of volumes are never used again.
    pub fn with_volume(&self, name: &VolumeName) -> Option<(Group, LvmUuid)> {
        self.known().groups.iter().find_map(|Entry { group, .. }| {
            let lv = group.lvs.iter().find(|lv| lv.has_tag(tag::VOLUME, name.as_str()))?;
            Some((group.clone(), lv.uuid.clone()))
        })
    }

    pub fn with_uuid(&self, uuid: &LvmUuid) -> Option<Group> {
        self.known().groups.iter().map(|entry| &entry.group).find(|group| group.uuid == *uuid).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_ours(group: &Group, cluster: &ClusterId, class: &ClassName) -> bool {
    group.has_tag(tag::CLUSTER, cluster.as_str()) && group.has_tag(tag::CLASS, class.as_str())
}
