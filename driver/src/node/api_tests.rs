//! An API server that is a list of the requests it got, for the two reconcilers of this half. It answers a write with
//! the object that was written, and lvmd is scripted.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use crds::{
    logical_volume::{LogicalVolume, LogicalVolumeSpec},
    names::VOLUME_FINALIZER,
    node_storage::{AssignedClass, NodeStorage, NodeStorageSpec, Released},
    storage_cluster::ExecutionPolicy,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Client,
    client::Body,
    runtime::{controller::Action, reflector, watcher},
};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tonic::{
    Status,
    codegen::http::{Request, Response},
};

use super::{disks::Disks, publish::Publisher, staged::Staged, volumes};
use crate::hands::Hands;

#[path = "../../tests/scripted/mod.rs"]
mod scripted;
use scripted::Scripted;

#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    body: Value,
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Asked>>>);

impl Heard {
    /// Without Events: `METHOD path`.
    fn lines(&self) -> Vec<String> {
        let all = self.0.lock().unwrap();
        let written = all.iter().filter(|asked| !asked.path.contains("/events"));
        written.map(|asked| format!("{} {}", asked.method, asked.path)).collect()
    }

    fn last(&self) -> Value {
        let all = self.0.lock().unwrap();
        all.iter().rfind(|asked| !asked.path.contains("/events")).unwrap().body.clone()
    }

    fn events(&self) -> Vec<String> {
        let all = self.0.lock().unwrap();
        let events = all.iter().filter(|asked| asked.path.contains("/events"));
        events.map(|asked| asked.body["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Answers each write with what was written, and with the resource version of the next one.
fn api(object: Value) -> (Client, Heard) {
    let (service, mut server) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let heard = Heard::default();
    let listed = heard.clone();
    tokio::spawn(async move {
        let mut object = object;
        let mut version = 100;
        while let Some((request, reply)) = server.next_request().await {
            let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
            let bytes = request.into_body().collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            if let Some(status) = body.get("status") {
                object["status"] = status.clone();
            }
            version += 1;
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            let answer = if path.contains("/events") { body.clone() } else { object.clone() };
            listed.0.lock().unwrap().push(Asked { method, path, body });
            reply.send_response(Response::new(serde_json::to_vec(&answer).unwrap().into()));
        }
    });
    (Client::new(service, "default"), heard)
}

async fn lvmd(folder: &Path, disks: &[&str]) -> (Scripted, Hands) {
    let (lvmd, socket) = (Scripted::new(disks), folder.join("lvmd.sock"));
    let (serving, at) = (lvmd.clone(), socket.clone());
    tokio::spawn(async move { serving.serve(&at).await });
    let hands = Hands::new(&socket).unwrap();
    until(|| socket.exists()).await;
    (lvmd, hands)
}

async fn until(is: impl Fn() -> bool) {
    for _ in 0..500 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come");
}

fn node(policy: ExecutionPolicy) -> NodeStorage {
    let mut node = NodeStorage::new(
        "node1",
        NodeStorageSpec {
            node_name: "node1".into(),
            node_uid: "uid-1".into(),
            cluster_id: "cluster".into(),
            classes: vec![AssignedClass { name: "fast".into(), ..AssignedClass::default() }],
            ..NodeStorageSpec::default()
        },
    );
    node.spec.rails.execution_policy = policy;
    node.metadata.uid = Some("object-1".into());
    node.metadata.generation = Some(1);
    node.metadata.resource_version = Some("1".into());
    node
}

fn volume(discard: bool) -> LogicalVolume {
    let mut volume = LogicalVolume::new(
        "pvc-1",
        LogicalVolumeSpec {
            node_name: "node1".into(),
            device_class: "fast".into(),
            size: 64 << 20,
            access: Default::default(),
            claim: None,
            adopt: None,
            discard,
        },
    );
    volume.metadata.uid = Some("object-2".into());
    volume.metadata.generation = Some(1);
    volume.metadata.resource_version = Some("7".into());
    volume.metadata.finalizers = Some(vec!["example.com/other".into(), VOLUME_FINALIZER.into()]);
    volume
}

/// The node half's work on devices, as it runs.
struct Round {
    node: watch::Sender<Option<Arc<NodeStorage>>>,
    heard: Heard,
    lvmd: Scripted,
    _folder: tempfile::TempDir,
}

async fn round(object: NodeStorage, disks: &[&str], prepare: impl FnOnce(&Scripted)) -> Round {
    let folder = tempfile::tempdir().unwrap();
    let (lvmd, hands) = lvmd(folder.path(), disks).await;
    prepare(&lvmd);
    let (client, heard) = api(serde_json::to_value(&object).unwrap());
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&watcher::Event::Init);
    writer.apply_watcher_event(&watcher::Event::InitDone);
    let (sender, receiver) = watch::channel(Some(Arc::new(object)));
    let disks = Disks::new(hands, Publisher::new(client, "node1"), store, receiver, Arc::new(Notify::new()));
    tokio::spawn(async move {
        let _writer = writer;
        disks.run().await;
    });
    Round { node: sender, heard, lvmd, _folder: folder }
}

const STATUS: &str = "PATCH /apis/stowage.dev/v1alpha1/nodestorages/node1/status";

#[tokio::test]
async fn the_plan_is_published_before_it_is_carried_out_and_what_came_of_it_after() {
    let running = round(node(ExecutionPolicy::Enforce), &["a"], |_| {}).await;
    until(|| running.heard.lines().len() >= 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(running.heard.lines(), [STATUS, STATUS]);
    assert_eq!(running.lvmd.count("ApplyRequest"), 1);
    let body = running.heard.last();
    assert_eq!(body["status"]["volumeGroups"][0]["class"], "fast");
    assert_eq!(body["status"]["operations"][0]["step"], "create volume group stowage-fast on a");
    assert_eq!((body["status"].get("plan"), body["metadata"]["uid"].as_str()), (None, Some("object-1")));
    assert!(running.heard.events().contains(&"StepDone".to_owned()));
}

#[tokio::test]
async fn a_plan_that_may_not_be_carried_out_is_published_only() {
    for policy in [ExecutionPolicy::Plan, ExecutionPolicy::Pause] {
        let running = round(node(policy), &["a"], |_| {}).await;
        until(|| !running.heard.lines().is_empty()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((running.heard.lines().len(), running.lvmd.count("ApplyRequest")), (1, 0));
        assert_eq!(running.heard.last()["status"]["plan"]["steps"].as_array().map(Vec::len), Some(1));
    }
}

#[tokio::test]
async fn a_step_that_fails_is_said_once_and_not_tried_hot() {
    let refuse = |lvmd: &Scripted| lvmd.fail("Apply", Some(Status::aborted("vgcreate ended with 5")));
    let running = round(node(ExecutionPolicy::Enforce), &["a"], refuse).await;
    until(|| running.heard.lines().len() >= 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(running.lvmd.count("ApplyRequest"), 1);
    let ready = |body: &Value| {
        let conditions = body["status"]["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap()
    };
    let failed = ready(&running.heard.last());
    assert_eq!((failed["status"].as_str(), failed["reason"].as_str()), (Some("False"), Some("StepFailed")));

    // After its wait it is tried again, and when it is done all is well.
    running.lvmd.fail("Apply", None);
    until(|| ready(&running.heard.last())["status"] == "True").await;
    assert_eq!(running.lvmd.count("ApplyRequest"), 2);
}

#[tokio::test]
async fn what_failed_before_a_pause_costs_no_looks_in_it() {
    let refuse = |lvmd: &Scripted| lvmd.fail("Apply", Some(Status::aborted("vgcreate ended with 5")));
    let running = round(node(ExecutionPolicy::Enforce), &["a"], refuse).await;
    until(|| running.heard.lines().len() >= 2).await;
    let mut paused = node(ExecutionPolicy::Pause);
    paused.metadata.generation = Some(2);
    running.node.send_replace(Some(Arc::new(paused)));
    until(|| running.heard.lines().len() >= 3).await;
    let looks = running.lvmd.count("PlanRequest");
    // Longer than the wait after the first failure.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!((running.lvmd.count("PlanRequest"), running.lvmd.count("ApplyRequest")), (looks, 1));
}

#[tokio::test]
async fn a_look_that_finds_nothing_new_writes_nothing() {
    let running = round(node(ExecutionPolicy::Enforce), &["a"], |_| {}).await;
    until(|| running.heard.lines().len() >= 2).await;
    let looks = running.lvmd.count("PlanRequest");
    // The operator's condition moves no generation and asks for no look; a generation does, and says that it was seen.
    let mut status_only = node(ExecutionPolicy::Enforce);
    status_only.metadata.resource_version = Some("50".into());
    running.node.send_replace(Some(Arc::new(status_only)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(running.lvmd.count("PlanRequest"), looks);
    let mut asked = node(ExecutionPolicy::Enforce);
    asked.metadata.generation = Some(2);
    running.node.send_replace(Some(Arc::new(asked)));
    until(|| running.heard.lines().len() >= 3).await;
    assert_eq!(running.heard.last()["status"]["observedGeneration"], 2);
}

#[tokio::test]
async fn exactly_the_volumes_that_were_given_up_are_removed() {
    let seed = |lvmd: &Scripted| {
        for name in ["pvc-1", "pvc-2"] {
            lvmd.seed(name, "fast");
        }
    };
    let given_up = |lvmd: &str| Released { name: "pvc-1".into(), lv_uuid: lvmd.into() };
    let mut object = node(ExecutionPolicy::Enforce);
    object.spec.released = vec![given_up(&scripted::uuid("pvc-1")), given_up(&scripted::uuid("another"))];
    let running = round(object, &["a"], seed).await;
    until(|| running.lvmd.count("DeleteVolumeRequest") == 1).await;
    until(|| running.heard.last()["status"]["orphans"].as_array().is_some_and(|orphans| orphans.len() == 1)).await;
    assert_eq!(running.heard.last()["status"]["orphans"][0]["name"], "pvc-2");
    assert_eq!(running.lvmd.count("DeleteVolumeRequest"), 1);
    let asked = running.lvmd.last("DeleteVolumeRequest");
    assert!(asked.contains(&scripted::uuid("pvc-1")) && asked.contains(r#"cluster_id: "cluster""#), "{asked}");
}

/// One reconcile of `volume` on a node whose group is published.
async fn reconcile(volume: LogicalVolume, prepare: impl FnOnce(&Scripted)) -> (Action, Heard, Scripted) {
    let folder = tempfile::tempdir().unwrap();
    let (lvmd, hands) = lvmd(folder.path(), &["a"]).await;
    prepare(&lvmd);
    let mut object = node(ExecutionPolicy::Enforce);
    let report = lvmd.table.lock().unwrap().report(&object.spec);
    let status = object.status.get_or_insert_default();
    status.agent = Some(Default::default());
    status.volume_groups = report.volume_groups;
    let (client, heard) = api(serde_json::to_value(&volume).unwrap());
    let (staged, _woken) = Staged::new();
    let (_sender, receiver) = watch::channel(Some(Arc::new(object)));
    let context = Arc::new(volumes::Context::new(client, hands, staged, receiver));
    let action = volumes::reconcile(Arc::new(volume), context).await.unwrap();
    (action, heard, lvmd)
}

fn with_group(lvmd: &Scripted) {
    lvmd.table.lock().unwrap().groups.insert("fast".into(), "a".into());
}

fn deleted(mut volume: LogicalVolume) -> LogicalVolume {
    volume.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1).unwrap()));
    volume
}

const VOLUME: &str = "PATCH /apis/stowage.dev/v1alpha1/logicalvolumes/pvc-1";

#[tokio::test]
async fn a_volume_is_made_and_said_once() {
    let (action, heard, lvmd) = reconcile(volume(false), with_group).await;
    assert_eq!((heard.lines(), action), (vec![format!("{VOLUME}/status")], Action::await_change()));
    let said = heard.last();
    assert_eq!(said["status"]["lvUUID"], scripted::uuid("pvc-1"));
    assert_eq!(lvmd.count("CreateVolumeRequest"), 1);

    let mut there = volume(false);
    there.status = serde_json::from_value(said["status"].clone()).unwrap();
    let (_, heard, lvmd) = reconcile(there, with_group).await;
    assert_eq!((heard.lines(), lvmd.count("CreateVolumeRequest")), (Vec::new(), 0));
}

#[tokio::test]
async fn the_finalizer_goes_after_the_lv_and_no_other_finalizer_with_it() {
    let seed = |lvmd: &Scripted| {
        with_group(lvmd);
        lvmd.seed("pvc-1", "fast");
    };
    let (_, heard, lvmd) = reconcile(deleted(volume(true)), seed).await;
    assert_eq!((lvmd.count("DeleteVolumeRequest"), heard.lines()), (1, vec![VOLUME.to_owned()]));
    let expected = json!({"metadata": {"resourceVersion": "7", "finalizers": ["example.com/other"]}});
    assert_eq!(heard.last(), expected);
}

#[tokio::test]
async fn a_volume_that_lvmd_does_not_remove_keeps_its_finalizer() {
    let refuse = |lvmd: &Scripted| {
        with_group(lvmd);
        lvmd.fail("DeleteVolume", Some(Status::failed_precondition("it is mounted at /a")));
    };
    let (action, heard, _) = reconcile(deleted(volume(true)), refuse).await;
    assert_eq!(heard.lines(), [format!("{VOLUME}/status")]);
    assert_eq!(heard.last()["status"]["state"], "Deleting");
    assert_ne!(action, Action::await_change());
}

#[tokio::test]
async fn an_object_that_is_deleted_without_discard_costs_no_data() {
    let (_, heard, lvmd) = reconcile(deleted(volume(false)), with_group).await;
    assert_eq!(lvmd.count("DeleteVolumeRequest"), 0);
    assert_eq!(heard.lines(), [format!("{VOLUME}/status")]);
    let conditions = heard.last()["status"]["conditions"].clone();
    assert_eq!(conditions[0]["reason"], "DeleteWithoutDiscard");
}
