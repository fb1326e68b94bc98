//! Volumes that are made, and the room they are made in.

use super::*;

#[tokio::test]
async fn a_volume_is_one_object_and_the_wait_for_its_node() {
    let mut stage = Stage::new();
    let call = stage.create("pvc-1", "n1", GI + 1);
    let new = volume("pvc-1", "n1", GI + (4 << 20));
    let sent = stage.answers("POST", VOLUMES, 201, &new).await;
    assert_eq!(sent["metadata"]["finalizers"], json!([names::VOLUME_FINALIZER]));
    assert_eq!(sent["spec"]["nodeName"], "n1");
    assert_eq!(sent["spec"]["size"], GI + (4 << 20), "D9: whole extents");
    stage.shows(new.clone());
    stage.shows(made(new));
    let volume = call.await.unwrap().unwrap();
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("pvc-1", GI + (4 << 20)));
    assert_eq!(volume.accessible_topology[0].segments[names::TOPOLOGY_NODE], "n1");
    assert_eq!(volume.volume_context[names::context::CLUSTER_ID], "cluster");
    assert_eq!(volume.volume_context[names::context::DEVICE_CLASS], "fast");
    assert_eq!(volume.volume_context[names::context::FS_TYPE], "xfs");
}

#[tokio::test]
async fn a_second_call_for_a_volume_is_told_to_come_again() {
    let mut stage = Stage::new();
    let first = stage.create("pvc-1", "n1", GI);
    stage.answers("POST", VOLUMES, 201, &volume("pvc-1", "n1", GI)).await;
    assert_eq!(stage.create("pvc-1", "n1", GI).await.unwrap().unwrap_err().code(), Code::Aborted);
    assert_eq!(stage.delete("pvc-1").await.unwrap().unwrap_err().code(), Code::Aborted);
    first.abort();
}

/// D1: what is asked for again must not be chosen by old figures.
#[tokio::test]
async fn the_scheduler_is_told_before_a_claim_is_sent_elsewhere() {
    let mut stage = Stage::new();
    stage.shows(made(volume("pvc-0", "n1", 8 * GI)));
    let call = stage.create("pvc-1", "n1", 3 * GI);
    let told = stage.tells_of("n1").await;
    assert_eq!((&told["capacity"], &told["maximumVolumeSize"]), (&json!("2Gi"), &json!("2Gi")));
    let refusal = call.await.unwrap().unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(refusal.message().contains("node n1 has 2 GiB free"), "{refusal}");

    // What was told once is not told again.
    assert_eq!(stage.create("pvc-1", "n1", 3 * GI).await.unwrap().unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_claim_stays_while_the_scheduler_can_not_be_told() {
    let mut stage = Stage::new();
    let call = stage.create("pvc-1", "n1", 30 * GI);
    let path = format!("{CAPACITIES}/{}", names::capacity_name("sc", "n1"));
    stage.answers("PATCH", &path, 500, &Value::Null).await;
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

/// D5: both calls are at work before either object comes by.
#[tokio::test]
async fn room_is_given_once() {
    let mut stage = Stage::new();
    let first = stage.create("pvc-1", "n1", 6 * GI);
    stage.answers("POST", VOLUMES, 201, &volume("pvc-1", "n1", 6 * GI)).await;
    let second = stage.create("pvc-2", "n1", 6 * GI);
    let told = stage.tells_of("n1").await;
    assert_eq!(told["capacity"], "4Gi");
    assert_eq!(second.await.unwrap().unwrap_err().code(), Code::ResourceExhausted);
    first.abort();
}

/// A write that was not answered may have been done: its room is not given away.
#[tokio::test]
async fn an_unanswered_create_keeps_its_room() {
    let mut stage = Stage::new();
    let first = stage.create("pvc-1", "n1", 6 * GI);
    stage.answers("POST", VOLUMES, 500, &Value::Null).await;
    assert_eq!(first.await.unwrap().unwrap_err().code(), Code::Unavailable);
    let second = stage.create("pvc-2", "n1", 6 * GI);
    stage.tells_of("n1").await;
    assert_eq!(second.await.unwrap().unwrap_err().code(), Code::ResourceExhausted);

    // One that was refused has done nothing.
    let mut stage = Stage::new();
    let first = stage.create("pvc-1", "n1", 6 * GI);
    stage.answers("POST", VOLUMES, 422, &Value::Null).await;
    assert_eq!(first.await.unwrap().unwrap_err().code(), Code::Internal);
    let second = stage.create("pvc-2", "n1", 6 * GI);
    stage.answers("POST", VOLUMES, 201, &volume("pvc-2", "n1", 6 * GI)).await;
    second.abort();
}

/// DESIGN 6: the provisioner reschedules under the same name.
#[tokio::test]
async fn a_claim_that_went_elsewhere_leaves_nothing_behind() {
    let mut stage = Stage::new();
    let old = made(volume("pvc-1", "n1", GI));
    stage.shows(old.clone());
    let call = stage.create("pvc-1", "n2", GI);
    stage.answers("GET", "/api/v1/persistentvolumes/pvc-1", 404, &Value::Null).await;
    let patch = stage.answers("PATCH", &of("pvc-1"), 200, &old).await;
    assert_eq!(patch, json!({"metadata": {"uid": old.uid()}, "spec": {"discard": true}}));
    let options = stage.answers("DELETE", &of("pvc-1"), 200, &deleted(old.clone())).await;
    assert_eq!(options["preconditions"]["uid"], json!(old.uid()));
    stage.shows(deleted(old.clone()));
    stage.lost(deleted(old));
    stage.answers("GET", &of("pvc-1"), 404, &Value::Null).await;
    let sent = stage.answers("POST", VOLUMES, 201, &volume("pvc-1", "n2", GI)).await;
    assert_eq!(sent["spec"]["nodeName"], "n2");
    stage.shows(made(volume("pvc-1", "n2", GI)));
    let volume = call.await.unwrap().unwrap();
    assert_eq!(volume.accessible_topology[0].segments[names::TOPOLOGY_NODE], "n2");
}

#[tokio::test]
async fn a_volume_that_has_a_persistent_volume_is_never_discarded_for_another_node() {
    let mut stage = Stage::new();
    stage.shows(made(volume("pvc-1", "n1", GI)));
    let call = stage.create("pvc-1", "n2", GI);
    let there =
        json!({"metadata": {"name": "pvc-1"}, "spec": {"csi": {"driver": names::DRIVER, "volumeHandle": "pvc-1"}}});
    stage.answers("GET", "/api/v1/persistentvolumes/pvc-1", 200, &there).await;
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::AlreadyExists);
}

/// A claim goes to another node only when nothing is left on this one.
#[tokio::test]
async fn a_node_that_has_no_room_after_all_is_cleared_and_not_believed() {
    let mut stage = Stage::new();
    let call = stage.create("pvc-1", "n1", GI);
    let new = volume("pvc-1", "n1", GI);
    stage.answers("POST", VOLUMES, 201, &new).await;
    stage.shows(refused(new.clone(), reason::NO_SPACE));
    stage.answers("GET", "/api/v1/persistentvolumes/pvc-1", 404, &Value::Null).await;
    stage.answers("PATCH", &of("pvc-1"), 200, &new).await;
    stage.answers("DELETE", &of("pvc-1"), 200, &deleted(new.clone())).await;
    stage.lost(new);
    stage.answers("GET", &of("pvc-1"), 404, &Value::Null).await;
    let told = stage.tells_of("n1").await;
    assert_eq!(told["capacity"], "10Gi");
    assert_eq!(told["maximumVolumeSize"], "1020Mi", "less than what did not fit");
    let refusal = call.await.unwrap().unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    assert!(refusal.message().contains("what LVM said"), "{refusal}");
}

#[tokio::test]
async fn a_node_that_goes_on_trying_is_waited_for() {
    let mut stage = Stage::new();
    let call = stage.create("pvc-1", "n1", GI);
    let new = volume("pvc-1", "n1", GI);
    stage.answers("POST", VOLUMES, 201, &new).await;
    stage.shows(refused(new, reason::CREATE_FAILED));
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn only_a_claim_whose_class_is_there_gets_a_volume() {
    let stage = Stage::new();
    let mut missing = request("pvc-1", "n1", GI);
    missing.parameters.insert(names::parameter::DEVICE_CLASS.into(), "other".into());
    let refusal = create::create(&stage.context, &missing).await.unwrap_err();
    assert_eq!(Status::from(refusal).code(), Code::FailedPrecondition);
    let small = create::create(&stage.context, &request("pvc-1", "n1", 64 << 20)).await.unwrap_err();
    assert_eq!(Status::from(small).code(), Code::OutOfRange);
}

/// D11: nobody has chosen a node.
#[tokio::test]
async fn immediate_binding_takes_the_emptiest_node() {
    let mut stage = Stage::new();
    stage.shows(made(volume("pvc-0", "n1", GI)));
    let context = stage.context.clone();
    let mut anywhere = request("pvc-1", "n1", GI);
    anywhere.accessibility_requirements = None;
    let call = tokio::spawn(async move { create::create(&context, &anywhere).await.map_err(Status::from) });
    let sent = stage.answers("POST", VOLUMES, 201, &volume("pvc-1", "n2", GI)).await;
    assert_eq!(sent["spec"]["nodeName"], "n2");
    call.abort();
}

#[tokio::test]
async fn a_promise_is_kept_for_its_claim() {
    let mut stage = Stage::new();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "c", "namespace": "d", "uid": "1", "annotations": {names::annotation::SELECTED_NODE: "n1"}},
        "spec": {"storageClassName": "sc", "resources": {"requests": {"storage": "6Gi"}}},
    }))
    .unwrap();
    stage.copies.claims.apply_watcher_event(&Event::Apply(claim));
    let other = stage.create("pvc-2", "n1", 6 * GI);
    stage.tells_of("n1").await;
    assert_eq!(other.await.unwrap().unwrap_err().code(), Code::ResourceExhausted);
    let its_own = stage.create("pvc-1", "n1", 6 * GI);
    stage.answers("POST", VOLUMES, 201, &volume("pvc-1", "n1", 6 * GI)).await;
    its_own.abort();
}

/// After a start: what the last one told is not told again, and what nobody wants any more goes.
#[tokio::test]
async fn capacity_objects_that_are_right_are_left_alone() {
    let mut stage = Stage::new();
    let wanted = |node: &str, free| capacity::Wanted {
        node: node.into(),
        storage_class: "sc".into(),
        device_class: "fast".into(),
        figures: Figures { free, largest: free },
    };
    let whole = 10 << 30;
    for (node, free) in [("n1", whole), ("n2", 1), ("n3", whole)] {
        let object = capacity::object("ns", &names::capacity_name("sc", node), &wanted(node, free));
        stage.copies.capacities.apply_watcher_event(&Event::Apply(object));
    }
    let context = stage.context.clone();
    let round = tokio::spawn(async move { context.capacity.write_now(&["n1", "n2", "n3"]).await });
    assert_eq!(stage.tells_of("n2").await["capacity"], "10Gi");
    let path = format!("{CAPACITIES}/{}", names::capacity_name("sc", "n3"));
    stage.answers("DELETE", &path, 200, &json!({"kind": "Status", "status": "Success", "metadata": {}})).await;
    round.await.unwrap().unwrap();
}
