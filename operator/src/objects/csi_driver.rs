//! The CSIDriver: what kubelet and the scheduler are told about the driver.

use crds::names;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::api::ApiResource;
use serde_json::json;

use super::{Owned, labels};

pub fn csi_driver() -> Owned {
    Owned::new(
        ApiResource::erase::<CSIDriver>(&()),
        json!({
            "metadata": { "name": names::DRIVER, "labels": labels("driver") },
            "spec": {
                "attachRequired": false,
                "podInfoOnMount": false,
                // The scheduler reads CSIStorageCapacity objects.
                "storageCapacity": true,
                "fsGroupPolicy": "File",
                // kubelet passes the pod's SELinux label as a mount option.
                "seLinuxMount": true,
                "volumeLifecycleModes": ["Persistent"],
            },
        }),
    )
}
