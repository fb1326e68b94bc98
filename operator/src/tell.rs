//! What a NodeStorage's status says of its node's loss and of its agent. Pure: verdict in, conditions and `status.loss` out.

use std::collections::BTreeMap;

use crds::{
    condition::{self, kind, reason},
    node_storage::Loss,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::verdict::{Facts, Kept, NodeNow, Phase, Verdict};

/// `status.loss` lists so many claims by name.
const LISTED: usize = 100;
/// A message names so many.
const NAMED: usize = 5;

/// What was found out about the claims of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// `<namespace>/<name>` of the claims that the policy gives up.
    pub delete: Vec<String>,
    /// Of the ones that wait for a person: why.
    pub keep: BTreeMap<String, String>,
    /// Volumes whose claim is not there (any more).
    pub claimless: usize,
}

/// The parts of a NodeStorage's status that are the operator's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    pub conditions: Vec<Condition>,
    pub loss: Option<Loss>,
}

/// The kinds of condition in [`Told`].
pub const KINDS: [&str; 4] = [kind::NODE_LOST, kind::LOSS_HELD, kind::DISKS_MISSING, kind::AGENT_READY];

/// What the status is made of, besides the verdict.
pub struct Known<'a> {
    pub facts: &'a Facts,
    pub survey: Option<&'a Survey>,
    /// Claims that were deleted since the status was written.
    pub released: &'a [String],
    /// The agent's pod on the node is Ready.
    pub agent_ready: bool,
}

/// `before` is what the status says now.
pub fn tell(known: &Known<'_>, phase: &Phase, verdict: &Verdict, before: &Told, now: Timestamp) -> Told {
    let mut conditions = before.conditions.clone();
    for new in [
        node_lost(phase, verdict, known.survey),
        loss_held(verdict),
        disks_missing(phase, verdict, known.survey),
        agent(known.agent_ready, phase),
    ] {
        condition::set(&mut conditions, new, now);
    }
    Told { conditions, loss: loss(known, phase, verdict, before.loss.as_ref()) }
}

fn is(kind: &str, yes: bool, reason: &str, message: impl Into<String>) -> Condition {
    condition::new(kind, condition::status(yes), reason, message, None)
}

fn node_lost(phase: &Phase, verdict: &Verdict, survey: Option<&Survey>) -> Condition {
    let since = match phase {
        Phase::Here | Phase::Back => {
            return is(kind::NODE_LOST, false, reason::NODE_PRESENT, "the Node is there");
        }
        Phase::Other { .. } => {
            return is(
                kind::NODE_LOST,
                false,
                reason::NODE_PRESENT,
                "the Node came back without its disks: see DisksMissing",
            );
        }
        Phase::Unseen { since } => {
            return is(
                kind::NODE_LOST,
                true,
                reason::NODE_DELETED,
                format!(
                    "the Node was deleted ({}), and one of the same name is there now: nothing is done until its agent has looked at its disks",
                    at(*since)
                ),
            );
        }
        Phase::Gone { since } => *since,
    };
    let (reason, message) = decided(verdict, survey, "the Node");
    is(kind::NODE_LOST, true, reason, format!("the Node was deleted ({}): {message}", at(since)))
}

fn disks_missing(phase: &Phase, verdict: &Verdict, survey: Option<&Survey>) -> Condition {
    let Phase::Other { missing, found, .. } = phase else {
        return is(kind::DISKS_MISSING, false, reason::AS_WANTED, "no volume misses its group");
    };
    let groups: Vec<&str> = missing.iter().map(String::as_str).take(NAMED).collect();
    let (reason, message) = decided(verdict, survey, "its disks");
    let all = missing.len() + found;
    is(
        kind::DISKS_MISSING,
        true,
        reason,
        format!(
            "the Node came back without {} of the {all} groups that its volumes are in ({}): {message}",
            missing.len(),
            groups.join(", ")
        ),
    )
}

/// The reason, and the rest of a sentence.
fn decided(verdict: &Verdict, survey: Option<&Survey>, what: &str) -> (&'static str, String) {
    let deleted = || claims(survey.map(|survey| survey.delete.as_slice()).unwrap_or_default());
    match verdict {
        Verdict::Wait { until } => {
            (reason::GRACE, format!("nothing is done before {}; then {} would be deleted", at(*until), deleted()))
        }
        Verdict::Look => (reason::GROUPS_MISSING, look_awaited()),
        Verdict::Hold { .. } => (
            reason::TOO_MANY_LOST,
            format!("too many nodes are gone at once, so {} wait for a person: see LossHeld", deleted()),
        ),
        Verdict::Release { forget_at: Some(time) } => {
            (reason::RELEASED, format!("no volume is left, and this object is deleted at {}", at(*time)))
        }
        Verdict::Release { forget_at: None } => {
            let kept = survey.map_or(0, |survey| survey.keep.len());
            let left = match kept {
                0 => String::new(),
                kept => format!("; {kept} wait for a person: see status.loss.keptClaims for what to do about each"),
            };
            (reason::RELEASED, format!("claims that are made anew elsewhere are deleted{left}"))
        }
        Verdict::Forget => (reason::RELEASED, "no volume is left, and this object is being deleted".to_owned()),
        Verdict::Keep(kept) => {
            let message = match kept {
                Kept::NotLost => "it is there".to_owned(),
                Kept::LookAwaited => look_awaited(),
                Kept::Word => "spec.lost is Keep, so nothing is deleted".to_owned(),
                Kept::Policy => format!(
                    "nodeLoss.policy is None, so nothing is deleted; bring back {what}, or delete the claims by hand"
                ),
                Kept::PlanOnly => {
                    format!("executionPolicy is not Enforce, so nothing is deleted; {} would be", deleted())
                }
                Kept::SomeDisksFound => {
                    "nothing is deleted for a lost disk; set spec.lost to Confirm to give up the volumes on it"
                        .to_owned()
                }
                Kept::Unknown => "its claims could not be read yet, so nothing is deleted".to_owned(),
            };
            let word = match kept {
                Kept::PlanOnly => reason::PLAN_ONLY,
                Kept::SomeDisksFound | Kept::LookAwaited => reason::GROUPS_MISSING,
                Kept::NotLost | Kept::Word | Kept::Policy | Kept::Unknown => reason::NODE_DELETED,
            };
            (word, message)
        }
    }
}

fn look_awaited() -> String {
    "nothing is done until its agent has looked once more; see the condition Ready, and the pods in stowage-system"
        .to_owned()
}

fn loss_held(verdict: &Verdict) -> Condition {
    match verdict {
        Verdict::Hold { lost, limit } => is(
            kind::LOSS_HELD,
            true,
            reason::TOO_MANY_LOST,
            format!(
                "{lost} nodes with claims were lost within 30 minutes, {limit} at once are dealt with: set spec.lost to Confirm if this one will not come back, or to Keep if it will"
            ),
        ),
        Verdict::Keep(_) | Verdict::Wait { .. } | Verdict::Look | Verdict::Release { .. } | Verdict::Forget => {
            is(kind::LOSS_HELD, false, reason::NOT_HELD, "nothing is held back")
        }
    }
}

fn agent(ready: bool, phase: &Phase) -> Condition {
    let message = match (ready, phase) {
        (true, _) => "the pod of stowage-node is Ready",
        (false, Phase::Gone { .. }) => "the Node is gone",
        (false, Phase::Here | Phase::Unseen { .. } | Phase::Other { .. } | Phase::Back) => {
            "there is no Ready pod of stowage-node on this node: see the pods in stowage-system"
        }
    };
    let word = if ready { reason::POD_READY } else { reason::POD_NOT_READY };
    is(kind::AGENT_READY, ready, word, message)
}

fn loss(known: &Known<'_>, phase: &Phase, verdict: &Verdict, before: Option<&Loss>) -> Option<Loss> {
    let Known { facts, survey, released, .. } = known;
    let since = match phase {
        Phase::Here | Phase::Back => return None,
        Phase::Gone { since } | Phase::Unseen { since } => *since,
        // The time of the deletion stays; that of the disks is the condition's.
        Phase::Other { since, .. } => before.map_or(*since, |before| before.since.0),
    };
    let uid = match (&facts.node, before) {
        // The same loss goes on, also while a new Node of the name is there.
        (NodeNow::Present { .. }, Some(before)) => before.node_uid.clone(),
        (NodeNow::Absent | NodeNow::Present { .. }, _) => facts.spec_uid.clone(),
    };
    let mut loss = match before {
        Some(before) if before.node_uid == uid => before.clone(),
        Some(_) | None => Loss {
            since: Time(condition::whole_seconds(since)),
            node_uid: uid,
            released_claims: Vec::new(),
            released: 0,
            kept_claims: Vec::new(),
            forget_at: None,
        },
    };
    loss.released += i64::try_from(released.len()).unwrap_or(0);
    let room = LISTED.saturating_sub(loss.released_claims.len());
    loss.released_claims.extend(released.iter().take(room).cloned());
    if let Some(survey) = survey {
        loss.kept_claims = survey.keep.iter().map(|(claim, why)| format!("{claim}: {why}")).take(LISTED).collect();
    }
    loss.forget_at = match verdict {
        Verdict::Release { forget_at } => forget_at.map(|time| Time(condition::whole_seconds(time))),
        Verdict::Forget => loss.forget_at,
        Verdict::Keep(_) | Verdict::Wait { .. } | Verdict::Look | Verdict::Hold { .. } => None,
    };
    Some(loss)
}

/// `3 claims (a/b, a/c, …)`
fn claims(list: &[String]) -> String {
    match list {
        [] => "no claim".to_owned(),
        [one] => format!("1 claim ({one})"),
        [..] => {
            let named: Vec<&str> = list.iter().take(NAMED).map(String::as_str).collect();
            let more = if list.len() > NAMED { ", …" } else { "" };
            format!("{} claims ({}{more})", list.len(), named.join(", "))
        }
    }
}

fn at(time: Timestamp) -> Timestamp {
    condition::whole_seconds(time)
}
