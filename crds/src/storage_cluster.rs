//! `StorageCluster`: how storage runs in this cluster. One, named `default`.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{LocalObjectReference, ResourceRequirements, Toleration},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the node-local storage of this cluster runs: the driver, the rails that
/// every DeviceClass stays within, and what is done about lost nodes.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "stowage.dev",
    version = "v1alpha1",
    kind = "StorageCluster",
    plural = "storageclusters",
    category = "stowage",
    shortname = "stc",
    status = "StorageClusterStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = ("self.metadata.name == 'default'", "a cluster has one StorageCluster, and its name is default: rename this one to default"),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Policy", "type": "string", "jsonPath": ".spec.executionPolicy"}"#,
    printcolumn = r#"{"name": "Nodes", "type": "string", "jsonPath": ".status.nodes.summary", "description": "ready/wanted"}"#,
    printcolumn = r#"{"name": "Capacity", "type": "string", "jsonPath": ".status.capacity"}"#,
    printcolumn = r#"{"name": "Volumes", "type": "integer", "jsonPath": ".status.volumes"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct StorageClusterSpec {
    /// What Stowage may do. `Enforce` (default): everything that is asked for. `Plan`: no step on
    /// devices or groups is carried out and nothing is deleted for lost nodes; plans are shown, and volumes work as ever.
    /// `Pause`: volumes are also not created, grown or deleted; mounts go on.
    #[serde(default)]
    pub execution_policy: ExecutionPolicy,
    /// The CSI driver.
    #[serde(default)]
    pub driver: Driver,
    /// The pod that runs on every node, DaemonSet `stowage-node`.
    #[serde(default)]
    pub node_agent: NodeAgent,
    /// The CSI controller, Deployment `stowage-controller`.
    #[serde(default)]
    pub controller: Controller,
    /// Images to run instead of the ones this release was built with.
    #[serde(default)]
    pub images: Images,
    /// Which devices are looked for, whatever a DeviceClass says.
    #[serde(default)]
    pub discovery: Discovery,
    /// Limits on what one plan may do.
    #[serde(default)]
    pub safety: Safety,
    /// What is done when a Node object is deleted.
    #[serde(default)]
    pub node_loss: NodeLoss,
    /// What becomes of volume groups when the StorageCluster is deleted. `Retain` (default): they stay.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutionPolicy {
    #[default]
    Enforce,
    Plan,
    Pause,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    #[default]
    Retain,
}

/// The CSI driver.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Driver {
    /// kubelet's root folder on every node, without a slash at its end.
    #[serde(default = "kubelet_root")]
    #[schemars(length(min = 2, max = 256))]
    #[x_kube(validation = (
        "self.startsWith('/') && !self.endsWith('/') && !self.contains('..')",
        "kubeletRoot is an absolute path without a slash at its end, for example /var/lib/kubelet"
    ))]
    pub kubelet_root: String,
    /// Which log lines the driver and the daemon print: error, warn, info, debug or trace.
    #[serde(default)]
    pub log_level: LogLevel,
}

impl Default for Driver {
    fn default() -> Self {
        Self { kubelet_root: kubelet_root(), log_level: LogLevel::default() }
    }
}

fn kubelet_root() -> String {
    "/var/lib/kubelet".to_owned()
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// The pod that runs on every node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeAgent {
    /// Labels that a Node must have to run it. Empty (default): every Linux node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that it tolerates. Absent (default): every taint, since a volume may be on any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Resources of the container `lvmd`; `driver node` has half of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// How many nodes may be without a running agent during a rollout, as a number or a percentage. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9]+%?$"), length(max = 8))]
    pub max_unavailable: Option<String>,
    /// PriorityClass of the pod. Default `system-node-critical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
}

/// The CSI controller.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Controller {
    /// How many run; one works, the others wait for its lease. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: i32,
    /// Resources of the container `driver controller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

impl Default for Controller {
    fn default() -> Self {
        Self { replicas: one(), resources: None }
    }
}

fn one() -> i32 {
    1
}

/// Images to run instead of the ones this release was built with.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Images {
    /// The image with `driver` and `lvmd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub stowage: Option<String>,
    /// The upstream csi-provisioner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub provisioner: Option<String>,
    /// The upstream csi-resizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub resizer: Option<String>,
    /// When kubelet fetches them. Default `IfNotPresent`.
    #[serde(default)]
    pub pull_policy: PullPolicy,
    /// Secrets in the namespace stowage-system for the registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub pull_secrets: Vec<LocalObjectReference>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
}

/// Which devices are looked for.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// A node looks at its devices at the kernel's word, and besides every so many seconds. Default 600.
    #[serde(default = "rescan_seconds")]
    #[schemars(range(min = 30, max = 86400))]
    pub rescan_seconds: i64,
    /// Transports (as lsblk names them) and kernel drivers whose devices are never taken. It wins over
    /// every DeviceClass. Default: iscsi, fc, usb, nbd, rbd, drbd, zram, ublk, loop.
    #[serde(default = "deny")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 32)))]
    pub deny: Vec<String>,
}

impl Default for Discovery {
    fn default() -> Self {
        Self { rescan_seconds: rescan_seconds(), deny: deny() }
    }
}

fn rescan_seconds() -> i64 {
    600
}

fn deny() -> Vec<String> {
    ["iscsi", "fc", "usb", "nbd", "rbd", "drbd", "zram", "ublk", "loop"].map(str::to_owned).into()
}

/// Limits on what one plan may do.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Safety {
    /// How many devices one plan of a node may write to for the first time; the rest waits for the next plan. Default 32.
    #[serde(default = "max_devices_per_plan")]
    #[schemars(range(min = 1, max = 256))]
    pub max_devices_per_plan: i32,
}

impl Default for Safety {
    fn default() -> Self {
        Self { max_devices_per_plan: max_devices_per_plan() }
    }
}

fn max_devices_per_plan() -> i32 {
    32
}

/// What is done when a Node object is deleted. Nothing is ever done for a node that is only NotReady.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeLoss {
    /// `Recreatable` (default): claims that a StatefulSet makes anew, and generic ephemeral claims, are deleted, so that
    /// their pods start elsewhere with an empty volume. `None`: nothing is deleted.
    #[serde(default)]
    pub policy: LossPolicy,
    /// Seconds between the deletion of the Node and the first thing that is done. Default 300.
    #[serde(default = "grace_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub grace_seconds: i64,
    /// Seconds that a node which came back without its disks is waited for. Default 900.
    #[serde(default = "return_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub return_seconds: i64,
    /// Seconds after its last volume is gone until a lost node is forgotten. Default 86400.
    #[serde(default = "forget_seconds")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub forget_seconds: i64,
    /// When more nodes than this percentage of all are lost within 30 minutes, and more than one, nothing is
    /// deleted until a person says so. Default 20.
    #[serde(default = "max_nodes_percent")]
    #[schemars(range(min = 0, max = 100))]
    pub max_nodes_percent: i32,
    /// At most so many claims are deleted in a minute. Default 600.
    #[serde(default = "max_deletions_per_minute")]
    #[schemars(range(min = 1, max = 6000))]
    pub max_deletions_per_minute: i32,
}

impl Default for NodeLoss {
    fn default() -> Self {
        Self {
            policy: LossPolicy::default(),
            grace_seconds: grace_seconds(),
            return_seconds: return_seconds(),
            forget_seconds: forget_seconds(),
            max_nodes_percent: max_nodes_percent(),
            max_deletions_per_minute: max_deletions_per_minute(),
        }
    }
}

fn grace_seconds() -> i64 {
    300
}

fn return_seconds() -> i64 {
    900
}

fn forget_seconds() -> i64 {
    86400
}

fn max_nodes_percent() -> i32 {
    20
}

fn max_deletions_per_minute() -> i32 {
    600
}

/// From the most careful to the least, so that of several places the smallest wins.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossPolicy {
    None,
    #[default]
    Recreatable,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorageClusterStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The operator's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Nodes that run the agent.
    #[serde(default)]
    pub nodes: NodeTotals,
    /// Size of all volume groups together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// Number of LogicalVolumes.
    #[serde(default)]
    pub volumes: i64,
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

/// How many nodes are in which state.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeTotals {
    /// Nodes with a NodeStorage that are not lost.
    pub wanted: i64,
    /// Of these, the ones whose NodeStorage is Ready.
    pub ready: i64,
    /// Nodes whose Node object is gone.
    pub lost: i64,
    /// `ready/wanted`, for `kubectl get`.
    pub summary: String,
}
