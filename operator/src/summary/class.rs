//! The status of a DeviceClass.

use std::collections::BTreeMap;

use crds::{
    condition::{self, kind, reason},
    device_class::{DeviceClass, DeviceClassStatus},
    logical_volume::LogicalVolume,
    node_storage::{DeviceState, GroupState, NodeStorage, VolumeGroupStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::{has, is_lost, names, size, term, totals};

/// What was found out about a class elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Why StorageClasses of it are not made.
    pub taken: Vec<String>,
    /// Nodes on which another class names the same group, and its name.
    pub same_group: BTreeMap<String, String>,
    /// Nodes that have more classes than they can.
    pub too_many: Vec<String>,
}

/// How far a node is with a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Ready,
    /// The group is there, and something is wrong with it.
    Failing,
    /// The node is at work on it, or has not looked yet.
    Working,
    /// It would be at work, but its agent is not.
    Away,
    /// It has looked, and no device of it is described by the class.
    NoDevice,
}

fn group<'a>(class: &str, storage: &'a NodeStorage) -> Option<&'a VolumeGroupStatus> {
    storage.status.as_ref()?.volume_groups.iter().find(|group| group.class == class)
}

fn progress(class: &str, storage: &NodeStorage) -> Progress {
    let status = storage.status.as_ref();
    let looked = storage.metadata.generation.is_some()
        && status.and_then(|status| status.observed_generation) == storage.metadata.generation;
    let wanted = status.is_some_and(|status| {
        status
            .devices
            .iter()
            .any(|device| device.state == DeviceState::Wanted && device.class.as_deref() == Some(class))
    });
    match group(class, storage).map(|group| group.state) {
        Some(GroupState::Ready) => Progress::Ready,
        Some(GroupState::Partial | GroupState::Conflict) => Progress::Failing,
        None if looked && !wanted => Progress::NoDevice,
        None if has(storage, kind::AGENT_READY) => Progress::Working,
        None => Progress::Away,
    }
}

pub fn status(
    class: &DeviceClass,
    storages: &[&NodeStorage],
    volumes: &[&LogicalVolume],
    problems: &Problems,
    now: Timestamp,
) -> DeviceClassStatus {
    let name = class.name_any();
    let assigned: Vec<&NodeStorage> = storages
        .iter()
        .copied()
        .filter(|storage| storage.spec.classes.iter().any(|assigned| assigned.name == name))
        .collect();
    let groups: Vec<&VolumeGroupStatus> =
        assigned.iter().filter(|storage| !is_lost(storage)).filter_map(|storage| group(&name, storage)).collect();
    let used: i64 = volumes
        .iter()
        .filter(|volume| volume.spec.device_class == name)
        .map(|volume| volume.spec.size.max(volume.status.as_ref().and_then(|status| status.size).unwrap_or(0)))
        .sum();
    let blocked = deletion_blocked(class, volumes);
    let before = class.status.clone().unwrap_or_default();
    let mut conditions = before.conditions;
    conditions.retain(|condition| condition.type_ != kind::DELETION_BLOCKED || blocked.is_some());
    let wanted =
        [ready(&name, &assigned, problems), progressing(&name, &assigned), degraded(&name, &assigned, problems)];
    for mut condition in wanted.into_iter().chain([terms_matched(class, &assigned)]).chain(blocked) {
        condition.observed_generation = class.metadata.generation;
        condition::set(&mut conditions, condition, now);
    }
    DeviceClassStatus {
        observed_generation: class.metadata.generation,
        nodes: totals(assigned.iter().copied(), |storage| progress(&name, storage) == Progress::Ready),
        devices: groups.iter().map(|group| group.devices).sum(),
        capacity: Some(size(groups.iter().map(|group| group.size).sum())),
        used: Some(size(used)),
        conditions,
    }
}

fn by_progress<'a>(class: &str, assigned: &[&'a NodeStorage], wanted: Progress) -> Vec<&'a NodeStorage> {
    let present = assigned.iter().copied().filter(|storage| !is_lost(storage));
    present.filter(|storage| progress(class, storage) == wanted).collect()
}

fn is(kind: &str, yes: bool, reason: &str, message: impl Into<String>) -> Condition {
    condition::new(kind, condition::status(yes), reason, message, None)
}

fn ready(class: &str, assigned: &[&NodeStorage], problems: &Problems) -> Condition {
    let count = |progress| by_progress(class, assigned, progress).len();
    let (ready, working, none) = (count(Progress::Ready), count(Progress::Working), count(Progress::NoDevice));
    let all = assigned.iter().filter(|storage| !is_lost(storage)).count();
    if all == 0 && problems.same_group.is_empty() {
        return is(
            kind::READY,
            false,
            reason::NO_NODE_MATCHES,
            "no node that runs the agent has the labels of nodeSelector",
        );
    }
    if working > 0 {
        return is(
            kind::READY,
            false,
            reason::WORKING,
            format!("{ready} of {all} nodes have their group; {working} are at work"),
        );
    }
    if ready == 0 && none > 0 {
        return is(
            kind::READY,
            false,
            reason::NO_DEVICE_MATCHES,
            format!(
                "no device on {none} nodes is described by the class and free: see why in the NodeStorages' status.devices"
            ),
        );
    }
    if ready == 0 {
        return is(kind::READY, false, reason::NO_GROUP, "no node has its group: see the condition Degraded");
    }
    let rest = if none > 0 { format!("; on {none} no free device is described by the class") } else { String::new() };
    is(kind::READY, true, reason::AS_WANTED, format!("{ready} of {all} nodes have their group{rest}"))
}

fn progressing(class: &str, assigned: &[&NodeStorage]) -> Condition {
    match by_progress(class, assigned, Progress::Working) {
        working if working.is_empty() => is(kind::PROGRESSING, false, reason::AS_WANTED, "nothing is to be done"),
        working => is(kind::PROGRESSING, true, reason::WORKING, format!("at work on {}", names(working))),
    }
}

/// The first thing that a person should see to.
fn degraded(class: &str, assigned: &[&NodeStorage], problems: &Problems) -> Condition {
    if let Some((node, group)) = problems.same_group.iter().next() {
        return is(
            kind::DEGRADED,
            true,
            reason::SAME_GROUP,
            format!(
                "another DeviceClass names the volume group {group} too, on {} nodes ({node}): make a class with a group of its own, or give the classes different nodes",
                problems.same_group.len()
            ),
        );
    }
    if !problems.taken.is_empty() {
        return is(kind::DEGRADED, true, reason::NAME_TAKEN, problems.taken.join("; "));
    }
    let failing = by_progress(class, assigned, Progress::Failing);
    if let Some(first) = failing.first() {
        let why = group(class, first).and_then(|group| group.last_error.clone()).unwrap_or_default();
        return is(
            kind::DEGRADED,
            true,
            reason::GROUP_MISSING,
            format!("the group is not whole on {}: {why}", names(failing.iter().copied())),
        );
    }
    let away = by_progress(class, assigned, Progress::Away);
    if !away.is_empty() {
        return is(
            kind::DEGRADED,
            true,
            reason::AGENTS_MISSING,
            format!("no Ready pod of stowage-node on {}", names(away)),
        );
    }
    if let Some(node) = problems.too_many.first() {
        let message = format!("node {node} matches more classes than it can have (16): this one is left out there");
        return is(kind::DEGRADED, true, reason::NO_GROUP, message);
    }
    is(kind::DEGRADED, false, reason::AS_WANTED, "nothing is wrong")
}

/// B5: a term that describes nothing anywhere is more often a typing error than a wish.
fn terms_matched(class: &DeviceClass, assigned: &[&NodeStorage]) -> Condition {
    let devices: Vec<_> =
        assigned.iter().filter_map(|storage| storage.status.as_ref()).flat_map(|status| &status.devices).collect();
    if devices.is_empty() {
        let message = "no node of this class has listed its devices yet";
        return condition::new(kind::TERMS_MATCHED, "Unknown", reason::WORKING, message, None);
    }
    let empty: Vec<String> = (class.spec.devices.include.iter().enumerate())
        .filter(|(_, term)| devices.iter().all(|device| term::describes(term, device) == Some(false)))
        .map(|(index, term)| term::in_words(index, term))
        .collect();
    if empty.is_empty() {
        return is(kind::TERMS_MATCHED, true, reason::AS_WANTED, "each term describes a device");
    }
    is(
        kind::TERMS_MATCHED,
        false,
        reason::NO_DEVICE_MATCHES,
        format!("no device on any node is described by {}", empty.join(", ")),
    )
}

/// Only while the class is being deleted.
fn deletion_blocked(class: &DeviceClass, volumes: &[&LogicalVolume]) -> Option<Condition> {
    class.metadata.deletion_timestamp.as_ref()?;
    let name = class.name_any();
    let left: Vec<&LogicalVolume> = volumes.iter().copied().filter(|volume| volume.spec.device_class == name).collect();
    Some(volumes_left(&left))
}

/// What a deletion waits for.
pub fn volumes_left(left: &[&LogicalVolume]) -> Condition {
    if left.is_empty() {
        return is(kind::DELETION_BLOCKED, false, reason::AS_WANTED, "no volume is left");
    }
    let mut names: Vec<String> = left
        .iter()
        .map(|volume| match &volume.spec.claim {
            Some(claim) => format!("{} (claim {}/{})", volume.name_any(), claim.namespace, claim.name),
            None => volume.name_any(),
        })
        .collect();
    names.sort();
    let more = names.len().saturating_sub(10);
    names.truncate(10);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    is(
        kind::DELETION_BLOCKED,
        true,
        reason::VOLUMES_LEFT,
        format!("{} volumes are left: delete their claims, or move the data: {}{more}", left.len(), names.join(", ")),
    )
}
