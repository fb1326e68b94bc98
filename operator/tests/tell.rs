//! What a NodeStorage's status says of a loss, and that the same state says the same twice.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use crds::condition::{self, kind, reason};
use jiff::Timestamp;
use operator::{
    tell::{KINDS, Known, Survey, Told, tell},
    verdict::{Facts, Kept, NodeNow, Phase, Verdict},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn facts(node: NodeNow) -> Facts {
    Facts {
        node,
        spec_uid: "old".into(),
        looked: true,
        fresh: true,
        look_after: None,
        answered: true,
        groups: [].into(),
        volumes: 2,
        volume_groups: ["A".to_owned()].into(),
        loss: None,
        disks_missing_since: None,
        released: false,
        gave_up: false,
        held: false,
        word: None,
        at_stake: Some(1),
    }
}

fn survey() -> Survey {
    Survey {
        delete: vec!["shop/data-web-0".into()],
        keep: [("shop/bare".to_owned(), "why".to_owned())].into(),
        claimless: 0,
    }
}

fn told(facts: &Facts, phase: &Phase, verdict: &Verdict, released: &[String], before: &Told, now: i64) -> Told {
    let survey = survey();
    let known = Known { facts, survey: Some(&survey), released, agent_ready: facts.node != NodeNow::Absent };
    tell(&known, phase, verdict, before, at(now))
}

fn says(told: &Told, kind: &str) -> (String, String, String) {
    let condition = condition::find(&told.conditions, kind).unwrap();
    (condition.status.clone(), condition.reason.clone(), condition.message.clone())
}

#[test]
fn a_node_that_is_there_has_no_loss() {
    let facts = facts(NodeNow::Present { uid: "old".into() });
    let first = told(&facts, &Phase::Here, &Verdict::Keep(Kept::NotLost), &[], &Told::default(), 1);
    assert_eq!(first.loss, None);
    assert_eq!(first.conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), KINDS);
    assert_eq!(says(&first, kind::AGENT_READY).0, "True");
    // I2
    let again = told(&facts, &Phase::Here, &Verdict::Keep(Kept::NotLost), &[], &first, 99);
    assert_eq!(first, again);
}

#[test]
fn the_story_of_a_loss() {
    let facts = facts(NodeNow::Absent);
    let gone = Phase::Gone { since: at(100) };
    let waiting = told(&facts, &gone, &Verdict::Wait { until: at(400) }, &[], &Told::default(), 100);
    let (status, word, message) = says(&waiting, kind::NODE_LOST);
    assert_eq!((status.as_str(), word.as_str()), ("True", reason::GRACE));
    assert_eq!(
        message,
        "the Node was deleted (1970-01-01T00:01:40Z): nothing is done before 1970-01-01T00:06:40Z; then 1 claim (shop/data-web-0) would be deleted"
    );
    assert_eq!(says(&waiting, kind::AGENT_READY).1, reason::POD_NOT_READY);
    let loss = waiting.loss.clone().unwrap();
    assert_eq!((loss.since.0, loss.node_uid.as_str(), loss.released), (at(100), "old", 0));
    assert_eq!(loss.kept_claims, ["shop/bare: why"]);

    let release = Verdict::Release { forget_at: None };
    let released = told(&facts, &gone, &release, &["shop/data-web-0".to_owned()], &waiting, 400);
    assert_eq!(says(&released, kind::NODE_LOST).1, reason::RELEASED);
    let loss = released.loss.clone().unwrap();
    assert_eq!((loss.released, loss.released_claims.as_slice()), (1, ["shop/data-web-0".to_owned()].as_slice()));
    // The condition has been true since the node was lost.
    let since = condition::find(&released.conditions, kind::NODE_LOST).unwrap().last_transition_time.0;
    assert_eq!(since, at(100));
    // Written once: nothing is added at the next look.
    assert_eq!(told(&facts, &gone, &release, &[], &released, 500), released);

    let last = told(&facts, &gone, &Verdict::Release { forget_at: Some(at(1000)) }, &[], &released, 600);
    assert_eq!(last.loss.clone().unwrap().forget_at.unwrap().0, at(1000));
    assert!(says(&last, kind::NODE_LOST).2.contains("this object is deleted at 1970-01-01T00:16:40Z"));
}

#[test]
fn the_lists_are_bounded() {
    let facts = facts(NodeNow::Absent);
    let many: Vec<String> = (0..250).map(|index| format!("shop/claim-{index}")).collect();
    let phase = Phase::Gone { since: at(1) };
    let told = told(&facts, &phase, &Verdict::Release { forget_at: None }, &many, &Told::default(), 2);
    let loss = told.loss.unwrap();
    assert_eq!((loss.released, loss.released_claims.len()), (250, 100));
}

#[test]
fn a_second_loss_is_another_one() {
    let mut facts = facts(NodeNow::Absent);
    let before = told(
        &facts,
        &Phase::Gone { since: at(1) },
        &Verdict::Wait { until: at(9) },
        &["a/b".into()],
        &Told::default(),
        1,
    );
    facts.spec_uid = "new".into();
    let after = told(&facts, &Phase::Gone { since: at(50) }, &Verdict::Wait { until: at(59) }, &[], &before, 50);
    let loss = after.loss.unwrap();
    assert_eq!((loss.since.0, loss.node_uid.as_str(), loss.released), (at(50), "new", 0));
}

/// A returned node's loss keeps the UID of the Node that went, whatever Node is there now.
#[test]
fn a_node_that_came_back_without_disks() {
    let gone = facts(NodeNow::Absent);
    let before = told(&gone, &Phase::Gone { since: at(1) }, &Verdict::Wait { until: at(9) }, &[], &Told::default(), 1);
    let mut facts = facts(NodeNow::Present { uid: "new".into() });
    facts.spec_uid = "new".into();
    let phase = Phase::Other { since: at(20), missing: ["A".to_owned()].into(), found: 1 };
    let after = told(&facts, &phase, &Verdict::Keep(Kept::SomeDisksFound), &[], &before, 20);
    assert_eq!(says(&after, kind::NODE_LOST).0, "False");
    let (status, word, message) = says(&after, kind::DISKS_MISSING);
    assert_eq!((status.as_str(), word.as_str()), ("True", reason::GROUPS_MISSING));
    assert!(message.contains("without 1 of the 2 groups") && message.contains("set spec.lost to Confirm"), "{message}");
    let loss = after.loss.unwrap();
    assert_eq!((loss.since.0, loss.node_uid.as_str()), (at(1), "old"));
}

/// Every verdict has a sentence that says what a person can do or what will be done.
#[test]
fn what_is_held_says_what_to_do() {
    let facts = facts(NodeNow::Absent);
    let held =
        told(&facts, &Phase::Gone { since: at(1) }, &Verdict::Hold { lost: 5, limit: 2 }, &[], &Told::default(), 2);
    let (status, word, message) = says(&held, kind::LOSS_HELD);
    assert_eq!((status.as_str(), word.as_str()), ("True", reason::TOO_MANY_LOST));
    assert!(message.contains("Confirm") && message.contains("Keep"), "{message}");
    assert_eq!(says(&held, kind::NODE_LOST).1, reason::TOO_MANY_LOST);
}
