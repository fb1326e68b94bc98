//! The status of the StorageCluster.

use crds::{
    condition::{self, kind, reason},
    logical_volume::LogicalVolume,
    node_storage::NodeStorage,
    storage_cluster::{ExecutionPolicy, StorageCluster, StorageClusterStatus},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment},
    apimachinery::pkg::apis::meta::v1::Condition,
};

use super::{class::volumes_left, has, is_lost, names, size, totals};

/// What the status is made of.
pub struct Seen<'a> {
    pub storages: &'a [&'a NodeStorage],
    pub volumes: &'a [&'a LogicalVolume],
    pub agents: Option<&'a DaemonSet>,
    pub controller: Option<&'a Deployment>,
    /// What could not be applied, and why.
    pub failed: &'a [String],
    /// More than one StorageClass is the default.
    pub defaults: &'a [String],
}

pub fn status(cluster: &StorageCluster, seen: &Seen<'_>, version: &str, now: Timestamp) -> StorageClusterStatus {
    let before = cluster.status.clone().unwrap_or_default();
    let mut conditions = before.conditions;
    let deleting = cluster.metadata.deletion_timestamp.is_some();
    conditions.retain(|condition| condition.type_ != kind::DELETION_BLOCKED || deleting);
    let rollout = Rollout::new(seen);
    let wanted = [ready(cluster, seen, &rollout), progressing(&rollout), degraded(seen)];
    for mut condition in wanted.into_iter().chain(deleting.then(|| volumes_left(seen.volumes))) {
        condition.observed_generation = cluster.metadata.generation;
        condition::set(&mut conditions, condition, now);
    }
    let present =
        seen.storages.iter().filter(|storage| !is_lost(storage)).filter_map(|storage| storage.status.as_ref());
    StorageClusterStatus {
        observed_generation: cluster.metadata.generation,
        version: Some(version.to_owned()),
        nodes: totals(seen.storages.iter().copied(), |storage| has(storage, kind::READY)),
        capacity: Some(size(present.flat_map(|status| &status.volume_groups).map(|group| group.size).sum())),
        volumes: i64::try_from(seen.volumes.len()).unwrap_or(i64::MAX),
        conditions,
    }
}

/// How far the pods are.
struct Rollout {
    agents_wanted: i32,
    agents_new: i32,
    agents_ready: i32,
    /// What the DaemonSet's status says is about its present spec.
    agents_seen: bool,
    controller_ready: bool,
    controller_new: bool,
}

impl Rollout {
    fn new(seen: &Seen<'_>) -> Self {
        let agents = seen.agents.and_then(|set| set.status.as_ref());
        let controller = seen.controller.and_then(|deployment| deployment.status.as_ref());
        let generation = |meta: Option<&kube::api::ObjectMeta>| meta.and_then(|meta| meta.generation);
        Self {
            agents_wanted: agents.map_or(0, |status| status.desired_number_scheduled),
            agents_new: agents.and_then(|status| status.updated_number_scheduled).unwrap_or(0),
            agents_ready: agents.map_or(0, |status| status.number_ready),
            agents_seen: agents
                .is_some_and(|status| status.observed_generation == generation(seen.agents.map(|set| &set.metadata))),
            controller_ready: controller.and_then(|status| status.available_replicas).unwrap_or(0) > 0,
            controller_new: controller.is_some_and(|status| {
                status.observed_generation == generation(seen.controller.map(|deployment| &deployment.metadata))
                    && status.updated_replicas == status.replicas
            }),
        }
    }
}

fn is(kind: &str, yes: bool, reason: &str, message: impl Into<String>) -> Condition {
    condition::new(kind, condition::status(yes), reason, message, None)
}

/// A node that is away degrades, and does not take `Ready` away from the cluster.
fn ready(cluster: &StorageCluster, seen: &Seen<'_>, rollout: &Rollout) -> Condition {
    if let Some(first) = seen.failed.first() {
        return is(kind::READY, false, reason::APPLY_FAILED, first.clone());
    }
    if !rollout.controller_ready {
        let message = "no pod of stowage-controller is Ready: claims get no volumes; see the pods in stowage-system";
        return is(kind::READY, false, reason::CONTROLLER_NOT_READY, message);
    }
    if !rollout.agents_seen || rollout.agents_wanted > 0 && rollout.agents_ready == 0 {
        let message = "no pod of stowage-node is Ready yet: see the pods in stowage-system";
        return is(kind::READY, false, reason::AGENTS_MISSING, message);
    }
    let message = format!("{} of {} nodes run the agent", rollout.agents_ready, rollout.agents_wanted);
    match cluster.spec.execution_policy {
        ExecutionPolicy::Enforce => is(kind::READY, true, reason::AS_WANTED, message),
        ExecutionPolicy::Plan => is(
            kind::READY,
            true,
            reason::PLAN_ONLY,
            format!("{message}; executionPolicy is Plan: disks are left as they are"),
        ),
        ExecutionPolicy::Pause => is(
            kind::READY,
            true,
            reason::PAUSED,
            format!("{message}; executionPolicy is Pause: no volume is made, grown or deleted"),
        ),
    }
}

fn progressing(rollout: &Rollout) -> Condition {
    let rolled = rollout.agents_seen && rollout.agents_new == rollout.agents_wanted && rollout.controller_new;
    if rolled {
        return is(kind::PROGRESSING, false, reason::AS_WANTED, "everything runs as it is wanted");
    }
    let message = format!("{} of {} nodes have the agent as it is wanted", rollout.agents_new, rollout.agents_wanted);
    is(kind::PROGRESSING, true, reason::ROLLING_OUT, message)
}

/// The first thing that a person should see to.
fn degraded(seen: &Seen<'_>) -> Condition {
    let with = |test: fn(&NodeStorage) -> bool| -> Vec<&NodeStorage> {
        seen.storages.iter().copied().filter(|storage| test(storage)).collect()
    };
    let held = with(|storage| has(storage, kind::LOSS_HELD));
    if !held.is_empty() {
        return is(
            kind::DEGRADED,
            true,
            reason::TOO_MANY_LOST,
            format!(
                "too many nodes are gone at once: set spec.lost of the NodeStorages {} to Confirm or Keep",
                names(held)
            ),
        );
    }
    let lost = with(is_lost);
    if !lost.is_empty() {
        return is(kind::DEGRADED, true, reason::NODE_DELETED, format!("nodes are lost: {}", names(lost)));
    }
    let missing = with(|storage| has(storage, kind::DISKS_MISSING));
    if !missing.is_empty() {
        let message = format!("nodes came back without their disks: {}", names(missing));
        return is(kind::DEGRADED, true, reason::GROUPS_MISSING, message);
    }
    let away = with(|storage| !has(storage, kind::AGENT_READY));
    if !away.is_empty() {
        return is(
            kind::DEGRADED,
            true,
            reason::AGENTS_MISSING,
            format!("no Ready pod of stowage-node on {}", names(away)),
        );
    }
    if !seen.defaults.is_empty() {
        let message = format!(
            "more than one StorageClass is the default: {}; Kubernetes takes the newest, so leave one",
            seen.defaults.join(", ")
        );
        return is(kind::DEGRADED, true, reason::NAME_TAKEN, message);
    }
    is(kind::DEGRADED, false, reason::AS_WANTED, "nothing is wrong")
}
