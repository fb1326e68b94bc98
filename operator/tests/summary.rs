//! The statuses of StorageCluster and DeviceClass.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use crds::{
    condition::{self, kind, reason},
    device_class::{DeviceClass, DeviceClassSpec, DeviceClassStatus, DeviceTerm, Devices},
    logical_volume::LogicalVolume,
    node_storage::NodeStorage,
    storage_cluster::{StorageCluster, StorageClusterStatus},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::apps::v1::{DaemonSet, Deployment},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use operator::summary::{
    class::{self, Problems},
    cluster::{self, Seen},
};
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn class_object() -> DeviceClass {
    let include = vec![DeviceTerm { models: Some(vec!["Fast*".into()]), ..DeviceTerm::default() }];
    let mut class = DeviceClass::new(
        "fast",
        DeviceClassSpec { devices: Devices { include, ..Devices::default() }, ..DeviceClassSpec::default() },
    );
    class.metadata.generation = Some(2);
    class
}

/// A node with the class assigned, whose agent is ready and has looked; `status` is added to its status.
fn node(name: &str, status: Value) -> NodeStorage {
    let mut whole = json!({
        "observedGeneration": 1,
        "conditions": [
            { "type": "Ready", "status": "True", "reason": "AsWanted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            { "type": "AgentReady", "status": "True", "reason": "PodReady", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ],
    });
    for (key, value) in status.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "stowage.dev/v1alpha1",
        "kind": "NodeStorage",
        "metadata": { "name": name, "generation": 1 },
        "spec": {
            "nodeName": name,
            "classes": [{ "name": "fast", "generation": 2, "spec": { "devices": { "include": [] } } }],
        },
        "status": whole,
    }))
    .unwrap()
}

fn with_group(name: &str, state: &str) -> NodeStorage {
    node(
        name,
        json!({ "volumeGroups": [{
            "class": "fast", "name": "stowage-fast", "uuid": "u", "size": 1_i64 << 30, "extentSize": 1, "unmanaged": 0,
            "reserve": 0, "maxVolumeSize": 1, "devices": 2, "state": state, "lastError": "disk x is missing",
        }] }),
    )
}

fn with_device(name: &str, model: &str, state: &str) -> NodeStorage {
    node(
        name,
        json!({ "devices": [{
            "id": "d", "path": "/dev/disk/by-id/d", "size": 1, "model": model, "type": "disk", "rotational": false,
            "state": state, "class": "fast",
        }] }),
    )
}

fn set(mut storage: NodeStorage, kind: &str, yes: bool) -> NodeStorage {
    let new = condition::new(kind, condition::status(yes), "X", "", None);
    condition::set(&mut storage.status.as_mut().unwrap().conditions, new, at(1));
    storage
}

fn volume(name: &str, size: i64, made: Option<i64>) -> LogicalVolume {
    serde_json::from_value(json!({
        "apiVersion": "stowage.dev/v1alpha1",
        "kind": "LogicalVolume",
        "metadata": { "name": name },
        "spec": { "nodeName": "a", "deviceClass": "fast", "size": size, "claim": { "namespace": "shop", "name": name } },
        "status": { "size": made },
    }))
    .unwrap()
}

fn class_status(storages: &[NodeStorage], volumes: &[LogicalVolume], problems: &Problems) -> DeviceClassStatus {
    let storages: Vec<&NodeStorage> = storages.iter().collect();
    let volumes: Vec<&LogicalVolume> = volumes.iter().collect();
    class::status(&class_object(), &storages, &volumes, problems, at(1))
}

fn word(conditions: &[Condition], kind: &str) -> (String, String) {
    let found = condition::find(conditions, kind).unwrap();
    (found.status.clone(), found.reason.clone())
}

fn words(conditions: &[Condition]) -> Vec<String> {
    [kind::READY, kind::PROGRESSING, kind::DEGRADED]
        .iter()
        .map(|kind| {
            let (status, reason) = word(conditions, kind);
            format!("{status}/{reason}")
        })
        .collect()
}

#[test]
fn how_a_class_stands() {
    let working = || {
        let mut node = node("w", json!({}));
        node.metadata.generation = Some(2);
        node
    };
    let none = Problems::default();
    for (what, storages, problems, expected) in [
        ("no node", vec![], none.clone(), ["False/NoNodeMatches", "False/AsWanted", "False/AsWanted"]),
        (
            "all made",
            vec![with_group("a", "Ready")],
            none.clone(),
            ["True/AsWanted", "False/AsWanted", "False/AsWanted"],
        ),
        (
            "not looked yet",
            vec![with_group("a", "Ready"), working()],
            none.clone(),
            ["False/Working", "True/Working", "False/AsWanted"],
        ),
        (
            "about to be made",
            vec![with_device("a", "Fast 1", "Wanted")],
            none.clone(),
            ["False/Working", "True/Working", "False/AsWanted"],
        ),
        // B13: a node without disks for it does not hold the class up.
        (
            "nothing to take on one",
            vec![with_group("a", "Ready"), node("b", json!({}))],
            none.clone(),
            ["True/AsWanted", "False/AsWanted", "False/AsWanted"],
        ),
        (
            "nothing to take anywhere",
            vec![node("b", json!({}))],
            none.clone(),
            ["False/NoDeviceMatches", "False/AsWanted", "False/AsWanted"],
        ),
        // A node that is away degrades and does not block.
        (
            "an agent is away",
            vec![with_group("a", "Ready"), set(working(), kind::AGENT_READY, false)],
            none.clone(),
            ["True/AsWanted", "False/AsWanted", "True/AgentsMissing"],
        ),
        (
            "a lost node",
            vec![with_group("a", "Ready"), set(working(), kind::NODE_LOST, true)],
            none.clone(),
            ["True/AsWanted", "False/AsWanted", "False/AsWanted"],
        ),
        (
            "a broken group",
            vec![with_group("a", "Ready"), with_group("b", "Partial")],
            none.clone(),
            ["True/AsWanted", "False/AsWanted", "True/GroupMissing"],
        ),
        (
            "a taken name",
            vec![with_group("a", "Ready")],
            Problems { taken: vec!["x".into()], ..none.clone() },
            ["True/AsWanted", "False/AsWanted", "True/NameTaken"],
        ),
        (
            "a shared group",
            vec![],
            Problems { same_group: [("a".to_owned(), "g".to_owned())].into(), ..none.clone() },
            ["False/NoGroup", "False/AsWanted", "True/SameVolumeGroup"],
        ),
    ] {
        assert_eq!(words(&class_status(&storages, &[], &problems).conditions), expected, "{what}");
    }
}

#[test]
fn what_a_class_holds() {
    let storages =
        [with_group("a", "Ready"), set(with_group("b", "Ready"), kind::NODE_LOST, true), node("c", json!({}))];
    let volumes = [volume("v", 1 << 20, Some(3 << 20)), volume("w", 1 << 20, None)];
    let status = class_status(&storages, &volumes, &Problems::default());
    assert_eq!((status.nodes.summary.as_str(), status.nodes.lost), ("1/2", 1));
    assert_eq!((status.devices, status.capacity.as_deref(), status.used.as_deref()), (2, Some("1 GiB"), Some("4 MiB")));
    assert_eq!(status.observed_generation, Some(2));
}

/// B5
#[test]
fn a_term_that_describes_nothing_is_named() {
    let terms = |storages: &[NodeStorage]| {
        let status = class_status(storages, &[], &Problems::default());
        condition::find(&status.conditions, kind::TERMS_MATCHED).unwrap().clone()
    };
    assert_eq!(terms(&[node("a", json!({}))]).status, "Unknown");
    assert_eq!(terms(&[with_device("a", "Fast 1", "Available")]).status, "True");
    let empty = terms(&[with_device("a", "Slow 1", "Available")]);
    assert_eq!(empty.status, "False");
    assert!(empty.message.contains(r#"include[0] {"models":["Fast*"]}"#), "{}", empty.message);
}

#[test]
fn the_same_state_says_the_same_twice() {
    let storages = [with_group("a", "Ready"), with_group("b", "Partial")];
    let first = class_status(&storages, &[], &Problems::default());
    let mut class = class_object();
    class.status = Some(first.clone());
    let storages: Vec<&NodeStorage> = storages.iter().rev().collect();
    assert_eq!(class::status(&class, &storages, &[], &Problems::default(), at(99)), first);
}

#[test]
fn a_class_that_is_being_deleted_says_what_it_waits_for() {
    let mut class = class_object();
    class.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let many: Vec<LogicalVolume> = (10..25).map(|index| volume(&format!("v{index}"), 1, None)).collect();
    let all: Vec<&LogicalVolume> = many.iter().collect();
    let status = class::status(&class, &[], &all, &Problems::default(), at(1));
    let blocked = condition::find(&status.conditions, kind::DELETION_BLOCKED).unwrap();
    assert_eq!((blocked.status.as_str(), blocked.reason.as_str()), ("True", reason::VOLUMES_LEFT));
    assert!(blocked.message.starts_with("15 volumes are left"), "{}", blocked.message);
    assert!(blocked.message.contains("v10 (claim shop/v10)") && blocked.message.ends_with("and 5 more"));
}

fn agents(wanted: i32, ready: i32, new: i32) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": { "generation": 3 },
        "status": {
            "observedGeneration": 3, "desiredNumberScheduled": wanted, "numberReady": ready,
            "updatedNumberScheduled": new, "currentNumberScheduled": wanted, "numberMisscheduled": 0,
        },
    }))
    .unwrap()
}

fn controller(available: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "generation": 1 },
        "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available },
    }))
    .unwrap()
}

fn cluster_status(
    storages: &[NodeStorage],
    agents: &DaemonSet,
    controller: &Deployment,
    failed: &[String],
) -> StorageClusterStatus {
    let storages: Vec<&NodeStorage> = storages.iter().collect();
    let seen = Seen {
        storages: &storages,
        volumes: &[],
        agents: Some(agents),
        controller: Some(controller),
        failed,
        defaults: &[],
    };
    cluster::status(&StorageCluster::default(), &seen, "1.0", at(1))
}

#[test]
fn how_the_cluster_stands() {
    let (one, two) = (with_group("a", "Ready"), with_group("b", "Ready"));
    let away = set(two.clone(), kind::AGENT_READY, false);
    let lost = set(two.clone(), kind::NODE_LOST, true);
    let held = set(lost.clone(), kind::LOSS_HELD, true);
    for (what, storages, agents, controller, expected) in [
        (
            "all well",
            vec![one.clone(), two],
            agents(2, 2, 2),
            controller(1),
            ["True/AsWanted", "False/AsWanted", "False/AsWanted"],
        ),
        (
            "rolling out",
            vec![one.clone()],
            agents(2, 1, 1),
            controller(1),
            ["True/AsWanted", "True/RollingOut", "False/AsWanted"],
        ),
        (
            "no agent yet",
            vec![],
            agents(2, 0, 2),
            controller(1),
            ["False/AgentsMissing", "False/AsWanted", "False/AsWanted"],
        ),
        (
            "no controller",
            vec![one.clone()],
            agents(1, 1, 1),
            controller(0),
            ["False/ControllerNotReady", "False/AsWanted", "False/AsWanted"],
        ),
        (
            "an agent is away",
            vec![one.clone(), away],
            agents(2, 1, 2),
            controller(1),
            ["True/AsWanted", "False/AsWanted", "True/AgentsMissing"],
        ),
        (
            "a lost node",
            vec![one.clone(), lost],
            agents(1, 1, 1),
            controller(1),
            ["True/AsWanted", "False/AsWanted", "True/NodeDeleted"],
        ),
        (
            "held",
            vec![one.clone(), held],
            agents(1, 1, 1),
            controller(1),
            ["True/AsWanted", "False/AsWanted", "True/TooManyLost"],
        ),
    ] {
        let status = cluster_status(&storages, &agents, &controller, &[]);
        assert_eq!(words(&status.conditions), expected, "{what}");
    }
    let failed = cluster_status(&[one], &agents(1, 1, 1), &controller(1), &["applying x: no".to_owned()]);
    assert_eq!(word(&failed.conditions, kind::READY), ("False".to_owned(), reason::APPLY_FAILED.to_owned()));
}
