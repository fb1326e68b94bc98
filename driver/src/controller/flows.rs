//! What the calls ask of the API server, in which order. The copies are a test's, the answers are written here.

use std::{sync::Arc, time::Duration};

use crds::{
    condition::{self, kind, reason},
    device_class::{DeviceClass, DeviceClassSpec},
    logical_volume::{LogicalVolume, LogicalVolumeSpec, LogicalVolumeStatus, State},
    names,
    node_storage::{
        Agent, AssignedClass, GroupState, NodeStorage, NodeStorageSpec, NodeStorageStatus, VolumeGroupStatus,
    },
    storage_cluster::{ExecutionPolicy, StorageCluster, StorageClusterSpec},
};
use k8s_openapi::{
    api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{Client, ResourceExt, client::Body, runtime::watcher::Event};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::{Code, Status, codegen::http};

use super::{
    Context, capacity, create, delete, expand,
    ledger::Figures,
    metrics::Metrics,
    world::{Copies, World},
};
use crate::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, CreateVolumeRequest, Topology,
    TopologyRequirement, Volume, VolumeCapability,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};

const GI: i64 = 1 << 30;
const VOLUMES: &str = "/apis/stowage.dev/v1alpha1/logicalvolumes";
const STORAGES: &str = "/apis/stowage.dev/v1alpha1/nodestorages";
const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/ns/csistoragecapacities";
const LV_UUID: &str = "aaaaaa-aaaa-aaaa-aaaa-aaaa-aaaa-aaaaaa";

type Server = tower_test::mock::Handle<http::Request<Body>, http::Response<Body>>;

/// A controller without a cluster.
struct Stage {
    context: Arc<Context>,
    copies: Copies,
    server: Server,
}

impl Stage {
    /// Two nodes with 10 GiB each, and a class with a StorageClass.
    fn new() -> Self {
        let (service, server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let client = Client::new(service, "default");
        let (world, mut copies) = World::of_copies();
        let context = Arc::new(Context::new(&client, "ns", "me", world, Metrics::default()));
        let class: DeviceClass = DeviceClass::new("fast", DeviceClassSpec::default());
        copies.classes.apply_watcher_event(&Event::Apply(class));
        copies.storages.apply_watcher_event(&Event::Apply(storage("n1")));
        copies.storages.apply_watcher_event(&Event::Apply(storage("n2")));
        let storage_class = StorageClass {
            metadata: kube::api::ObjectMeta { name: Some("sc".into()), ..Default::default() },
            provisioner: names::DRIVER.into(),
            parameters: Some([(names::parameter::DEVICE_CLASS.to_owned(), "fast".to_owned())].into()),
            ..StorageClass::default()
        };
        copies.storage_classes.apply_watcher_event(&Event::Apply(storage_class));
        Self { context, copies, server }
    }

    fn create(&self, name: &str, node: &str, size: i64) -> JoinHandle<Result<Volume, Status>> {
        let (context, request) = (self.context.clone(), request(name, node, size));
        tokio::spawn(async move { create::create(&context, &request).await.map_err(Status::from) })
    }

    fn expand(&self, name: &str, required_bytes: i64) -> JoinHandle<Result<ControllerExpandVolumeResponse, Status>> {
        let context = self.context.clone();
        let request = ControllerExpandVolumeRequest {
            volume_id: name.into(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            ..ControllerExpandVolumeRequest::default()
        };
        tokio::spawn(async move { expand::expand(&context, &request).await.map_err(Status::from) })
    }

    fn delete(&self, name: &str) -> JoinHandle<Result<(), Status>> {
        let (context, name) = (self.context.clone(), name.to_owned());
        tokio::spawn(async move { delete::delete(&context, &name).await.map_err(Status::from) })
    }

    fn shows(&mut self, volume: LogicalVolume) {
        self.copies.volumes.apply_watcher_event(&Event::Apply(volume));
        self.copies.told.send_replace(());
    }

    fn lost(&mut self, volume: LogicalVolume) {
        self.copies.volumes.apply_watcher_event(&Event::Delete(volume));
        self.copies.told.send_replace(());
    }

    /// The next request tells the scheduler what the node has: it is done.
    async fn tells_of(&mut self, node: &str) -> Value {
        let path = format!("{CAPACITIES}/{}", names::capacity_name("sc", node));
        let (mut sent, reply) = self.next("PATCH", &path).await;
        sent["metadata"]["resourceVersion"] = json!("9");
        reply.send_response(http::Response::new(Body::from(serde_json::to_vec(&sent).unwrap())));
        sent
    }

    /// The next request, which is to be this one, answered with `code` and `body`.
    async fn answers(&mut self, method: &str, path: &str, code: u16, body: &impl serde::Serialize) -> Value {
        let (sent, reply) = self.next(method, path).await;
        let body = if code < 400 {
            serde_json::to_vec(body).unwrap()
        } else {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "",
                "reason": if code == 404 { "NotFound" } else { "" }, "metadata": {}});
            serde_json::to_vec(&status).unwrap()
        };
        reply.send_response(http::Response::builder().status(code).body(Body::from(body)).unwrap());
        sent
    }

    async fn next(
        &mut self,
        method: &str,
        path: &str,
    ) -> (Value, tower_test::mock::SendResponse<http::Response<Body>>) {
        let next = tokio::time::timeout(Duration::from_secs(5), self.server.next_request()).await;
        let (request, reply) = next.unwrap_or_else(|_| panic!("no {method} {path} came")).unwrap();
        assert_eq!((request.method().as_str(), request.uri().path()), (method, path));
        let sent = request.into_body().collect_bytes().await.unwrap();
        (if sent.is_empty() { Value::Null } else { serde_json::from_slice(&sent).unwrap() }, reply)
    }
}

fn storage(node: &str) -> NodeStorage {
    let mut storage = NodeStorage::new(
        node,
        NodeStorageSpec {
            node_name: node.into(),
            node_uid: "uid".into(),
            cluster_id: "cluster".into(),
            classes: vec![AssignedClass { name: "fast".into(), ..AssignedClass::default() }],
            ..NodeStorageSpec::default()
        },
    );
    storage.metadata.uid = Some(format!("uid of {node}"));
    storage.metadata.resource_version = Some("7".into());
    storage.status = Some(NodeStorageStatus {
        agent: Some(Agent { node_uid: "uid".into(), ..Agent::default() }),
        volume_groups: vec![VolumeGroupStatus {
            class: "fast".into(),
            name: "stowage-fast".into(),
            uuid: format!("group of {node}"),
            size: 10 * GI,
            extent_size: 4 << 20,
            unmanaged: 0,
            reserve: 0,
            max_volume_size: 10 * GI,
            devices: 1,
            state: GroupState::Ready,
            last_error: None,
        }],
        ..NodeStorageStatus::default()
    });
    storage
}

fn lost_storage(node: &str, why: &str) -> NodeStorage {
    let mut lost = storage(node);
    let condition = condition::new(kind::NODE_LOST, "True", why, "the Node is gone", None);
    lost.status.as_mut().unwrap().conditions.push(condition);
    lost
}

fn request(name: &str, node: &str, size: i64) -> CreateVolumeRequest {
    let topology = Topology { segments: [(names::TOPOLOGY_NODE.to_owned(), node.to_owned())].into() };
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: size, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        parameters: [(names::parameter::DEVICE_CLASS.to_owned(), "fast".to_owned())].into(),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology],
        }),
        ..CreateVolumeRequest::default()
    }
}

/// As the API server stores it.
fn volume(name: &str, node: &str, size: i64) -> LogicalVolume {
    let mut volume = LogicalVolume::new(
        name,
        LogicalVolumeSpec {
            node_name: node.into(),
            device_class: "fast".into(),
            size,
            access: Default::default(),
            claim: None,
            adopt: None,
            discard: false,
        },
    );
    volume.metadata.uid = Some(format!("uid of {name} on {node}"));
    volume.metadata.resource_version = Some("1".into());
    volume.metadata.generation = Some(1);
    volume.metadata.finalizers = Some(vec![names::VOLUME_FINALIZER.into()]);
    volume
}

fn made(mut volume: LogicalVolume) -> LogicalVolume {
    volume.status = Some(LogicalVolumeStatus {
        size: Some(volume.spec.size),
        lv_uuid: Some(LV_UUID.into()),
        state: Some(State::Ready),
        ..LogicalVolumeStatus::default()
    });
    volume
}

fn refused(mut volume: LogicalVolume, reason: &str) -> LogicalVolume {
    let generation = volume.metadata.generation;
    let leaving = volume.metadata.deletion_timestamp.is_some();
    let status = volume.status.get_or_insert_default();
    status.state = Some(match (leaving, status.lv_uuid.is_some()) {
        (true, _) => State::Deleting,
        (false, true) => State::Growing,
        (false, false) => State::Failed,
    });
    status.conditions = vec![condition::new(kind::READY, "False", reason, "what LVM said", generation)];
    volume
}

fn deleted(mut volume: LogicalVolume) -> LogicalVolume {
    volume.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    volume.metadata.generation = Some(3);
    volume.spec.discard = true;
    volume
}

fn of(name: &str) -> String {
    format!("{VOLUMES}/{name}")
}

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

/// A frozen holder that thaws reads, and writes nothing.
#[tokio::test]
async fn without_the_lease_nothing_is_written() {
    let (service, mut server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
    let client = lease::client(Client::new(service, "default"), lease::Validity::default(), None);
    let volumes = super::volumes::Volumes::new(&client);
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
