//! What `lvmd` says of a node after a look, in the words of the NodeStorage's
//! status. `driver node` publishes it as it is.

use crds::node_storage::{Device, PlanStatus, VolumeGroupStatus};
use serde::{Deserialize, Serialize};

/// Everything that one look found, and what is to be done about it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub devices: Vec<Device>,
    pub volume_groups: Vec<VolumeGroupStatus>,
    /// LVs with the tags of this cluster, whether or not an object stands for them.
    pub volumes: Vec<SeenVolume>,
    /// Absent when nothing is to be done.
    pub plan: Option<PlanStatus>,
    /// What is wrong with a class on this node, and what a person can do: `(class, sentence)`.
    pub troubles: Vec<(String, String)>,
    /// Terms of classes that describe no device of this node: `(class, term as JSON)`.
    pub unmatched: Vec<(String, String)>,
}

/// An LV with the tags of this cluster.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct SeenVolume {
    pub name: String,
    pub class: String,
    pub vg_uuid: String,
    pub lv_uuid: String,
    /// Bytes.
    pub size: u64,
    pub claim: Option<String>,
    pub used: bool,
}
