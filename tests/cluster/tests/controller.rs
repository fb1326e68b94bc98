//! `driver controller` behind the real csi-provisioner and csi-resizer, on a real API server with a real scheduler: what
//! it gives away, what it gives up, and that two of it never write.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, ensure};
use cluster_tests::{
    api::wait_for,
    fleet::GROUP_SIZE,
    main_job::PATIENCE,
    plane::{Plane, on_a_plane},
};
use rig::run::{Process, Run};
use serde_json::json;

const VOLUMES: &str = "/apis/stowage.dev/v1alpha1/logicalvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/stowage-system/leases/stowage-controller";
const MIB: i64 = 1 << 20;

/// The operator, the class `standard` on these nodes, and the controller with its sidecars.
fn run_all(plane: &Plane, nodes: &[&str], node_loss: &str) -> anyhow::Result<()> {
    plane.run_operator()?;
    for node in nodes {
        plane.fleet.add(node)?;
    }
    plane.apply_quickstart(node_loss)?;
    plane.run_controller()?;
    wait_for("the capacity of every node is published", PATIENCE, || {
        Ok((plane.capacities()?.len() == nodes.len()).then_some(()))
    })
}

/// A block volume: as small as is asked for.
fn claim(name: &str, mib: i64, class: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: {class}
  resources: {{requests: {{storage: {mib}Mi}}}}
---
"
    )
}

fn pod(name: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: none, volumeDevices: [{{name: d, devicePath: /d}}]}}]
  volumes: [{{name: d, persistentVolumeClaim: {{claimName: {name}}}}}]
---
"
    )
}

fn pod_with_claim(name: &str, mib: i64) -> String {
    claim(name, mib, "stowage-standard") + &pod(name)
}

/// Bytes of the volumes there are, by node.
fn taken(plane: &Plane) -> anyhow::Result<BTreeMap<String, i64>> {
    let mut taken = BTreeMap::new();
    for volume in plane.api.list(VOLUMES)? {
        let node = volume["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        *taken.entry(node).or_default() += volume["spec"]["size"].as_i64().unwrap_or_default();
    }
    Ok(taken)
}

fn bound_claims(plane: &Plane) -> anyhow::Result<usize> {
    Ok(plane.api.list(CLAIMS)?.iter().filter(|claim| claim["status"]["phase"] == "Bound").count())
}

fn delete_all(plane: &Plane) -> anyhow::Result<()> {
    plane.cluster.kubectl(["delete", "pods", "--all", "--grace-period=0", "--force"])?;
    plane.cluster.kubectl(["delete", "pvc", "--all", "--wait=false"])?;
    Ok(())
}

/// D5, E4: fifty claims where thirty-two fit. Each volume is made once, no byte is given twice, and what is freed goes to
/// those that wait.
#[test]
fn fifty_claims_on_nearly_full_nodes_get_what_is_there_once() {
    on_a_plane("fifty", |plane| {
        run_all(plane, &["n1", "n2"], "{}")?;
        let fit = usize::try_from(2 * GROUP_SIZE / (64 * MIB))?;
        let all: String = (0..50).map(|n| pod_with_claim(&format!("c{n}"), 64)).collect();
        plane.apply(&all)?;
        wait_for(&format!("{fit} claims are bound"), PATIENCE, || {
            let taken = taken(plane)?;
            ensure!(taken.values().all(|bytes| *bytes <= GROUP_SIZE), "more is given than there is: {taken:?}");
            Ok((bound_claims(plane)? == fit).then_some(()))
        })?;
        wait_for("nothing is left, and nothing is made for those that wait", PATIENCE, || {
            let full = plane.capacities()?.values().all(|free| *free == 0);
            Ok((full && plane.api.list(VOLUMES)?.len() == fit).then_some(()))
        })?;
        let log = std::fs::read_to_string(plane.cluster.folder().join("logs/driver-controller.log"))?;
        let refusals = log.lines().filter(|line| line.contains("there is no room")).count();
        println!("{refusals} calls were refused for fifty claims of which {fit} fit");

        // Those that wait get what becomes free.
        for claim in plane.api.list(CLAIMS)?.iter().filter(|claim| claim["status"]["phase"] == "Bound").take(10) {
            let name = claim["metadata"]["name"].as_str().unwrap_or_default();
            plane.cluster.kubectl(["delete", &format!("pod/{name}"), "--grace-period=0", "--force"])?;
            plane.cluster.kubectl(["delete", &format!("pvc/{name}"), "--wait=false"])?;
        }
        wait_for("ten others are bound", PATIENCE, || {
            let taken = taken(plane)?;
            ensure!(taken.values().all(|bytes| *bytes <= GROUP_SIZE), "more is given than there is: {taken:?}");
            Ok((bound_claims(plane)? == fit && plane.api.list(CLAIMS)?.len() == 40).then_some(()))
        })?;
        delete_all(plane)?;
        wait_for("everything is free again", PATIENCE, || {
            let none = plane.api.list(VOLUMES)?.is_empty() && plane.api.list("/api/v1/persistentvolumes")?.is_empty();
            Ok((none && plane.capacities()?.values().all(|free| *free == GROUP_SIZE)).then_some(()))
        })
    });
}

/// D11, and retained volumes (C7, E2): they go when a person says so on the object, on a lost node too (C4).
#[test]
fn immediate_binding_and_retained_volumes() {
    on_a_plane("immediate", |plane| {
        run_all(plane, &["n1", "n2"], "{ graceSeconds: 3 }")?;
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "now"},
            "provisioner": crds::names::DRIVER, "parameters": {"stowage.dev/device-class": "standard"},
            "reclaimPolicy": "Retain", "volumeBindingMode": "Immediate",
        });
        plane.api.create("/apis/storage.k8s.io/v1/storageclasses", &class)?;
        plane.apply(&claim("a", 600, "now"))?;
        let first = plane.volume_of(&plane.bound("a")?)?;
        plane.apply(&claim("b", 600, "now"))?;
        let second = plane.volume_of(&plane.bound("b")?)?;
        ensure!(first["spec"]["nodeName"] != second["spec"]["nodeName"], "not the emptiest node");

        let name = first["metadata"]["name"].as_str().context("no name")?.to_owned();
        plane.cluster.kubectl(["delete", "pvc/a"])?;
        plane.cluster.kubectl(["delete", &format!("pv/{name}")])?;
        std::thread::sleep(Duration::from_secs(3));
        let kept = plane.api.get(&format!("{VOLUMES}/{name}"))?.context("a retained volume is gone")?;
        ensure!(kept["metadata"]["deletionTimestamp"].is_null() && kept["spec"]["discard"] != true, "touched: {kept}");
        plane.api.merge(&format!("{VOLUMES}/{name}"), &json!({"spec": {"discard": true}}))?;
        plane.api.delete(&format!("{VOLUMES}/{name}"))?;
        wait_for("the discarded volume is gone and its room free", PATIENCE, || {
            let node = first["spec"]["nodeName"].as_str().unwrap_or_default();
            let free = plane.capacities()?.get(node) == Some(&GROUP_SIZE);
            Ok((plane.api.get(&format!("{VOLUMES}/{name}"))?.is_none() && free).then_some(()))
        })?;

        let node = second["spec"]["nodeName"].as_str().context("no node")?.to_owned();
        let path = format!("{VOLUMES}/{}", second["metadata"]["name"].as_str().unwrap_or_default());
        plane.fleet.lose(&node)?;
        plane.api.merge(&path, &json!({"spec": {"discard": true}}))?;
        plane.api.delete(&path)?;
        wait_for("the volume that was discarded on a lost node is gone", PATIENCE, || {
            Ok(plane.api.get(&path)?.is_none().then_some(()))
        })?;
        let storage = plane.api.get(&format!("/apis/stowage.dev/v1alpha1/nodestorages/{node}"))?.unwrap_or_default();
        let listed = storage["spec"]["released"]
            .as_array()
            .is_some_and(|all| all.iter().any(|entry| entry["lvUUID"] == second["status"]["lvUUID"]));
        ensure!(listed, "a machine that returns would keep it: {}", storage["spec"]["released"]);
        Ok(())
    });
}

fn run_another(plane: &Plane, identity: &str, port: u16) -> anyhow::Result<Process> {
    let kubeconfig = plane.cluster.service_account_kubeconfig("stowage-system", "stowage-controller")?;
    let program = std::env::current_exe()?.ancestors().nth(2).context("no folder")?.join("driver");
    let socket = format!("--csi-socket={}", plane.cluster.folder().join(format!("{identity}.sock")).display());
    let argv = [
        &*program.to_string_lossy(),
        "controller",
        "--namespace=stowage-system",
        &format!("--identity={identity}"),
        &socket,
        &format!("--health=127.0.0.1:{port}"),
    ];
    Ok(plane.cluster.spawn_in_net(identity, &argv, &[("KUBECONFIG", &kubeconfig.to_string_lossy())])?)
}

fn signal(process: &Process, signal: &str) -> anyhow::Result<()> {
    Run::new("kill").args([signal, &process.id().to_string()]).check()?;
    Ok(())
}

fn holder(plane: &Plane) -> anyhow::Result<String> {
    let lease = plane.api.get(LEASE)?.unwrap_or_default();
    Ok(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned())
}

/// DESIGN 2: one works, the others wait; a frozen holder that thaws has lost the Lease and ends; a clean stop lets the
/// next one in at once.
#[test]
fn a_frozen_controller_that_thaws_writes_nothing() {
    on_a_plane("frozen", |plane| {
        plane.run_operator()?;
        plane.fleet.add("n1")?;
        plane.apply_quickstart("{}")?;
        let first = run_another(plane, "first", 9819)?;
        wait_for("the first holds the Lease", PATIENCE, || Ok((holder(plane)? == "first").then_some(())))?;
        let second = run_another(plane, "second", 9829)?;
        let socket = |identity: &str| plane.cluster.folder().join(format!("{identity}.sock"));
        wait_for("the first serves", PATIENCE, || Ok(socket("first").exists().then_some(())))?;
        std::thread::sleep(Duration::from_secs(2));
        ensure!(!socket("second").exists(), "two serve at once");

        signal(&first, "-STOP")?;
        wait_for("the second takes the Lease", PATIENCE, || Ok((holder(plane)? == "second").then_some(())))?;
        wait_for("the second serves", PATIENCE, || Ok(socket("second").exists().then_some(())))?;
        let capacities = "/apis/storage.k8s.io/v1/namespaces/stowage-system/csistoragecapacities";
        let before = plane.api.list(capacities)?;
        // Something the thawed one would write, if it still could.
        plane.fleet.add("n2")?;
        wait_for("the second tells of the new node", PATIENCE, || {
            Ok((plane.api.list(capacities)?.len() == before.len() + 1).then_some(()))
        })?;
        signal(&first, "-CONT")?;
        wait_for("the first ends", PATIENCE, || Ok((!first.is_alive()).then_some(())))?;
        let log = std::fs::read_to_string(plane.cluster.folder().join("logs/first.log"))?;
        ensure!(log.contains("another process may be at work"), "the first said: {log}");
        ensure!(holder(plane)? == "second", "the Lease went back");

        let third = run_another(plane, "third", 9839)?;
        std::thread::sleep(Duration::from_secs(2));
        second.stop(Duration::from_secs(20))?;
        wait_for("the third takes over at once", Duration::from_secs(5), || {
            Ok((holder(plane)? == "third").then_some(()))
        })?;
        ensure!(!socket("second").exists(), "the socket of one that stopped is there");
        third.stop(Duration::from_secs(20))?;
        ensure!(holder(plane)?.is_empty(), "a clean stop leaves the Lease taken");
        Ok(())
    });
}

/// DESIGN 4.2.7: an object that vanished is made anew for its LV, as long as a PersistentVolume stands for it.
#[test]
fn a_vanished_object_is_made_anew() {
    on_a_plane("vanished", |plane| {
        run_all(plane, &["n1"], "{}")?;
        plane.apply(&pod_with_claim("a", 64))?;
        let before = plane.volume_of(&plane.bound("a")?)?;
        let name = before["metadata"]["name"].as_str().context("no name")?.to_owned();
        let path = format!("{VOLUMES}/{name}");
        plane.api.delete(&path)?;
        plane.api.merge(&path, &json!({"metadata": {"finalizers": null}}))?;
        wait_for("the object is gone", PATIENCE, || Ok(plane.api.get(&path)?.is_none().then_some(())))?;

        // What a node's look says then.
        let orphan = json!({
            "name": name, "class": "standard", "lvUUID": before["status"]["lvUUID"], "size": before["status"]["size"],
            "claim": "default/a", "used": true,
        });
        let storage = "/apis/stowage.dev/v1alpha1/nodestorages/n1";
        plane.api.merge(&format!("{storage}/status"), &json!({"status": {"orphans": [orphan]}}))?;
        let after = wait_for("the object is made anew", PATIENCE, || plane.api.get(&path))?;
        ensure!(after["spec"]["adopt"]["lvUUID"] == before["status"]["lvUUID"], "another LV: {after}");
        ensure!(after["spec"]["access"] == "Block" && after["spec"]["claim"]["name"] == "a", "not the same: {after}");
        ensure!(after["metadata"]["finalizers"][0] == crds::names::VOLUME_FINALIZER, "without finalizer: {after}");

        // An LV that nothing stands for is left alone.
        let foreign = json!({
            "name": "pvc-0", "class": "standard", "lvUUID": "zzzzzz-zzzz-zzzz-zzzz-zzzz-zzzz-zzzzzz", "size": 64 * MIB,
            "claim": "default/gone", "used": true,
        });
        plane.api.merge(&format!("{storage}/status"), &json!({"status": {"orphans": [foreign]}}))?;
        wait_for("an orphan takes room", PATIENCE, || {
            Ok((plane.capacities()?.get("n1") == Some(&(GROUP_SIZE - 128 * MIB))).then_some(()))
        })?;
        std::thread::sleep(Duration::from_secs(3));
        ensure!(
            plane.api.get(&format!("{VOLUMES}/pvc-0"))?.is_none(),
            "an orphan was adopted without a PersistentVolume"
        );
        Ok(())
    });
}
