//! Nodes without machines: Node objects, and one thread that plays every node's
//! agent with scripted disks. For questions about the control plane alone: there
//! the API server, the scheduler, the controller-manager and the sidecars are
//! real, and no disk is needed.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crds::names;
use serde_json::{Value, json};

use crate::api::Api;

const MIB: i64 = 1 << 20;
/// Bytes in each group.
pub const GROUP_SIZE: i64 = 1024 * MIB;
const EXTENT: i64 = 4 * MIB;

/// What the script does with nodes.
#[derive(Default)]
struct Script {
    /// By node: the number of its group, which tells one set of disks from another.
    nodes: BTreeMap<String, u32>,
}

/// The nodes, while it lives.
pub struct Fleet {
    script: Arc<Mutex<Script>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    api: Api,
}

impl Fleet {
    pub fn start(kubeconfig: &Path) -> anyhow::Result<Self> {
        let (script, stop) = (Arc::new(Mutex::new(Script::default())), Arc::new(AtomicBool::new(false)));
        let agent = Agent { api: Api::connect(kubeconfig)?, script: Arc::clone(&script) };
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // A conflict or a restarting API server: the next round sees to it.
                if let Err(error) = agent.round() {
                    eprintln!("scripted agent: {error:#}");
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        Ok(Self { script, stop, thread: Some(thread), api: Api::connect(kubeconfig)? })
    }

    /// A node appears, with disks of its own.
    pub fn add(&self, node: &str) -> anyhow::Result<()> {
        let topology = names::topology_value(node);
        self.api.create(
            "/api/v1/nodes",
            &json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node, "labels": {
                    "kubernetes.io/hostname": node, "kubernetes.io/os": "linux", names::TOPOLOGY_NODE: topology,
                }},
            }),
        )?;
        let ready = json!({"status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"},
            "capacity": {"cpu": "8", "memory": "8Gi", "pods": "110"},
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Scripted", "message": "a node without a machine",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        self.api.merge(&format!("/api/v1/nodes/{node}/status"), &ready)?;
        self.api.create(
            "/apis/storage.k8s.io/v1/csinodes",
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node},
                "spec": {"drivers": [{"name": names::DRIVER, "nodeID": node, "topologyKeys": [names::TOPOLOGY_NODE]}]},
            }),
        )?;
        let mut script = hold(&self.script);
        let number = u32::try_from(script.nodes.len())? + 1;
        script.nodes.insert(node.to_owned(), number);
        Ok(())
    }

    /// The machine is gone with its agent, and its Node object is deleted.
    pub fn lose(&self, node: &str) -> anyhow::Result<()> {
        hold(&self.script).nodes.remove(node);
        self.api.delete(&format!("/apis/storage.k8s.io/v1/csinodes/{node}"))?;
        self.api.delete(&format!("/api/v1/nodes/{node}"))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panicked: the test fails by what it did not do.
            let _ = thread.join();
        }
    }
}

/// A test that panicked meanwhile has its own error; the script is whole.
fn hold(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays every node's agent.
struct Agent {
    api: Api,
    script: Arc<Mutex<Script>>,
}

const STORAGES: &str = "/apis/stowage.dev/v1alpha1/nodestorages";
const VOLUMES: &str = "/apis/stowage.dev/v1alpha1/logicalvolumes";

impl Agent {
    fn round(&self) -> anyhow::Result<()> {
        // Held to the round's end: when a node is lost, its agent has said its last word.
        let script = hold(&self.script);
        let nodes = &script.nodes;
        for storage in self.api.list(STORAGES)? {
            let name = storage["metadata"]["name"].as_str().unwrap_or_default();
            if let Some(number) = nodes.get(name) {
                self.publish(&storage, name, *number)?;
            }
        }
        for volume in self.api.list(VOLUMES)? {
            if let Some(number) = volume["spec"]["nodeName"].as_str().and_then(|node| nodes.get(node)) {
                self.carry_out(&volume, *number)?;
            }
        }
        Ok(())
    }

    /// The look at the node's disks: one group for each class.
    fn publish(&self, storage: &Value, node: &str, number: u32) -> anyhow::Result<()> {
        let generation = &storage["metadata"]["generation"];
        if &storage["status"]["observedGeneration"] == generation {
            return Ok(());
        }
        let classes = storage["spec"]["classes"].as_array().cloned().unwrap_or_default();
        let groups: Vec<Value> = classes
            .iter()
            .map(|class| {
                let class = class["name"].as_str().unwrap_or_default();
                json!({
                    "class": class, "name": format!("stowage-{class}"), "uuid": uuid(number, 0), "size": GROUP_SIZE,
                    "extentSize": EXTENT, "unmanaged": 0, "reserve": 0, "maxVolumeSize": GROUP_SIZE, "devices": 1,
                    "state": "Ready",
                })
            })
            .collect();
        let device = json!({
            "id": format!("virtio-{node}"), "path": format!("/dev/disk/by-id/virtio-{node}"), "size": GROUP_SIZE,
            "type": "disk", "rotational": false, "state": "InUse", "class": "standard", "reasons": [],
        });
        let status = json!({"apiVersion": "stowage.dev/v1alpha1", "kind": "NodeStorage", "status": {
            "observedGeneration": generation,
            "agent": {
                "version": "0", "lvmVersion": "0", "kernel": "0", "bootID": "0", "nodeUID": storage["spec"]["nodeUID"],
                "lookedAt": "2026-01-01T00:00:00Z",
            },
            "devices": [device], "volumeGroups": groups, "operations": [], "orphans": [],
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "AsWanted", "message": "scripted",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
            }],
        }});
        self.api.apply(&format!("{STORAGES}/{node}/status"), names::manager::NODE, &status).map(|_| ())
    }

    /// The LV of a volume: made, grown or removed at once.
    fn carry_out(&self, volume: &Value, number: u32) -> anyhow::Result<()> {
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        if !volume["metadata"]["deletionTimestamp"].is_null() {
            if volume["spec"]["discard"] == true {
                self.api.merge(&format!("{VOLUMES}/{name}"), &json!({"metadata": {"finalizers": null}}))?;
            }
            return Ok(());
        }
        let wanted = volume["spec"]["size"].as_i64().unwrap_or_default();
        let size = (wanted + EXTENT - 1) / EXTENT * EXTENT;
        if volume["status"]["size"].as_i64() == Some(size) {
            return Ok(());
        }
        let class = volume["spec"]["deviceClass"].as_str().unwrap_or_default();
        let hash = names::fnv1a_128(name.as_bytes());
        let status = json!({"apiVersion": "stowage.dev/v1alpha1", "kind": "LogicalVolume", "status": {
            "observedGeneration": volume["metadata"]["generation"],
            "volumeGroup": {"name": format!("stowage-{class}"), "uuid": uuid(number, 0)},
            "lvUUID": uuid_of(&hash), "size": size, "state": "Ready",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "VolumeReady", "message": "scripted",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        self.api.apply(&format!("{VOLUMES}/{name}/status"), names::manager::NODE, &status).map(|_| ())
    }
}

/// As LVM writes its UUIDs: 32 characters in seven pieces.
fn uuid(node: u32, what: u32) -> String {
    uuid_of(&format!("{node:016x}{what:016x}"))
}

fn uuid_of(hex: &str) -> String {
    let pieces = [0..6, 6..10, 10..14, 14..18, 18..22, 22..26, 26..32];
    pieces.map(|range| &hex[range]).join("-")
}
