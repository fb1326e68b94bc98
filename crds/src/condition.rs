//! Conditions: their types and reasons, and the one way to put one in its place.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Types of conditions. `READY`, `PROGRESSING` and `DEGRADED` stand on every kind.
pub mod kind {
    pub const READY: &str = "Ready";
    pub const PROGRESSING: &str = "Progressing";
    pub const DEGRADED: &str = "Degraded";

    /// NodeStorage, by the operator: the Node object is gone.
    pub const NODE_LOST: &str = "NodeLost";
    /// NodeStorage, by the operator: too many nodes are lost at once.
    pub const LOSS_HELD: &str = "LossHeld";
    /// NodeStorage, by the operator: a node came back with other disks.
    pub const DISKS_MISSING: &str = "DisksMissing";
    /// NodeStorage, by the operator: the agent's pod is Ready.
    pub const AGENT_READY: &str = "AgentReady";

    /// NodeStorage, by the node: a tool or kernel module is missing.
    pub const PREREQUISITES: &str = "PrerequisitesMet";
    /// NodeStorage, by the node: an LVM command has not ended in its time.
    pub const LVM_BLOCKED: &str = "LvmBlocked";

    /// DeviceClass: each of its `include` terms describes a device somewhere.
    pub const TERMS_MATCHED: &str = "TermsMatched";

    /// Something still stands in the way of the deletion.
    pub const DELETION_BLOCKED: &str = "DeletionBlocked";
}

/// What a program may match on. Messages are for people and may change.
pub mod reason {
    pub const AS_WANTED: &str = "AsWanted";
    pub const WORKING: &str = "Working";
    pub const PLAN_ONLY: &str = "PlanOnly";
    pub const APPROVAL_NEEDED: &str = "ApprovalNeeded";
    pub const PAUSED: &str = "Paused";
    pub const LOOK_FAILED: &str = "LookFailed";
    pub const STEP_FAILED: &str = "StepFailed";
    pub const TOOLS_MISSING: &str = "ToolsMissing";
    pub const TOOLS_FOUND: &str = "ToolsFound";
    pub const LVM_SLOW: &str = "LvmSlow";
    pub const NO_GROUP: &str = "NoGroup";
    pub const GROUP_MISSING: &str = "GroupMissing";
    pub const DEVICES_REFUSED: &str = "DevicesRefused";
    pub const AGENT_STARTING: &str = "AgentStarting";
    pub const POD_READY: &str = "PodReady";
    pub const POD_NOT_READY: &str = "PodNotReady";
    pub const NODE_PRESENT: &str = "NodePresent";
    pub const NODE_DELETED: &str = "NodeDeleted";
    pub const GRACE: &str = "Grace";
    pub const RELEASED: &str = "Released";
    /// DisksMissing: the node came back, and a look has not found the groups that its volumes are in.
    pub const GROUPS_MISSING: &str = "GroupsMissing";
    pub const NO_DEVICE_MATCHES: &str = "NoDeviceMatches";
    pub const NO_NODE_MATCHES: &str = "NoNodeMatches";
    pub const AGENTS_MISSING: &str = "AgentsMissing";
    pub const CONTROLLER_NOT_READY: &str = "ControllerNotReady";
    pub const APPLY_FAILED: &str = "ApplyFailed";
    pub const SAME_GROUP: &str = "SameVolumeGroup";
    pub const TOO_MANY_LOST: &str = "TooManyLost";
    pub const NOT_HELD: &str = "NotHeld";
    pub const VOLUMES_LEFT: &str = "VolumesLeft";
    pub const ROLLING_OUT: &str = "RollingOut";
    pub const NAME_TAKEN: &str = "NameTaken";
    pub const VOLUME_READY: &str = "VolumeReady";
    /// Of a LogicalVolume: its group has not the bytes that are asked for.
    pub const NO_SPACE: &str = "NoSpace";
    pub const CREATE_FAILED: &str = "CreateFailed";
    pub const EXPAND_FAILED: &str = "ExpandFailed";
    pub const DELETE_FAILED: &str = "DeleteFailed";
    pub const DELETE_WITHOUT_DISCARD: &str = "DeleteWithoutDiscard";
}

/// `True` or `False`, as the API has it.
pub fn status(is: bool) -> &'static str {
    if is { "True" } else { "False" }
}

/// A condition that [`set`] will give its time.
pub fn new(
    kind: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    observed_generation: Option<i64>,
) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

/// Puts `new` in its place. The transition time moves only when the status does,
/// so that applying the same state twice sends the same bytes twice.
pub fn set(conditions: &mut Vec<Condition>, mut new: Condition, now: Timestamp) {
    let old = conditions.iter_mut().find(|c| c.type_ == new.type_);
    new.last_transition_time = match &old {
        Some(old) if old.status == new.status => old.last_transition_time.clone(),
        Some(_) | None => Time(whole_seconds(now)),
    };
    match old {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Whether the condition is there and `True`: an absent one is not.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == "True")
}

/// The API server keeps whole seconds; a fraction would come back as another value.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_when_the_status_does() {
        let mut all = Vec::new();
        set(&mut all, new(kind::READY, "False", reason::WORKING, "a", None), at(1));
        set(&mut all, new(kind::READY, "False", reason::STEP_FAILED, "b", None), at(2));
        assert_eq!((all.len(), all[0].last_transition_time.0, all[0].message.as_str()), (1, at(1), "b"));
        set(&mut all, new(kind::READY, "True", reason::AS_WANTED, "c", None), at(3));
        assert_eq!(all[0].last_transition_time.0, at(3));
    }

    #[test]
    fn an_absent_condition_is_not_true() {
        assert!(!is_true(&[], kind::NODE_LOST));
    }
}
