//! `LogicalVolume`: one LV on one node. One per CSI volume.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device_class::FilesystemType;

/// One LVM logical volume on one node. Deleting the object never deletes data, unless `discard` is set.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "stowage.dev",
    version = "v1alpha1",
    kind = "LogicalVolume",
    plural = "logicalvolumes",
    category = "stowage",
    shortname = "lvol",
    status = "LogicalVolumeStatus",
    derive = "PartialEq",
    selectable = ".spec.nodeName",
    selectable = ".spec.deviceClass",
    validation = (
        "self.spec.size >= oldSelf.spec.size || (has(self.status) && has(self.status.size) && self.spec.size >= self.status.size)",
        "a volume does not shrink: size can only grow, or fall back to what the LV has"
    ),
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".spec.nodeName"}"#,
    printcolumn = r#"{"name": "Class", "type": "string", "jsonPath": ".spec.deviceClass"}"#,
    printcolumn = r#"{"name": "Size", "type": "string", "jsonPath": ".status.size"}"#,
    printcolumn = r#"{"name": "State", "type": "string", "jsonPath": ".status.state"}"#,
    printcolumn = r#"{"name": "Namespace", "type": "string", "jsonPath": ".spec.claim.namespace"}"#,
    printcolumn = r#"{"name": "Claim", "type": "string", "jsonPath": ".spec.claim.name"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = ("self.nodeName == oldSelf.nodeName", "nodeName can not be changed: an LV does not move"),
    validation = ("self.deviceClass == oldSelf.deviceClass", "deviceClass can not be changed: an LV does not move"),
    validation = ("self.access == oldSelf.access", "access can not be changed"),
    validation = ("has(self.claim) == has(oldSelf.claim) && (!has(self.claim) || self.claim == oldSelf.claim)", "claim can not be changed"),
    validation = ("has(self.adopt) == has(oldSelf.adopt) && (!has(self.adopt) || self.adopt == oldSelf.adopt)", "adopt can not be changed: make a new object"),
    validation = ("!(has(oldSelf.discard) && oldSelf.discard) || (has(self.discard) && self.discard)", "discard can not be taken back: the data may be gone already")
)]
pub struct LogicalVolumeSpec {
    /// The node that the LV is on.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// The DeviceClass whose group it is in.
    #[schemars(length(min = 1, max = 63))]
    pub device_class: String,
    /// Bytes asked for. LVM makes it a multiple of the extent, see `status.size`.
    #[schemars(range(min = 1))]
    pub size: i64,
    /// How pods use it.
    #[serde(default)]
    pub access: Access,
    /// The claim that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// An LV that exists already and is to stand behind this object, by its UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopt: Option<Adopt>,
    /// That the data may go. Without it a deleted object keeps its LV and its finalizer.
    #[serde(default)]
    pub discard: bool,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Filesystem,
    Block,
}

impl Access {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        }
    }
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct Adopt {
    /// As `lvs -o lv_uuid` shows it.
    #[serde(rename = "lvUUID")]
    #[schemars(length(min = 38, max = 38))]
    pub lv_uuid: String,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LogicalVolumeStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group: Option<VolumeGroupRef>,
    #[serde(default, rename = "lvUUID", skip_serializing_if = "Option::is_none")]
    pub lv_uuid: Option<String>,
    /// Bytes that LVM made, a multiple of the extent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    /// The filesystem on it, once it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not made yet.
    Pending,
    /// There, with at least the size asked for.
    Ready,
    /// There, smaller than asked for.
    Growing,
    /// Being removed.
    Deleting,
    /// The last attempt failed; see the condition Ready.
    Failed,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct VolumeGroupRef {
    pub name: String,
    pub uuid: String,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct FilesystemRef {
    #[serde(rename = "type")]
    pub type_: FilesystemType,
    pub uuid: String,
}
