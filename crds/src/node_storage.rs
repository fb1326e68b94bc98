//! `NodeStorage`: one node's disks and the volume groups made of them. The spec
//! says what is wanted there, the status what is there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    condition,
    device_class::DeviceClassSpec,
    logical_volume::LogicalVolume,
    storage_cluster::{Discovery, ExecutionPolicy, Safety},
};

/// One node's disks, and the volume groups made of them. Made and kept by the operator.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "stowage.dev",
    version = "v1alpha1",
    kind = "NodeStorage",
    plural = "nodestorages",
    category = "stowage",
    shortname = "nst",
    status = "NodeStorageStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = ("self.metadata.name == self.spec.nodeName", "a NodeStorage has the name of its node"),
    validation = ("self.spec.nodeName == oldSelf.spec.nodeName", "nodeName can not be changed"),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Devices", "type": "string", "jsonPath": ".status.summary.devices", "description": "claimed/all"}"#,
    printcolumn = r#"{"name": "Groups", "type": "string", "jsonPath": ".status.summary.groups"}"#,
    printcolumn = r#"{"name": "Lost", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"NodeLost\")].status"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message"}"#,
    printcolumn = r#"{"name": "Loss", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"NodeLost\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorageSpec {
    /// The node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// UID of the Node object that this speaks of.
    #[serde(default, rename = "nodeUID")]
    #[schemars(length(max = 64))]
    pub node_uid: String,
    /// UID of the namespace `kube-system`: the identity of this cluster on disks.
    #[serde(default, rename = "clusterID")]
    #[schemars(length(max = 64))]
    pub cluster_id: String,
    /// The classes assigned to this node.
    #[serde(default)]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub classes: Vec<AssignedClass>,
    /// What the StorageCluster allows.
    #[serde(default)]
    pub rails: Rails,
    /// Identities of devices that were seen by this node and by no other: only these are written to for the first time,
    /// where the identity is global (a WWN, EUI-64 or NGUID).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 256)))]
    pub cleared: Vec<String>,
    /// Moved by the operator when it needs to know what this node sees now: a complete look made for this generation of
    /// the spec (`status.observedGeneration`) was made later than this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look_after: Option<Time>,
    /// A person's word on single devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["id".into()]))]
    pub devices: Vec<DeviceOverride>,
    /// Volumes that were given up while the node was lost; a machine that returns removes exactly these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub released: Vec<Released>,
    /// A person's word on a node that is held back as lost (condition LossHeld) or whose disks are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostWord>,
}

impl NodeStorage {
    /// Whether the operator has given `volume` up for good, so that its finalizer may be removed without the node:
    /// either its node is lost and the grace is over, or the node came back and its look has not found the group that
    /// the volume was in.
    pub fn has_given_up(&self, volume: &LogicalVolume) -> bool {
        let Some(status) = &self.status else { return false };
        if volume.spec.node_name != self.spec.node_name {
            return false;
        }
        let released = |kind| {
            condition::find(&status.conditions, kind)
                .is_some_and(|found| found.status == "True" && found.reason == condition::reason::RELEASED)
        };
        let lost = || released(condition::kind::NODE_LOST);
        let disks_missing = || {
            let group = volume.status.as_ref().and_then(|status| status.volume_group.as_ref());
            released(condition::kind::DISKS_MISSING)
                && self.was_looked_at()
                && group.is_some_and(|group| status.volume_groups.iter().all(|found| found.uuid != group.uuid))
        };
        lost() || disks_missing()
    }

    /// Whether the status speaks of the Node object that the spec names: before, it may be that of a machine
    /// which had the same name.
    pub fn was_looked_at(&self) -> bool {
        let agent = self.status.as_ref().and_then(|status| status.agent.as_ref());
        agent.is_some_and(|agent| !agent.node_uid.is_empty() && agent.node_uid == self.spec.node_uid)
    }
}

/// A DeviceClass as it is assigned to this node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AssignedClass {
    /// Name of the DeviceClass.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The generation that was copied.
    pub generation: i64,
    /// Its spec at that generation, see `kubectl explain dcl.spec`.
    #[schemars(schema_with = "copied")]
    pub spec: DeviceClassSpec,
}

/// The API server has checked the DeviceClass itself; here it is a copy.
fn copied(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// What the StorageCluster allows on this node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Rails {
    /// What Stowage may do, see `kubectl explain storagecluster.spec.executionPolicy`.
    #[serde(default)]
    pub execution_policy: ExecutionPolicy,
    #[serde(default)]
    pub discovery: Discovery,
    #[serde(default)]
    pub safety: Safety,
}

/// A person's word on one device.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceOverride {
    /// As in `status.devices[].id`.
    #[schemars(length(min = 1, max = 256))]
    pub id: String,
    /// `Exclude`: it is not taken, whatever a class says.
    pub action: DeviceAction,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceAction {
    Exclude,
}

/// A volume that was given up while its node was lost.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// Name of the LogicalVolume.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UUID of its LV.
    #[serde(rename = "lvUUID")]
    #[schemars(length(min = 38, max = 38))]
    pub lv_uuid: String,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostWord {
    /// The node will not come back with its data: go on.
    Confirm,
    /// The node will come back: delete nothing.
    Keep,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorageStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The program that looks after this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// Two words for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
    /// Every block device of the node, and why it is used or not.
    #[serde(default)]
    #[schemars(length(max = 512))]
    pub devices: Vec<Device>,
    /// The volume groups of the node's classes.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub volume_groups: Vec<VolumeGroupStatus>,
    /// What is to be done next on devices and groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The last steps that were carried out, the newest last.
    #[serde(default)]
    #[schemars(length(max = 20))]
    pub operations: Vec<Operation>,
    /// LVs with the tags of this cluster that no LogicalVolume stands for.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub orphans: Vec<Orphan>,
    /// By the operator: how far the loss of this node was dealt with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Merged by `type`: the operator owns NodeLost, LossHeld, DisksMissing and AgentReady, the node all others.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// Version of Stowage.
    pub version: String,
    pub lvm_version: String,
    pub kernel: String,
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// `spec.nodeUID` that the last complete look answered.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Time of the last look that found a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<Time>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Devices in groups of classes / all devices.
    pub devices: String,
    /// `class=size`, comma separated.
    pub groups: String,
}

/// One block device.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// What it is called for life: its WWN, EUI-64, NGUID or serial, else the path it is attached by.
    pub id: String,
    /// A stable path below /dev/disk where there is one.
    pub path: String,
    /// Bytes.
    pub size: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// disk, part, mpath, raid0, crypt, loop, rom, lvm, …, as lsblk says.
    #[serde(rename = "type")]
    pub type_: String,
    pub rotational: bool,
    pub state: DeviceState,
    /// The class whose group it is in or is wanted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Why it is in this state, and what a person can do. Empty for a device in use by a class.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub reasons: Vec<DeviceReason>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// In the group of a class.
    InUse,
    /// Blank, and to be taken.
    Wanted,
    /// Blank, and not asked for by any class.
    Available,
    /// Not used: see the reasons.
    Refused,
}

/// Why a device is not used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceReason {
    /// One of [`device_reason`].
    pub code: String,
    /// What was found, and the next step for a person.
    pub message: String,
}

/// Whether a device's identity is unique in the world (a WWN, EUI-64, NGUID or NVMe UUID), so that two nodes that list
/// it see one and the same device. A serial number or a place is not.
pub fn identity_is_global(id: &str) -> bool {
    ["wwn-0x", "nvme-eui.", "nvme-uuid.", "dm-uuid-mpath-"].iter().any(|global| id.starts_with(global))
}

/// Stable codes of [`DeviceReason`].
pub mod device_reason {
    /// It carries a filesystem, RAID, LVM, LUKS or other signature.
    pub const HAS_SIGNATURE: &str = "HasSignature";
    /// It carries a partition table.
    pub const HAS_PARTITIONS: &str = "HasPartitions";
    /// It is mounted, or swap, or part of another block device.
    pub const IN_USE: &str = "InUse";
    /// Something this node runs from is on it.
    pub const SYSTEM_DEVICE: &str = "SystemDevice";
    /// It belongs to a volume group that is not one of this cluster's classes.
    pub const FOREIGN_GROUP: &str = "ForeignGroup";
    /// It could not be read.
    pub const UNREADABLE: &str = "Unreadable";
    /// There is no signature, but its first or last MiB is not zero.
    pub const NOT_ZERO: &str = "NotZero";
    /// It can not be written to.
    pub const READ_ONLY: &str = "ReadOnly";
    /// Its size is 0 (a reader without a medium).
    pub const NO_MEDIUM: &str = "NoMedium";
    /// Smaller than one extent and LVM's metadata.
    pub const TOO_SMALL: &str = "TooSmall";
    /// The StorageCluster's deny list names its transport or driver.
    pub const DENIED: &str = "Denied";
    /// Its kind of device is never taken, or only where a class lists the type.
    pub const TYPE_NOT_TAKEN: &str = "TypeNotTaken";
    /// A class's `exclude` describes it, or a person excluded it on this node.
    pub const EXCLUDED: &str = "Excluded";
    /// No class asks for it.
    pub const NOT_SELECTED: &str = "NotSelected";
    /// Two classes of equal priority ask for it.
    pub const CONFLICT: &str = "Conflict";
    /// The operator has not yet made sure that no other node sees it.
    pub const NOT_CLEARED: &str = "NotCleared";
    /// Another device on this node has the same identity.
    pub const DUPLICATE_ID: &str = "DuplicateID";
    /// It has neither a number of its own nor a stable path: after a reboot it could be taken for another.
    pub const NO_IDENTITY: &str = "NoIdentity";
    /// The class has its number of devices, or its group is `Static`.
    pub const NOT_NEEDED: &str = "NotNeeded";
    /// There are fewer devices than the class's `min`.
    pub const TOO_FEW: &str = "TooFew";
    /// It is made of another device that is listed itself.
    pub const COVERED: &str = "Covered";
}

/// The volume group of a class.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupStatus {
    pub class: String,
    pub name: String,
    pub uuid: String,
    /// Bytes of all extents.
    pub size: i64,
    /// Bytes of one extent.
    pub extent_size: i64,
    /// Bytes used by anything that is not a LogicalVolume of this cluster.
    pub unmanaged: i64,
    /// Bytes kept free, from the class's `reserve`.
    pub reserve: i64,
    /// Bytes of the largest volume that the empty group can hold, before the reserve.
    pub max_volume_size: i64,
    /// Number of devices.
    pub devices: i64,
    pub state: GroupState,
    /// What is wrong, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// All devices are there.
    Ready,
    /// A device is missing: volumes on the others go on, no new ones are made.
    Partial,
    /// There are two groups of this name or for this class, or its devices are shared: nothing is done to it.
    Conflict,
}

/// What is to be done next on devices and groups.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlanStatus {
    /// Names exactly these steps on exactly these devices.
    pub hash: String,
    #[schemars(length(max = 64))]
    pub steps: Vec<PlanStep>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// CreateGroup, ExtendGroup, …
    pub op: String,
    /// The device or group.
    pub target: String,
    /// Whether it waits for a person.
    pub guarded: bool,
    /// The step in a sentence.
    pub why: String,
}

/// A step that was carried out.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// The step in a sentence.
    pub step: String,
    pub at: Time,
    /// Absent when it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An LV with the tags of this cluster that no LogicalVolume stands for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Orphan {
    /// The name that its tag says.
    pub name: String,
    pub class: String,
    #[serde(rename = "lvUUID")]
    pub lv_uuid: String,
    /// Bytes.
    pub size: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Whether it was ever staged.
    pub used: bool,
}

/// How far the loss of a node was dealt with.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// When the Node object was found gone.
    pub since: Time,
    /// UID of the Node object that is gone.
    #[serde(rename = "nodeUID")]
    pub node_uid: String,
    /// Claims that were deleted, `<namespace>/<name>`; the first hundred.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub released_claims: Vec<String>,
    /// How many claims were deleted.
    #[serde(default)]
    pub released: i64,
    /// Claims that wait for a person, and why; the first hundred.
    #[serde(default)]
    #[schemars(length(max = 100))]
    pub kept_claims: Vec<String>,
    /// When this NodeStorage will be deleted; absent while volumes are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forget_at: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logical_volume::{LogicalVolumeSpec, LogicalVolumeStatus, VolumeGroupRef};

    fn volume(group: Option<&str>) -> LogicalVolume {
        let mut volume = LogicalVolume::new(
            "pvc-1",
            LogicalVolumeSpec {
                node_name: "n1".into(),
                device_class: "fast".into(),
                size: 1,
                access: Default::default(),
                claim: None,
                adopt: None,
                discard: false,
            },
        );
        volume.status = Some(LogicalVolumeStatus {
            volume_group: group.map(|uuid| VolumeGroupRef { name: "g".into(), uuid: uuid.into() }),
            ..Default::default()
        });
        volume
    }

    fn node(kind: &str, status: &str, reason: &str, groups: &[&str]) -> NodeStorage {
        let mut node = NodeStorage::new(
            "n1",
            NodeStorageSpec { node_name: "n1".into(), node_uid: "new".into(), ..Default::default() },
        );
        node.status = Some(NodeStorageStatus {
            agent: Some(Agent { node_uid: "new".into(), ..Default::default() }),
            conditions: vec![condition::new(kind, status, reason, "", None)],
            volume_groups: groups
                .iter()
                .map(|uuid| VolumeGroupStatus {
                    class: "fast".into(),
                    name: "g".into(),
                    uuid: (*uuid).into(),
                    size: 1,
                    extent_size: 1,
                    unmanaged: 0,
                    reserve: 0,
                    max_volume_size: 1,
                    devices: 1,
                    state: GroupState::Ready,
                    last_error: None,
                })
                .collect(),
            ..Default::default()
        });
        node
    }

    /// A7: what a machine of the same name holds says nothing of the old one's volumes until it was looked at.
    #[test]
    fn a_volume_is_given_up_only_by_a_released_condition() {
        use condition::{kind::*, reason::*};
        let here = &volume(Some("a"));
        assert!(!node(NODE_LOST, "True", GRACE, &[]).has_given_up(here));
        assert!(!node(NODE_LOST, "False", RELEASED, &[]).has_given_up(here));
        assert!(node(NODE_LOST, "True", RELEASED, &[]).has_given_up(here));
        assert!(node(NODE_LOST, "True", RELEASED, &[]).has_given_up(&volume(None)));
        assert!(node(DISKS_MISSING, "True", RELEASED, &["b"]).has_given_up(here));
        assert!(!node(DISKS_MISSING, "True", RELEASED, &["a"]).has_given_up(here));
        assert!(!node(DISKS_MISSING, "True", RELEASED, &[]).has_given_up(&volume(None)));
        let mut unseen = node(DISKS_MISSING, "True", RELEASED, &["b"]);
        unseen.spec.node_uid = "newer".into();
        assert!(!unseen.has_given_up(here));
    }
}
