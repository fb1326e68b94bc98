//! For each device: whether a class may have it, and if not, why not and what a person can do. Every device gets an
//! answer.

use std::collections::BTreeMap;

use crds::{
    device_class::DeviceType,
    names::tag,
    node_storage::{DeviceReason, DeviceState, device_reason, identity_is_global},
};

use crate::{
    disk::{BlankDisk, Claim, Content, Disk, select::device_type},
    lvm::command::overhead,
    plan::wanted::{Class, Wanted},
    seen::Seen,
};

/// What is said of a device in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub state: DeviceState,
    pub class: Option<String>,
    pub reasons: Vec<DeviceReason>,
}

/// A device before numbers count: how many a class needs is decided by `groups`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Settled(Verdict),
    /// Blank, and asked for by this class alone.
    Candidate {
        class: usize,
        disk: BlankDisk,
    },
    /// As `Candidate`, but the operator has not yet made sure that no other node sees it.
    Waiting {
        class: usize,
    },
}

pub fn reason(code: &str, message: impl Into<String>) -> DeviceReason {
    DeviceReason { code: code.to_owned(), message: message.into() }
}

pub fn verdict(state: DeviceState, class: Option<&str>, reasons: Vec<DeviceReason>) -> Verdict {
    Verdict { state, class: class.map(str::to_owned), reasons }
}

/// One answer for each device, in the order of `seen.disks`.
pub fn standings(wanted: &Wanted, seen: &Seen) -> Vec<Standing> {
    let mut names = BTreeMap::<&str, Vec<&Disk>>::new();
    for disk in &seen.disks {
        names.entry(&disk.id).or_default().push(disk);
    }
    seen.disks.iter().map(|disk| standing(disk, &names, wanted, seen)).collect()
}

fn standing(disk: &Disk, names: &BTreeMap<&str, Vec<&Disk>>, wanted: &Wanted, seen: &Seen) -> Standing {
    if let Some(group) = seen.group_of(disk).filter(|group| group.has_tag(tag::CLUSTER, wanted.cluster.as_str())) {
        return Standing::Settled(verdict(DeviceState::InUse, group.tag(tag::CLASS), Vec::new()));
    }
    let asked = asked(disk, &wanted.classes);
    let class = match &asked {
        Asked::By(class) => Some(wanted.classes[*class].name.as_str()),
        Asked::ByNone | Asked::Excluded(_) | Asked::ByMany(_) => None,
    };
    let refused = |reason| Standing::Settled(verdict(DeviceState::Refused, class, vec![reason]));
    let twins = names.get(disk.id.as_str()).map_or(0, Vec::len);
    // Of what no class could have anyway it is not said which one describes it.
    if let Some(reason) = outside(disk, twins, wanted) {
        return Standing::Settled(verdict(DeviceState::Refused, None, vec![reason]));
    }
    if let Some(reason) = occupied(disk, seen) {
        return refused(reason);
    }
    let Some(blank) = disk.blank() else {
        return refused(reason(
            device_reason::UNREADABLE,
            "it was not looked at: this is a fault of Stowage, report it",
        ));
    };
    match asked {
        Asked::Excluded(name) => refused(reason(
            device_reason::EXCLUDED,
            format!("the DeviceClass {name} excludes it: to have it used, change devices.exclude there"),
        )),
        Asked::ByMany(names) => refused(reason(
            device_reason::CONFLICT,
            format!(
                "the DeviceClasses {names} ask for it with equal priority: give one of them a higher priority, or narrow their devices.include"
            ),
        )),
        Asked::ByNone => unasked(disk),
        Asked::By(class) => {
            let wanted_by = &wanted.classes[class];
            let least = overhead(disk.size).0 + wanted_by.extent.0;
            if disk.size.0 < least {
                return refused(reason(
                    device_reason::TOO_SMALL,
                    format!(
                        "it has {}, and a volume group needs {} of it: use a larger device",
                        disk.size,
                        crate::name::Bytes(least)
                    ),
                ));
            }
            if identity_is_global(&disk.id) && !wanted.cleared.contains(&disk.id) {
                return Standing::Waiting { class };
            }
            Standing::Candidate { class, disk: blank }
        }
    }
}

/// Reasons that have nothing to do with what is on it.
fn outside(disk: &Disk, twins: usize, wanted: &Wanted) -> Option<DeviceReason> {
    if let Some(why) = &disk.system {
        return Some(reason(
            device_reason::SYSTEM_DEVICE,
            format!("this node runs from it ({why}): it is never taken"),
        ));
    }
    if let Some(why) = &disk.inner {
        return Some(reason(device_reason::TYPE_NOT_TAKEN, format!("{why}: such a device is never taken")));
    }
    if let Some(entry) = disk.denied(&wanted.deny) {
        return Some(reason(
            device_reason::DENIED,
            format!(
                "{entry} is on the deny list: to have it used, take it out of discovery.deny of the StorageCluster"
            ),
        ));
    }
    if let Some(what) = disk.odd() {
        return Some(reason(device_reason::TYPE_NOT_TAKEN, format!("it is {what}: nothing is to be done")));
    }
    if device_type(&disk.kind).is_none() {
        return Some(reason(
            device_reason::TYPE_NOT_TAKEN,
            format!("devices of type {} are never taken: nothing is to be done", disk.kind),
        ));
    }
    if disk.size.0 == 0 {
        return Some(reason(device_reason::NO_MEDIUM, "there is no medium in it: insert one to have it used"));
    }
    if disk.read_only {
        return Some(reason(
            device_reason::READ_ONLY,
            "it can not be written to: look at its write protection, or at the kernel's log for errors",
        ));
    }
    if disk.id.is_empty() {
        return Some(reason(
            device_reason::NO_IDENTITY,
            "it has no serial number, WWN or stable path by which it would be known after a reboot: give it a serial number",
        ));
    }
    if twins > 1 {
        return Some(reason(
            device_reason::DUPLICATE_ID,
            format!(
                "{twins} devices of this node have this identity: set up multipath if they are paths to one disk, else give them serial numbers of their own"
            ),
        ));
    }
    wanted.excluded.contains(&disk.id).then(|| {
        reason(
            device_reason::EXCLUDED,
            "a person excluded it on this node: to have it used, remove the entry from spec.devices of this NodeStorage",
        )
    })
}

/// What is on it, or above it.
fn occupied(disk: &Disk, seen: &Seen) -> Option<DeviceReason> {
    if !disk.above.is_empty() {
        return Some(reason(
            device_reason::IN_USE,
            format!("{} is made of it: nothing is to be done", disk.above.join(", ")),
        ));
    }
    // A4: a table that appears on a disk that has an owner makes partitions, but no free space.
    let owned = |parent: &&Disk| {
        disk.below.contains(&parent.kernel)
            && matches!(parent.content(), Content::Claimed(Claim::PhysicalVolume(_) | Claim::Signature(_)))
    };
    if let Some(parent) = seen.disks.iter().find(owned) {
        return Some(reason(
            device_reason::COVERED,
            format!("it lies on {}, which is in use as a whole: nothing is to be done", parent.path().display()),
        ));
    }
    if disk.partitions > 0 {
        return Some(reason(
            device_reason::HAS_PARTITIONS,
            format!(
                "it has {} partitions: to have it used as a whole, make sure that nothing on them is needed and run `wipefs --all` on them and on {}",
                disk.partitions,
                disk.path().display()
            ),
        ));
    }
    let path = disk.path().display();
    Some(match disk.content() {
        Content::Blank => return None,
        Content::Unknown(why) => reason(
            device_reason::UNREADABLE,
            format!("{why}: look at the kernel's log; it is tried again at the next look"),
        ),
        Content::Claimed(Claim::InUse) => reason(
            device_reason::IN_USE,
            "it is mounted, or open in another program of this node: to have it used, end that use and wipe it",
        ),
        Content::Claimed(Claim::Partitions(kind)) => reason(
            device_reason::HAS_PARTITIONS,
            format!(
                "it has a partition table ({kind}): to have it used, make sure that nothing on it is needed and run `wipefs --all {path}`"
            ),
        ),
        Content::Claimed(Claim::Signature(kind)) => reason(
            device_reason::HAS_SIGNATURE,
            format!(
                "it has a signature of {kind}: to have it used, make sure that nothing on it is needed and run `wipefs --all {path}`"
            ),
        ),
        Content::Claimed(Claim::NotZero) => reason(
            device_reason::NOT_ZERO,
            format!(
                "it has no signature, but its first or last MiB is not zero: make sure that nothing on it is needed, then overwrite both with zeros (`blkdiscard -z -l 1M {path}`, and the same at its end)"
            ),
        ),
        Content::Claimed(Claim::PhysicalVolume(_)) => foreign(disk, seen),
        Content::Claimed(Claim::NotLookedAt) => return None,
    })
}

fn foreign(disk: &Disk, seen: &Seen) -> DeviceReason {
    let path = disk.path().display();
    match seen.group_of(disk) {
        None => reason(
            device_reason::HAS_SIGNATURE,
            format!(
                "it is an LVM physical volume in no volume group that can be read: to have it used, make sure that nothing on it is needed and run `wipefs --all {path}`"
            ),
        ),
        Some(group) => match group.tag(tag::CLUSTER) {
            Some(cluster) => reason(
                device_reason::FOREIGN_GROUP,
                format!(
                    "it is in the volume group {} of another cluster ({cluster}): to have it used here, remove that group with vgremove and pvremove",
                    group.name
                ),
            ),
            None => reason(
                device_reason::FOREIGN_GROUP,
                format!(
                    "it is in the volume group {}, which Stowage did not make: to have it used, remove that group with vgremove and pvremove",
                    group.name
                ),
            ),
        },
    }
}

/// A blank device that no class asks for.
fn unasked(disk: &Disk) -> Standing {
    let listed = |kind: &str| {
        verdict(
            DeviceState::Refused,
            None,
            vec![reason(
                device_reason::TYPE_NOT_TAKEN,
                format!(
                    "devices of type {kind} are taken only where a DeviceClass lists that type in devices.include[].types"
                ),
            )],
        )
    };
    Standing::Settled(match device_type(&disk.kind) {
        Some(DeviceType::Disk | DeviceType::Mpath) => verdict(
            DeviceState::Available,
            None,
            vec![reason(
                device_reason::NOT_SELECTED,
                "it is blank, and no DeviceClass of this node asks for it: to have it used, describe it in devices.include of one",
            )],
        ),
        Some(DeviceType::Part | DeviceType::Crypt | DeviceType::Raid | DeviceType::Loop) | None => listed(&disk.kind),
    })
}

/// Which class asks for a device.
enum Asked {
    ByNone,
    By(usize),
    /// Of equal priority; their names.
    ByMany(String),
    /// By this one and no other, if it did not exclude it.
    Excluded(String),
}

fn asked(disk: &Disk, classes: &[Class]) -> Asked {
    let includes = |class: &Class| class.include.iter().any(|term| term.describes(disk));
    let excludes = |class: &Class| class.exclude.iter().any(|term| term.rules_out(disk));
    let takers =
        classes.iter().enumerate().filter(|(_, class)| includes(class) && !excludes(class)).collect::<Vec<_>>();
    let Some((first, best)) = takers.first() else {
        let excluding = classes.iter().find(|class| includes(class) && excludes(class));
        return excluding.map_or(Asked::ByNone, |class| Asked::Excluded(class.name.to_string()));
    };
    let equal =
        takers.iter().filter(|(_, class)| class.priority == best.priority).map(|(_, class)| class.name.as_str());
    let equal = equal.collect::<Vec<_>>();
    if equal.len() > 1 { Asked::ByMany(equal.join(" and ")) } else { Asked::By(*first) }
}
