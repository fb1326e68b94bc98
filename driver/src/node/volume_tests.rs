use crds::{
    logical_volume::{Claim, LogicalVolumeSpec},
    node_storage::{Agent, AssignedClass, GroupState, NodeStorageSpec, NodeStorageStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::hands::Call;

const LV: &str = "aaaaaa-bbbb-cccc-dddd-eeee-ffff-gggggg";
const VG: &str = "hhhhhh-bbbb-cccc-dddd-eeee-ffff-gggggg";
const GIB: i64 = 1 << 30;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn volume() -> LogicalVolume {
    let mut volume = LogicalVolume::new(
        "pvc-1",
        LogicalVolumeSpec {
            node_name: "node1".into(),
            device_class: "fast".into(),
            size: GIB,
            access: Default::default(),
            claim: Some(Claim { namespace: "default".into(), name: "data".into() }),
            adopt: None,
            discard: false,
        },
    );
    volume.metadata.generation = Some(1);
    volume.metadata.finalizers = Some(vec![VOLUME_FINALIZER.into()]);
    volume
}

fn lv() -> lvmd::proto::Volume {
    lvmd::proto::Volume {
        vg_name: "stowage-fast".into(),
        vg_uuid: VG.into(),
        lv_uuid: LV.into(),
        size: 1 << 30,
        ..lvmd::proto::Volume::default()
    }
}

fn there() -> LogicalVolume {
    let mut there = volume();
    there.status = Some(made(&there, &lv(), at(1)));
    there
}

fn deleted(mut volume: LogicalVolume, discard: bool) -> LogicalVolume {
    volume.metadata.deletion_timestamp = Some(Time(at(5)));
    volume.metadata.generation = Some(2);
    volume.spec.discard = discard;
    volume
}

fn node() -> NodeStorage {
    let mut node = NodeStorage::new(
        "node1",
        NodeStorageSpec {
            node_name: "node1".into(),
            cluster_id: "cluster".into(),
            classes: vec![AssignedClass { name: "fast".into(), ..AssignedClass::default() }],
            ..NodeStorageSpec::default()
        },
    );
    let group = VolumeGroupStatus {
        class: "fast".into(),
        name: "stowage-fast".into(),
        uuid: VG.into(),
        size: 10 * GIB,
        extent_size: 4 << 20,
        unmanaged: 0,
        reserve: GIB,
        max_volume_size: 10 * GIB,
        devices: 1,
        state: GroupState::Ready,
        last_error: None,
    };
    node.status = Some(NodeStorageStatus {
        agent: Some(Agent::default()),
        volume_groups: vec![group],
        ..NodeStorageStatus::default()
    });
    node
}

fn id() -> Option<VolumeId> {
    Some(VolumeId { name: "pvc-1".into(), cluster_id: "cluster".into(), class: "fast".into() })
}

fn said(status: &LogicalVolumeStatus, kind: &str) -> (String, String) {
    let condition = condition::find(&status.conditions, kind).unwrap_or_else(|| panic!("no condition {kind}"));
    (condition.status.clone(), condition.reason.clone())
}

#[test]
fn a_new_volume_is_made_with_the_reserve_of_its_group() {
    let Next::Create(request) = next(&volume(), &node()) else { panic!("{:?}", next(&volume(), &node())) };
    assert_eq!((request.volume, request.size, request.reserve), (id(), 1 << 30, 1 << 30));
    assert_eq!((request.access.as_str(), request.claim.as_str()), ("Filesystem", "default/data"));
}

#[test]
fn a_volume_that_is_there_is_left_alone_and_a_larger_wish_grows_it() {
    assert_eq!(next(&there(), &node()), Next::Settled);
    let mut grown = there();
    grown.spec.size = 2 * GIB;
    let request = GrowVolumeRequest { volume: id(), lv_uuid: LV.into(), size: 2 << 30, reserve: 1 << 30 };
    assert_eq!(next(&grown, &node()), Next::Grow(request));
    // RecoverVolumeExpansionFailure: the wish falls back to what is there.
    grown.spec.size = GIB;
    assert_eq!(next(&grown, &node()), Next::Settled);
}

#[test]
fn data_goes_only_with_discard_and_only_by_both_uuids_or_none() {
    assert_eq!(next(&deleted(there(), false), &node()), Next::Settled);
    assert_eq!(next(&deleted(volume(), false), &node()), Next::Settled);
    let both = DeleteVolumeRequest { volume: id(), vg_uuid: VG.into(), lv_uuid: LV.into() };
    assert_eq!(next(&deleted(there(), true), &node()), Next::Delete(both));
    let none = DeleteVolumeRequest { volume: id(), vg_uuid: String::new(), lv_uuid: String::new() };
    assert_eq!(next(&deleted(volume(), true), &node()), Next::Delete(none));
    // Discard alone is no deletion.
    let mut kept = there();
    kept.spec.discard = true;
    assert_eq!(next(&kept, &node()), Next::Settled);
    let mut unmade = volume();
    unmade.spec.discard = true;
    assert_eq!(next(&unmade, &node()), Next::Nothing);
    // Another's finalizer holds an object that is not ours any more.
    let mut released = deleted(there(), true);
    released.metadata.finalizers = Some(vec!["example.com/other".into()]);
    assert_eq!(next(&released, &node()), Next::Nothing);
}

#[test]
fn a_pause_holds_back_making_growing_and_removing() {
    let mut paused = node();
    paused.spec.rails.execution_policy = ExecutionPolicy::Pause;
    let mut grown = there();
    grown.spec.size = 2 * GIB;
    for volume in [volume(), grown, deleted(there(), true)] {
        assert_eq!(next(&volume, &paused), Next::Wait(Obstacle::Paused));
    }
    assert_eq!(next(&there(), &paused), Next::Settled);
}

#[test]
fn nothing_is_made_where_the_reserve_is_not_known() {
    let mut unassigned = node();
    unassigned.spec.classes.clear();
    assert_eq!(next(&volume(), &unassigned), Next::Wait(Obstacle::ClassNotHere("fast".into())));
    let mut no_look = node();
    no_look.status = None;
    assert_eq!(next(&volume(), &no_look), Next::Wait(Obstacle::NoLook));
    let mut no_group = node();
    no_group.status.as_mut().unwrap().volume_groups.clear();
    assert_eq!(next(&volume(), &no_group), Next::Wait(Obstacle::NoGroup("fast".into())));
    // A class that was taken from the node still serves the volumes that it has there.
    let mut grown = there();
    grown.spec.size = 2 * GIB;
    assert!(matches!(next(&grown, &unassigned), Next::Grow(_)));
}

#[test]
fn a_settled_volume_says_the_same_again() {
    let there = there();
    let status = there.status.clone().unwrap();
    assert_eq!(status.state, Some(State::Ready));
    assert_eq!(said(&status, kind::READY), ("True".into(), reason::VOLUME_READY.into()));
    assert_eq!(settled(&there, at(99)), status);
    assert_eq!(made(&there, &lv(), at(99)), status);
}

#[test]
fn a_deletion_without_discard_says_what_to_do_and_leaves_the_volume_ready() {
    let status = settled(&deleted(there(), false), at(9));
    assert_eq!(said(&status, kind::READY).0, "True");
    assert_eq!(said(&status, kind::DELETION_BLOCKED), ("True".into(), reason::DELETE_WITHOUT_DISCARD.into()));
    let message = &condition::find(&status.conditions, kind::DELETION_BLOCKED).unwrap().message;
    assert!(message.contains("spec.discard"), "{message}");
}

#[test]
fn a_refusal_is_told_from_an_answer_that_has_not_come() {
    let error = |code| HandsError::Said { call: Call::CreateVolume, code, message: "no".into() };
    for (code, attempt, state, reason) in [
        (Code::ResourceExhausted, Attempt::Create, State::Failed, reason::NO_SPACE),
        (Code::FailedPrecondition, Attempt::Create, State::Failed, reason::NO_GROUP),
        (Code::AlreadyExists, Attempt::Create, State::Failed, reason::CREATE_FAILED),
        (Code::Unavailable, Attempt::Create, State::Pending, reason::WORKING),
        (Code::DeadlineExceeded, Attempt::Create, State::Pending, reason::LVM_SLOW),
        (Code::ResourceExhausted, Attempt::Grow, State::Growing, reason::NO_SPACE),
        (Code::NotFound, Attempt::Grow, State::Growing, reason::EXPAND_FAILED),
        (Code::FailedPrecondition, Attempt::Delete, State::Deleting, reason::DELETE_FAILED),
    ] {
        let status = failed(&volume(), attempt, &error(code), at(1));
        assert_eq!(
            (status.state, said(&status, kind::READY)),
            (Some(state), ("False".into(), reason.into())),
            "{code:?}"
        );
        let mut again = volume();
        again.status = Some(status.clone());
        assert_eq!(failed(&again, attempt, &error(code), at(99)), status, "{code:?}");
    }
}

#[test]
fn the_filesystem_is_told_when_lvmd_knows_it() {
    let lv = lvmd::proto::Volume { fs_type: "ext4".into(), fs_uuid: "u".into(), ..lv() };
    let status = made(&volume(), &lv, at(1));
    assert_eq!(status.filesystem, Some(FilesystemRef { type_: FilesystemType::Ext4, uuid: "u".into() }));
}
