use crds::node_storage::{AssignedClass, DeviceReason, Loss, PlanStep};
use lvmd::report::SeenVolume;

use super::*;

const UUID: &str = "aaaaaa-bbbb-cccc-dddd-eeee-ffff-gggggg";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn spec(policy: ExecutionPolicy) -> NodeStorageSpec {
    let mut spec = NodeStorageSpec {
        node_name: "node1".into(),
        node_uid: "uid-1".into(),
        cluster_id: "cluster".into(),
        classes: vec![AssignedClass { name: "fast".into(), ..AssignedClass::default() }],
        ..NodeStorageSpec::default()
    };
    spec.rails.execution_policy = policy;
    spec
}

fn info() -> InfoResponse {
    InfoResponse {
        version: "0.1.0".into(),
        lvm_version: "2.03".into(),
        kernel: "6.12".into(),
        ..InfoResponse::default()
    }
}

fn device(id: &str, state: DeviceState) -> Device {
    Device {
        id: id.into(),
        path: format!("/dev/disk/by-id/{id}"),
        size: 10 << 30,
        model: None,
        serial: None,
        transport: None,
        type_: "disk".into(),
        rotational: false,
        state,
        class: (state == DeviceState::InUse).then(|| "fast".into()),
        reasons: Vec::new(),
    }
}

fn group(state: GroupState) -> VolumeGroupStatus {
    VolumeGroupStatus {
        class: "fast".into(),
        name: "stowage-fast".into(),
        uuid: UUID.into(),
        size: 10 << 30,
        extent_size: 4 << 20,
        unmanaged: 0,
        reserve: 0,
        max_volume_size: 10 << 30,
        devices: 1,
        state,
        last_error: None,
    }
}

fn plan(guarded: &[bool]) -> PlanStatus {
    let step = |guarded: &bool| PlanStep {
        op: "CreateGroup".into(),
        target: "virtio-b".into(),
        guarded: *guarded,
        why: "create volume group stowage-fast on virtio-b".into(),
    };
    PlanStatus { hash: "h1".into(), steps: guarded.iter().map(step).collect() }
}

fn seen(name: &str) -> SeenVolume {
    SeenVolume {
        name: name.into(),
        class: "fast".into(),
        vg_uuid: UUID.into(),
        lv_uuid: UUID.into(),
        size: 1 << 30,
        claim: Some("default/data".into()),
        used: true,
    }
}

fn quiet() -> Report {
    Report {
        devices: vec![device("virtio-a", DeviceState::InUse), device("virtio-b", DeviceState::Available)],
        volume_groups: vec![group(GroupState::Ready)],
        ..Report::default()
    }
}

fn look(old: &NodeStorageStatus, report: &Report, policy: ExecutionPolicy, second: i64) -> NodeStorageStatus {
    after(old, report, policy, None, None, second)
}

fn after(
    old: &NodeStorageStatus,
    report: &Report,
    policy: ExecutionPolicy,
    step_failed: Option<&str>,
    blocked: Option<&str>,
    second: i64,
) -> NodeStorageStatus {
    let (spec, info, volumes) = (spec(policy), info(), ["pvc-1".to_owned()].into());
    let look = Look { spec: &spec, generation: Some(3), info: &info, report, volumes: &volumes, step_failed, blocked };
    after_look(old, &look, at(second))
}

fn said(status: &NodeStorageStatus, kind: &str) -> (String, String) {
    let condition = condition::find(&status.conditions, kind).unwrap_or_else(|| panic!("no condition {kind}"));
    (condition.status.clone(), condition.reason.clone())
}

fn words(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn the_same_look_twice_says_the_same_and_no_time_moves() {
    let first = look(&NodeStorageStatus::default(), &quiet(), ExecutionPolicy::Enforce, 100);
    assert_eq!(first.agent.as_ref().unwrap().looked_at, Some(Time(at(100))));
    let second = look(&first, &quiet(), ExecutionPolicy::Enforce, 200);
    assert_eq!(second, first);
}

#[test]
fn a_change_moves_the_time_of_the_look_and_no_other() {
    let first = look(&NodeStorageStatus::default(), &quiet(), ExecutionPolicy::Enforce, 100);
    let mut report = quiet();
    report.devices.pop();
    let second = look(&first, &report, ExecutionPolicy::Enforce, 200);
    assert_eq!(second.agent.as_ref().unwrap().looked_at, Some(Time(at(200))));
    assert_eq!(second.summary.as_ref().unwrap().devices, "1/1");
    assert_eq!(
        condition::find(&second.conditions, kind::READY).unwrap().last_transition_time,
        condition::find(&first.conditions, kind::READY).unwrap().last_transition_time
    );
}

#[test]
fn the_operators_part_is_neither_sent_nor_a_change() {
    let first = look(&NodeStorageStatus::default(), &quiet(), ExecutionPolicy::Enforce, 100);
    let mut there = first.clone();
    let lost = condition::new(kind::NODE_LOST, "True", reason::NODE_DELETED, "gone", None);
    condition::set(&mut there.conditions, lost, at(150));
    there.loss = Some(Loss {
        since: Time(at(150)),
        node_uid: "uid-1".into(),
        released_claims: Vec::new(),
        released: 0,
        kept_claims: Vec::new(),
        forget_at: None,
    });
    let second = look(&there, &quiet(), ExecutionPolicy::Enforce, 200);
    assert_eq!(second, first);
    assert_eq!(ours(&there), first);
}

/// DESIGN 5.7: else the second look would know nothing of it, and make another group.
#[test]
fn a_group_that_is_not_to_be_seen_stays_listed_until_it_is_back_or_the_node_is_another() {
    let there = look(&NodeStorageStatus::default(), &quiet(), ExecutionPolicy::Enforce, 1);
    let none = Report { volume_groups: Vec::new(), ..quiet() };
    let mut away = there;
    for second in 2..4 {
        away = look(&away, &none, ExecutionPolicy::Enforce, second);
        let [group] = away.volume_groups.as_slice() else { panic!("{:?}", away.volume_groups) };
        assert_eq!((group.uuid.as_str(), group.state, group.size), (UUID, GroupState::Partial, 0));
        assert!(group.last_error.is_some());
    }
    let back = look(&away, &quiet(), ExecutionPolicy::Enforce, 4);
    assert_eq!(back.volume_groups, quiet().volume_groups);
    away.agent.as_mut().unwrap().node_uid = "an-earlier-node".into();
    assert!(look(&away, &none, ExecutionPolicy::Enforce, 5).volume_groups.is_empty());
}

#[test]
fn what_a_look_found_decides_what_is_ready() {
    let with_plan = |guarded: &[bool]| Report { plan: Some(plan(guarded)), ..quiet() };
    let partial = Report { volume_groups: vec![group(GroupState::Partial)], ..quiet() };
    let trouble =
        |groups| Report { troubles: vec![("fast".into(), "no blank device".into())], volume_groups: groups, ..quiet() };
    let mut waiting = quiet();
    waiting.devices[1].state = DeviceState::Wanted;
    waiting.devices[1].reasons =
        vec![DeviceReason { code: device_reason::NOT_CLEARED.into(), message: "not yet".into() }];
    let (enforce, only_plan, pause) = (ExecutionPolicy::Enforce, ExecutionPolicy::Plan, ExecutionPolicy::Pause);
    for (name, report, policy, reason, [ready, progressing, degraded]) in [
        ("quiet", quiet(), enforce, reason::AS_WANTED, ["True", "False", "False"]),
        ("nothing wanted", Report::default(), enforce, reason::AS_WANTED, ["True", "False", "False"]),
        ("a step to do", with_plan(&[false, true]), enforce, reason::WORKING, ["False", "True", "False"]),
        ("a step that may not be done", with_plan(&[false]), only_plan, reason::PLAN_ONLY, ["False", "False", "False"]),
        ("a pause", with_plan(&[false]), pause, reason::PAUSED, ["False", "False", "False"]),
        ("a guarded step", with_plan(&[true]), enforce, reason::APPROVAL_NEEDED, ["False", "False", "False"]),
        ("a missing device", partial, enforce, reason::GROUP_MISSING, ["False", "False", "True"]),
        ("a device that is not cleared", waiting, enforce, reason::WORKING, ["False", "True", "False"]),
        ("no group", trouble(Vec::new()), enforce, reason::NO_GROUP, ["False", "False", "True"]),
        (
            "a refused device",
            trouble(vec![group(GroupState::Ready)]),
            enforce,
            reason::DEVICES_REFUSED,
            ["False", "False", "True"],
        ),
    ] {
        let status = look(&NodeStorageStatus::default(), &report, policy, 1);
        assert_eq!(said(&status, kind::READY), words(ready, reason), "{name}");
        assert_eq!(said(&status, kind::PROGRESSING), words(progressing, reason), "{name}");
        assert_eq!(said(&status, kind::DEGRADED), words(degraded, reason), "{name}");
    }
}

#[test]
fn a_step_that_failed_or_hangs_stands_before_all_else() {
    let report = Report { plan: Some(plan(&[false])), ..quiet() };
    let old = NodeStorageStatus::default();
    let failed = after(&old, &report, ExecutionPolicy::Enforce, Some("vgcreate said no"), None, 1);
    assert_eq!(said(&failed, kind::READY), words("False", reason::STEP_FAILED));
    assert_eq!(said(&failed, kind::PROGRESSING), words("False", reason::STEP_FAILED));
    assert!(condition::find(&failed.conditions, kind::READY).unwrap().message.contains("vgcreate said no"));
    assert_eq!(said(&failed, kind::LVM_BLOCKED), words("False", reason::AS_WANTED));

    let hangs = after(&old, &report, ExecutionPolicy::Enforce, Some("slow"), Some("vgcreate runs"), 1);
    assert_eq!(said(&hangs, kind::READY), words("False", reason::LVM_SLOW));
    assert_eq!(said(&hangs, kind::LVM_BLOCKED), words("True", reason::LVM_SLOW));
}

#[test]
fn what_lvmd_says_of_itself_is_a_condition() {
    let with = |old: &NodeStorageStatus, info: &InfoResponse, second| {
        let (spec, volumes, report) = (spec(ExecutionPolicy::Enforce), BTreeSet::new(), quiet());
        let (generation, step_failed, blocked) = (None, None, None);
        let look = Look { spec: &spec, generation, info, report: &report, volumes: &volumes, step_failed, blocked };
        after_look(old, &look, at(second))
    };
    let old = NodeStorageStatus::default();
    let missing = with(&old, &InfoResponse { missing: vec!["no mkfs.xfs".into()], ..info() }, 1);
    assert_eq!(said(&missing, kind::PREREQUISITES), words("False", reason::TOOLS_MISSING));

    let slow = |seconds| InfoResponse { overdue: format!("staging volume a has run for {seconds} s"), ..info() };
    let first = with(&old, &slow(130), 1);
    assert_eq!(said(&first, kind::LVM_BLOCKED), words("True", reason::LVM_SLOW));
    // A long mkfs is no reason to take the node for broken.
    assert_eq!(said(&first, kind::READY), words("True", reason::AS_WANTED));
    assert_eq!(with(&first, &slow(190), 60), first);
}

#[test]
fn a_look_that_failed_keeps_what_was_known_and_is_no_answer() {
    let first = look(&NodeStorageStatus::default(), &quiet(), ExecutionPolicy::Enforce, 100);
    let failure = Failure { generation: Some(4), message: "lvmd can not be reached", blocked: false };
    let second = after_failure(&first, &failure, at(200));
    assert_eq!((&second.devices, &second.volume_groups), (&first.devices, &first.volume_groups));
    // Whoever waits for a look at generation 4 must not take this for one.
    assert_eq!((second.observed_generation, second.agent.clone()), (Some(3), first.agent.clone()));
    assert_eq!(said(&second, kind::READY), words("False", reason::LOOK_FAILED));
    assert_eq!(said(&second, kind::PREREQUISITES), words("True", reason::TOOLS_FOUND));
    assert_eq!(after_failure(&second, &failure, at(300)), second);

    let blocked = after_failure(&first, &Failure { blocked: true, ..failure }, at(200));
    assert_eq!(said(&blocked, kind::LVM_BLOCKED), words("True", reason::LVM_SLOW));
    let third = look(&blocked, &quiet(), ExecutionPolicy::Enforce, 300);
    assert_eq!(said(&third, kind::LVM_BLOCKED), words("False", reason::AS_WANTED));
    assert_eq!(said(&third, kind::READY), words("True", reason::AS_WANTED));
}

#[test]
fn an_lv_without_an_object_is_an_orphan() {
    let report = Report { volumes: vec![seen("pvc-2"), seen("pvc-1")], ..quiet() };
    let status = look(&NodeStorageStatus::default(), &report, ExecutionPolicy::Enforce, 1);
    let names: Vec<_> = status.orphans.iter().map(|orphan| orphan.name.as_str()).collect();
    assert_eq!(names, ["pvc-2"]);
    assert_eq!(
        (status.orphans[0].size, status.orphans[0].claim.as_deref(), status.orphans[0].used),
        (1 << 30, Some("default/data"), true)
    );
}

#[test]
fn steps_are_listed_twenty_deep_and_the_same_failure_once() {
    let mut status = NodeStorageStatus::default();
    for n in 0..30 {
        note(&mut status, &[format!("step {n}")], None, at(n));
    }
    assert_eq!((status.operations.len(), status.operations[19].step.as_str()), (20, "step 29"));

    note(&mut status, &["carry out plan h1".into()], Some("no"), at(40));
    note(&mut status, &["carry out plan h1".into()], Some("no"), at(50));
    let failures: Vec<_> = status.operations.iter().filter(|o| o.error.is_some()).collect();
    assert_eq!((failures.len(), failures[0].at.0), (1, at(40)));
    note(&mut status, &["carry out plan h1".into()], Some("another no"), at(60));
    note(&mut status, &["carry out plan h1".into()], None, at(70));
    assert_eq!(status.operations.iter().filter(|o| o.step.starts_with("carry")).count(), 3);
}

#[test]
fn no_list_is_longer_than_the_api_takes() {
    let mut crowded = device("d", DeviceState::Refused);
    let reason = DeviceReason { code: device_reason::IN_USE.into(), message: "x".into() };
    crowded.reasons = vec![reason; 20];
    let report = Report {
        devices: vec![crowded; 600],
        volume_groups: vec![group(GroupState::Ready); 100],
        plan: Some(plan(&[false; 100])),
        volumes: (0..2000).map(|n| seen(&format!("v{n}"))).collect(),
        ..Report::default()
    };
    let status = look(&NodeStorageStatus::default(), &report, ExecutionPolicy::Enforce, 1);
    assert_eq!(
        (
            status.devices.len(),
            status.devices[0].reasons.len(),
            status.volume_groups.len(),
            status.plan.unwrap().steps.len(),
            status.orphans.len()
        ),
        (512, 8, 64, 64, 1024)
    );
    assert!(status.conditions.iter().all(|c| c.message.chars().count() <= LONGEST_MESSAGE + 1));
    assert_eq!(status.summary.unwrap().devices, "0/600");
}
