//! Which classes a node gets.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    device_class::{DeviceClass, DeviceClassSpec, Membership, VolumeGroup},
    node_storage::AssignedClass,
};
use k8s_openapi::api::core::v1::NodeSelector;
use operator::assign::{Assigned, assign, matches, runs_agent};
use proptest::prelude::*;
use serde_json::{Value, json};

type Labels = BTreeMap<String, String>;

fn labels(all: &[(&str, &str)]) -> Labels {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn class(name: &str, priority: i32) -> DeviceClass {
    let mut class = DeviceClass::new(name, DeviceClassSpec { priority, ..DeviceClassSpec::default() });
    class.metadata.generation = Some(3);
    class
}

fn in_group(mut class: DeviceClass, group: &str) -> DeviceClass {
    class.spec.volume_group = Some(VolumeGroup { name: Some(group.into()), extent_size: None });
    class
}

fn given(classes: &[DeviceClass], groups: &[(&str, &str)], volumes: &[&str]) -> Assigned {
    let all: Vec<&DeviceClass> = classes.iter().collect();
    let groups = groups.iter().map(|(class, name)| ((*class).to_owned(), (*name).to_owned())).collect();
    let volumes: BTreeSet<String> = volumes.iter().map(|class| (*class).to_owned()).collect();
    assign("n1", &labels(&[("disks", "fast")]), &all, &groups, &volumes)
}

fn names(assigned: &Assigned) -> Vec<&str> {
    assigned.classes.iter().map(|class| class.name.as_str()).collect()
}

#[test]
fn linux_nodes_with_the_labels_run_the_agent() {
    let linux = labels(&[("kubernetes.io/os", "linux"), ("a", "b")]);
    assert!(runs_agent(&linux, &labels(&[])));
    assert!(runs_agent(&linux, &labels(&[("a", "b")])));
    assert!(!runs_agent(&linux, &labels(&[("a", "c")])));
    assert!(!runs_agent(&labels(&[("kubernetes.io/os", "windows")]), &labels(&[])));
    assert!(!runs_agent(&labels(&[]), &labels(&[])));
}

#[test]
fn node_selectors_are_read_as_kubernetes_reads_them() {
    let node = labels(&[("zone", "a"), ("disks", "4"), ("fast", "")]);
    let term = |expressions: Value| json!({ "nodeSelectorTerms": [{ "matchExpressions": expressions }] });
    let field = |operator: &str, name: &str| {
        json!({ "nodeSelectorTerms": [{ "matchFields": [
            { "key": "metadata.name", "operator": operator, "values": [name] },
        ] }] })
    };
    for (selector, expected) in [
        // An empty selector never means "everything".
        (json!({ "nodeSelectorTerms": [] }), false),
        (json!({ "nodeSelectorTerms": [{}] }), false),
        (term(json!([])), false),
        (term(json!([{ "key": "zone", "operator": "In", "values": ["a", "b"] }])), true),
        (term(json!([{ "key": "zone", "operator": "In", "values": [] }])), false),
        (term(json!([{ "key": "zone", "operator": "NotIn", "values": ["a"] }])), false),
        (term(json!([{ "key": "other", "operator": "NotIn", "values": ["a"] }])), true),
        (term(json!([{ "key": "fast", "operator": "Exists" }])), true),
        (term(json!([{ "key": "other", "operator": "Exists" }])), false),
        (term(json!([{ "key": "other", "operator": "DoesNotExist" }])), true),
        (term(json!([{ "key": "disks", "operator": "Gt", "values": ["3"] }])), true),
        (term(json!([{ "key": "disks", "operator": "Lt", "values": ["4"] }])), false),
        (term(json!([{ "key": "zone", "operator": "Gt", "values": ["3"] }])), false),
        (term(json!([{ "key": "zone", "operator": "Like", "values": ["a"] }])), false),
        (term(json!([{ "key": "zone", "operator": "Exists" }, { "key": "other", "operator": "Exists" }])), false),
        (field("In", "n1"), true),
        (field("In", "n2"), false),
        (field("NotIn", "n2"), true),
        (json!({ "nodeSelectorTerms": [{}, { "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }] }), true),
    ] {
        let parsed: NodeSelector = serde_json::from_value(selector.clone()).unwrap();
        assert_eq!(matches(&parsed, "n1", &node), expected, "{selector}");
    }
}

#[test]
fn the_highest_priority_comes_first() {
    let assigned = given(&[class("b", 0), class("a", 0), class("c", 7)], &[], &[]);
    assert_eq!(names(&assigned), ["c", "a", "b"]);
    assert_eq!(assigned.classes[0].generation, 3);
}

#[test]
fn of_two_classes_that_name_one_group_neither_is_assigned() {
    let rivals = [in_group(class("a", 0), "g"), in_group(class("b", 9), "g"), class("c", 0)];
    let assigned = given(&rivals, &[], &[]);
    assert_eq!(names(&assigned), ["c"]);
    assert_eq!(assigned.same_group, [("a".into(), "g".into()), ("b".into(), "g".into())].into());
    // The default name of `a` is a name like any other.
    let default = given(&[class("a", 0), in_group(class("b", 0), "stowage-a")], &[], &[]);
    assert_eq!(names(&default), Vec::<&str>::new());
}

#[test]
fn a_class_that_has_its_group_keeps_it() {
    let rivals = [in_group(class("a", 0), "g"), in_group(class("b", 9), "g")];
    let assigned = given(&rivals, &[("a", "g")], &[]);
    assert_eq!(names(&assigned), ["a"]);
    assert_eq!(assigned.same_group, [("b".into(), "g".into())].into());
    // Nobody knows whose it is.
    assert_eq!(names(&given(&rivals, &[("a", "g"), ("b", "g")], &[])), Vec::<&str>::new());
}

#[test]
fn a_class_that_is_being_deleted_stays_where_it_has_volumes_and_takes_nothing_new() {
    let mut going = class("a", 0);
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(names(&given(&[going.clone()], &[], &[])), Vec::<&str>::new());
    let kept = given(&[going], &[], &["a"]);
    assert_eq!(names(&kept), ["a"]);
    assert_eq!(kept.classes[0].spec.devices.membership, Membership::Static);
}

#[test]
fn what_a_node_can_not_hold_is_said() {
    let many: Vec<DeviceClass> = (0..18).map(|index| class(&format!("c{index:02}"), 0)).collect();
    let assigned = given(&many, &[], &[]);
    assert_eq!((assigned.classes.len(), assigned.too_many), (16, vec!["c16".to_owned(), "c17".to_owned()]));
}

proptest! {
    /// The order in which classes are listed changes nothing, and no two that are assigned share a group.
    #[test]
    fn the_order_of_the_list_does_not_matter(
        classes in prop::collection::vec((0_u8..6, -2_i32..3, 0_u8..4), 0..8),
        turn in 0_usize..8,
    ) {
        let mut all: Vec<DeviceClass> = Vec::new();
        for (name, priority, group) in classes {
            let name = format!("c{name}");
            if all.iter().all(|class| class.metadata.name.as_deref() != Some(&name)) {
                all.push(in_group(class(&name, priority), &format!("g{group}")));
            }
        }
        let mut turned = all.clone();
        let middle = turn.min(turned.len());
        turned.rotate_left(middle);
        let assigned = given(&all, &[], &[]);
        prop_assert_eq!(&assigned, &given(&turned, &[], &[]));
        let group = |class: &AssignedClass| class.spec.volume_group.as_ref().and_then(|group| group.name.clone());
        let groups: BTreeSet<_> = assigned.classes.iter().map(group).collect();
        prop_assert_eq!(groups.len(), assigned.classes.len());
        prop_assert_eq!(assigned.classes.len() + assigned.same_group.len(), all.len());
    }
}
