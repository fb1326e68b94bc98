//! What is done about a node that is gone. Pure: facts, policy and the time in, one verdict per node out.
//!
//! The careful answer is the default everywhere: a fact that is not known keeps the data.

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    node_storage::{Loss, LostWord},
    storage_cluster::{ExecutionPolicy, LossPolicy, NodeLoss},
};
use jiff::{SignedDuration, Timestamp};

/// Nodes lost within this time of one another count together for the brake (DESIGN 4.3.2).
const TOGETHER: SignedDuration = SignedDuration::from_mins(30);

/// The Node object of this name, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeNow {
    Absent,
    Present { uid: String },
}

/// Everything that is known about one NodeStorage.
#[derive(Clone, Debug)]
pub struct Facts {
    pub node: NodeNow,
    /// `spec.nodeUID`: the Node object that the NodeStorage speaks of.
    pub spec_uid: String,
    /// The agent's last complete look was made for that Node object.
    pub looked: bool,
    /// The agent is at work and its looks succeed: what it does not find is not there.
    pub fresh: bool,
    /// The last look for which it was asked to answer: the time that it is later than.
    pub look_after: Option<Timestamp>,
    /// The last look answers the spec as it is now.
    pub answered: bool,
    /// UUIDs of the groups that the last look found.
    pub groups: BTreeSet<String>,
    /// LogicalVolumes on the node, terminating ones included.
    pub volumes: usize,
    /// UUIDs of the groups that these are in, as far as they were made.
    pub volume_groups: BTreeSet<String>,
    pub loss: Option<Loss>,
    /// Since when the condition DisksMissing is true.
    pub disks_missing_since: Option<Timestamp>,
    /// What is written down says that its claims are given up.
    pub released: bool,
    /// Claims of it were given up; this outlives a restart.
    pub gave_up: bool,
    /// The condition LossHeld is true.
    pub held: bool,
    pub word: Option<LostWord>,
    /// How many claims would be deleted; `None` when that is not known.
    pub at_stake: Option<usize>,
}

/// How far a node is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its Node object is there, and is the one that the NodeStorage speaks of.
    Here,
    /// There is no Node object of this name.
    Gone { since: Timestamp },
    /// A Node of this name came back, and its agent has not looked yet: the clock stands still.
    Unseen { since: Timestamp },
    /// The Node came back, and of the groups that its volumes are in, some are missing.
    Other { since: Timestamp, missing: BTreeSet<String>, found: usize },
    /// The Node came back with everything that it had.
    Back,
}

pub fn phase(facts: &Facts, now: Timestamp) -> Phase {
    let uid = match &facts.node {
        NodeNow::Absent => {
            let known = facts.loss.as_ref().filter(|loss| loss.node_uid == facts.spec_uid);
            return Phase::Gone { since: known.map_or(now, |loss| loss.since.0) };
        }
        NodeNow::Present { uid } => uid,
    };
    let Some(loss) = &facts.loss else {
        // A machine that was replaced faster than anybody looked is no other case than one that was away for long.
        let replaced = !facts.spec_uid.is_empty() && facts.spec_uid != *uid && !facts.volume_groups.is_empty();
        return if replaced { Phase::Unseen { since: now } } else { Phase::Here };
    };
    if loss.node_uid == *uid || facts.volume_groups.is_empty() {
        return Phase::Back;
    }
    if facts.spec_uid != *uid || !facts.looked {
        return Phase::Unseen { since: loss.since.0 };
    }
    let missing: BTreeSet<String> = facts.volume_groups.difference(&facts.groups).cloned().collect();
    if missing.is_empty() {
        return Phase::Back;
    }
    let found = facts.volume_groups.len() - missing.len();
    Phase::Other { since: facts.disks_missing_since.unwrap_or(now), missing, found }
}

/// A person's Confirm that was about a loss that is over, or was given before it was known that the node came back
/// without its disks. It is taken away, and counts for nothing until then.
pub fn word_is_stale(facts: &Facts, phase: &Phase) -> bool {
    facts.word == Some(LostWord::Confirm)
        && match phase {
            Phase::Here | Phase::Unseen { .. } => true,
            Phase::Other { .. } => facts.disks_missing_since.is_none(),
            Phase::Gone { .. } | Phase::Back => false,
        }
}

/// What is decided about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is to be done.
    Keep(Kept),
    /// Nothing before this time.
    Wait { until: Timestamp },
    /// Its time is over, and its agent is asked for one more look before its disks are believed to be gone.
    Look,
    /// Too many nodes are gone at once: a person decides.
    Hold { lost: usize, limit: usize },
    /// Its claims are given up, as far as the policy of each lets it.
    Release { forget_at: Option<Timestamp> },
    /// No volume is left, and the time is over: the NodeStorage is deleted.
    Forget,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The node is there.
    NotLost,
    /// It is back, and its agent has not looked yet, or could not.
    LookAwaited,
    /// A person said so.
    Word,
    /// `nodeLoss.policy` is `None`.
    Policy,
    /// `executionPolicy` is not `Enforce`.
    PlanOnly,
    /// Some of its disks came back: a lost disk is no lost node.
    SomeDisksFound,
    /// What would be deleted could not be found out.
    Unknown,
}

/// One verdict for each node of `all`.
pub fn judge(
    all: &BTreeMap<String, Facts>,
    execution: ExecutionPolicy,
    policy: &NodeLoss,
    now: Timestamp,
) -> BTreeMap<String, (Phase, Verdict)> {
    let phases: BTreeMap<&String, Phase> = all.iter().map(|(node, facts)| (node, phase(facts, now))).collect();
    let brake = Brake::new(all, &phases, policy);
    all.iter()
        .map(|(node, facts)| {
            let phase = phases[node].clone();
            let verdict = verdict(facts, &phase, execution, policy, &brake, now);
            (node.clone(), (phase, verdict))
        })
        .collect()
}

fn verdict(
    facts: &Facts,
    phase: &Phase,
    execution: ExecutionPolicy,
    policy: &NodeLoss,
    brake: &Brake,
    now: Timestamp,
) -> Verdict {
    let (since, until) = match phase {
        Phase::Here | Phase::Back => return Verdict::Keep(Kept::NotLost),
        Phase::Unseen { .. } => return Verdict::Keep(Kept::LookAwaited),
        Phase::Gone { since } => (*since, after(*since, policy.grace_seconds)),
        Phase::Other { since, .. } => (*since, after(*since, policy.return_seconds)),
    };
    let confirmed = facts.word == Some(LostWord::Confirm) && !word_is_stale(facts, phase);
    let came_back = matches!(phase, Phase::Other { .. });
    if facts.word == Some(LostWord::Keep) {
        return Verdict::Keep(Kept::Word);
    }
    match execution {
        ExecutionPolicy::Enforce => {}
        ExecutionPolicy::Plan | ExecutionPolicy::Pause => return Verdict::Keep(Kept::PlanOnly),
    }
    match policy.policy {
        LossPolicy::Recreatable => {}
        // What is left once there are no volumes is bookkeeping, and goes in its time.
        LossPolicy::None if facts.volumes == 0 => {}
        LossPolicy::None => return Verdict::Keep(Kept::Policy),
    }
    if let Phase::Other { found: 1.., .. } = phase
        && !confirmed
    {
        return Verdict::Keep(Kept::SomeDisksFound);
    }
    // A person's word ends the wait for disks; the grace after the deletion of a Node is never cut short, since the
    // word may have been meant for an earlier loss.
    if now < until && !(came_back && confirmed) {
        return Verdict::Wait { until };
    }
    if came_back && let Some(awaited) = look_awaited(facts, if confirmed { since } else { until }) {
        return awaited;
    }
    // What was decided already is not taken back because the claims can not be read: nothing is deleted unread.
    if facts.at_stake.is_none() && !facts.released {
        return Verdict::Keep(Kept::Unknown);
    }
    if !confirmed && let Some(hold) = brake.holds(facts, since) {
        return hold;
    }
    if facts.volumes > 0 || came_back {
        return Verdict::Release { forget_at: None };
    }
    let forget_at = facts.loss.as_ref().and_then(|loss| loss.forget_at.as_ref()).map(|time| time.0);
    // A node that was lost together with this one is judged after its grace, and then this one still counts.
    let counts_until = since.checked_add(TOGETHER).map_or(Timestamp::MAX, |last| after(last, policy.grace_seconds));
    let forget_at = forget_at.unwrap_or_else(|| after(now, policy.forget_seconds)).max(counts_until);
    if forget_at <= now { Verdict::Forget } else { Verdict::Release { forget_at: Some(forget_at) } }
}

/// Disks are believed to be gone by a look that was asked for when the time was over, by an agent that is at work. Once
/// that was so, each look that finds them takes it back by itself.
fn look_awaited(facts: &Facts, not_before: Timestamp) -> Option<Verdict> {
    let asked = facts.look_after.is_some_and(|time| time >= not_before);
    match (facts.fresh, facts.released || asked && facts.answered) {
        (true, true) => None,
        (true, false) if !asked => Some(Verdict::Look),
        (true | false, _) => Some(Verdict::Keep(Kept::LookAwaited)),
    }
}

/// Saturates: a time that can not be written is never reached.
fn after(since: Timestamp, seconds: i64) -> Timestamp {
    since.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Many nodes gone at once is more often a mistake than a fire.
struct Brake {
    /// When each node was lost that counts.
    lost: Vec<Timestamp>,
    limit: usize,
}

impl Brake {
    fn new(all: &BTreeMap<String, Facts>, phases: &BTreeMap<&String, Phase>, policy: &NodeLoss) -> Self {
        let lost = all.iter().filter_map(|(node, facts)| {
            let since = match &phases[node] {
                Phase::Here | Phase::Back | Phase::Unseen { .. } => return None,
                Phase::Gone { since } | Phase::Other { since, .. } => *since,
            };
            let gave_up = facts.gave_up || facts.loss.as_ref().is_some_and(|loss| loss.released > 0);
            let counts = facts.word.is_none() && (facts.at_stake != Some(0) || gave_up);
            counts.then_some(since)
        });
        let percent = usize::try_from(policy.max_nodes_percent).unwrap_or(0);
        Self { lost: lost.collect(), limit: (all.len() * percent / 100).max(1) }
    }

    fn holds(&self, facts: &Facts, since: Timestamp) -> Option<Verdict> {
        let near = |other: &&Timestamp| other.duration_since(since).abs() <= TOGETHER;
        let lost = self.lost.iter().filter(near).count();
        // Once held, only a person lets go: the others' coming back does not say that this one is gone.
        let stakes = facts.at_stake != Some(0);
        (stakes && (facts.held || lost > self.limit)).then_some(Verdict::Hold { lost, limit: self.limit })
    }
}
