use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

use super::*;
use crate::{
    disk::{Claim, Content, Disk, tests::disk},
    lvm::report::Pv,
    plan::say,
};

fn uuid(number: usize) -> LvmUuid {
    LvmUuid::from_compact(&format!("{number:032}")).unwrap()
}

/// Two classes that share the disks by their ids: `f…`, `s…`, and `b…` for both.
fn wanted() -> impl Strategy<Value = Wanted> {
    let membership = || select(vec!["Static", "Dynamic"]);
    let class = (membership(), 1..4_i32, 1..6_i32, 0..2_i32);
    (class.clone(), class, 1..8_i32, vec(0..12_usize, 0..12)).prop_map(|(fast, slow, most, cleared)| {
        let class = |name: &str, (membership, min, more, priority): (&str, i32, i32, i32)| {
            let ids = [format!("wwn-0x{}*", &name[..1]), "wwn-0xb*".to_owned(), format!("{}*", &name[..1])];
            json!({"name": name, "generation": 1, "spec": {
                "devices": {"include": [{"ids": ids}], "membership": membership, "min": min, "max": min + more},
                "priority": priority,
            }})
        };
        let cleared = cleared.iter().flat_map(|number| ["f", "s", "b"].map(|whose| format!("wwn-0x{whose}{number}")));
        let spec = json!({
            "nodeName": "n",
            "clusterID": "c",
            "classes": [class("fast", fast), class("slow", slow)],
            "cleared": cleared.collect::<Vec<_>>(),
            "rails": {"safety": {"maxDevicesPerPlan": most}},
        });
        Wanted::parse(spec.to_string().as_bytes()).unwrap()
    })
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        4 => Just(Content::Blank),
        1 => Just(Content::Unknown("it does not answer".to_owned())),
        1 => Just(Content::Claimed(Claim::InUse)),
        1 => Just(Content::Claimed(Claim::NotZero)),
        1 => Just(Content::Claimed(Claim::NotLookedAt)),
        1 => Just(Content::Claimed(Claim::Signature("ext4".to_owned()))),
        1 => (0..6_usize).prop_map(|number| Content::Claimed(Claim::PhysicalVolume(uuid(number)))),
    ]
}

fn seen() -> impl Strategy<Value = Seen> {
    let whose = select(vec!["wwn-0xf", "wwn-0xs", "wwn-0xb", "f", "s", "x"]);
    let one = (whose, content(), select(vec!["disk", "part", "rom"]), 0..20_u8, prop::bool::weighted(0.1));
    let one_group =
        (0..6_usize, select(vec!["fast", "slow", "other"]), prop::bool::weighted(0.1), prop::bool::weighted(0.8));
    (vec(one, 0..12), vec(one_group, 0..3)).prop_map(|(disks, groups)| {
        let disks = disks.into_iter().enumerate().map(|(number, (whose, content, kind, size, system))| {
            // Now and then two have one identity, and one is too small.
            let number = if size == 19 { 0 } else { number };
            let mut one = disk(&format!("{whose}{number}"), content);
            kind.clone_into(&mut one.kind);
            one.size = Bytes(if size == 0 { 1 << 20 } else { 10 << 30 });
            one.system = system.then(|| "/ is mounted from it".to_owned());
            one
        });
        let mut used = BTreeSet::new();
        let groups = groups
            .into_iter()
            .filter(|(pv, ..)| used.insert(*pv))
            .map(|(pv, class, lame, ours)| group(&format!("stowage-{class}"), class, pv, vec![uuid(pv)], lame, ours));
        let groups = groups.collect();
        Seen { disks: disks.collect(), groups, doubled: BTreeSet::new() }
    })
}

fn group(name: &str, class: &str, number: usize, pvs: Vec<LvmUuid>, lame: bool, ours: bool) -> Group {
    let tags = if ours { vec!["stowage.cluster=c".to_owned(), format!("stowage.class={class}")] } else { Vec::new() };
    Group {
        name: VgName::try_from(name).unwrap(),
        uuid: uuid(1000 + number),
        seqno: 1,
        tags: tags.into_iter().collect(),
        extent: Bytes(4 << 20),
        extents: 100,
        free: 100,
        missing: u64::from(lame),
        foreign: None,
        pvs: pvs.into_iter().map(|uuid| Pv { uuid, node: (!lame).then(|| "/dev/x".into()) }).collect(),
        lvs: Vec::new(),
    }
}

/// The node after these steps: a model of what LVM would have done.
fn pretend(seen: &Seen, steps: &[Step]) -> Seen {
    let mut after = seen.clone();
    for (number, step) in steps.iter().enumerate() {
        let mut members = Vec::new();
        for taken in step.disks() {
            let place = after.disks.iter().position(|disk| disk.id == taken.id()).unwrap();
            let pv = uuid(2000 + 100 * number + place);
            let old = &after.disks[place];
            let mut new = disk(&old.id, Content::Claimed(Claim::PhysicalVolume(pv.clone())));
            new.kind.clone_from(&old.kind);
            after.disks[place] = new;
            members.push(pv);
        }
        match step {
            Step::CreateGroup { class, group: name, .. } => {
                after.groups.push(group(name.as_str(), class.as_str(), 10 + number, members, false, true));
            }
            Step::ExtendGroup { class, group: name, .. } => {
                let extended = after.groups.iter_mut().find(|group| {
                    group.name == *name && group.has_tag(tag::CLASS, class.as_str()) && group.has_tag(tag::CLUSTER, "c")
                });
                let pvs = members.into_iter().map(|uuid| Pv { uuid, node: Some("/dev/y".into()) });
                extended.unwrap().pvs.extend(pvs);
            }
        }
    }
    after
}

fn disks_of(steps: &[Step]) -> Vec<String> {
    steps.iter().flat_map(Step::disks).map(|disk| disk.id().to_owned()).collect()
}

proptest! {
    /// DESIGN 5.1, 5.5, A2, A16.
    #[test]
    fn only_blank_disks_that_are_wanted_are_written_to(wanted in wanted(), seen in seen()) {
        let plan = plan(&wanted, &seen);
        for step in &plan.steps {
            for taken in step.disks() {
                let before = seen.disks.iter().filter(|disk| disk.id == taken.id()).collect::<Vec<_>>();
                let [before] = before.as_slice() else { panic!("two devices are called {}", taken.id()) };
                prop_assert_eq!(before.content(), &Content::Blank);
                prop_assert_eq!(&before.system, &None);
                prop_assert_eq!(&before.kind, "disk");
                let global = crds::node_storage::identity_is_global(&before.id);
                prop_assert!(!global || wanted.cleared.contains(&before.id), "{} is not cleared", before.id);
                let class = wanted.classes.iter().find(|class| class.name == *step.class()).unwrap();
                prop_assert!(class.include.iter().any(|term| term.describes(before)));
            }
        }
        let all = disks_of(&plan.steps);
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "one disk twice");
        prop_assert!(all.len() <= wanted.max_devices);
    }

    /// Plan after plan, each within its limit, there comes an end, and at the end nothing is left to do.
    #[test]
    fn a_carried_out_plan_leaves_nothing_to_do(wanted in wanted(), seen in seen()) {
        let mut now = seen;
        for _ in 0..13 {
            let steps = plan(&wanted, &now).steps;
            if steps.is_empty() {
                return Ok(());
            }
            now = pretend(&now, &steps);
        }
        prop_assert!(false, "after thirteen plans: {:?}", plan(&wanted, &now).steps);
    }

    /// B11, C2: whatever of a plan was done, what is left is planned again, and the same disks end in the same groups.
    #[test]
    fn an_interrupted_plan_is_taken_up_again(wanted in wanted(), seen in seen(), done in 0_usize..8) {
        let whole = plan(&wanted, &seen).steps;
        let (done, left) = whole.split_at(done.min(whole.len()));
        let rest = plan(&wanted, &pretend(&seen, done)).steps;
        // Where there was a limit, the next plan may go further than the interrupted one.
        let (rest, left) = (disks_of(&rest), disks_of(left));
        prop_assert!(left.iter().all(|disk| rest.contains(disk)), "{left:?} of {rest:?}");
    }

    /// A19, B14, DESIGN 5.7: no step is ever made for a group that lacks a device, or when there are two.
    #[test]
    fn a_group_in_trouble_is_left_alone(wanted in wanted(), seen in seen()) {
        for step in plan(&wanted, &seen).steps {
            let ours = groups_of(&wanted, step.class(), &seen).collect::<Vec<_>>();
            match step {
                Step::CreateGroup { group, .. } => {
                    prop_assert!(ours.is_empty());
                    prop_assert!(seen.groups.iter().all(|other| other.name != group));
                }
                Step::ExtendGroup { uuid: Some(uuid), .. } => {
                    prop_assert_eq!(ours.len(), 1);
                    prop_assert_eq!((&ours[0].uuid, ours[0].missing), (&uuid, 0));
                }
                Step::ExtendGroup { uuid: None, .. } => prop_assert!(ours.is_empty()),
            }
        }
    }

    /// B1, B2.
    #[test]
    fn every_device_says_why_it_is_not_used(wanted in wanted(), seen in seen()) {
        let plan = plan(&wanted, &seen);
        prop_assert_eq!(plan.verdicts.len(), seen.disks.len());
        let planned = disks_of(&plan.steps);
        for (disk, verdict) in seen.disks.iter().zip(&plan.verdicts) {
            match verdict.state {
                DeviceState::InUse => prop_assert!(verdict.class.is_some()),
                DeviceState::Wanted => prop_assert!(!verdict.reasons.is_empty() || disk.content() == &Content::Blank),
                DeviceState::Available | DeviceState::Refused => {
                    prop_assert!(!planned.contains(&disk.id) || verdict.reasons.is_empty());
                    prop_assert!(!verdict.reasons.is_empty(), "{disk:?}");
                }
            }
            prop_assert!(verdict.reasons.iter().all(|reason| reason.message.contains(": ") || reason.message.len() > 20));
        }
        let report = say::report(&wanted, &seen, &plan);
        prop_assert_eq!(report.devices.len(), seen.disks.len());
    }

    #[test]
    fn the_hash_names_exactly_the_steps(wanted in wanted(), a in seen(), b in seen()) {
        let (a, b) = (plan(&wanted, &a), plan(&wanted, &b));
        prop_assert_eq!(a.hash() == b.hash(), a.steps.iter().map(Step::to_string).eq(b.steps.iter().map(Step::to_string)) && uuids(&a) == uuids(&b));
        prop_assert_eq!(a.hash().is_none(), a.steps.is_empty());
    }
}

fn uuids(plan: &Plan) -> Vec<Option<LvmUuid>> {
    let uuid = |step: &Step| match step {
        Step::CreateGroup { .. } => None,
        Step::ExtendGroup { uuid, .. } => uuid.clone(),
    };
    plan.steps.iter().map(uuid).collect()
}

/// One class `fast` that takes every disk, with more of its spec.
fn fast(devices: serde_json::Value) -> Wanted {
    let mut all = json!({"include": [{"ids": ["*"]}]});
    all.as_object_mut().unwrap().extend(devices.as_object().unwrap().clone());
    let spec = json!({
        "nodeName": "n",
        "clusterID": "c",
        "classes": [{"name": "fast", "generation": 1, "spec": {"devices": all}}],
    });
    Wanted::parse(spec.to_string().as_bytes()).unwrap()
}

fn with(disks: Vec<Disk>) -> Seen {
    Seen { disks, ..Seen::default() }
}

fn codes(plan: &Plan) -> Vec<&str> {
    plan.verdicts.iter().map(|verdict| verdict.reasons.first().map_or("", |reason| reason.code.as_str())).collect()
}

#[test]
fn a_group_is_not_made_of_fewer_disks_than_its_min() {
    let seen = with(vec![disk("a", Content::Blank), disk("b", Content::Blank)]);
    let three = plan(&fast(json!({"min": 3})), &seen);
    assert_eq!((three.steps.len(), codes(&three)), (0, vec!["TooFew", "TooFew"]));
    assert!(three.troubles[0].1.contains("at least 3"), "{:?}", three.troubles);
    let two = plan(&fast(json!({"min": 2})), &seen);
    assert_eq!((two.steps.len(), two.steps[0].disks().len()), (1, 2));
}

#[test]
fn a_group_gets_no_more_disks_than_its_max() {
    let seen = with(vec![disk("a", Content::Blank), disk("b", Content::Blank)]);
    let one = plan(&fast(json!({"max": 1})), &seen);
    assert_eq!((disks_of(&one.steps), codes(&one)), (vec!["a".to_owned()], vec!["", "NotNeeded"]));
}

/// It is never extended, so it must not be made of half of its disks.
#[test]
fn a_static_group_waits_until_all_its_disks_are_cleared() {
    let seen = with(vec![disk("a", Content::Blank), disk("wwn-0x5000", Content::Blank)]);
    let mut wanted = fast(json!({"membership": "Static"}));
    let waits = plan(&wanted, &seen);
    assert_eq!((waits.steps.len(), codes(&waits)), (0, vec!["NotCleared", "NotCleared"]));
    wanted.cleared.insert("wwn-0x5000".to_owned());
    assert_eq!(plan(&wanted, &seen).steps[0].disks().len(), 2);
}

/// B13.
#[test]
fn a_node_without_matching_disks_has_nothing_to_complain_of() {
    let plan = plan(&fast(json!({})), &Seen::default());
    assert_eq!((plan.steps.len(), plan.troubles.len(), plan.unmatched.len()), (0, 0, 1));
}

/// B10.
#[test]
fn two_classes_of_equal_priority_get_none_and_of_unequal_the_higher() {
    let wanted = |priority: i32| {
        let class = |name: &str, priority: i32| json!({"name": name, "generation": 1, "spec": {"devices": {"include": [{"ids": ["*"]}]}, "priority": priority}});
        let spec = json!({"nodeName": "n", "clusterID": "c", "classes": [class("a", 0), class("b", priority)]});
        Wanted::parse(spec.to_string().as_bytes()).unwrap()
    };
    let seen = with(vec![disk("a", Content::Blank)]);
    let equal = plan(&wanted(0), &seen);
    assert_eq!((equal.steps.len(), codes(&equal)), (0, vec!["Conflict"]));
    let higher = plan(&wanted(1), &seen);
    assert_eq!(higher.steps[0].class().as_str(), "b");
}

/// DESIGN 5.7: what is not to be seen is not gone.
#[test]
fn no_second_group_is_made_for_a_class_whose_group_is_not_to_be_seen() {
    let known = |class: &str| KnownGroup { class: class.into(), uuid: uuid(1001).to_string(), name: "vg-old".into() };
    let mut wanted = fast(json!({}));
    wanted.known = vec![known("fast")];
    let away = plan(&wanted, &with(vec![disk("a", Content::Blank)]));
    assert_eq!((away.steps.len(), codes(&away)), (0, vec!["NotNeeded"]));
    assert!(away.troubles[0].1.contains("vg-old") && away.troubles[0].0 == "fast", "{:?}", away.troubles);
    // It is said without a disk to be had, too.
    assert_eq!(plan(&wanted, &Seen::default()).troubles, away.troubles);
    // Another class's group is no reason, and one that is there is extended.
    wanted.known = vec![known("slow")];
    assert_eq!(plan(&wanted, &with(vec![disk("a", Content::Blank)])).steps[0].op(), "CreateGroup");
    wanted.known = vec![known("fast")];
    let mut seen = with(vec![disk("a", Content::Blank), disk("b", Content::Claimed(Claim::PhysicalVolume(uuid(7))))]);
    seen.groups = vec![group("vg-old", "fast", 1, vec![uuid(7)], false, true)];
    let there = plan(&wanted, &seen);
    assert_eq!((there.steps.len(), there.steps[0].op(), there.troubles.len()), (1, "ExtendGroup", 0));
}

/// B3.
#[test]
fn what_belongs_to_a_volume_is_never_taken() {
    let mut one = disk("a", Content::Blank);
    one.inner = Some("it lies on the LVM volume dm-0".to_owned());
    let plan = plan(&fast(json!({})), &with(vec![one]));
    assert_eq!((plan.steps.len(), codes(&plan)), (0, vec!["TypeNotTaken"]));
    assert!(plan.verdicts[0].reasons[0].message.contains("dm-0"));
}

/// A4.
#[test]
fn partitions_that_appear_on_an_owned_disk_are_not_free_space() {
    let owned = disk("a", Content::Claimed(Claim::Signature("ext4".to_owned())));
    let mut part = disk("a-part1", Content::Blank);
    "part".clone_into(&mut part.kind);
    part.below = vec!["a".to_owned()];
    let mut wanted = fast(json!({}));
    wanted.classes[0].include = vec![
        crate::disk::select::Term::try_from(DeviceTerm {
            types: Some(vec![crds::device_class::DeviceType::Part]),
            ..DeviceTerm::default()
        })
        .unwrap(),
    ];
    let plan = plan(&wanted, &with(vec![owned, part]));
    assert_eq!((plan.steps.len(), codes(&plan)[1]), (0, "Covered"));
}

/// B12.
#[test]
fn another_clusters_group_is_named_with_its_cluster() {
    let pv = disk("a", Content::Claimed(Claim::PhysicalVolume(uuid(1))));
    let mut other = group("stowage-fast", "fast", 1, vec![uuid(1)], false, true);
    other.tags = ["stowage.cluster=another".to_owned()].into();
    let seen = Seen { groups: vec![other], ..with(vec![pv]) };
    let plan = plan(&fast(json!({})), &seen);
    assert_eq!(codes(&plan), ["ForeignGroup"]);
    assert!(plan.verdicts[0].reasons[0].message.contains("another"));
}

#[test]
fn one_name_for_each_device_of_a_status() {
    let seen = with(vec![disk("b", Content::Blank), disk("a", Content::Blank)]);
    let wanted = fast(json!({}));
    let report = say::report(&wanted, &seen, &plan(&wanted, &seen));
    let ids = report.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>();
    assert_eq!(ids, ["a", "b"]);
    let by_path = report.devices.iter().map(|device| (device.path.as_str(), ())).collect::<BTreeMap<_, _>>();
    assert!(by_path.contains_key("/dev/disk/by-id/a") && Path::new(&report.devices[0].path).is_absolute());
}
