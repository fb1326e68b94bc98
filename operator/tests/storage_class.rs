//! What is done about StorageClasses.

use crds::device_class::{DeviceClass, DeviceClassSpec, ReclaimPolicy, StorageClassTemplate};
use k8s_openapi::{
    api::storage::v1::StorageClass,
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
};
use kube::ResourceExt;
use operator::objects::storage_class::{IS_DEFAULT, Plan, plan, storage_class};

fn template(name: &str) -> StorageClassTemplate {
    StorageClassTemplate { name: name.into(), ..StorageClassTemplate::default() }
}

fn class(name: &str, storage_classes: Vec<StorageClassTemplate>) -> DeviceClass {
    DeviceClass::new(name, DeviceClassSpec { storage_classes, ..DeviceClassSpec::default() })
}

fn foreign(name: &str) -> StorageClass {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    StorageClass { metadata, provisioner: "other.example".into(), ..StorageClass::default() }
}

fn made(class: &DeviceClass) -> StorageClass {
    storage_class(&class.name_any(), &class.spec, &class.spec.storage_classes[0])
}

fn names(all: &[StorageClass]) -> Vec<String> {
    all.iter().map(ResourceExt::name_any).collect()
}

#[test]
fn what_is_there_is_applied_what_nobody_wants_is_pruned_and_the_rest_is_left_alone() {
    let fast = class("fast", vec![template("a")]);
    let old = made(&class("fast", vec![template("old")]));
    let plan = plan(&[&fast], &[&old, &foreign("other")]);
    assert_eq!((names(&plan.apply), names(&plan.replace), plan.prune), (vec!["a".into()], vec![], vec!["old".into()]));
}

#[test]
fn a_name_that_is_taken_is_not_touched() {
    let fast = class("fast", vec![template("a"), template("b")]);
    let taken = plan(&[&fast], &[&foreign("a")]);
    assert_eq!((names(&taken.apply), taken.prune.len()), (vec!["b".to_owned()], 0));
    assert!(taken.taken["fast"][0].contains("a StorageClass a is there that Stowage has not made"));
}

#[test]
fn two_classes_that_want_one_name_get_none_and_what_is_there_stays() {
    let (fast, slow) = (class("fast", vec![template("a")]), class("slow", vec![template("a")]));
    for there in [vec![], vec![made(&fast)]] {
        let both = plan(&[&fast, &slow], &there.iter().collect::<Vec<_>>());
        assert_eq!((both.apply.len(), both.replace.len(), both.prune.len()), (0, 0, 0));
        assert_eq!(both.taken.keys().collect::<Vec<_>>(), ["fast", "slow"]);
    }
}

#[test]
fn a_field_that_can_not_change_makes_it_anew() {
    let before = made(&class("fast", vec![template("a")]));
    let after = class("fast", vec![StorageClassTemplate { reclaim_policy: ReclaimPolicy::Retain, ..template("a") }]);
    assert_eq!(names(&plan(&[&after], &[&before]).replace), ["a"]);
    let after = class("fast", vec![StorageClassTemplate { allow_volume_expansion: true, ..template("a") }]);
    assert_eq!(names(&plan(&[&after], &[&before]).apply), ["a"]);
    let moved = class("slow", vec![template("a")]);
    assert_eq!(names(&plan(&[&moved], &[&before]).replace), ["a"]);
}

#[test]
fn ours_is_ours_without_its_label() {
    let fast = class("fast", vec![template("a")]);
    let mut stripped = made(&fast);
    stripped.metadata.labels = None;
    assert_eq!(plan(&[&fast], &[&stripped]).taken.len(), 1);
    stripped.metadata.managed_fields =
        Some(vec![ManagedFieldsEntry { manager: Some("stowage-operator".into()), ..ManagedFieldsEntry::default() }]);
    assert_eq!(names(&plan(&[&fast], &[&stripped]).apply), ["a"]);
}

/// J7
#[test]
fn two_defaults_are_said() {
    let default = |name| class(name, vec![StorageClassTemplate { default: true, ..template(name) }]);
    let (fast, slow) = (default("fast"), default("slow"));
    let defaults = |plan: Plan| plan.defaults;
    assert_eq!(defaults(plan(&[&fast], &[])), Vec::<String>::new());
    assert_eq!(defaults(plan(&[&fast, &slow], &[])), ["fast", "slow"]);
    let mut other = foreign("other");
    other.metadata.annotations = Some([(IS_DEFAULT.to_owned(), "true".to_owned())].into());
    assert_eq!(defaults(plan(&[&fast], &[&other])), ["fast", "other"]);
    // The one that was the default is no longer: it is about to be written.
    let before = made(&slow);
    let after = class("slow", vec![template("slow")]);
    assert_eq!(defaults(plan(&[&fast, &after], &[&before])), Vec::<String>::new());
    // It is about to be pruned.
    assert_eq!(defaults(plan(&[&fast], &[&before])), Vec::<String>::new());
}
