//! What the operator, the driver and the daemon tell each other: the custom
//! resources, and the names written on other people's objects.
//!
//! In reading order: `names` (every string that another program sees),
//! `quantity` and `condition` (the two values that appear everywhere), then the
//! kinds in the order in which a person meets them.
//!
//! Deliberately absent: a Kubernetes client, an async runtime, any I/O.

pub mod names;

pub mod condition;
pub mod quantity;

pub mod storage_cluster;

pub mod device_class;

pub mod node_storage;

pub mod logical_volume;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// Every definition that `config/crd` installs, in the order of their names.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        device_class::DeviceClass::crd(),
        logical_volume::LogicalVolume::crd(),
        node_storage::NodeStorage::crd(),
        storage_cluster::StorageCluster::crd(),
    ]
}
