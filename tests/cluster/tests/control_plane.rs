//! Stowage's objects, its operator and its controller against a real API server,
//! scheduler, controller-manager and sidecars; the nodes are scripted.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, ensure};
use cluster_tests::{
    api::{Api, condition, message, wait_for},
    fleet::GROUP_SIZE,
    main_job::PATIENCE,
    plane::{Plane, on_a_plane, repository},
};
use serde_json::{Value, json};

const DEVICE_CLASS: &str =
    "{apiVersion: stowage.dev/v1alpha1, kind: DeviceClass, metadata: {name: a}, spec: {devices: DEVICES}}";

/// J1, and the "bad input": every sample is taken, and what is wrong in itself is refused with a sentence
/// that says what to write instead.
#[test]
fn samples_are_taken_and_bad_objects_refused() {
    on_a_plane("samples", |plane| {
        for entry in std::fs::read_dir(repository("config/samples"))? {
            let file = entry?.path().to_string_lossy().into_owned();
            plane.cluster.kubectl(["apply", "--dry-run=server", "-f", &file]).with_context(|| file.clone())?;
        }
        plane.run_operator()?;
        plane.fleet.add("n1")?;
        plane.apply_quickstart("{}")?;
        let policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        wait_for("the admission policies are there", PATIENCE, || {
            Ok((plane.api.list(policy)?.len() >= 2).then_some(()))
        })?;

        let class = |devices: &str| DEVICE_CLASS.replace("DEVICES", devices);
        let volume = |metadata: &str| {
            format!(
                "{{apiVersion: stowage.dev/v1alpha1, kind: LogicalVolume, metadata: {metadata}, \
                 spec: {{nodeName: n1, deviceClass: standard, size: 1048576}}}}"
            )
        };
        let refused = [
            (
                "{apiVersion: stowage.dev/v1alpha1, kind: StorageCluster, metadata: {name: second}, spec: {}}"
                    .to_owned(),
                "rename this one to default",
            ),
            (class("{include: []}"), "should have at least 1 items"),
            (class("{include: [{}]}"), "give at least one of paths, ids"),
            (class("{include: [{paths: [/dev/sda]}]}"), "use a path below /dev/disk/by-id"),
            (class("{include: [{types: [floppy]}]}"), "supported values"),
            (class("{include: [{minSize: big}]}"), "minSize is a size such as 100Gi"),
            (class("{include: [{types: [disk]}], min: 3, max: 2}"), "min is greater than max"),
            (volume("{name: v}"), "finalizer"),
        ];
        for (object, sentence) in &refused {
            // The policies take a moment from being there to being asked.
            wait_for(&format!("{object} is refused with {sentence:?}"), Duration::from_secs(30), || {
                let said = plane.apply(object);
                let refused = said.as_ref().err().is_some_and(|error| format!("{error:#}").contains(sentence));
                if said.is_ok() {
                    plane.cluster.kubectl_with(object, ["delete", "--wait=false", "-f", "-"])?;
                }
                refused.then_some(()).map_or_else(|| anyhow::bail!("it said {said:?}"), |()| Ok(Some(())))
            })?;
        }
        plane.apply(&volume("{name: v, finalizers: [stowage.dev/logical-volume]}"))?;
        Ok(())
    });
}

/// D7, J1: what the operator owns is there and put back; what is no longer wanted goes; nothing is written at rest.
#[test]
fn the_operator_keeps_what_it_owns() {
    on_a_plane("operator", |plane| {
        plane.run_operator()?;
        plane.fleet.add("n1")?;
        plane.apply_quickstart("{}")?;
        let daemon_set = "/apis/apps/v1/namespaces/stowage-system/daemonsets/stowage-node";
        let class = "/apis/storage.k8s.io/v1/storageclasses/stowage-standard";
        let there = |path: &str| {
            wait_for(&format!("{path} is there"), PATIENCE, || {
                Ok(plane.api.get(path)?.filter(|object| object["metadata"]["deletionTimestamp"].is_null()))
            })
        };
        for path in [
            daemon_set,
            class,
            "/apis/storage.k8s.io/v1/csidrivers/csi.stowage.dev",
            "/apis/apps/v1/namespaces/stowage-system/deployments/stowage-controller",
        ] {
            there(path)?;
        }
        // A node that joins later.
        plane.fleet.add("n2")?;
        for node in ["n1", "n2"] {
            let storage = there(&format!("/apis/stowage.dev/v1alpha1/nodestorages/{node}"))?;
            ensure!(storage["spec"]["classes"][0]["name"] == "standard", "{node} has no class: {storage}");
        }

        let before = there(daemon_set)?["spec"]["template"]["spec"]["hostIPC"].clone();
        plane.api.merge(daemon_set, &json!({"spec": {"template": {"spec": {"hostIPC": false}}}}))?;
        wait_for("the DaemonSet is put back", PATIENCE, || {
            Ok((there(daemon_set)?["spec"]["template"]["spec"]["hostIPC"] == before).then_some(()))
        })?;
        let old = there(class)?["metadata"]["uid"].clone();
        plane.api.delete(class)?;
        wait_for("the StorageClass is put back", PATIENCE, || {
            Ok(plane.api.get(class)?.filter(|class| class["metadata"]["uid"] != old).map(|_| ()))
        })?;

        at_rest_nothing_is_written(plane)?;

        plane.cluster.kubectl(["delete", "deviceclasses.stowage.dev", "standard", "--wait=true", "--timeout=60s"])?;
        wait_for("the StorageClass is pruned", PATIENCE, || Ok(plane.api.get(class)?.is_none().then_some(())))?;
        plane.cluster.kubectl(["delete", "storagecluster", "default", "--wait=true", "--timeout=60s"])?;
        for path in [
            daemon_set,
            "/apis/storage.k8s.io/v1/csidrivers/csi.stowage.dev",
            "/apis/stowage.dev/v1alpha1/nodestorages/n1",
        ] {
            wait_for(&format!("{path} is gone"), PATIENCE, || Ok(plane.api.get(path)?.is_none().then_some(())))?;
        }
        Ok(())
    });
}

/// I2: two looks, some seconds apart, find every object of Stowage at the same version.
fn at_rest_nothing_is_written(plane: &Plane) -> anyhow::Result<()> {
    let versions = || -> anyhow::Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for path in [
            "/apis/stowage.dev/v1alpha1/nodestorages",
            "/apis/stowage.dev/v1alpha1/deviceclasses",
            "/apis/stowage.dev/v1alpha1/storageclusters",
            "/apis/storage.k8s.io/v1/storageclasses",
            "/apis/apps/v1/namespaces/stowage-system/deployments",
        ] {
            for object in plane.api.list(path)? {
                let metadata = &object["metadata"];
                // The Deployment's own controller writes its status; its generation is what is asked of it.
                let version =
                    if path.contains("deployments") { &metadata["generation"] } else { &metadata["resourceVersion"] };
                all.insert(format!("{path}/{}", metadata["name"]), version.to_string());
            }
        }
        Ok(all)
    };
    let mut last = versions()?;
    wait_for("all objects stay as they are for five seconds", PATIENCE, || {
        std::thread::sleep(Duration::from_secs(5));
        let now = versions()?;
        let same = now == last;
        last = now;
        Ok(same.then_some(()))
    })
}

fn pod_with_claim(name: &str, mib: u64) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: stowage-standard
  resources: {{requests: {{storage: {mib}Mi}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: none, volumeMounts: [{{name: d, mountPath: /d}}]}}]
  volumes: [{{name: d, persistentVolumeClaim: {{claimName: {name}}}}}]
"
    )
}

/// D1, D5, D7, D8, E5: claims find room, what does not fit waits, what is deleted is free again, a claim grows.
#[test]
fn claims_are_bound_where_there_is_room() {
    on_a_plane("claims", |plane| {
        plane.run_operator()?;
        plane.fleet.add("n1")?;
        plane.fleet.add("n2")?;
        plane.apply_quickstart("{}")?;
        plane.run_controller()?;
        let whole = GROUP_SIZE;
        wait_for("both nodes' capacity is published", PATIENCE, || {
            Ok((plane.capacities()? == BTreeMap::from([("n1".to_owned(), whole), ("n2".to_owned(), whole)]))
                .then_some(()))
        })?;

        // Each fits alone, two of them do not fit together on one node.
        for name in ["a", "b"] {
            plane.apply(&pod_with_claim(name, 600))?;
        }
        let nodes: Vec<Value> = ["a", "b"]
            .iter()
            .map(|name| Ok(plane.volume_of(&plane.bound(name)?)?["spec"]["nodeName"].clone()))
            .collect::<anyhow::Result<_>>()?;
        ensure!(nodes[0] != nodes[1], "both volumes are on {}", nodes[0]);
        let left = whole - 600 * (1 << 20);
        wait_for("the capacity is what is left", PATIENCE, || {
            Ok(plane.capacities()?.values().all(|free| *free == left).then_some(()))
        })?;

        plane.apply(&pod_with_claim("c", 600))?;
        let said = wait_for("the third claim is said to find no room", PATIENCE, || {
            let pod = plane.api.get("/api/v1/namespaces/default/pods/c")?.unwrap_or_default();
            Ok(Some(message(&pod, "PodScheduled").to_owned()).filter(|said| said.contains("free storage")))
        })?;
        println!("the third claim: {said}");

        // Grown by the sidecar as far as it goes without a kubelet: the LV and the PersistentVolume.
        let grow = json!({"spec": {"resources": {"requests": {"storage": "800Mi"}}}});
        plane.api.merge("/api/v1/namespaces/default/persistentvolumeclaims/a", &grow)?;
        wait_for("the LV of the first claim is grown", PATIENCE, || {
            Ok((plane.volume_of(&plane.bound("a")?)?["status"]["size"] == 800 * (1 << 20)).then_some(()))
        })?;

        for name in ["a", "b", "c"] {
            plane.cluster.kubectl(["delete", &format!("pod/{name}"), "--grace-period=0", "--force"])?;
            plane.cluster.kubectl(["delete", &format!("pvc/{name}"), "--wait=false"])?;
        }
        wait_for("everything is free again", PATIENCE, || {
            let none = plane.api.list("/apis/stowage.dev/v1alpha1/logicalvolumes")?.is_empty()
                && plane.api.list("/api/v1/persistentvolumes")?.is_empty();
            Ok((none && plane.capacities()?.values().all(|free| *free == whole)).then_some(()))
        })?;
        Ok(())
    });
}

const SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 1
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: c, image: none, volumeMounts: [{name: data, mountPath: /d}]}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [ReadWriteOnce]
        storageClassName: stowage-standard
        resources: {requests: {storage: 320Mi}}
";

/// C1, C8, A12, A13: a lost node's claim is replaced after the grace; too many lost nodes are held until a person
/// says so; a bare claim is kept and reported.
#[test]
fn a_lost_node_gives_its_set_to_another() {
    on_a_plane("loss", |plane| {
        plane.run_operator()?;
        for node in ["n1", "n2", "n3"] {
            plane.fleet.add(node)?;
        }
        plane.apply_quickstart("{ graceSeconds: 3, maxNodesPercent: 20 }")?;
        plane.run_controller()?;
        wait_for("capacity is published", PATIENCE, || Ok((plane.capacities()?.len() == 3).then_some(())))?;
        plane.apply(SET)?;
        let claim = plane.bound("data-db-0")?;
        let first = plane.volume_of(&claim)?;
        let node = first["spec"]["nodeName"].as_str().context("no node")?.to_owned();
        plane.apply(
            &pod_with_claim("bare", 64)
                .replace(
                    "spec:\n  terminationGrace",
                    &format!("spec:\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n  terminationGrace"),
                )
                .replace("64Mi", "320Mi"),
        )?;
        let bare = plane.bound("bare")?;

        plane.fleet.lose(&node)?;
        let again = wait_for("the claim is replaced and bound elsewhere", PATIENCE, || {
            let now = plane.api.get("/api/v1/namespaces/default/persistentvolumeclaims/data-db-0")?.unwrap_or_default();
            Ok((now["metadata"]["uid"] != claim["metadata"]["uid"] && now["status"]["phase"] == "Bound").then_some(now))
        })?;
        let second = plane.volume_of(&again)?["spec"]["nodeName"].as_str().context("no node")?.to_owned();
        ensure!(second != node, "the new volume is on the lost node");
        wait_for("the old volume is gone", PATIENCE, || {
            let path = format!(
                "/apis/stowage.dev/v1alpha1/logicalvolumes/{}",
                first["metadata"]["name"].as_str().unwrap_or_default()
            );
            Ok(plane.api.get(&path)?.is_none().then_some(()))
        })?;
        let storage = format!("/apis/stowage.dev/v1alpha1/nodestorages/{node}");
        wait_for("the NodeStorage tells what was released and what was kept", PATIENCE, || {
            let storage = plane.api.get(&storage)?.unwrap_or_default();
            let loss = storage["status"]["loss"].to_string();
            let tells = loss.contains("default/data-db-0") && loss.contains("default/bare");
            Ok((condition(&storage, "NodeLost") == "True" && tells).then_some(()))
        })?;
        let kept = plane
            .api
            .get("/api/v1/namespaces/default/persistentvolumeclaims/bare")?
            .context("the bare claim was deleted")?;
        ensure!(
            kept["metadata"]["uid"] == bare["metadata"]["uid"] && kept["metadata"]["deletionTimestamp"].is_null(),
            "the bare claim was touched: {kept}"
        );

        // A second one within half an hour is more than a fifth of all: held.
        plane.fleet.lose(&second)?;
        let storage = format!("/apis/stowage.dev/v1alpha1/nodestorages/{second}");
        wait_for("the loss is held back", PATIENCE, || {
            Ok((condition(&plane.api.get(&storage)?.unwrap_or_default(), "LossHeld") == "True").then_some(()))
        })?;
        std::thread::sleep(Duration::from_secs(5)); // Longer than the grace: the brake holds, not the clock.
        let now = plane.api.get("/api/v1/namespaces/default/persistentvolumeclaims/data-db-0")?.unwrap_or_default();
        ensure!(
            now["metadata"]["uid"] == again["metadata"]["uid"] && now["metadata"]["deletionTimestamp"].is_null(),
            "a held claim was deleted"
        );
        plane.api.merge(&storage, &json!({"spec": {"lost": "Confirm"}}))?;
        wait_for("after the word the claim is replaced", PATIENCE, || {
            let now = plane.api.get("/api/v1/namespaces/default/persistentvolumeclaims/data-db-0")?.unwrap_or_default();
            Ok((now["metadata"]["uid"] != again["metadata"]["uid"] && now["status"]["phase"] == "Bound").then_some(()))
        })?;
        Ok(())
    });
}

/// DESIGN §5: a node's token writes the status of its own objects, and takes one finalizer off; nothing else.
#[test]
fn a_node_token_writes_its_own_objects_only() {
    on_a_plane("tokens", |plane| {
        plane.run_operator()?;
        for node in ["n1", "n2"] {
            plane.fleet.add(node)?;
        }
        plane.apply_quickstart("{}")?;
        let storage = |node: &str| format!("/apis/stowage.dev/v1alpha1/nodestorages/{node}");
        wait_for("the scripted agents have published", PATIENCE, || {
            let both = ["n1", "n2"].iter().all(|node| {
                plane
                    .api
                    .get(&storage(node))
                    .ok()
                    .flatten()
                    .is_some_and(|storage| storage["status"]["agent"].is_object())
            });
            Ok(both.then_some(()))
        })?;
        let token = plane.cluster.kubectl([
            "create",
            "token",
            "stowage-node",
            "--namespace=stowage-system",
            "--bound-object-kind=Node",
            "--bound-object-name=n1",
        ])?;
        let node = Api::connect_with_token(&plane.cluster.kubeconfig_path(), token.trim())?;
        for node in ["n1", "n2"] {
            plane.apply(&format!(
                "{{apiVersion: stowage.dev/v1alpha1, kind: LogicalVolume, metadata: {{name: v-{node}, finalizers: \
                 [stowage.dev/logical-volume]}}, spec: {{nodeName: {node}, deviceClass: standard, size: 4194304}}}}"
            ))?;
        }
        let volume = |name: &str| format!("/apis/stowage.dev/v1alpha1/logicalvolumes/{name}");
        let summary = json!({"status": {"summary": {"devices": "x", "groups": "y"}}});
        let failed = json!({"status": {"state": "Failed"}});
        let lost = json!({"status": {"conditions": [{
            "type": "NodeLost", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let no_finalizer = json!({"metadata": {"finalizers": null}});
        let own_status = format!("{}/status", storage("n1"));
        let other_status = format!("{}/status", storage("n2"));
        wait_for("the policies bite", Duration::from_secs(60), || {
            Ok(node.merge(&other_status, &summary).is_err().then_some(()))
        })?;
        for (allowed, path, change) in [
            (true, own_status.clone(), summary.clone()),
            (false, other_status, summary),
            (false, own_status, lost),
            (false, storage("n1"), json!({"spec": {"lost": "Keep"}})),
            (true, format!("{}/status", volume("v-n1")), failed.clone()),
            (false, format!("{}/status", volume("v-n2")), failed),
            // Not being deleted, or without anybody's word that the data may go.
            (false, volume("v-n1"), no_finalizer),
            (false, volume("v-n1"), json!({"spec": {"discard": true}})),
            (false, volume("v-n1"), json!({"metadata": {"labels": {"a": "b"}}})),
        ] {
            let answer = node.merge(&path, &change);
            ensure!(
                answer.is_ok() == allowed,
                "{change} on {path}, which is {}: {answer:?}",
                if allowed { "its own" } else { "not its to write" }
            );
        }
        ensure!(node.delete(&volume("v-n1")).is_err(), "a node may delete a LogicalVolume");
        ensure!(node.list("/api/v1/secrets").is_err(), "a node may read secrets");
        Ok(())
    });
}
