//! Names written on other people's objects and on disks. Every one of them is
//! kept by somebody else (etcd, a disk, a Git repository): none is ever changed.

pub const GROUP: &str = "stowage.dev";
pub const VERSION: &str = "v1alpha1";

/// The CSI driver's name, in CSIDriver, StorageClasses and PersistentVolumes.
pub const DRIVER: &str = "csi.stowage.dev";

/// The topology segment that names a node. Its value is [`topology_value`].
pub const TOPOLOGY_NODE: &str = "topology.stowage.dev/node";

pub const NAMESPACE: &str = "stowage-system";
pub const NODE_DAEMON_SET: &str = "stowage-node";
pub const CONTROLLER_DEPLOYMENT: &str = "stowage-controller";
pub const OPERATOR_DEPLOYMENT: &str = "stowage-operator";

/// The only name a StorageCluster may have.
pub const STORAGE_CLUSTER: &str = "default";

/// On a LogicalVolume: an LV stands behind it.
pub const VOLUME_FINALIZER: &str = "stowage.dev/logical-volume";
/// On a StorageCluster and a DeviceClass: something in the cluster stands behind it.
pub const OPERATOR_FINALIZER: &str = "stowage.dev/operator";

/// On everything that the operator owns; its value is [`label::OWNED_BY_OPERATOR`].
pub mod label {
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    pub const OWNED_BY_OPERATOR: &str = "stowage-operator";
    pub const OWNED_BY_DRIVER: &str = "stowage-driver";
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    pub const NAME: &str = "app.kubernetes.io/name";
    /// On a StorageClass and a LogicalVolume: the DeviceClass it belongs to.
    pub const DEVICE_CLASS: &str = "stowage.dev/device-class";
    /// On a CSIStorageCapacity: the node it speaks of.
    pub const NODE: &str = "stowage.dev/node";
    /// On a Namespace: the most careful of this and the other places wins.
    pub const NODE_LOSS: &str = "stowage.dev/node-loss";
}

pub mod annotation {
    /// On a claim, as the label of the same name on a namespace.
    pub const NODE_LOSS: &str = "stowage.dev/node-loss";
    pub const ALLOW_DELETE: &str = "stowage.dev/allow-delete";
    /// Put on a claim by the scheduler.
    pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
}

/// Parameters of a StorageClass, and what csi-provisioner adds to them with
/// `--extra-create-metadata`.
pub mod parameter {
    pub const DEVICE_CLASS: &str = "stowage.dev/device-class";
    pub const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
    pub const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
    pub const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
    pub const VOLUME_NAME: &str = "csi.storage.k8s.io/pv/name";
}

/// What CreateVolume writes into a PersistentVolume's attributes, so that its volume is staged without the API server.
pub mod context {
    pub const DEVICE_CLASS: &str = "stowage.dev/device-class";
    /// As NodeStorage.spec.clusterID.
    pub const CLUSTER_ID: &str = "stowage.dev/cluster-id";
    /// What is made on it where the PersistentVolume itself names no filesystem.
    pub const FS_TYPE: &str = "stowage.dev/fs-type";
}

/// Who owns which fields. Two writers never share a name.
pub mod manager {
    pub const OPERATOR: &str = "stowage-operator";
    pub const DRIVER: &str = "stowage-driver";
    pub const NODE: &str = "stowage-node";
}

/// Keys of the LVM tags, each followed by `=` and a value. LVM allows
/// `A-Z a-z 0-9 _ + . - / = ! : # &` in a tag, 1024 characters at most.
pub mod tag {
    /// On an LV: the LogicalVolume's name.
    pub const VOLUME: &str = "stowage.volume";
    /// On a group and an LV: UID of the `kube-system` namespace.
    pub const CLUSTER: &str = "stowage.cluster";
    /// On a group and an LV: the DeviceClass.
    pub const CLASS: &str = "stowage.class";
    /// On an LV: `<namespace>/<name>` of the claim.
    pub const CLAIM: &str = "stowage.claim";
    /// On an LV: `Filesystem` or `Block`.
    pub const ACCESS: &str = "stowage.access";
    /// On an LV, without a value: it was staged, so it may hold data.
    pub const USED: &str = "stowage.used";
    /// On an LV: `making:<type>:<uuid>` before mkfs, `<type>:<uuid>` after.
    pub const FS: &str = "stowage.fs";
}

/// The value of [`TOPOLOGY_NODE`] for a node: its name, or where that is longer
/// than a label value may be (63), a hash of it. A PersistentVolume keeps it for
/// life, so this function never changes.
pub fn topology_value(node: &str) -> String {
    if node.len() <= 63 { node.to_owned() } else { format!("node-{}", fnv1a_128(node.as_bytes())) }
}

/// The name of the CSIStorageCapacity of a class of storage on a node.
pub fn capacity_name(storage_class: &str, node: &str) -> String {
    // A `/` is in neither name, so no two pairs give the same bytes.
    format!("stowage-{}", fnv1a_128(format!("{storage_class}/{node}").as_bytes()))
}

/// FNV-1a with 128 bits, as 32 hexadecimal digits: the names that are hashed are
/// not chosen by an attacker who gains by a collision, and no crate is needed.
/// Offset basis and prime from the FNV specification (draft-eastlake-fnv).
pub fn fnv1a_128(bytes: &[u8]) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    format!("{hash:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_node_name_is_its_own_topology_value() {
        assert_eq!(topology_value("node1"), "node1");
        assert_eq!(topology_value(&"n".repeat(63)).len(), 63);
    }

    #[test]
    fn a_long_node_name_becomes_a_label_value_that_never_changes() {
        let long = format!("{}.example.com", "n".repeat(60));
        assert_eq!(topology_value(&long), "node-63c6c3a41c2f0eab2fe9ab6ecb7fe0b2");
    }

    #[test]
    fn the_hash_is_fnv1a() {
        // Test vectors of the FNV specification.
        assert_eq!(fnv1a_128(b""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(fnv1a_128(b"a"), "d228cb696f1a8caf78912b704e4a8964");
    }
}
