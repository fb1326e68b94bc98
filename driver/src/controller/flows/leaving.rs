//! Volumes that go or grow, and what may not be written at all.

use super::*;

/// E1.
#[tokio::test]
async fn what_is_not_there_is_deleted() {
    let mut stage = Stage::new();
    let call = stage.delete("pvc-1");
    stage.answers("GET", &of("pvc-1"), 404, &Value::Null).await;
    call.await.unwrap().unwrap();
    stage.delete("../nodes/n1").await.unwrap().unwrap();
    assert_eq!(stage.delete("").await.unwrap().unwrap_err().code(), Code::InvalidArgument);
}

/// E3.
#[tokio::test]
async fn a_volume_that_is_held_open_says_by_whom() {
    let mut stage = Stage::new();
    let there = made(volume("pvc-1", "n1", GI));
    stage.shows(there.clone());
    let call = stage.delete("pvc-1");
    stage.answers("PATCH", &of("pvc-1"), 200, &there).await;
    stage.answers("DELETE", &of("pvc-1"), 200, &deleted(there.clone())).await;
    stage.shows(refused(deleted(there), reason::DELETE_FAILED));
    let refusal = call.await.unwrap().unwrap_err();
    assert_eq!(refusal.code(), Code::Aborted);
    assert!(refusal.message().contains("what LVM said"), "{refusal}");
}

#[tokio::test]
async fn a_volume_of_a_lost_node_waits_for_the_grace() {
    let mut stage = Stage::new();
    stage.shows(made(volume("pvc-1", "n1", GI)));
    stage.copies.storages.apply_watcher_event(&Event::Apply(lost_storage("n1", reason::GRACE)));
    let call = stage.delete("pvc-1");
    stage.answers("GET", &format!("{STORAGES}/n1"), 200, &lost_storage("n1", reason::GRACE)).await;
    let refusal = call.await.unwrap().unwrap_err();
    assert_eq!(refusal.code(), Code::Unavailable);
    assert!(refusal.message().contains("the Node is gone"), "{refusal}");
}

/// DESIGN 4.3.5, in this order; C1.
#[tokio::test]
async fn a_volume_of_a_node_that_is_given_up_goes_without_it() {
    let mut stage = Stage::new();
    let there = made(volume("pvc-1", "n1", GI));
    let node = lost_storage("n1", reason::RELEASED);
    stage.shows(there.clone());
    stage.copies.storages.apply_watcher_event(&Event::Apply(node.clone()));
    let call = stage.delete("pvc-1");
    stage.answers("GET", &format!("{STORAGES}/n1"), 200, &node).await;
    stage.answers("GET", &of("pvc-1"), 200, &there).await;
    stage.answers("GET", &format!("{STORAGES}/n1"), 200, &node).await;
    let said = stage.answers("PATCH", &format!("{STORAGES}/n1"), 200, &node).await;
    assert_eq!(said["spec"], json!({"released": [{"name": "pvc-1", "lvUUID": LV_UUID}]}));
    assert_eq!(said["metadata"]["resourceVersion"], "7");
    stage.answers("PATCH", &of("pvc-1"), 200, &there).await;
    stage.answers("DELETE", &of("pvc-1"), 200, &deleted(there.clone())).await;
    stage.answers("GET", &of("pvc-1"), 200, &deleted(there.clone())).await;
    let freed = stage.answers("PATCH", &of("pvc-1"), 200, &deleted(there.clone())).await;
    assert_eq!(freed["metadata"]["finalizers"], json!([]));
    stage
        .answers(
            "POST",
            "/apis/events.k8s.io/v1/namespaces/default/events",
            201,
            &json!({"metadata": {}, "eventTime": null}),
        )
        .await;
    stage.lost(there);
    stage.answers("GET", &of("pvc-1"), 404, &Value::Null).await;
    call.await.unwrap().unwrap();
}

/// G2, and a claim's size that falls back.
#[tokio::test]
async fn a_grow_that_finds_no_room_is_taken_back() {
    let mut stage = Stage::new();
    let there = made(volume("pvc-1", "n1", 4 * GI));
    stage.shows(there.clone());
    let (too_much, much) = (stage.expand("pvc-1", 11 * GI), stage.expand("pvc-1", 8 * GI));
    // One at a time: the other is told to come again.
    stage.answers("GET", &of("pvc-1"), 200, &there).await;
    let refusal = too_much.await.unwrap().unwrap_err();
    assert_eq!(refusal.code(), Code::OutOfRange);
    assert!(refusal.message().contains("10 GiB"), "{refusal}");
    assert_eq!(much.await.unwrap().unwrap_err().code(), Code::Aborted);

    let again = stage.expand("pvc-1", 8 * GI);
    stage.answers("GET", &of("pvc-1"), 200, &there).await;
    let sent = stage.answers("PATCH", &of("pvc-1"), 200, &there).await;
    assert_eq!(sent["spec"], json!({"size": 8 * GI}));
    let mut growing = there.clone();
    growing.spec.size = 8 * GI;
    growing.metadata.generation = Some(2);
    stage.shows(refused(growing, reason::NO_SPACE));
    let back = stage.answers("PATCH", &of("pvc-1"), 200, &there).await;
    assert_eq!(back["spec"], json!({"size": 4 * GI}));
    assert_eq!(again.await.unwrap().unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn under_pause_nothing_is_made_grown_or_removed() {
    let mut stage = Stage::new();
    stage.shows(made(volume("pvc-0", "n1", GI)));
    let spec = StorageClusterSpec { execution_policy: ExecutionPolicy::Pause, ..StorageClusterSpec::default() };
    let paused = StorageCluster::new(names::STORAGE_CLUSTER, spec);
    stage.copies.clusters.apply_watcher_event(&Event::Apply(paused));
    for refusal in [
        stage.create("pvc-1", "n1", GI).await.unwrap().unwrap_err(),
        stage.delete("pvc-0").await.unwrap().unwrap_err(),
        stage.expand("pvc-0", 2 * GI).await.unwrap().unwrap_err(),
    ] {
        assert_eq!(refusal.code(), Code::Unavailable);
        assert!(refusal.message().contains("Pause"), "{refusal}");
    }
}

/// A frozen holder that thaws reads, and writes nothing.
#[tokio::test]
async fn without_the_lease_nothing_is_written() {
    let (service, mut server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let client = lease::client(Client::new(service, "default"), lease::Validity::default(), None);
    let volumes = crate::controller::volumes::Volumes::new(&client);
    let refused = volumes.create("pvc-1", volume("pvc-1", "n1", GI).spec).await.unwrap_err();
    assert!(refused.changed_nothing());
    assert_eq!(refused.code(), Code::Unavailable);
    let read = tokio::spawn(async move { volumes.read("pvc-1").await });
    let (request, reply) = server.next_request().await.unwrap();
    assert_eq!(request.method(), http::Method::GET);
    let body = serde_json::to_vec(&volume("pvc-1", "n1", GI)).unwrap();
    reply.send_response(http::Response::new(Body::from(body)));
    assert!(read.await.unwrap().unwrap().is_some());
}
