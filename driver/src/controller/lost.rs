//! Volumes whose node is gone: who says so, and how they are given up.

use crds::{
    condition::{self, kind},
    logical_volume::LogicalVolume,
    names,
    node_storage::{GroupState, NodeStorage, Released},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::Mutex;

use super::{
    api::{self, ApiError},
    entries,
    events::Events,
    metrics::Metrics,
    volumes::Volumes,
    world::World,
};

/// `maxItems` of `NodeStorage.spec.released`.
const MOST_RELEASED: usize = 1024;

/// `maxItems` of `NodeStorage.status.orphans`: a list as long as this may lack some.
const MOST_ORPHANS: usize = 1024;

/// How often a list is written that somebody else may be writing to.
const ATTEMPTS: usize = 4;

/// Who can remove the LV of a volume.
#[derive(Debug)]
pub enum Holder {
    /// Its node, now or when it is back.
    Here,
    /// Nobody knows yet; the operator's word on it.
    Undecided(String),
    /// Nobody: it is given up. Without a NodeStorage there is no list to put it on.
    Gone(Option<Box<NodeStorage>>),
}

#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(
        "the list of volumes given up on node {node} is full ({MOST_RELEASED}): delete its NodeStorage if the machine \
         will never return"
    )]
    ListFull { node: String },
}

pub struct Lost {
    storages: Api<NodeStorage>,
    nodes: Api<Node>,
    volumes: Volumes,
    world: World,
    events: Events,
    metrics: Metrics,
    /// One list is written at a time: each write is of the whole.
    turn: Mutex<()>,
}

impl Lost {
    pub fn new(client: &Client, volumes: Volumes, world: World, events: Events, metrics: Metrics) -> Self {
        let (storages, nodes) = (Api::all(client.clone()), Api::all(client.clone()));
        Self { storages, nodes, volumes, world, events, metrics, turn: Mutex::new(()) }
    }

    /// Whether the node of `volume` is there. That it is not, is never believed of a copy.
    pub async fn holder(&self, volume: &LogicalVolume) -> Result<Holder, ApiError> {
        let node = &volume.spec.node_name;
        if self.world.storage(node).is_some_and(|known| matches!(judge(&known, volume), Verdict::Here)) {
            return Ok(Holder::Here);
        }
        let Some(storage) = self.read(node).await? else {
            let node = api::answer("reading Node", node, self.nodes.get_opt(node)).await?;
            return Ok(if node.is_some() { Holder::Here } else { Holder::Gone(None) });
        };
        Ok(match judge(&storage, volume) {
            Verdict::Here => Holder::Here,
            Verdict::Undecided(message) => Holder::Undecided(message),
            Verdict::GivenUp => Holder::Gone(Some(Box::new(storage))),
        })
    }

    /// Gives `volume` up: a machine that returns will remove its LV, and nobody waits for that.
    pub async fn release(&self, volume: &LogicalVolume, storage: Option<&NodeStorage>) -> Result<(), ReleaseError> {
        let name = volume.name_any();
        // What the node said last may not have come by.
        let Some(volume) = self.volumes.read(&name).await?.filter(|now| now.uid() == volume.uid()) else {
            return Ok(());
        };
        let lv_uuid = volume.status.as_ref().and_then(|status| status.lv_uuid.clone());
        // Without both there is nothing that names the LV safely: if it returns, it is an orphan.
        if let (Some(storage), Some(lv_uuid)) = (storage, lv_uuid) {
            self.record(storage, &Released { name: name.clone(), lv_uuid }).await?;
        }
        self.volumes.discard(&volume).await?;
        self.volumes.let_go(&volume).await?;
        self.metrics.released.inc();
        let node = &volume.spec.node_name;
        tracing::info!(volume = name, node, "gave up a volume of a lost node");
        if let Some(storage) = storage {
            let note = format!("volume {name} was given up: its claim is gone, and so is the node");
            self.events.normal(&storage.object_ref(&()), "VolumeReleased", note).await;
        }
        Ok(())
    }

    async fn read(&self, node: &str) -> Result<Option<NodeStorage>, ApiError> {
        api::answer("reading NodeStorage", node, self.storages.get_opt(node)).await
    }

    /// Takes off the list of `node` what is done there.
    pub async fn tidy(&self, node: &str) -> Result<(), ApiError> {
        let _turn = self.turn.lock().await;
        let Some(now) = self.read(node).await? else { return Ok(()) };
        let done = done(&now);
        if done.is_empty() {
            return Ok(());
        }
        tracing::info!(node, volumes = ?done, "the node that returned has removed what was given up");
        let left: Vec<_> = now.spec.released.iter().filter(|entry| !done.contains(entry)).cloned().collect();
        self.write(&now, &left).await
    }

    async fn record(&self, storage: &NodeStorage, entry: &Released) -> Result<(), ReleaseError> {
        let node = &storage.spec.node_name;
        let _turn = self.turn.lock().await;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let Some(now) = self.read(node).await? else { return Ok(()) };
            let Some(list) = with(&now.spec.released, entry) else { return Ok(()) };
            if list.len() > MOST_RELEASED {
                return Err(ReleaseError::ListFull { node: node.clone() });
            }
            match self.write(&now, &list).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn write(&self, storage: &NodeStorage, list: &[Released]) -> Result<(), ApiError> {
        let name = storage.name_any();
        let said = json!({
            "apiVersion": NodeStorage::api_version(&()),
            "kind": NodeStorage::kind(&()),
            // Of this object and this version: an apply makes what is not there, and what is left out is given up.
            "metadata": { "name": name, "uid": storage.uid(), "resourceVersion": storage.resource_version() },
            "spec": { "released": list },
        });
        let params = PatchParams::apply(names::manager::DRIVER).force();
        let patch = Patch::Apply(&said);
        let apply = self.storages.patch(&name, &params, &patch);
        api::answer("listing volumes that are given up in NodeStorage", &name, apply).await.map(|_| ())
    }
}

/// The entries that a machine which returned has nothing left for: it has looked with this very list before it, every
/// group that it should have is there, and no LV of that UUID is. Until then an entry waits for its disks.
pub fn done(storage: &NodeStorage) -> Vec<&Released> {
    let Some(status) = &storage.status else { return Vec::new() };
    let looked = storage.was_looked_at() && status.observed_generation == storage.metadata.generation;
    let whole = storage.spec.classes.iter().all(|class| {
        let mut groups = status.volume_groups.iter().filter(|group| group.class == class.name);
        groups.next().is_some_and(|group| group.state == GroupState::Ready)
    });
    // Without a class nobody says which groups there should be.
    let whole = whole && !storage.spec.classes.is_empty();
    if entries::is_lost(storage) || !looked || !whole || status.orphans.len() >= MOST_ORPHANS {
        return Vec::new();
    }
    let there = |entry: &Released| status.orphans.iter().any(|orphan| orphan.lv_uuid == entry.lv_uuid);
    storage.spec.released.iter().filter(|entry| !there(entry)).collect()
}

enum Verdict {
    Here,
    Undecided(String),
    GivenUp,
}

fn judge(storage: &NodeStorage, volume: &LogicalVolume) -> Verdict {
    if storage.has_given_up(volume) {
        Verdict::GivenUp
    } else if entries::is_lost(storage) {
        let conditions = storage.status.as_ref().map_or(&[][..], |status| &status.conditions);
        Verdict::Undecided(condition::find(conditions, kind::NODE_LOST).map(|c| c.message.clone()).unwrap_or_default())
    } else {
        Verdict::Here
    }
}

/// The list with `entry`; `None` when it is there already.
fn with(list: &[Released], entry: &Released) -> Option<Vec<Released>> {
    if list.contains(entry) {
        return None;
    }
    let others = list.iter().filter(|other| other.name != entry.name).cloned();
    Some(others.chain([entry.clone()]).collect())
}

#[cfg(test)]
mod tests {
    use crds::node_storage::{Agent, AssignedClass, NodeStorageSpec, NodeStorageStatus, Orphan, VolumeGroupStatus};

    use super::*;

    fn released(name: &str, lv_uuid: &str) -> Released {
        Released { name: name.into(), lv_uuid: lv_uuid.into() }
    }

    /// C6: an entry stays until its disks were seen without the LV.
    #[test]
    fn an_entry_is_done_when_the_whole_node_was_seen_without_it() {
        let group = VolumeGroupStatus {
            class: "fast".into(),
            name: "g".into(),
            uuid: "u".into(),
            size: 1,
            extent_size: 1,
            unmanaged: 0,
            reserve: 0,
            max_volume_size: 1,
            devices: 1,
            state: GroupState::Ready,
            last_error: None,
        };
        let orphan =
            Orphan { name: "b".into(), class: "fast".into(), lv_uuid: "2".into(), size: 1, claim: None, used: true };
        let mut back = NodeStorage::new(
            "n1",
            NodeStorageSpec {
                node_name: "n1".into(),
                node_uid: "new".into(),
                classes: vec![AssignedClass { name: "fast".into(), ..AssignedClass::default() }],
                released: vec![released("a", "1"), released("b", "2")],
                ..NodeStorageSpec::default()
            },
        );
        back.metadata.generation = Some(3);
        back.status = Some(NodeStorageStatus {
            observed_generation: Some(3),
            agent: Some(Agent { node_uid: "new".into(), ..Agent::default() }),
            volume_groups: vec![group],
            orphans: vec![orphan],
            ..NodeStorageStatus::default()
        });
        assert_eq!(done(&back), [&released("a", "1")]);
        for unsure in [
            (|n| n.metadata.generation = Some(4)) as fn(&mut NodeStorage),
            |n| n.spec.node_uid = "newer".into(),
            |n| n.status.as_mut().unwrap().volume_groups.clear(),
            |n| n.status.as_mut().unwrap().volume_groups[0].state = GroupState::Partial,
            |n| n.status = None,
        ] {
            let mut node = back.clone();
            unsure(&mut node);
            assert_eq!(done(&node), Vec::<&Released>::new());
        }
    }

    #[test]
    fn the_list_names_a_volume_once() {
        let list = [released("a", "1"), released("b", "2")];
        assert_eq!(with(&list, &released("a", "1")), None);
        assert_eq!(with(&list, &released("c", "3")).unwrap().len(), 3);
        assert_eq!(with(&list, &released("a", "9")), Some(vec![released("b", "2"), released("a", "9")]));
    }
}
