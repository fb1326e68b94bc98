//! What becomes of a claim on a lost node. Objects are written as people write them.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use crds::storage_cluster::LossPolicy;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod},
};
use operator::claim::{ClaimFacts, ClaimVerdict, judge, mounts};
use serde_json::{Value, json};

struct Objects {
    claim: Value,
    volume: Option<Value>,
    namespace: Option<Value>,
    sets: Vec<Value>,
    policies: [LossPolicy; 2],
}

fn objects() -> Objects {
    Objects {
        claim: json!({
            "metadata": { "name": "data-web-1", "namespace": "shop", "uid": "claim-uid" },
            "spec": { "volumeName": "pv-1" },
        }),
        volume: Some(json!({
            "metadata": { "name": "pv-1" },
            "spec": {
                "csi": { "driver": "csi.stowage.dev", "volumeHandle": "pvc-1" },
                "claimRef": { "namespace": "shop", "name": "data-web-1", "uid": "claim-uid" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "topology.stowage.dev/node", "operator": "In", "values": ["n1"] },
                ] }] } },
            },
        })),
        namespace: Some(json!({ "metadata": { "name": "shop" } })),
        sets: vec![set("web", "data", 2)],
        policies: [LossPolicy::Recreatable; 2],
    }
}

fn set(name: &str, template: &str, replicas: i32) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "shop" },
        "spec": {
            "replicas": replicas,
            "selector": {},
            "template": {},
            "volumeClaimTemplates": [{ "metadata": { "name": template } }],
        },
    })
}

fn verdict(objects: Objects) -> ClaimVerdict {
    let claim: PersistentVolumeClaim = serde_json::from_value(objects.claim).unwrap();
    let bound: Option<PersistentVolume> = objects.volume.map(|volume| serde_json::from_value(volume).unwrap());
    let namespace: Option<Namespace> = objects.namespace.map(|namespace| serde_json::from_value(namespace).unwrap());
    let sets: Vec<StatefulSet> = objects.sets.into_iter().map(|set| serde_json::from_value(set).unwrap()).collect();
    judge(&ClaimFacts {
        node: "n1",
        volume: "pvc-1",
        claim: &claim,
        bound: bound.as_ref(),
        namespace: namespace.as_ref(),
        stateful_sets: &sets,
        policies: objects.policies,
    })
}

fn with(change: impl FnOnce(&mut Objects)) -> ClaimVerdict {
    let mut all = objects();
    change(&mut all);
    verdict(all)
}

fn is_kept(verdict: ClaimVerdict) -> bool {
    matches!(verdict, ClaimVerdict::Keep(_))
}

#[test]
fn a_claim_that_its_set_makes_anew_is_deleted() {
    assert_eq!(verdict(objects()), ClaimVerdict::Delete);
}

#[test]
fn only_a_claim_that_is_bound_to_our_volume_on_that_node() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 7] = [
        ("another driver", |pv| pv["spec"]["csi"]["driver"] = json!("other.example")),
        ("another volume", |pv| pv["spec"]["csi"]["volumeHandle"] = json!("pvc-2")),
        // A13
        ("a claim of the same name before", |pv| pv["spec"]["claimRef"]["uid"] = json!("older")),
        ("another node", |pv| {
            pv["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] =
                json!(["n2"]);
        }),
        ("two nodes", |pv| {
            pv["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] =
                json!(["n1", "n2"]);
        }),
        ("another term lets it elsewhere", |pv| {
            let terms = pv["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"].as_array_mut().unwrap();
            terms.push(json!({ "matchExpressions": [{ "key": "zone", "operator": "Exists" }] }));
        }),
        ("no affinity", |pv| pv["spec"]["nodeAffinity"] = Value::Null),
    ];
    for (what, change) in changes {
        assert_eq!(with(|all| change(all.volume.as_mut().unwrap())), ClaimVerdict::NotOurs, "{what}");
    }
    assert_eq!(with(|all| all.volume = None), ClaimVerdict::NotOurs);
    assert_eq!(with(|all| all.claim["spec"]["volumeName"] = json!("pv-2")), ClaimVerdict::NotOurs);
    assert_eq!(with(|all| all.claim["metadata"]["uid"] = Value::Null), ClaimVerdict::NotOurs);
}

#[test]
fn only_ordinals_that_the_set_wants() {
    for (name, kept) in [
        ("data-web-0", false),
        ("data-web-1", false),
        ("data-web-2", true),
        ("data-web-01", true),
        ("data-web--1", true),
        ("data-web-x", true),
        ("data-web", true),
        ("other-web-1", true),
        ("data-webs-1", true),
    ] {
        let verdict = with(|all| all.claim["metadata"]["name"] = json!(name));
        assert_eq!(is_kept(verdict), kept, "{name}");
    }
    let shifted = |start: i32| with(|all| all.sets[0]["spec"]["ordinals"] = json!({ "start": start }));
    assert_eq!(shifted(1), ClaimVerdict::Delete);
    assert!(is_kept(shifted(2)));
    // One replica is the default.
    assert!(is_kept(with(|all| all.sets[0]["spec"]["replicas"] = Value::Null)));
}

#[test]
fn a_set_that_is_going_makes_nothing_anew() {
    assert!(is_kept(with(|all| all.sets[0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"))));
    assert!(is_kept(with(|all| all.sets.clear())));
}

#[test]
fn two_sets_that_give_one_name_must_agree() {
    let name = |all: &mut Objects| all.claim["metadata"]["name"] = json!("data-a-b-0");
    let both = |second: i32| {
        with(|all| {
            name(all);
            all.sets = vec![set("a-b", "data", 1), set("b", "data-a", second)];
        })
    };
    assert_eq!(both(1), ClaimVerdict::Delete);
    assert!(is_kept(both(0)));
}

/// A11: what was made from a source would come back empty.
#[test]
fn a_claim_with_a_data_source_is_kept() {
    let source = json!({ "kind": "VolumeSnapshot", "name": "s" });
    assert!(is_kept(with(|all| all.claim["spec"]["dataSource"] = source.clone())));
    assert!(is_kept(with(|all| all.claim["spec"]["dataSourceRef"] = source.clone())));
}

/// C9
#[test]
fn the_most_careful_word_wins() {
    let key = "stowage.dev/node-loss";
    for (value, kept) in [("None", true), ("Recreatable", false), ("All", false), ("none", true), ("", true)] {
        let on_claim = with(|all| all.claim["metadata"]["annotations"] = json!({ key: value }));
        assert_eq!(is_kept(on_claim), kept, "claim {value:?}");
        let on_namespace =
            with(|all| all.namespace = Some(json!({ "metadata": { "name": "shop", "labels": { key: value } } })));
        assert_eq!(is_kept(on_namespace), kept, "namespace {value:?}");
    }
    assert!(is_kept(with(|all| all.policies = [LossPolicy::Recreatable, LossPolicy::None])));
    assert!(is_kept(with(|all| all.policies = [LossPolicy::None, LossPolicy::Recreatable])));
    assert!(is_kept(with(|all| all.namespace = None)));
}

#[test]
fn a_generic_ephemeral_claim_goes_with_its_pod() {
    let owner = |kind: &str, controller: bool| json!([{ "apiVersion": "v1", "kind": kind, "name": "job-x", "uid": "pod-uid", "controller": controller }]);
    let owned = |owners: Value| {
        with(|all| {
            all.claim["metadata"]["name"] = json!("job-x-scratch");
            all.claim["metadata"]["ownerReferences"] = owners;
        })
    };
    let expected = ClaimVerdict::DeleteItsPod { uid: "pod-uid".into(), name: "job-x".into() };
    assert_eq!(owned(owner("Pod", true)), expected);
    assert!(is_kept(owned(owner("Pod", false))));
    assert!(is_kept(owned(owner("Job", true))));
}

#[test]
fn a_pod_mounts_what_it_names() {
    let pod = |volume: Value| -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": { "containers": [], "volumes": [volume] },
        }))
        .unwrap()
    };
    let named = pod(json!({ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }));
    assert!(mounts(&named, "c") && !mounts(&named, "v"));
    let ephemeral = pod(json!({ "name": "v", "ephemeral": {} }));
    assert!(mounts(&ephemeral, "p-v") && !mounts(&ephemeral, "v"));
}
