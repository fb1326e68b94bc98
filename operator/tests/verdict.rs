//! What is done about nodes that are gone: one table per rule. The letters are those of the field reports.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeMap;

use crds::{
    node_storage::{Loss, LostWord},
    storage_cluster::{ExecutionPolicy, LossPolicy, NodeLoss},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use operator::verdict::{Facts, Kept, NodeNow, Phase, Verdict, judge, phase, word_is_stale};
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn policy() -> NodeLoss {
    NodeLoss { grace_seconds: 300, return_seconds: 900, forget_seconds: 86400, ..NodeLoss::default() }
}

/// A node that is there, with two volumes in one group.
fn here() -> Facts {
    Facts {
        node: NodeNow::Present { uid: "old".into() },
        spec_uid: "old".into(),
        looked: true,
        fresh: true,
        look_after: None,
        answered: true,
        groups: ["A".to_owned()].into(),
        volumes: 2,
        volume_groups: ["A".to_owned()].into(),
        loss: None,
        disks_missing_since: None,
        released: false,
        gave_up: false,
        held: false,
        word: None,
        at_stake: Some(2),
    }
}

fn loss(since: i64) -> Option<Loss> {
    Some(Loss {
        since: Time(at(since)),
        node_uid: "old".into(),
        released_claims: vec![],
        released: 0,
        kept_claims: vec![],
        forget_at: None,
    })
}

fn gone(since: i64) -> Facts {
    Facts { node: NodeNow::Absent, loss: loss(since), ..here() }
}

/// Back under the same name; the agent has looked, a second time when the wait was over, and found these groups.
fn back(groups: &[&str], since: i64) -> Facts {
    Facts {
        node: NodeNow::Present { uid: "new".into() },
        spec_uid: "new".into(),
        groups: groups.iter().map(|uuid| (*uuid).to_owned()).collect(),
        loss: loss(0),
        look_after: Some(at(1_000_000)),
        disks_missing_since: Some(at(since)),
        ..here()
    }
}

fn alone(facts: Facts, execution: ExecutionPolicy, policy: &NodeLoss, now: i64) -> Verdict {
    judge(&[("n".to_owned(), facts)].into(), execution, policy, at(now)).remove("n").unwrap().1
}

fn enforced(facts: Facts, now: i64) -> Verdict {
    alone(facts, ExecutionPolicy::Enforce, &policy(), now)
}

#[test]
fn how_far_a_node_is_gone() {
    let new = || NodeNow::Present { uid: "new".into() };
    for (what, facts, expected) in [
        ("there", here(), Phase::Here),
        // C2: whatever its state, a Node object that is there is not lost.
        ("never seen before", Facts { spec_uid: String::new(), ..here() }, Phase::Here),
        ("just gone", Facts { loss: None, ..gone(0) }, Phase::Gone { since: at(50) }),
        ("gone for a while", gone(7), Phase::Gone { since: at(7) }),
        ("gone a second time", Facts { spec_uid: "newer".into(), ..gone(7) }, Phase::Gone { since: at(50) }),
        ("replaced between two looks", Facts { node: new(), ..here() }, Phase::Unseen { since: at(50) }),
        ("replaced, nothing on it", Facts { node: new(), volume_groups: [].into(), ..here() }, Phase::Here),
        ("back, spec not written", Facts { node: new(), ..gone(7) }, Phase::Unseen { since: at(7) }),
        ("back, not looked", Facts { looked: false, ..back(&["A"], 0) }, Phase::Unseen { since: at(0) }),
        // C6
        ("back with its disks", back(&["A", "B"], 0), Phase::Back),
        ("back, nothing was on it", Facts { volume_groups: [].into(), ..back(&[], 0) }, Phase::Back),
        // A7
        (
            "back with other disks",
            back(&["B"], 40),
            Phase::Other { since: at(40), missing: ["A".to_owned()].into(), found: 0 },
        ),
        (
            "back with one disk of two",
            Facts { volume_groups: ["A".to_owned(), "B".to_owned()].into(), ..back(&["B"], 40) },
            Phase::Other { since: at(40), missing: ["A".to_owned()].into(), found: 1 },
        ),
        ("the very same Node", Facts { node: NodeNow::Present { uid: "old".into() }, ..gone(7) }, Phase::Back),
    ] {
        assert_eq!(phase(&facts, at(50)), expected, "{what}");
    }
}

#[test]
fn a_lost_node_is_given_up_after_the_grace_and_not_before() {
    assert_eq!(enforced(gone(0), 299), Verdict::Wait { until: at(300) });
    assert_eq!(enforced(gone(0), 300), Verdict::Release { forget_at: None });
    // A time that can not be reached is never reached.
    let never = NodeLoss { grace_seconds: i64::MAX, ..policy() };
    assert!(matches!(alone(gone(0), ExecutionPolicy::Enforce, &never, 200_000_000_000), Verdict::Wait { .. }));
}

#[test]
fn nothing_is_given_up_where_somebody_says_so() {
    let none = NodeLoss { policy: LossPolicy::None, ..policy() };
    for (what, facts, execution, policy, kept) in [
        ("word", Facts { word: Some(LostWord::Keep), ..gone(0) }, ExecutionPolicy::Enforce, policy(), Kept::Word),
        ("plan", gone(0), ExecutionPolicy::Plan, policy(), Kept::PlanOnly),
        ("pause", gone(0), ExecutionPolicy::Pause, policy(), Kept::PlanOnly),
        ("policy", gone(0), ExecutionPolicy::Enforce, none, Kept::Policy),
        ("unread", Facts { at_stake: None, ..gone(0) }, ExecutionPolicy::Enforce, policy(), Kept::Unknown),
        ("not looked", Facts { looked: false, ..back(&[], 0) }, ExecutionPolicy::Enforce, policy(), Kept::LookAwaited),
        ("there", here(), ExecutionPolicy::Enforce, policy(), Kept::NotLost),
    ] {
        assert_eq!(alone(facts, execution, &policy, 1_000_000), Verdict::Keep(kept), "{what}");
    }
}

#[test]
fn a_confirmation_ends_the_wait_for_disks_but_not_the_grace() {
    let word = Some(LostWord::Confirm);
    assert_eq!(enforced(Facts { word, ..gone(0) }, 299), Verdict::Wait { until: at(300) });
    assert_eq!(enforced(back(&[], 100), 999), Verdict::Wait { until: at(1000) });
    assert_eq!(enforced(back(&[], 100), 1000), Verdict::Release { forget_at: None });
    assert_eq!(enforced(Facts { word, ..back(&[], 100) }, 101), Verdict::Release { forget_at: None });
}

/// The word was given to the Node that was gone: it is no word on the disks of the one that came back.
#[test]
fn only_a_confirmation_given_after_disks_were_missing_counts() {
    let word = Some(LostWord::Confirm);
    let since = |facts: Facts| Facts { word, disks_missing_since: None, ..facts };
    for (what, facts, stale) in [
        ("here", Facts { word, ..here() }, true),
        ("gone", Facts { word, ..gone(0) }, false),
        ("back, not looked", Facts { word, looked: false, ..back(&[], 0) }, true),
        ("back, spec not written", Facts { word, spec_uid: "old".into(), ..back(&[], 0) }, true),
        ("found missing just now", since(back(&[], 0)), true),
        ("missing since", Facts { word, ..back(&[], 0) }, false),
        ("another word", Facts { word: Some(LostWord::Keep), looked: false, ..back(&[], 0) }, false),
    ] {
        let phase = phase(&facts, at(50));
        assert_eq!(word_is_stale(&facts, &phase), stale, "{what}");
    }
    assert_eq!(enforced(since(back(&[], 0)), 50), Verdict::Wait { until: at(950) });
    let partly = Facts { volume_groups: ["A".to_owned(), "B".to_owned()].into(), ..since(back(&["B"], 0)) };
    assert_eq!(enforced(partly, 50), Verdict::Keep(Kept::SomeDisksFound));
}

#[test]
fn disks_are_gone_by_a_look_that_was_asked_for_when_the_time_was_over() {
    let awaited = Verdict::Keep(Kept::LookAwaited);
    let release = Verdict::Release { forget_at: None };
    let word = Some(LostWord::Confirm);
    for (what, facts, expected) in [
        ("never asked", Facts { look_after: None, ..back(&[], 100) }, Verdict::Look),
        ("asked too early", Facts { look_after: Some(at(999)), ..back(&[], 100) }, Verdict::Look),
        ("asked", Facts { look_after: Some(at(1000)), answered: false, ..back(&[], 100) }, awaited.clone()),
        ("answered", Facts { look_after: Some(at(1000)), ..back(&[], 100) }, release.clone()),
        ("not at work", Facts { fresh: false, ..back(&[], 100) }, awaited.clone()),
        ("confirmed, not at work", Facts { fresh: false, word, ..back(&[], 100) }, awaited.clone()),
        ("confirmed, asked before", Facts { word, look_after: Some(at(99)), ..back(&[], 100) }, Verdict::Look),
        ("confirmed", Facts { word, look_after: Some(at(100)), ..back(&[], 100) }, release.clone()),
        // Each entry of spec.released makes a new generation.
        ("under way", Facts { released: true, answered: false, ..back(&[], 100) }, release.clone()),
        ("under way, not at work", Facts { released: true, fresh: false, ..back(&[], 100) }, awaited),
        // No look is waited for where nobody looks.
        ("gone", Facts { fresh: false, look_after: None, ..gone(100) }, release),
    ] {
        assert_eq!(enforced(facts, 1000), expected, "{what}");
    }
}

#[test]
fn a_release_under_way_goes_on_while_the_claims_can_not_be_read() {
    assert_eq!(
        enforced(Facts { at_stake: None, released: true, ..gone(0) }, 400),
        Verdict::Release { forget_at: None }
    );
}

#[test]
fn a_node_is_not_forgotten_while_it_counts_for_the_brake() {
    let mut empty = Facts { volumes: 0, volume_groups: [].into(), at_stake: Some(0), ..gone(0) };
    let soon = NodeLoss { forget_seconds: 0, ..policy() };
    let judged = |facts: &Facts, now| alone(facts.clone(), ExecutionPolicy::Enforce, &soon, now);
    let last = Some(at(1800 + 300));
    assert_eq!(judged(&empty, 400), Verdict::Release { forget_at: last });
    empty.loss.as_mut().unwrap().forget_at = Some(Time(at(400)));
    assert_eq!(judged(&empty, 2099), Verdict::Release { forget_at: last });
    assert_eq!(judged(&empty, 2100), Verdict::Forget);
}

#[test]
fn a_lost_disk_is_no_lost_node() {
    let partly = || Facts { volume_groups: ["A".to_owned(), "B".to_owned()].into(), ..back(&["B"], 0) };
    assert_eq!(enforced(partly(), 1_000_000), Verdict::Keep(Kept::SomeDisksFound));
    let confirmed = Facts { word: Some(LostWord::Confirm), ..partly() };
    assert_eq!(enforced(confirmed, 1), Verdict::Release { forget_at: None });
}

#[test]
fn a_node_without_volumes_is_forgotten_in_its_time() {
    let empty = || Facts { volumes: 0, volume_groups: [].into(), at_stake: Some(0), ..gone(0) };
    assert_eq!(enforced(empty(), 400), Verdict::Release { forget_at: Some(at(86800)) });
    let mut written = empty();
    written.loss.as_mut().unwrap().forget_at = Some(Time(at(86800)));
    assert_eq!(enforced(written.clone(), 86799), Verdict::Release { forget_at: Some(at(86800)) });
    assert_eq!(enforced(written.clone(), 86800), Verdict::Forget);
    assert_eq!(alone(written.clone(), ExecutionPolicy::Plan, &policy(), 90000), Verdict::Keep(Kept::PlanOnly));
    let none = NodeLoss { policy: LossPolicy::None, ..policy() };
    assert_eq!(alone(written.clone(), ExecutionPolicy::Enforce, &none, 90000), Verdict::Forget);
    // A volume appeared again.
    written.volumes = 1;
    assert_eq!(enforced(written, 90000), Verdict::Release { forget_at: None });
}

/// `lost` nodes of `all`, each lost so many seconds after the one before.
fn cluster(all: usize, lost: usize, apart: i64) -> BTreeMap<String, Facts> {
    let facts = |index: usize| {
        let since = i64::try_from(index).unwrap() * apart;
        if index < lost { gone(since) } else { here() }
    };
    (0..all).map(|index| (format!("n{index:03}"), facts(index))).collect()
}

fn released(all: &BTreeMap<String, Facts>, now: i64) -> usize {
    let verdicts = judge(all, ExecutionPolicy::Enforce, &policy(), at(now));
    verdicts.values().filter(|(_, verdict)| matches!(verdict, Verdict::Release { .. })).count()
}

/// C8
#[test]
fn many_nodes_at_once_wait_for_a_person() {
    for (what, all, lost, apart, expected) in [
        ("one of two", 2, 1, 0, 1),
        ("one of one", 1, 1, 0, 1),
        ("two of two", 2, 2, 0, 0),
        ("two of ten", 10, 2, 0, 2),
        ("three of ten", 10, 3, 0, 0),
        ("a third", 30, 10, 0, 0),
        ("three of ten, an hour apart", 10, 3, 3600, 3),
        ("three of ten, half an hour apart", 10, 3, 1800, 2),
    ] {
        assert_eq!(released(&cluster(all, lost, apart), 1_000_000), expected, "{what}");
    }
}

#[test]
fn nodes_with_nothing_to_lose_do_not_count() {
    let mut all = cluster(10, 5, 0);
    for facts in all.values_mut().take(4) {
        facts.at_stake = Some(0);
    }
    assert_eq!(released(&all, 1_000_000), 5);
    // What was not read may be anything.
    for facts in all.values_mut().take(4) {
        facts.at_stake = None;
    }
    assert_eq!(released(&all, 1_000_000), 0);
    // What was given up a moment ago counts.
    for facts in all.values_mut().take(4) {
        facts.at_stake = Some(0);
        facts.loss.as_mut().unwrap().released = 1;
    }
    assert_eq!(released(&all, 1_000_000), 4);
    // Also when the operator was started anew before it was written down.
    for facts in all.values_mut().take(4) {
        facts.loss.as_mut().unwrap().released = 0;
        facts.gave_up = true;
    }
    assert_eq!(released(&all, 1_000_000), 4);
}

#[test]
fn only_a_person_lets_go_of_what_is_held() {
    // The others came back.
    let mut all = cluster(10, 1, 0);
    all.get_mut("n000").unwrap().held = true;
    assert_eq!(released(&all, 1_000_000), 0);
    all.get_mut("n000").unwrap().word = Some(LostWord::Confirm);
    assert_eq!(released(&all, 1_000_000), 1);

    let mut all = cluster(10, 3, 0);
    for name in ["n000", "n001", "n002"] {
        all.get_mut(name).unwrap().word = Some(LostWord::Confirm);
    }
    assert_eq!(released(&all, 1_000_000), 3);
}

#[test]
fn nodes_that_came_back_without_disks_count_for_the_brake() {
    let mut all = cluster(10, 0, 0);
    for (_, facts) in all.iter_mut().take(3) {
        *facts = back(&[], 0);
    }
    assert_eq!(released(&all, 1_000_000), 0);
}

#[derive(Clone, Copy, Debug)]
struct Lot {
    absent: bool,
    since: i64,
    stakes: Option<usize>,
    word: Option<LostWord>,
    held: bool,
}

fn lot() -> impl Strategy<Value = Lot> {
    let word = prop::sample::select(vec![None, Some(LostWord::Confirm), Some(LostWord::Keep)]);
    (any::<bool>(), 0_i64..4000, prop::option::of(0_usize..3), word, any::<bool>())
        .prop_map(|(absent, since, stakes, word, held)| Lot { absent, since, stakes, word, held })
}

proptest! {
    /// Whatever else is true of the cluster: no node is given up before its grace, against a word, when what is at stake
    /// is not known, or when its Node is there; and without a word never more than the brake lets through.
    #[test]
    fn nothing_is_given_up_without_consent(lots in prop::collection::vec(lot(), 1..12), now in 0_i64..10_000) {
        let all: BTreeMap<String, Facts> = lots.iter().enumerate().map(|(index, lot)| {
            let facts = if lot.absent { gone(lot.since) } else { here() };
            (format!("n{index:03}"), Facts { at_stake: lot.stakes, word: lot.word, held: lot.held, ..facts })
        }).collect();
        let verdicts = judge(&all, ExecutionPolicy::Enforce, &policy(), at(now));
        let mut without_word = Vec::new();
        for (node, (_, verdict)) in &verdicts {
            let facts = &all[node];
            if let Verdict::Release { .. } = verdict {
                let since = facts.loss.as_ref().unwrap().since.0;
                prop_assert!(facts.node == NodeNow::Absent);
                prop_assert!(since.as_second() + 300 <= now);
                prop_assert!(facts.word != Some(LostWord::Keep));
                prop_assert!(facts.at_stake.is_some());
                if facts.word.is_none() && facts.at_stake != Some(0) {
                    prop_assert!(!facts.held);
                    without_word.push(since.as_second());
                }
            }
        }
        let limit = (all.len() * 20 / 100).max(1);
        for since in &without_word {
            let near = without_word.iter().filter(|other| (*other - since).abs() <= 1800).count();
            prop_assert!(near <= limit);
        }
    }
}
