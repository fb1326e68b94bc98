//! Steps that make the groups that are wanted of the devices that may be had.

use std::fmt;

use crds::{
    device_class::{DeviceTerm, Membership},
    names::{fnv1a_128, tag},
    node_storage::{DeviceReason, DeviceState, device_reason},
};

use crate::{
    disk::BlankDisk,
    lvm::report::Group,
    name::{Bytes, ClassName, LvmUuid, VgName},
    plan::{
        devices::{Standing, Verdict, reason, standings, verdict},
        wanted::{Class, KnownGroup, Wanted},
    },
    seen::Seen,
};

/// The status lists at most so many steps (`PlanStatus.steps` in the API); the rest waits for the next plan.
const MOST_STEPS: usize = 64;

/// One change to devices and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    CreateGroup {
        class: ClassName,
        group: VgName,
        extent: Bytes,
        disks: Vec<BlankDisk>,
    },
    /// `uuid` is absent where the group is made by an earlier step of the same plan.
    ExtendGroup {
        class: ClassName,
        group: VgName,
        uuid: Option<LvmUuid>,
        disk: BlankDisk,
    },
}

impl Step {
    pub fn class(&self) -> &ClassName {
        match self {
            Self::CreateGroup { class, .. } | Self::ExtendGroup { class, .. } => class,
        }
    }

    pub const fn op(&self) -> &'static str {
        match self {
            Self::CreateGroup { .. } => "CreateGroup",
            Self::ExtendGroup { .. } => "ExtendGroup",
        }
    }

    pub fn group(&self) -> &VgName {
        match self {
            Self::CreateGroup { group, .. } | Self::ExtendGroup { group, .. } => group,
        }
    }

    /// The devices that it writes to for the first time.
    pub fn disks(&self) -> &[BlankDisk] {
        match self {
            Self::CreateGroup { disks, .. } => disks,
            Self::ExtendGroup { disk, .. } => std::slice::from_ref(disk),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.disks().iter().map(|disk| format!("{} ({})", disk.path().display(), disk.size()));
        let paths = paths.collect::<Vec<_>>().join(", ");
        match self {
            Self::CreateGroup { class, group, .. } => {
                write!(f, "create volume group {group} for DeviceClass {class} on {paths}")
            }
            Self::ExtendGroup { group, .. } => write!(f, "extend volume group {group} with {paths}"),
        }
    }
}

/// What to do, and what was refused and why. Both are shown in the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// For each device of the look, in its order.
    pub verdicts: Vec<Verdict>,
    /// `(class, sentence)`.
    pub troubles: Vec<(String, String)>,
    /// Terms that describe no device of this node.
    pub unmatched: Vec<(String, DeviceTerm)>,
}

impl Plan {
    /// Names exactly these steps, in their order, on exactly these devices and groups. `None`: nothing is to be done.
    pub fn hash(&self) -> Option<String> {
        let mut text = String::new();
        for step in &self.steps {
            let uuid = match step {
                Step::CreateGroup { extent, .. } => format!("new {}", extent.0),
                Step::ExtendGroup { uuid, .. } => uuid.as_ref().map(LvmUuid::to_string).unwrap_or_default(),
            };
            text.push_str(&format!("{}\n{}\n{}\n{uuid}\n", step.op(), step.class(), step.group()));
            for disk in step.disks() {
                text.push_str(&format!("\t{}\t{}\n", disk.id(), disk.size().0));
            }
        }
        (!text.is_empty()).then(|| fnv1a_128(text.as_bytes()))
    }
}

pub fn plan(wanted: &Wanted, seen: &Seen) -> Plan {
    let mut plan = Plan { troubles: wanted.troubles.clone(), ..Plan::default() };
    let standings = standings(wanted, seen);
    let mut verdicts = vec![None; standings.len()];
    let mut budget = wanted.max_devices.min(MOST_STEPS);
    for (number, class) in wanted.classes.iter().enumerate() {
        let shares = Shares::of(number, &standings);
        let told = of_class(class, &shares, wanted, seen, &mut budget, &mut plan);
        told.into_iter().for_each(|(place, verdict)| verdicts[place] = Some(verdict));
        let unmatched = class.include.iter().filter(|term| !seen.disks.iter().any(|disk| term.describes(disk)));
        plan.unmatched.extend(unmatched.map(|term| (class.name.to_string(), term.raw().clone())));
    }
    plan.verdicts = standings
        .into_iter()
        .zip(verdicts)
        .map(|(standing, told)| match (standing, told) {
            (Standing::Settled(verdict), _) | (_, Some(verdict)) => verdict,
            // Each candidate belongs to a class, and each class tells of all its own.
            (Standing::Candidate { .. } | Standing::Waiting { .. }, None) => {
                verdict(DeviceState::Available, None, Vec::new())
            }
        })
        .collect();
    plan
}

/// The devices that a class may have.
struct Shares {
    /// By identity, so that the order does not depend on the kernel's.
    ready: Vec<(usize, BlankDisk)>,
    waiting: Vec<usize>,
}

impl Shares {
    fn of(number: usize, standings: &[Standing]) -> Self {
        let mut shares = Self { ready: Vec::new(), waiting: Vec::new() };
        for (place, standing) in standings.iter().enumerate() {
            match standing {
                Standing::Candidate { class, disk } if *class == number => shares.ready.push((place, disk.clone())),
                Standing::Waiting { class } if *class == number => shares.waiting.push(place),
                Standing::Candidate { .. } | Standing::Waiting { .. } | Standing::Settled(_) => {}
            }
        }
        shares.ready.sort_by(|(_, a), (_, b)| a.id().cmp(b.id()));
        shares
    }
}

/// What is to become of the devices of one class, by their places; steps and troubles go into the plan.
fn of_class(
    class: &Class,
    shares: &Shares,
    wanted: &Wanted,
    seen: &Seen,
    budget: &mut usize,
    plan: &mut Plan,
) -> Vec<(usize, Verdict)> {
    let name = class.name.as_str();
    let (ready, waiting) = (shares.ready.len(), shares.waiting.len());
    let want = |reasons| verdict(DeviceState::Wanted, Some(name), reasons);
    let leave = |why: String| verdict(DeviceState::Available, None, vec![reason(device_reason::NOT_NEEDED, why)]);
    let uncleared = || want(vec![reason(device_reason::NOT_CLEARED, UNCLEARED)]);
    let mut told = shares.waiting.iter().map(|place| (*place, uncleared())).collect::<Vec<_>>();
    let (take, rest) = match decide(class, ready, waiting, wanted, seen, *budget) {
        Decision::Wait { reasons, trouble } => {
            plan.troubles.extend(trouble.map(|trouble| (name.to_owned(), trouble)));
            (0, want(reasons))
        }
        Decision::Leave(why) => (0, leave(why)),
        Decision::Create { first, more } => {
            let (disks, extra) = shares.ready[..first + more].split_at(first);
            plan.steps.push(Step::CreateGroup {
                class: class.name.clone(),
                group: class.group.clone(),
                extent: class.extent,
                disks: disks.iter().map(|(_, disk)| disk.clone()).collect(),
            });
            plan.steps.extend(extends(class, &class.group, None, extra));
            (first + more, leftover(class, first + more, ready, want, leave))
        }
        Decision::Extend { group, more } => {
            plan.steps.extend(extends(class, &group.name, Some(&group.uuid), &shares.ready[..more]));
            (more, leftover(class, group.pvs.len() + more, ready - more, want, leave))
        }
    };
    *budget -= take;
    told.extend(shares.ready[..take].iter().map(|(place, _)| (*place, want(Vec::new()))));
    told.extend(shares.ready[take..].iter().map(|(place, _)| (*place, rest.clone())));
    told
}

const UNCLEARED: &str = "the operator has not yet made sure that no other node sees it: nothing is to be done, unless \
                         this lasts; then look for nodes whose agent is not ready";

fn extends<'a>(
    class: &'a Class,
    group: &'a VgName,
    uuid: Option<&'a LvmUuid>,
    disks: &'a [(usize, BlankDisk)],
) -> impl Iterator<Item = Step> {
    disks.iter().map(move |(_, disk)| Step::ExtendGroup {
        class: class.name.clone(),
        group: group.clone(),
        uuid: uuid.cloned(),
        disk: disk.clone(),
    })
}

/// What is said of devices that are not taken now: more than the class's `max`, or they wait for the next plan.
fn leftover(
    class: &Class,
    members: usize,
    left: usize,
    want: impl Fn(Vec<DeviceReason>) -> Verdict,
    leave: impl Fn(String) -> Verdict,
) -> Verdict {
    if members >= class.max && left > 0 {
        leave(format!(
            "the DeviceClass {} has its {} devices: to have it used, raise devices.max there",
            class.name, class.max
        ))
    } else {
        want(Vec::new())
    }
}

/// How many of a class's ready devices, in their order, go where.
enum Decision<'a> {
    /// They are wanted, but no step is possible yet.
    Wait {
        reasons: Vec<DeviceReason>,
        trouble: Option<String>,
    },
    /// They are not needed, and why.
    Leave(String),
    /// A group of the first ones, extended by the next ones.
    Create {
        first: usize,
        more: usize,
    },
    Extend {
        group: &'a Group,
        more: usize,
    },
}

fn decide<'a>(
    class: &Class,
    ready: usize,
    waiting: usize,
    wanted: &Wanted,
    seen: &'a Seen,
    budget: usize,
) -> Decision<'a> {
    let ours = groups_of(wanted, &class.name, seen).collect::<Vec<_>>();
    match ours.as_slice() {
        [] => create(class, ready, waiting, wanted, seen, budget),
        [group] => match trouble(group, seen) {
            Some(trouble) => Decision::Wait {
                reasons: vec![reason(device_reason::NOT_NEEDED, format!("{trouble}; until then it is not extended"))],
                trouble: Some(trouble),
            },
            None => match class.membership {
                Membership::Static => Decision::Leave(format!(
                    "the group of DeviceClass {} is Static and keeps the devices it was made of: to have it extended, set devices.membership to Dynamic",
                    class.name
                )),
                Membership::Dynamic => {
                    let more = class.max.saturating_sub(group.pvs.len()).min(ready).min(budget);
                    Decision::Extend { group, more }
                }
            },
        },
        many => {
            let names = many.iter().map(|group| format!("{} ({})", group.name, group.uuid)).collect::<Vec<_>>();
            let trouble = format!(
                "this node has {} volume groups of DeviceClass {}: {}. Nothing is done to any of them: remove the tag {} from those that are not meant",
                many.len(),
                class.name,
                names.join(", "),
                tag::CLASS
            );
            Decision::Wait { reasons: vec![reason(device_reason::NOT_NEEDED, trouble.clone())], trouble: Some(trouble) }
        }
    }
}

fn create<'a>(
    class: &Class,
    ready: usize,
    waiting: usize,
    wanted: &Wanted,
    seen: &Seen,
    budget: usize,
) -> Decision<'a> {
    let wait =
        |code: &str, why: String, trouble: Option<String>| Decision::Wait { reasons: vec![reason(code, why)], trouble };
    let in_the_way = |sentence: String| wait(device_reason::NOT_NEEDED, sentence.clone(), Some(sentence));
    let name = &class.name;
    // Absence is no consent: a group whose disks are late, or whose cable is loose, comes back, and then there would be
    // two.
    if let Some(away) = wanted.known.iter().find(|known| known.class == name.as_str() && !is_there(known, seen)) {
        return in_the_way(format!(
            "the volume group {} ({}) of DeviceClass {name} was on this node and is not to be seen: no other one is made. Bring its devices back; if it is gone for good, delete the LogicalVolumes of DeviceClass {name} on this node (a finalizer that stays is removed by hand), then this NodeStorage, which is made anew",
            away.name, away.uuid
        ));
    }
    if ready == 0 {
        // A node without devices for a class is as it should be.
        return Decision::Wait { reasons: Vec::new(), trouble: None };
    }
    if let Some(taken) = seen.groups.iter().find(|group| group.name == class.group) {
        return in_the_way(format!(
            "there is already a volume group {} on this node ({}) without the tags of DeviceClass {name}: nothing is done to it. Rename or remove it, or make a DeviceClass with another volumeGroup.name",
            taken.name, taken.uuid
        ));
    }
    if !class.group.has_room() {
        return in_the_way(format!(
            "the name {} is too long for a volume group, in which each - counts twice: make a DeviceClass with a shorter volumeGroup.name",
            class.group
        ));
    }
    if ready.min(class.max) < class.min {
        let sentence = format!(
            "the DeviceClass {name} wants a group of at least {} devices, and {ready} can be taken: add devices, or lower devices.min",
            class.min
        );
        return wait(device_reason::TOO_FEW, sentence.clone(), (waiting == 0).then_some(sentence));
    }
    match class.membership {
        // It is never extended, so it is made of everything at once or not yet.
        Membership::Static if waiting > 0 => wait(
            device_reason::NOT_CLEARED,
            format!(
                "the group of DeviceClass {name} is Static and is made at once of all its devices: {waiting} of them are not cleared yet"
            ),
            None,
        ),
        Membership::Static => at_once(ready.min(class.max), 0, budget, wanted),
        Membership::Dynamic => at_once(class.min, ready.min(class.max) - class.min, budget, wanted),
    }
}

fn is_there(known: &KnownGroup, seen: &Seen) -> bool {
    seen.groups.iter().any(|group| group.uuid.as_str() == known.uuid)
}

/// A new group of `first` devices in one step, if the limit of one plan allows, and of as many `more` as it leaves.
fn at_once<'a>(first: usize, more: usize, budget: usize, wanted: &Wanted) -> Decision<'a> {
    if first <= budget {
        return Decision::Create { first, more: more.min(budget - first) };
    }
    let never = first > wanted.max_devices.min(MOST_STEPS);
    Decision::Wait {
        reasons: Vec::new(),
        trouble: never.then(|| {
            format!("the group is made of {first} devices at once, and one plan may write to {}: raise safety.maxDevicesPerPlan of the StorageCluster", wanted.max_devices.min(MOST_STEPS))
        }),
    }
}

/// The groups that carry the tags of this cluster and class.
pub fn groups_of<'s>(wanted: &Wanted, class: &ClassName, seen: &'s Seen) -> impl Iterator<Item = &'s Group> {
    let ours = |group: &&Group| {
        group.has_tag(tag::CLUSTER, wanted.cluster.as_str()) && group.has_tag(tag::CLASS, class.as_str())
    };
    seen.groups.iter().filter(ours)
}

/// Why nothing may be done to a group of ours, and what a person can do.
pub fn trouble(group: &Group, seen: &Seen) -> Option<String> {
    let name = &group.name;
    if group.missing > 0 {
        let missing = group.pvs.iter().filter(|pv| pv.node.is_none()).map(|pv| pv.uuid.as_str()).collect::<Vec<_>>();
        return Some(format!(
            "{} of {} devices of volume group {name} are missing (PV {}): plug them in again, or see the documentation on lost devices",
            group.missing,
            group.pvs.len(),
            missing.join(", ")
        ));
    }
    if seen.is_doubled(group) {
        return Some(format!(
            "two devices show the same PV of volume group {name}: set up multipath if they are paths to one disk, or remove the copy"
        ));
    }
    group.foreign.as_ref().map(|why| format!("LVM refuses changes to volume group {name}: {why}"))
}

#[cfg(test)]
mod tests;
