//! The objects that the operator applies are shown by files, so that a change of them is read in review.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::{collections::BTreeMap, path::Path};

use crds::{
    device_class::{DeviceClass, DeviceClassSpec, Filesystem, FilesystemType, ReclaimPolicy, StorageClassTemplate},
    storage_cluster::{Controller, Driver, Images, LogLevel, NodeAgent, PullPolicy, StorageClusterSpec},
};
use k8s_openapi::{
    api::core::v1::{LocalObjectReference, ResourceRequirements, Toleration},
    apimachinery::pkg::api::resource::Quantity,
};
use operator::objects::{self, Owned, Release, storage_class};

fn release() -> Release {
    Release {
        namespace: "stowage-system".into(),
        stowage_image: "stowage.example/stowage:1".into(),
        provisioner_image: "registry.k8s.io/sig-storage/csi-provisioner:v6.4.0".into(),
        resizer_image: "registry.k8s.io/sig-storage/csi-resizer:v2.3.0".into(),
    }
}

/// `UPDATE=1 cargo test -p operator --test golden` rewrites the files.
fn compare(folder: &str, all: &[Owned]) {
    #[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
    let update = std::env::var("UPDATE").is_ok();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    for owned in all {
        let path = folder.join(format!("{}-{}.yaml", owned.resource.kind.to_lowercase(), owned.name));
        let made = serde_saphyr::to_string(&owned.body).unwrap();
        if update {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == made, "{} is out of date: run UPDATE=1 cargo test -p operator --test golden", path.display());
    }
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, all.len(), "{} has files that nothing makes", folder.display());
}

#[test]
fn an_empty_storage_cluster_makes_these() {
    compare("default", &objects::all(&release(), &StorageClusterSpec::default()));
}

#[test]
fn everything_that_can_be_said_arrives() {
    let quantity = |cpu: &str, memory: &str| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    let resources =
        ResourceRequirements { requests: quantity("100m", "128Mi"), limits: quantity("2", "2Gi"), claims: None };
    let spec = StorageClusterSpec {
        driver: Driver { kubelet_root: "/data/kubelet".into(), log_level: LogLevel::Debug },
        node_agent: NodeAgent {
            node_selector: [("storage".to_owned(), "yes".to_owned())].into(),
            tolerations: Some(vec![Toleration { key: Some("storage".into()), ..Toleration::default() }]),
            resources: Some(resources.clone()),
            max_unavailable: Some("10%".into()),
            priority_class_name: Some("storage".into()),
        },
        controller: Controller { replicas: 2, resources: Some(resources) },
        images: Images {
            stowage: Some("other.example/stowage:2".into()),
            provisioner: Some("other.example/provisioner:2".into()),
            resizer: Some("other.example/resizer:2".into()),
            pull_policy: PullPolicy::Always,
            pull_secrets: vec![LocalObjectReference { name: "pull".into() }],
        },
        ..StorageClusterSpec::default()
    };
    let pods = |owned: &Owned| ["DaemonSet", "Deployment"].contains(&owned.resource.kind.as_str());
    let all: Vec<Owned> = objects::all(&release(), &spec).into_iter().filter(pods).collect();
    compare("everything", &all);
}

#[test]
fn storage_classes_of_a_device_class() {
    let spec = DeviceClassSpec {
        filesystem: Filesystem { type_: FilesystemType::Ext4, mount_options: vec!["noatime".into()] },
        storage_classes: vec![
            StorageClassTemplate {
                name: "plain".into(),
                default: true,
                allow_volume_expansion: true,
                ..Default::default()
            },
            StorageClassTemplate {
                name: "special".into(),
                fs_type: Some(FilesystemType::Xfs),
                reclaim_policy: ReclaimPolicy::Retain,
                mount_options: Some(vec![]),
                labels: [("team".to_owned(), "a".to_owned())].into(),
                ..Default::default()
            },
        ],
        ..DeviceClassSpec::default()
    };
    let class = DeviceClass::new("fast", spec);
    let plan = storage_class::plan(&[&class], &[]);
    compare("storage-classes", &plan.apply.iter().map(Owned::storage_class).collect::<Vec<_>>());
}
