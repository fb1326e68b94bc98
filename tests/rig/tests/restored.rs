//! A saved cluster comes back and runs a pod: `cargo test --package rig --test restored`, as root.

use std::time::Instant;

use rig::{
    control_plane::{ControlPlane, Options, Timing},
    disk::{Disk, GIB},
    guest::Link,
    node::NodeOptions,
};

const POD: &str = r#"{ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "busy" }, "spec": {
    "nodeName": "node2", "terminationGracePeriodSeconds": 0,
    "containers": [{ "name": "c", "image": "rig.local/busybox:1", "command": ["sleep", "1000"] }] } }"#;

#[test]
fn a_saved_cluster_comes_back_and_runs_a_pod() {
    let options = Options { timing: Timing::Fast, ..Options::default() };
    let node = NodeOptions { disks: vec![Disk::blank("data", GIB)], ..NodeOptions::default() };
    let nodes = [("node1", node.clone()), ("node2", node)];
    let began = Instant::now();
    let (cluster, nodes) =
        ControlPlane::start_with_nodes("restored", &options, &nodes).unwrap_or_else(|err| panic!("{}", err.chain()));
    rig::say(format!("up after {:.1} s", began.elapsed().as_secs_f64()));
    cluster.apply(POD).unwrap();
    cluster.kubectl(["wait", "--for=condition=Ready", "pod/busy", "--timeout=120s"]).unwrap();
    rig::say("pod ready");
    assert_eq!(nodes[0].sh("blockdev --getsize64 /dev/disk/by-id/virtio-data").unwrap().trim(), GIB.to_string());
    cluster.kubectl(["exec", "busy", "--", "true"]).unwrap();

    let wait = |status: &str| {
        let condition = format!("--for=condition=Ready={status}");
        cluster.kubectl(["wait", &condition, "node/node2", "--timeout=60s"]).unwrap();
        rig::say(format!("node2 is Ready={status}"));
    };
    nodes[1].link(Link::Down).unwrap();
    wait("Unknown");
    nodes[1].link(Link::Up).unwrap();
    wait("True");
    nodes[1].start_again().unwrap();
    nodes[1].wait_ready(&cluster).unwrap();
}
