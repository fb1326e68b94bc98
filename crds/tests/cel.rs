//! Each rule of the definitions, with an object that it accepts and one that it
//! refuses, and the sentence that a person reads then. The API server itself
//! judges the same objects in `tests/cluster`.

use crds::{
    device_class::{
        DeviceClass, DeviceClassSpec, DeviceTerm, DeviceType, Devices, Reserve, StorageClassTemplate, VolumeGroup,
    },
    logical_volume::{Access, Adopt, Claim, LogicalVolume, LogicalVolumeSpec, LogicalVolumeStatus},
    node_storage::{NodeStorage, NodeStorageSpec},
    storage_cluster::{Driver, StorageCluster, StorageClusterSpec},
};
use kube::{
    CustomResourceExt,
    core::cel::{ValidationErrors, validate_cel, validate_cel_update},
};
use serde::Serialize;

/// The rules of an object's definition. The evaluator is a part of these tests alone: the types do without it.
trait Judged: CustomResourceExt + Serialize + Sized {
    fn validate_cel(&self) -> Result<(), ValidationErrors> {
        validate_cel(self)
    }

    fn validate_cel_update(&self, old: &Self) -> Result<(), ValidationErrors> {
        validate_cel_update(self, old)
    }
}

impl<T: CustomResourceExt + Serialize> Judged for T {}

#[track_caller]
fn refused(result: Result<(), ValidationErrors>, sentence: &str) {
    let said = match result {
        Ok(()) => panic!("accepted, should have been refused with {sentence:?}"),
        Err(errors) => errors.to_string(),
    };
    assert!(said.contains(sentence), "refused with {said:?}, not with {sentence:?}");
}

fn class() -> DeviceClass {
    let term = DeviceTerm { types: Some(vec![DeviceType::Disk]), ..DeviceTerm::default() };
    DeviceClass::new(
        "fast",
        DeviceClassSpec {
            devices: Devices { include: vec![term], ..Devices::default() },
            ..DeviceClassSpec::default()
        },
    )
}

fn with(change: impl FnOnce(&mut DeviceClassSpec)) -> DeviceClass {
    let mut class = class();
    change(&mut class.spec);
    class
}

fn term(change: impl FnOnce(&mut DeviceTerm)) -> DeviceClass {
    with(|spec| {
        let mut term = DeviceTerm::default();
        change(&mut term);
        spec.devices.include = vec![term];
    })
}

#[test]
fn a_storage_cluster_is_called_default() {
    let named = |name| StorageCluster::new(name, StorageClusterSpec::default());
    assert!(named("default").validate_cel().is_ok());
    refused(named("second").validate_cel(), "rename this one to default");
}

#[test]
fn the_kubelet_root_is_an_absolute_path() {
    let at = |root: &str| {
        let driver = Driver { kubelet_root: root.to_owned(), ..Driver::default() };
        StorageCluster::new("default", StorageClusterSpec { driver, ..StorageClusterSpec::default() })
    };
    assert!(at("/var/lib/k0s/kubelet").validate_cel().is_ok());
    for bad in ["var/lib/kubelet", "/var/lib/kubelet/", "/var/../etc"] {
        refused(at(bad).validate_cel(), "absolute path");
    }
}

#[test]
fn a_term_says_something() {
    assert!(class().validate_cel().is_ok());
    refused(term(|_| {}).validate_cel(), "an empty term would match every device");
    assert!(term(|t| t.rotational = Some(false)).validate_cel().is_ok());
}

#[test]
fn kernel_names_are_refused() {
    for good in ["/dev/disk/by-id/nvme-*", "/dev/disk/by-path/pci-*", "/dev/mapper/mpatha", "/dev/disk/by-partlabel/a"]
    {
        assert!(term(|t| t.paths = Some(vec![good.into()])).validate_cel().is_ok(), "{good}");
    }
    for bad in ["/dev/sda", "/dev/nvme0n1", "sdb", "/dev/disk/by-uuid/1", "/dev/vdb"] {
        refused(term(|t| t.paths = Some(vec![bad.into()])).validate_cel(), "/dev/disk/by-id");
    }
}

#[test]
fn sizes_are_quantities() {
    assert!(term(|t| t.min_size = Some("100Gi".into())).validate_cel().is_ok());
    assert!(term(|t| t.max_size = Some("4Ti".into())).validate_cel().is_ok());
    refused(term(|t| t.min_size = Some("big".into())).validate_cel(), "minSize is a size such as 100Gi");
    refused(term(|t| t.max_size = Some("0".into())).validate_cel(), "maxSize is a size such as 4Ti");
}

#[test]
fn min_is_not_greater_than_max() {
    let between = |min, max| with(|spec| (spec.devices.min, spec.devices.max) = (Some(min), Some(max)));
    assert!(between(1, 1).validate_cel().is_ok());
    refused(between(3, 2).validate_cel(), "min is greater than max");
}

#[test]
fn a_group_name_is_one_that_lvm_takes() {
    let named = |name: &str| {
        with(|spec| spec.volume_group = Some(VolumeGroup { name: Some(name.into()), ..VolumeGroup::default() }))
    };
    for good in ["fast", "vg_1", "a.b+c-d"] {
        assert!(named(good).validate_cel().is_ok(), "{good}");
    }
    for bad in ["-fast", ".", "..", "a/b", "a b"] {
        refused(named(bad).validate_cel(), "letters, digits and");
    }
}

#[test]
fn what_is_written_on_disks_can_not_be_changed() {
    let group = |name: Option<&str>, extent: Option<&str>| {
        with(|spec| {
            spec.volume_group = Some(VolumeGroup { name: name.map(Into::into), extent_size: extent.map(Into::into) });
        })
    };
    let given = group(Some("a"), Some("4Mi"));
    assert!(given.validate_cel_update(&given).is_ok());
    assert!(class().validate_cel_update(&class()).is_ok());
    // Presence is part of equality: unset to set, set to unset and one value to another are all refused.
    for other in [class(), group(None, Some("4Mi")), group(Some("b"), Some("4Mi"))] {
        refused(other.validate_cel_update(&given), "volumeGroup.name is written on disks");
        refused(given.validate_cel_update(&other), "volumeGroup.name is written on disks");
    }
    for other in [class(), group(Some("a"), None), group(Some("a"), Some("8Mi"))] {
        refused(other.validate_cel_update(&given), "volumeGroup.extentSize is written on disks");
        refused(given.validate_cel_update(&other), "volumeGroup.extentSize is written on disks");
    }
}

#[test]
fn a_reserve_is_one_of_two() {
    let reserve = |percent, bytes: Option<&str>| {
        with(|spec| spec.reserve = Some(Reserve { percent, bytes: bytes.map(Into::into) }))
    };
    assert!(reserve(Some(10), None).validate_cel().is_ok());
    assert!(reserve(None, Some("10Gi")).validate_cel().is_ok());
    refused(reserve(None, None).validate_cel(), "either in percent or in bytes");
    refused(reserve(Some(1), Some("1Gi")).validate_cel(), "either in percent or in bytes");
    refused(reserve(None, Some("much")).validate_cel(), "bytes is a size such as 10Gi");
}

#[test]
fn at_most_one_storage_class_is_the_default() {
    let classes = |defaults: [bool; 2]| {
        with(|spec| {
            spec.storage_classes = ["a", "b"]
                .into_iter()
                .zip(defaults)
                .map(|(name, default)| StorageClassTemplate { name: name.into(), default, ..Default::default() })
                .collect();
        })
    };
    assert!(classes([true, false]).validate_cel().is_ok());
    refused(classes([true, true]).validate_cel(), "at most one StorageClass can be the default");
}

#[test]
fn a_class_name_fits_into_a_label() {
    let mut long = class();
    long.metadata.name = Some("n".repeat(63));
    assert!(long.validate_cel().is_ok());
    long.metadata.name = Some("n".repeat(64));
    refused(long.validate_cel(), "at most 63 characters");
}

#[test]
fn a_node_storage_belongs_to_one_node() {
    let of = |name: &str, node: &str| {
        NodeStorage::new(name, NodeStorageSpec { node_name: node.into(), ..NodeStorageSpec::default() })
    };
    assert!(of("n1", "n1").validate_cel_update(&of("n1", "n1")).is_ok());
    refused(of("n1", "n2").validate_cel(), "has the name of its node");
    refused(of("n1", "n2").validate_cel_update(&of("n1", "n1")), "nodeName can not be changed");
}

fn volume(change: impl FnOnce(&mut LogicalVolumeSpec)) -> LogicalVolume {
    let mut spec = LogicalVolumeSpec {
        node_name: "n1".into(),
        device_class: "fast".into(),
        size: 8 << 20,
        access: Access::Filesystem,
        claim: Some(Claim { namespace: "a".into(), name: "b".into() }),
        adopt: None,
        discard: false,
    };
    change(&mut spec);
    LogicalVolume::new("pvc-1", spec)
}

#[test]
fn an_lv_does_not_move_or_change_its_kind() {
    let old = volume(|_| {});
    assert!(volume(|v| v.size = 16 << 20).validate_cel_update(&old).is_ok());
    refused(volume(|v| v.node_name = "n2".into()).validate_cel_update(&old), "nodeName can not be changed");
    refused(volume(|v| v.device_class = "slow".into()).validate_cel_update(&old), "deviceClass can not be changed");
    refused(volume(|v| v.access = Access::Block).validate_cel_update(&old), "access can not be changed");
    refused(volume(|v| v.claim = None).validate_cel_update(&old), "claim can not be changed");
    let adopt = Adopt { lv_uuid: "a".repeat(38) };
    refused(volume(|v| v.adopt = Some(adopt)).validate_cel_update(&old), "adopt can not be changed");
}

#[test]
fn discard_can_not_be_taken_back() {
    let (kept, discarded) = (volume(|_| {}), volume(|v| v.discard = true));
    assert!(discarded.validate_cel_update(&kept).is_ok());
    refused(kept.validate_cel_update(&discarded), "discard can not be taken back");
}

#[test]
fn a_volume_shrinks_only_back_to_what_the_lv_has() {
    let made = |asked: i64, has: i64| {
        let mut volume = volume(|v| v.size = asked);
        volume.status = Some(LogicalVolumeStatus { size: Some(has), ..LogicalVolumeStatus::default() });
        volume
    };
    // RecoverVolumeExpansionFailure: a request that can not be met falls back.
    assert!(made(8 << 20, 8 << 20).validate_cel_update(&made(64 << 20, 8 << 20)).is_ok());
    refused(made(8 << 20, 16 << 20).validate_cel_update(&made(16 << 20, 16 << 20)), "a volume does not shrink");
    refused(volume(|v| v.size = 4 << 20).validate_cel_update(&volume(|_| {})), "a volume does not shrink");
}
