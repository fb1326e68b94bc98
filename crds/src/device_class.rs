//! `DeviceClass`: which devices, on which nodes, what is made of them, and the
//! StorageClasses that give it to users. One per tier.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::NodeSelector, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::storage_cluster::{DeletionPolicy, LossPolicy};

/// A tier of storage: the devices it is made of and what users get of it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "stowage.dev",
    version = "v1alpha1",
    kind = "DeviceClass",
    plural = "deviceclasses",
    category = "stowage",
    shortname = "dcl",
    status = "DeviceClassStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = ("self.metadata.name.size() <= 63", "the name of a DeviceClass is written on disks and in labels: use at most 63 characters"),
    validation = (
        "has(self.spec.volumeGroup) && has(self.spec.volumeGroup.name) ? (has(oldSelf.spec.volumeGroup) && has(oldSelf.spec.volumeGroup.name) && self.spec.volumeGroup.name == oldSelf.spec.volumeGroup.name) : !(has(oldSelf.spec.volumeGroup) && has(oldSelf.spec.volumeGroup.name))",
        "volumeGroup.name is written on disks and can not be changed: make a new DeviceClass"
    ),
    validation = (
        "has(self.spec.volumeGroup) && has(self.spec.volumeGroup.extentSize) ? (has(oldSelf.spec.volumeGroup) && has(oldSelf.spec.volumeGroup.extentSize) && self.spec.volumeGroup.extentSize == oldSelf.spec.volumeGroup.extentSize) : !(has(oldSelf.spec.volumeGroup) && has(oldSelf.spec.volumeGroup.extentSize))",
        "volumeGroup.extentSize is written on disks and can not be changed: make a new DeviceClass"
    ),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Nodes", "type": "string", "jsonPath": ".status.nodes.summary", "description": "ready/wanted"}"#,
    printcolumn = r#"{"name": "Devices", "type": "integer", "jsonPath": ".status.devices"}"#,
    printcolumn = r#"{"name": "Capacity", "type": "string", "jsonPath": ".status.capacity"}"#,
    printcolumn = r#"{"name": "Used", "type": "string", "jsonPath": ".status.used"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DeviceClassSpec {
    /// The nodes that have this class. Absent: every node that runs the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// The devices on each of these nodes.
    pub devices: Devices,
    /// The volume group that is made of them on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_group: Option<VolumeGroup>,
    /// Space of each group that is never given to volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Reserve>,
    /// The filesystem of volumes that are asked for with one.
    #[serde(default)]
    pub filesystem: Filesystem,
    /// StorageClasses that the operator makes for this class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["name".into()]),
        validation = ("self.filter(c, has(c.default) && c.default).size() <= 1", "at most one StorageClass can be the default: remove default from the others")
    )]
    pub storage_classes: Vec<StorageClassTemplate>,
    /// Of two classes that want one device, the one with the higher number gets it; with equal numbers neither does.
    #[serde(default)]
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,
    /// What is done for this class when a Node is deleted. The more careful of this and the StorageCluster's wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_loss: Option<NodeLossOverride>,
    /// What becomes of its volume groups when the class is deleted. `Retain` (default): they stay.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "!has(self.min) || !has(self.max) || self.min <= self.max",
    "min is greater than max: no number of devices satisfies both"
))]
pub struct Devices {
    /// A device that one of these terms describes is taken, if it is blank. At least one term.
    #[schemars(length(min = 1, max = 16))]
    pub include: Vec<DeviceTerm>,
    /// A device that one of these terms describes is never taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub exclude: Vec<DeviceTerm>,
    /// `Dynamic` (default): devices that appear later are added to the group. `Static`: the group keeps the devices it was made of.
    #[serde(default)]
    pub membership: Membership,
    /// No group is made of fewer devices. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub min: Option<i32>,
    /// A group gets no more devices than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub max: Option<i32>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Membership {
    Static,
    #[default]
    Dynamic,
}

/// A description of devices. All fields that are given must match; of a list, one entry must.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "has(self.paths) || has(self.ids) || has(self.serials) || has(self.models) || has(self.vendors) || has(self.transports) || has(self.types) || has(self.rotational) || has(self.minSize) || has(self.maxSize)",
    "an empty term would match every device: give at least one of paths, ids, serials, models, vendors, transports, types, rotational, minSize, maxSize"
))]
pub struct DeviceTerm {
    /// Globs of stable paths. Kernel names such as /dev/sda change between boots and are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(validation = (
        "self.all(p, p.startsWith('/dev/disk/by-id/') || p.startsWith('/dev/disk/by-path/') || p.startsWith('/dev/disk/by-partuuid/') || p.startsWith('/dev/disk/by-partlabel/') || p.startsWith('/dev/mapper/'))",
        "kernel names such as /dev/sda change between boots: use a path below /dev/disk/by-id, by-path, by-partuuid, by-partlabel or /dev/mapper"
    ))]
    pub paths: Option<Vec<String>>,
    /// Device identities as NodeStorage.status.devices[].id shows them; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256)))]
    pub ids: Option<Vec<String>>,
    /// Serial numbers; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256)))]
    pub serials: Option<Vec<String>>,
    /// Models; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256)))]
    pub models: Option<Vec<String>>,
    /// Vendors; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 256)))]
    pub vendors: Option<Vec<String>>,
    /// How the device is attached: nvme, sata, sas, virtio, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 32)))]
    pub transports: Option<Vec<String>>,
    /// Kinds of device. Absent: disk and mpath; the others only when they are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 6))]
    pub types: Option<Vec<DeviceType>>,
    /// Whether the kernel takes it for a spinning disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Smallest size, a quantity of bytes such as 100Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = ("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))", "minSize is a size such as 100Gi"))]
    pub min_size: Option<String>,
    /// Largest size, a quantity of bytes such as 4Ti.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = ("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))", "maxSize is a size such as 4Ti"))]
    pub max_size: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DeviceType {
    Disk,
    Mpath,
    Part,
    Crypt,
    Raid,
    Loop,
}

/// The volume group that is made on each node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroup {
    /// Its name. Default: `stowage-` and the name of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 100))]
    #[x_kube(validation = (
        "self.matches('^[A-Za-z0-9_+.][A-Za-z0-9_+.-]*$') && self != '.' && self != '..'",
        "a volume group's name has letters, digits and _ + . - only and does not begin with -"
    ))]
    pub name: Option<String>,
    /// Size of an extent, a power of two from 1Mi to 1Gi. Default 4Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^(1|2|4|8|16|32|64|128|256|512)Mi$|^1Gi$"), length(max = 8))]
    pub extent_size: Option<String>,
}

/// Space of each group that is never given to volumes.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.percent) != has(self.bytes)", "give the reserve either in percent or in bytes"))]
pub struct Reserve {
    /// Percent of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 90))]
    pub percent: Option<i32>,
    /// A size, for example 10Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = ("isQuantity(self) && !quantity(self).isLessThan(quantity('0'))", "bytes is a size such as 10Gi"))]
    pub bytes: Option<String>,
}

/// The filesystem of volumes that are asked for with one.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Filesystem {
    /// Default xfs.
    #[serde(default, rename = "type")]
    pub type_: FilesystemType,
    /// Mount options of the StorageClasses that give none themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 128)))]
    pub mount_options: Vec<String>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum FilesystemType {
    #[default]
    Xfs,
    Ext4,
}

impl FilesystemType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Xfs, Self::Ext4].into_iter().find(|fs| fs.as_str() == text)
    }

    /// The smallest volume that it is made on, in bytes: xfsprogs refuses less
    /// than 300 MiB (mkfs.xfs(8)), and an ext4 below 32 MiB is mostly metadata.
    pub const fn smallest(self) -> u64 {
        match self {
            Self::Xfs => 300 << 20,
            Self::Ext4 => 32 << 20,
        }
    }
}

/// A StorageClass that the operator makes.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorageClassTemplate {
    /// Name of the StorageClass.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Whether claims without a class get this one.
    #[serde(default)]
    pub default: bool,
    /// Default: the class's filesystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<FilesystemType>,
    /// What becomes of a volume whose claim is deleted. Default `Delete`.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// When a claim without a node gets its volume. Default `WaitForFirstConsumer`.
    #[serde(default)]
    pub volume_binding_mode: VolumeBindingMode,
    /// Whether claims may grow. Default true.
    #[serde(default = "yes")]
    pub allow_volume_expansion: bool,
    /// Default: the class's mount options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 128)))]
    pub mount_options: Option<Vec<String>>,
    /// Labels of the StorageClass.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the StorageClass.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    #[default]
    Delete,
    Retain,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeBindingMode {
    #[default]
    WaitForFirstConsumer,
    Immediate,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeLossOverride {
    /// `None` keeps every claim of this class.
    pub policy: LossPolicy,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceClassStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that this class is assigned to.
    #[serde(default)]
    pub nodes: crate::storage_cluster::NodeTotals,
    /// Devices in its groups.
    #[serde(default)]
    pub devices: i64,
    /// Size of its groups together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// Size of its volumes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

/// The name of the group that a class makes on every node.
pub fn group_name(class: &str, spec: &DeviceClassSpec) -> String {
    spec.volume_group.as_ref().and_then(|group| group.name.clone()).unwrap_or_else(|| format!("stowage-{class}"))
}
