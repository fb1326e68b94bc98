//! The DaemonSet `stowage-node`: on every node, one unprivileged container that talks to Kubernetes and one privileged
//! container that talks to the disks.

use crds::{
    names,
    storage_cluster::{NodeAgent, StorageClusterSpec},
};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::api::ApiResource;
use serde_json::{Value, json};

use super::{Owned, Release, account, labels, pod_labels, probe, pull_policy, resources};

/// The label value by which the agent's pods are found.
pub const COMPONENT: &str = "node";

/// Where the two containers meet.
const SOCKET_FOLDER: &str = "/run/stowage";
const LVMD_SOCKET: &str = "/run/stowage/lvmd.sock";
const STATE: &str = "/var/lib/stowage";
const HEALTH_PORT: u16 = 9808;
/// Where client libraries look for the pod's token.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

pub fn daemon_set(release: &Release, spec: &StorageClusterSpec) -> Owned {
    let agent = &spec.node_agent;
    let image = spec.images.stowage.as_ref().unwrap_or(&release.stowage_image);
    let mut node_selector = agent.node_selector.clone();
    node_selector.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
    let tolerations = match &agent.tolerations {
        Some(tolerations) => json!(tolerations),
        None => json!([{ "operator": "Exists" }]),
    };
    Owned::new(
        ApiResource::erase::<DaemonSet>(&()),
        json!({
            "metadata": { "name": names::NODE_DAEMON_SET, "namespace": release.namespace, "labels": labels(COMPONENT) },
            "spec": {
                "selector": { "matchLabels": pod_labels(COMPONENT) },
                "updateStrategy": {
                    "type": "RollingUpdate",
                    // Never two lvmd on one node.
                    "rollingUpdate": { "maxSurge": 0, "maxUnavailable": max_unavailable(agent) },
                },
                "template": {
                    "metadata": {
                        "labels": labels(COMPONENT),
                        "annotations": { "kubectl.kubernetes.io/default-container": "driver" },
                    },
                    "spec": {
                        "serviceAccountName": account::NODE,
                        // The token is for `driver` alone; lvmd has none.
                        "automountServiceAccountToken": false,
                        "priorityClassName": agent.priority_class_name.as_deref().unwrap_or("system-node-critical"),
                        "nodeSelector": node_selector,
                        "tolerations": tolerations,
                        "imagePullSecrets": spec.images.pull_secrets,
                        // udev's cookies, by which LVM waits for a device's node, are System V semaphores of the host.
                        "hostIPC": true,
                        "hostPID": false,
                        "hostNetwork": false,
                        // Needs no name but the API server's address.
                        "dnsPolicy": "Default",
                        "enableServiceLinks": false,
                        // A change of LVM's metadata that was begun runs to its end.
                        "terminationGracePeriodSeconds": 60,
                        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
                        "containers": [driver(image, spec), lvmd(image, spec)],
                        "volumes": volumes(&spec.driver.kubelet_root),
                    },
                },
            },
        }),
    )
}

fn max_unavailable(agent: &NodeAgent) -> Value {
    let text = agent.max_unavailable.as_deref().unwrap_or("1");
    // The API server takes a number only as a number.
    text.parse::<u32>().map_or_else(|_| json!(text), |number| json!(number))
}

fn driver(image: &str, spec: &StorageClusterSpec) -> Value {
    let root = &spec.driver.kubelet_root;
    let half = spec.node_agent.resources.as_ref().map(resources::half);
    json!({
        "name": "driver",
        "image": image,
        "imagePullPolicy": pull_policy(spec),
        "command": ["/usr/local/bin/driver", "node"],
        "args": [
            "--node-name=$(NODE_NAME)",
            format!("--lvmd={LVMD_SOCKET}"),
            format!("--kubelet-root={root}"),
            format!("--health=0.0.0.0:{HEALTH_PORT}"),
            format!("--log-level={}", spec.driver.log_level.as_str()),
        ],
        "env": [
            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "spec.nodeName" } } },
        ],
        "ports": [{ "name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP" }],
        "livenessProbe": probe("/healthz", 20, 6),
        "readinessProbe": probe("/readyz", 5, 2),
        "resources": resources::or(half.as_ref(), "10m", "24Mi", "128Mi"),
        "securityContext": {
            // kubelet's socket folders belong to root.
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
            // An SELinux host lets no other type serve a socket in kubelet's folders.
            "seLinuxOptions": { "type": "spc_t" },
        },
        "volumeMounts": [
            { "name": "socket", "mountPath": SOCKET_FOLDER },
            { "name": "plugin", "mountPath": format!("{root}/plugins/{}", names::DRIVER) },
            { "name": "registration", "mountPath": format!("{root}/plugins_registry") },
            { "name": "token", "mountPath": TOKEN_FOLDER, "readOnly": true },
        ],
    })
}

fn lvmd(image: &str, spec: &StorageClusterSpec) -> Value {
    let root = &spec.driver.kubelet_root;
    json!({
        "name": "lvmd",
        "image": image,
        "imagePullPolicy": pull_policy(spec),
        "command": ["/usr/local/bin/lvmd"],
        "args": [
            format!("--socket={LVMD_SOCKET}"),
            format!("--kubelet-root={root}"),
            format!("--state={STATE}"),
            format!("--log-level={}", spec.driver.log_level.as_str()),
        ],
        // A check of a large filesystem takes memory by its size.
        "resources": resources::or(spec.node_agent.resources.as_ref(), "20m", "48Mi", "1Gi"),
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            // CAP_SYS_ADMIN alone does not do: the device cgroup keeps device-mapper's nodes away.
            "privileged": true,
        },
        "volumeMounts": [
            { "name": "socket", "mountPath": SOCKET_FOLDER },
            { "name": "kubelet", "mountPath": root, "mountPropagation": "Bidirectional" },
            { "name": "dev", "mountPath": "/dev" },
            { "name": "run-udev", "mountPath": "/run/udev" },
            { "name": "run-lvm", "mountPath": "/run/lvm" },
            { "name": "lock-lvm", "mountPath": "/run/lock/lvm" },
            { "name": "lock-stowage", "mountPath": "/run/lock/stowage" },
            { "name": "state", "mountPath": STATE },
            { "name": "udev-rules", "mountPath": "/usr/lib/udev", "readOnly": true },
            { "name": "udev-own-rules", "mountPath": "/etc/udev", "readOnly": true },
        ],
    })
}

fn volumes(root: &str) -> Value {
    let host = |name: &str, path: &str, kind: &str| json!({ "name": name, "hostPath": { "path": path, "type": kind } });
    json!([
        { "name": "socket", "emptyDir": {} },
        {
            "name": "token",
            "projected": {
                "defaultMode": 0o400,
                "sources": [
                    { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
                    { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                    { "downwardAPI": { "items": [
                        { "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } },
                    ] } },
                ],
            },
        },
        host("plugin", &format!("{root}/plugins/{}", names::DRIVER), "DirectoryOrCreate"),
        host("registration", &format!("{root}/plugins_registry"), "DirectoryOrCreate"),
        host("kubelet", root, "Directory"),
        host("dev", "/dev", "Directory"),
        host("run-udev", "/run/udev", "DirectoryOrCreate"),
        host("run-lvm", "/run/lvm", "DirectoryOrCreate"),
        host("lock-lvm", "/run/lock/lvm", "DirectoryOrCreate"),
        host("lock-stowage", "/run/lock/stowage", "DirectoryOrCreate"),
        host("state", STATE, "DirectoryOrCreate"),
        // Whether the host's udev has device-mapper's rules decides how LVM makes its nodes. No type: kubelet
        // would refuse to start the pod on a host without udev.
        host("udev-rules", "/usr/lib/udev", ""),
        host("udev-own-rules", "/etc/udev", ""),
    ])
}
