//! What the pure functions are given, read from the objects. Pure itself.

use std::{collections::BTreeSet, sync::Arc};

use crds::{
    condition::{self, kind, reason},
    logical_volume::LogicalVolume,
    node_storage::{Device, NodeStorage, device_reason},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::{
    clear, lost,
    tell::{self, Told},
    verdict::{Facts, NodeNow},
};

/// Versions of one kind are numbers that grow (Kubernetes, "Resource versions").
pub fn version(storage: &NodeStorage) -> u64 {
    storage.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

pub fn facts_of(storage: &NodeStorage, node: NodeNow, volumes: &[Arc<LogicalVolume>], agent_ready: bool) -> Facts {
    let status = storage.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let missing = condition::find(conditions, kind::DISKS_MISSING).filter(|found| found.status == "True");
    Facts {
        node,
        spec_uid: storage.spec.node_uid.clone(),
        looked: storage.was_looked_at(),
        fresh: agent_ready && looks_succeed(conditions),
        look_after: storage.spec.look_after.as_ref().map(|time| time.0),
        answered: answers(storage),
        groups: status.into_iter().flat_map(|status| &status.volume_groups).map(|group| group.uuid.clone()).collect(),
        volumes: volumes.len(),
        volume_groups: volumes.iter().filter_map(|volume| lost::group_of(volume)).map(str::to_owned).collect(),
        disks_missing_since: missing.map(|condition| condition.last_transition_time.0),
        released: [kind::NODE_LOST, kind::DISKS_MISSING].iter().any(|kind| {
            condition::find(conditions, kind).is_some_and(|one| one.status == "True" && one.reason == reason::RELEASED)
        }),
        gave_up: false,
        held: condition::is_true(conditions, kind::LOSS_HELD),
        word: storage.spec.lost,
        at_stake: (volumes.is_empty()).then_some(0),
        loss: status.and_then(|status| status.loss.clone()),
    }
}

/// What the node says of itself is no more than what it saw last.
fn looks_succeed(conditions: &[Condition]) -> bool {
    condition::find(conditions, kind::READY)
        .is_some_and(|ready| ready.reason != reason::LOOK_FAILED && ready.reason != reason::LVM_SLOW)
}

/// The last look was made for this Node object and this generation of the spec.
fn answers(storage: &NodeStorage) -> bool {
    let status = storage.status.as_ref();
    storage.metadata.generation.is_some()
        && status.and_then(|status| status.observed_generation) == storage.metadata.generation
        && storage.was_looked_at()
}

/// What of the status is the operator's.
pub fn told(storage: &NodeStorage) -> Told {
    let status = storage.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    Told {
        conditions: conditions.iter().filter(|one| tell::KINDS.contains(&one.type_.as_str())).cloned().collect(),
        loss: status.and_then(|status| status.loss.clone()),
    }
}

pub fn groups_of(storage: Option<&Arc<NodeStorage>>) -> BTreeSet<(String, String)> {
    let status = storage.and_then(|storage| storage.status.as_ref());
    status.into_iter().flat_map(|status| &status.volume_groups).map(|g| (g.class.clone(), g.name.clone())).collect()
}

pub fn classes_of(volumes: &[Arc<LogicalVolume>]) -> BTreeSet<String> {
    volumes.iter().map(|volume| volume.spec.device_class.clone()).collect()
}

pub fn published(storage: &NodeStorage) -> clear::Published {
    let status = storage.status.as_ref();
    let devices = || status.into_iter().flat_map(|status| &status.devices);
    let waits = |device: &&Device| device.reasons.iter().any(|reason| reason.code == device_reason::NOT_CLEARED);
    clear::Published {
        node: storage.name_any(),
        agent_ready: status.is_some_and(|status| condition::is_true(&status.conditions, kind::AGENT_READY)),
        devices: devices().map(|device| device.id.clone()).collect(),
        waiting: devices().filter(waits).map(|device| device.id.clone()).collect(),
        cleared: storage.spec.cleared.clone(),
        look_after: storage.spec.look_after.as_ref().map(|time| time.0),
        answered: answers(storage),
    }
}
