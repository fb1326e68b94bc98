//! What a NodeStorage's status says after a look: a pure function of what was said before and what was found.

use std::{collections::BTreeSet, fmt::Write};

use crds::{
    condition::{self, kind, reason},
    node_storage::{
        Agent, Device, DeviceState, GroupState, NodeStorageSpec, NodeStorageStatus, Operation, Orphan, PlanStatus,
        Summary, VolumeGroupStatus, device_reason,
    },
    quantity,
    storage_cluster::ExecutionPolicy,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lvmd::{proto::InfoResponse, report::Report};

/// The conditions that the node may write. All others in the status are the operator's.
const OURS: [&str; 5] = [kind::READY, kind::PROGRESSING, kind::DEGRADED, kind::PREREQUISITES, kind::LVM_BLOCKED];

/// `maxItems` of the lists: a status with one entry more is refused as a whole.
const MOST_DEVICES: usize = 512;
const MOST_REASONS: usize = 8;
const MOST_GROUPS: usize = 64;
const MOST_STEPS: usize = 64;
const MOST_OPERATIONS: usize = 20;
const MOST_ORPHANS: usize = 1024;

/// In characters. People read no more of a condition.
const LONGEST_MESSAGE: usize = 1024;

/// Everything that one look found.
pub struct Look<'a> {
    /// What lvmd was asked with.
    pub spec: &'a NodeStorageSpec,
    pub generation: Option<i64>,
    pub info: &'a InfoResponse,
    pub report: &'a Report,
    /// Names of this node's LogicalVolumes.
    pub volumes: &'a BTreeSet<String>,
    /// Why the plan that is there was tried and not done.
    pub step_failed: Option<&'a str>,
    /// The LVM command that does not end.
    pub blocked: Option<&'a str>,
}

/// A look that did not come about.
pub struct Failure<'a> {
    pub generation: Option<i64>,
    pub message: &'a str,
    /// Whether lvmd waits for an LVM command that does not end.
    pub blocked: bool,
}

/// What the node itself says in `status`: without the parts that are the operator's.
pub fn ours(status: &NodeStorageStatus) -> NodeStorageStatus {
    let mut ours = status.clone();
    ours.loss = None;
    ours.conditions.retain(|c| OURS.contains(&c.type_.as_str()));
    ours
}

/// The steps that are carried out without a person's word.
pub fn safe_steps(plan: Option<&PlanStatus>) -> usize {
    plan.map_or(0, |plan| plan.steps.iter().filter(|step| !step.guarded).count())
}

/// The status after a look. Equal to `old` when nothing changed, times included.
pub fn after_look(old: &NodeStorageStatus, look: &Look<'_>, now: Timestamp) -> NodeStorageStatus {
    let mut new = ours(old);
    new.observed_generation = look.generation;
    new.devices = look.report.devices.clone();
    new.devices.truncate(MOST_DEVICES);
    for device in &mut new.devices {
        device.reasons.truncate(MOST_REASONS);
    }
    new.volume_groups = look.report.volume_groups.clone();
    new.volume_groups.extend(away(old, look));
    new.volume_groups.truncate(MOST_GROUPS);
    new.plan = look.report.plan.clone();
    if let Some(plan) = &mut new.plan {
        plan.steps.truncate(MOST_STEPS);
    }
    new.orphans = orphans(look.report, look.volumes);
    new.summary = Some(summary(look.report));
    for condition in conditions(look) {
        condition::set(&mut new.conditions, condition, now);
    }
    new.agent = Some(Agent {
        version: look.info.version.clone(),
        lvm_version: look.info.lvm_version.clone(),
        kernel: look.info.kernel.clone(),
        boot_id: look.info.boot_id.clone(),
        node_uid: look.spec.node_uid.clone(),
        looked_at: old.agent.as_ref().and_then(|agent| agent.looked_at.clone()),
    });
    dated(new, old, now)
}

/// Whether a status is a word on the Node that the spec speaks of, not on an earlier one of its name.
pub fn is_of(status: &NodeStorageStatus, spec: &NodeStorageSpec) -> bool {
    status.agent.as_ref().is_some_and(|agent| agent.node_uid == spec.node_uid)
}

/// Groups that were there and are not to be seen. They stay listed, since an absence is not an end: no other group is
/// made for their classes.
fn away<'a>(old: &'a NodeStorageStatus, look: &'a Look<'_>) -> impl Iterator<Item = VolumeGroupStatus> + 'a {
    let seen = |uuid: &str| look.report.volume_groups.iter().any(|group| group.uuid == uuid);
    let away = old.volume_groups.iter().filter(move |group| is_of(old, look.spec) && !seen(&group.uuid));
    away.map(|group| VolumeGroupStatus {
        size: 0,
        unmanaged: 0,
        max_volume_size: 0,
        devices: 0,
        state: GroupState::Partial,
        last_error: Some("none of its devices is to be seen: bring them back".to_owned()),
        ..group.clone()
    })
}

/// The status after a look that failed: what was last known stays, and the conditions say that it may be old.
pub fn after_failure(old: &NodeStorageStatus, failure: &Failure<'_>, now: Timestamp) -> NodeStorageStatus {
    let mut new = ours(old);
    let message = format!(
        "the node's devices could not be looked at, what is shown may be old; it is tried again by itself: {}",
        failure.message
    );
    let ready_reason = if failure.blocked { reason::LVM_SLOW } else { reason::LOOK_FAILED };
    let mut all = vec![
        (kind::READY, "False", ready_reason, message.clone()),
        (kind::PROGRESSING, "False", ready_reason, message.clone()),
        (kind::DEGRADED, "True", ready_reason, message.clone()),
    ];
    if failure.blocked {
        all.push((kind::LVM_BLOCKED, "True", reason::LVM_SLOW, failure.message.to_owned()));
    }
    for (kind, status, reason, message) in all {
        let condition = condition::new(kind, status, reason, short(message), failure.generation);
        condition::set(&mut new.conditions, condition, now);
    }
    new
}

/// Adds steps to the list of the last ones. One that fails again in the same way is not added again: a step that is
/// tried each five minutes would write the status each five minutes.
pub fn note(status: &mut NodeStorageStatus, steps: &[String], error: Option<&str>, now: Timestamp) {
    for step in steps {
        let error = error.map(|error| short(error.to_owned()));
        let again = error.is_some()
            && status.operations.iter().rev().find(|o| o.step == *step).is_some_and(|o| o.error == error);
        if !again {
            let at = Time(condition::whole_seconds(now));
            status.operations.push(Operation { step: short(step.clone()), at, error });
        }
    }
    let surplus = status.operations.len().saturating_sub(MOST_OPERATIONS);
    status.operations.drain(..surplus);
}

/// `looked_at` moves only together with another change.
pub fn dated(mut new: NodeStorageStatus, old: &NodeStorageStatus, now: Timestamp) -> NodeStorageStatus {
    if new != ours(old)
        && let Some(agent) = &mut new.agent
    {
        agent.looked_at = Some(Time(condition::whole_seconds(now)));
    }
    new
}

fn orphans(report: &Report, volumes: &BTreeSet<String>) -> Vec<Orphan> {
    let orphan = |seen: &lvmd::report::SeenVolume| Orphan {
        name: seen.name.clone(),
        class: seen.class.clone(),
        lv_uuid: seen.lv_uuid.clone(),
        size: i64::try_from(seen.size).unwrap_or(i64::MAX),
        claim: seen.claim.clone(),
        used: seen.used,
    };
    let mut orphans: Vec<_> = report.volumes.iter().filter(|seen| !volumes.contains(&seen.name)).map(orphan).collect();
    orphans.sort_by(|a, b| (&a.name, &a.lv_uuid).cmp(&(&b.name, &b.lv_uuid)));
    orphans.truncate(MOST_ORPHANS);
    orphans
}

fn summary(report: &Report) -> Summary {
    let in_use = report.devices.iter().filter(|device| device.state == DeviceState::InUse).count();
    let group = |group: &VolumeGroupStatus| {
        format!("{}={}", group.class, quantity::for_people(u64::try_from(group.size).unwrap_or(0)))
    };
    Summary {
        devices: format!("{in_use}/{}", report.devices.len()),
        groups: report.volume_groups.iter().map(group).collect::<Vec<_>>().join(","),
    }
}

fn conditions(look: &Look<'_>) -> Vec<Condition> {
    let state = state(look);
    let (ready, degraded, progressing) = state.words();
    let missing = &look.info.missing;
    let prerequisites = if missing.is_empty() {
        ("True", reason::TOOLS_FOUND, "every tool and kernel module is there".to_owned())
    } else {
        ("False", reason::TOOLS_MISSING, missing.join("; "))
    };
    let blocked = match look.blocked.map(str::to_owned).or_else(|| overdue(look.info)) {
        None => ("False", reason::AS_WANTED, "LVM commands end in their time".to_owned()),
        Some(message) => ("True", reason::LVM_SLOW, message),
    };
    let of_state = |is: bool| (condition::status(is), state.reason, state.message.clone());
    [
        (kind::READY, of_state(ready)),
        (kind::PROGRESSING, of_state(progressing)),
        (kind::DEGRADED, of_state(degraded)),
        (kind::PREREQUISITES, prerequisites),
        (kind::LVM_BLOCKED, blocked),
    ]
    .map(|(kind, (status, reason, message))| condition::new(kind, status, reason, short(message), look.generation))
    .into()
}

/// What lvmd has been at for too long. Without for how long: each look would be news.
fn overdue(info: &InfoResponse) -> Option<String> {
    let what = info.overdue.split(" has run for ").next().filter(|what| !what.is_empty())?;
    Some(format!("{what} takes longer than it should: if it lasts, look for a failing device in the node's kernel log"))
}

/// The one thing that stands first on this node.
struct State {
    level: Level,
    reason: &'static str,
    message: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    AsWanted,
    Working,
    /// Waits for a person, nothing is broken.
    Held,
    Broken,
}

impl State {
    /// Ready, Degraded, Progressing.
    fn words(&self) -> (bool, bool, bool) {
        (self.level == Level::AsWanted, self.level == Level::Broken, self.level == Level::Working)
    }
}

fn state(look: &Look<'_>) -> State {
    let say = |level, reason, message: String| State { level, reason, message };
    if let Some(message) = look.blocked {
        return say(Level::Broken, reason::LVM_SLOW, format!("an LVM command does not end: {message}"));
    }
    if let Some(message) = look.step_failed {
        return say(Level::Broken, reason::STEP_FAILED, format!("{message}; it is tried again by itself"));
    }
    let bad: Vec<_> = look.report.volume_groups.iter().filter_map(bad_group).collect();
    if !bad.is_empty() {
        return say(Level::Broken, reason::GROUP_MISSING, bad.join("; "));
    }
    let plan = look.report.plan.as_ref();
    let safe = safe_steps(plan);
    if safe > 0 {
        let steps = steps(plan);
        return match look.spec.rails.execution_policy {
            ExecutionPolicy::Enforce => say(Level::Working, reason::WORKING, steps),
            ExecutionPolicy::Plan => say(
                Level::Held,
                reason::PLAN_ONLY,
                format!("waits for executionPolicy Enforce in the StorageCluster: {steps}"),
            ),
            ExecutionPolicy::Pause => {
                say(Level::Held, reason::PAUSED, format!("executionPolicy is Pause in the StorageCluster: {steps}"))
            }
        };
    }
    if let Some(plan) = plan.filter(|plan| !plan.steps.is_empty()) {
        let message = format!("waits for an approval of plan {}: {}", plan.hash, steps(Some(plan)));
        return say(Level::Held, reason::APPROVAL_NEEDED, message);
    }
    if !look.report.troubles.is_empty() {
        let has_group = |class: &str| look.report.volume_groups.iter().any(|group| group.class == class);
        let all_have = look.report.troubles.iter().all(|(class, _)| has_group(class));
        let reason = if all_have { reason::DEVICES_REFUSED } else { reason::NO_GROUP };
        let sentences: Vec<_> =
            look.report.troubles.iter().map(|(class, sentence)| format!("{class}: {sentence}")).collect();
        return say(Level::Broken, reason, sentences.join("; "));
    }
    let uncleared = uncleared(look.report);
    if !uncleared.is_empty() {
        let ids = uncleared.join(", ");
        return say(
            Level::Working,
            reason::WORKING,
            format!("waits for the operator, which makes sure that no other node sees the same devices: {ids}"),
        );
    }
    say(Level::AsWanted, reason::AS_WANTED, as_wanted(look.report))
}

fn uncleared(report: &Report) -> Vec<&str> {
    let waits = |device: &&Device| {
        device.state == DeviceState::Wanted && device.reasons.iter().any(|r| r.code == device_reason::NOT_CLEARED)
    };
    report.devices.iter().filter(waits).map(|device| device.id.as_str()).collect()
}

fn bad_group(group: &VolumeGroupStatus) -> Option<String> {
    let error = group.last_error.as_deref();
    match group.state {
        GroupState::Ready => None,
        GroupState::Partial => Some(format!(
            "volume group {} lacks a device: {}",
            group.name,
            error.unwrap_or("attach it again, or replace it")
        )),
        GroupState::Conflict => Some(format!(
            "nothing is done to volume group {}: {}",
            group.name,
            error.unwrap_or("another one has its name or class")
        )),
    }
}

fn steps(plan: Option<&PlanStatus>) -> String {
    let steps = plan.map_or(&[][..], |plan| &plan.steps);
    steps.iter().map(|step| step.why.as_str()).collect::<Vec<_>>().join("; ")
}

fn as_wanted(report: &Report) -> String {
    let mut message = match report.volume_groups.as_slice() {
        [] => "no volume group is wanted on the devices of this node".to_owned(),
        groups => {
            let Summary { devices, .. } = summary(report);
            let names: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
            format!("volume groups {} are ready, {devices} devices are in use", names.join(", "))
        }
    };
    for (class, term) in &report.unmatched {
        // Writing to a String does not fail.
        let _ = write!(message, "; no device here matches {term} of class {class}");
    }
    message
}

fn short(message: String) -> String {
    match message.char_indices().nth(LONGEST_MESSAGE) {
        None => message,
        Some((end, _)) => format!("{}…", &message[..end]),
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
