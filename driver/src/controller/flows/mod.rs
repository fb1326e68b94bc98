//! What the calls ask of the API server, in which order. The copies are a test's, the answers are written here.

mod creating;
mod leaving;

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
