//! A look and its plan in the words of the NodeStorage's status.

use crds::{
    names::tag,
    node_storage::{Device, GroupState, PlanStatus, PlanStep, VolumeGroupStatus},
};

use crate::{
    disk::Disk,
    lvm::report::{Group, Lv},
    name::{Bytes, ClassName},
    plan::{
        devices::Verdict,
        groups::{Plan, groups_of, trouble},
        wanted::{Reserve, Wanted},
    },
    report::{Report, SeenVolume},
    seen::Seen,
};

/// The status lists at most so many devices (`NodeStorageStatus.devices` in the API).
const MOST_DEVICES: usize = 512;

pub fn report(wanted: &Wanted, seen: &Seen, plan: &Plan) -> Report {
    let ours = seen.groups.iter().filter(|group| group.has_tag(tag::CLUSTER, wanted.cluster.as_str()));
    let ours = ours.collect::<Vec<_>>();
    let mut troubles = plan.troubles.clone();
    // A group whose class is not assigned any more is in nobody's plan, and its volumes are used all the same.
    for group in &ours {
        let class = group.tag(tag::CLASS).unwrap_or_default();
        let planned = wanted.classes.iter().any(|known| known.name.as_str() == class);
        troubles.extend(trouble(group, seen).filter(|_| !planned).map(|trouble| (class.to_owned(), trouble)));
    }
    troubles.dedup();
    Report {
        devices: devices(seen, plan, wanted),
        volume_groups: ours.iter().map(|group| volume_group(group, wanted, seen)).collect(),
        volumes: ours.iter().flat_map(|group| group.lvs.iter().filter_map(|lv| volume(group, lv, wanted))).collect(),
        plan: plan.hash().map(|hash| PlanStatus { hash, steps: steps(plan) }),
        troubles,
        unmatched: plan
            .unmatched
            .iter()
            .map(|(class, term)| (class.clone(), serde_json::to_string(term).unwrap_or_default()))
            .collect(),
    }
}

/// By identity, so that the same devices give the same bytes whatever order the kernel found them in. Loop devices
/// are listed where somebody wants to use them: elsewhere they come and go with packages and with pods' block volumes.
fn devices(seen: &Seen, plan: &Plan, wanted: &Wanted) -> Vec<Device> {
    let listed = |disk: &Disk| disk.kind != "loop" || disk.denied(&wanted.deny).is_none();
    let mut all = seen.disks.iter().zip(&plan.verdicts).filter(|(disk, _)| listed(disk)).collect::<Vec<_>>();
    all.sort_by(|(a, _), (b, _)| (&a.id, &a.kernel).cmp(&(&b.id, &b.kernel)));
    all.into_iter().take(MOST_DEVICES).map(|(disk, verdict)| device(disk, verdict)).collect()
}

fn device(disk: &Disk, verdict: &Verdict) -> Device {
    Device {
        id: if disk.id.is_empty() { format!("unnamed-{}", disk.kernel) } else { disk.id.clone() },
        path: disk.path().display().to_string(),
        size: disk.size.signed(),
        model: disk.model.clone(),
        serial: disk.serial.clone(),
        transport: disk.transport.clone(),
        type_: disk.kind.clone(),
        rotational: disk.rotational,
        state: verdict.state,
        class: verdict.class.clone(),
        reasons: verdict.reasons.clone(),
    }
}

fn volume_group(group: &Group, wanted: &Wanted, seen: &Seen) -> VolumeGroupStatus {
    let class = group.tag(tag::CLASS).unwrap_or_default();
    let known = wanted.classes.iter().find(|known| known.name.as_str() == class);
    let reserve = known.map_or(Reserve::None, |known| known.reserve).of(group.size(), group.extent);
    VolumeGroupStatus {
        class: class.to_owned(),
        name: group.name.to_string(),
        uuid: group.uuid.to_string(),
        size: group.size().signed(),
        extent_size: group.extent.signed(),
        unmanaged: unmanaged(group, wanted).signed(),
        reserve: reserve.signed(),
        // A linear LV may lie on all PVs.
        max_volume_size: group.size().signed(),
        devices: i64::try_from(group.pvs.len()).unwrap_or(i64::MAX),
        state: state(group, class, wanted, seen),
        last_error: trouble(group, seen),
    }
}

fn state(group: &Group, class: &str, wanted: &Wanted, seen: &Seen) -> GroupState {
    let twins = ClassName::try_from(class).map_or(0, |class| groups_of(wanted, &class, seen).count());
    if twins > 1 || seen.is_doubled(group) || group.foreign.is_some() {
        GroupState::Conflict
    } else if group.missing > 0 {
        GroupState::Partial
    } else {
        GroupState::Ready
    }
}

/// What is used by anything that is not a volume of this cluster.
fn unmanaged(group: &Group, wanted: &Wanted) -> Bytes {
    let used = group.extents.saturating_sub(group.free) * group.extent.0;
    let managed = group.lvs.iter().filter(|lv| is_ours(lv, wanted)).map(|lv| lv.size.0).sum::<u64>();
    Bytes(used.saturating_sub(managed))
}

fn is_ours(lv: &Lv, wanted: &Wanted) -> bool {
    lv.has_tag(tag::CLUSTER, wanted.cluster.as_str()) && lv.tag(tag::VOLUME).is_some()
}

fn volume(group: &Group, lv: &Lv, wanted: &Wanted) -> Option<SeenVolume> {
    is_ours(lv, wanted).then(|| SeenVolume {
        name: lv.tag(tag::VOLUME).unwrap_or_default().to_owned(),
        class: lv.tag(tag::CLASS).or_else(|| group.tag(tag::CLASS)).unwrap_or_default().to_owned(),
        vg_uuid: group.uuid.to_string(),
        lv_uuid: lv.uuid.to_string(),
        size: lv.size.0,
        claim: lv.tag(tag::CLAIM).map(str::to_owned),
        used: lv.tags.contains(tag::USED),
    })
}

fn steps(plan: &Plan) -> Vec<PlanStep> {
    let step = |step: &crate::plan::groups::Step| PlanStep {
        op: step.op().to_owned(),
        target: step.group().to_string(),
        guarded: false,
        why: step.to_string(),
    };
    plan.steps.iter().map(step).collect()
}
