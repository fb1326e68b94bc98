//! The node that lvmd looks after: what its calls share, and the groups it has seen.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use crds::{names::tag, storage_cluster::Discovery};

use crate::{
    begun::Begun,
    disk::look::Eyes,
    lvm::report::{Group, ReportError, groups},
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
    known: Mutex<Vec<Group>>,
    /// The deny list of the last plan.
    deny: Mutex<Vec<String>>,
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
    pub fn new(run: Arc<R>, kubelet_root: PathBuf, state: &std::path::Path) -> Self {
        Self {
            run,
            looker: Looker {
                eyes: Eyes::default(),
                kubelet_root,
                begun: Begun::below(state),
                exclusive: Arc::default(),
            },
            turns: Turns::default(),
            asked: Asked::default(),
            known: Mutex::default(),
            deny: Mutex::new(Discovery::default().deny),
        }
    }

    /// Looks at everything, and remembers the groups.
    pub async fn look(&self, deny: &[String]) -> Result<Seen, LookError> {
        deny.clone_into(&mut self.deny.lock().unwrap_or_else(PoisonError::into_inner));
        let seen = self.looker.look(deny, &self.run).await?;
        seen.groups.clone_into(&mut self.known());
        Ok(seen)
    }

    /// What the last plan was told to leave alone.
    pub fn deny(&self) -> Vec<String> {
        self.deny.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The group of a class as it is now: one LVM process where its devices are known, a whole look otherwise. `None`:
    /// no device of this node shows such a group.
    pub async fn group(&self, cluster: &ClusterId, class: &ClassName) -> Result<Option<Group>, GroupError> {
        let ours =
            |group: &Group| group.has_tag(tag::CLUSTER, cluster.as_str()) && group.has_tag(tag::CLASS, class.as_str());
        let known = self.known().iter().filter(|group| ours(group)).cloned().collect::<Vec<_>>();
        if let [known] = known.as_slice()
            && let Ok(Some(now)) = self.again(known).await
            && now.missing == 0
            && ours(&now)
        {
            return Ok(Some(now));
        }
        let seen = self.look(&self.deny()).await?;
        let mut found = seen.groups.iter().filter(|group| ours(group));
        match (found.next(), found.count()) {
            (None, _) => Ok(None),
            (Some(group), 0) if seen.is_doubled(group) => Err(GroupError::Doubled(group.name.to_string())),
            (Some(group), 0) => Ok(Some(group.clone())),
            (Some(_), more) => Err(GroupError::Several { class: class.clone(), count: more + 1 }),
        }
    }

    /// A group that was seen before, as it is now. `None`: its devices are not what they were.
    pub async fn again(&self, before: &Group) -> Result<Option<Group>, ReportError> {
        let nodes = before.nodes().collect::<Vec<_>>();
        let now = groups(&*self.run, &nodes).await?.groups.into_iter().find(|group| group.uuid == before.uuid);
        if let Some(now) = &now {
            let mut known = self.known();
            known.retain(|group| group.uuid != now.uuid);
            known.push(now.clone());
        }
        Ok(now)
    }

    /// The group with the LV that carries a volume's name, from what was seen last: for calls that say no more of a
    /// volume than its name. Names of volumes are never used again.
    pub fn with_volume(&self, name: &VolumeName) -> Option<(Group, LvmUuid)> {
        self.known().iter().find_map(|group| {
            let lv = group.lvs.iter().find(|lv| lv.has_tag(tag::VOLUME, name.as_str()))?;
            Some((group.clone(), lv.uuid.clone()))
        })
    }

    pub fn with_uuid(&self, uuid: &LvmUuid) -> Option<Group> {
        self.known().iter().find(|group| group.uuid == *uuid).cloned()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Vec<Group>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
