//! The Deployment `stowage-controller`: the CSI controller beside the upstream programs that call it.

use crds::{names, storage_cluster::StorageClusterSpec};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ApiResource;
use serde_json::{Value, json};

use super::{Owned, Release, account, labels, pod_labels, probe, pull_policy, resources};

const COMPONENT: &str = "controller";
const SOCKET_FOLDER: &str = "/run/csi";
const SOCKET: &str = "/run/csi/csi.sock";
const HEALTH_PORT: u16 = 9809;

pub fn deployment(release: &Release, spec: &StorageClusterSpec) -> Owned {
    Owned::new(
        ApiResource::erase::<Deployment>(&()),
        json!({
            "metadata": {
                "name": names::CONTROLLER_DEPLOYMENT,
                "namespace": release.namespace,
                "labels": labels(COMPONENT),
            },
            "spec": {
                "replicas": spec.controller.replicas,
                "selector": { "matchLabels": pod_labels(COMPONENT) },
                // Only the holder of the lease is ready: a rolling update would wait for the new pod for ever.
                "strategy": { "type": "Recreate" },
                "template": {
                    "metadata": {
                        "labels": labels(COMPONENT),
                        "annotations": { "kubectl.kubernetes.io/default-container": "driver" },
                    },
                    "spec": {
                        "serviceAccountName": account::CONTROLLER,
                        "priorityClassName": "system-cluster-critical",
                        "nodeSelector": { "kubernetes.io/os": "linux" },
                        "tolerations": tolerations(),
                        "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                            "weight": 100,
                            "podAffinityTerm": {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": { "matchLabels": pod_labels(COMPONENT) },
                            },
                        }] } },
                        "imagePullSecrets": spec.images.pull_secrets,
                        "dnsPolicy": "Default",
                        "enableServiceLinks": false,
                        "terminationGracePeriodSeconds": 30,
                        "securityContext": {
                            "runAsNonRoot": true,
                            // The same for all: they meet at one socket.
                            "runAsUser": 65532,
                            "runAsGroup": 65532,
                            "fsGroup": 65532,
                            "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "containers": [driver(release, spec), provisioner(release, spec), resizer(release, spec)],
                        "volumes": [{ "name": "socket", "emptyDir": {} }],
                    },
                },
            },
        }),
    )
}

/// It runs on control planes too, and leaves a node that is gone sooner than after the default five minutes:
/// while it is away no claim gets a volume.
fn tolerations() -> Value {
    json!([
        { "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule" },
        { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30 },
        { "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30 },
    ])
}

fn security() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
    })
}

fn driver(release: &Release, spec: &StorageClusterSpec) -> Value {
    json!({
        "name": "driver",
        "image": spec.images.stowage.as_ref().unwrap_or(&release.stowage_image),
        "imagePullPolicy": pull_policy(spec),
        "command": ["/usr/local/bin/driver", "controller"],
        "args": [
            format!("--namespace={}", release.namespace),
            format!("--csi-socket={SOCKET}"),
            "--identity=$(POD_NAME)",
            format!("--health=0.0.0.0:{HEALTH_PORT}"),
            format!("--log-level={}", spec.driver.log_level.as_str()),
        ],
        "env": [
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } } },
        ],
        "ports": [{ "name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP" }],
        "livenessProbe": probe("/healthz", 20, 6),
        "readinessProbe": probe("/readyz", 5, 2),
        "resources": resources::or(spec.controller.resources.as_ref(), "10m", "32Mi", "512Mi"),
        "securityContext": security(),
        "volumeMounts": [{ "name": "socket", "mountPath": SOCKET_FOLDER }],
    })
}

/// No leader election: these two wait for the socket, which only the leader opens.
fn provisioner(release: &Release, spec: &StorageClusterSpec) -> Value {
    json!({
        "name": "csi-provisioner",
        "image": spec.images.provisioner.as_ref().unwrap_or(&release.provisioner_image),
        "imagePullPolicy": pull_policy(spec),
        "args": [
            format!("--csi-address={SOCKET}"),
            "--feature-gates=Topology=true",
            // The scheduler has chosen the node; no other will do.
            "--strict-topology",
            // The claim's name goes into the LV's tags.
            "--extra-create-metadata",
            // With its default of 10 s it gives up on calls that would have succeeded, and calls again.
            "--timeout=60s",
            "--retry-interval-max=30s",
            // The default of 5 a second makes fifty claims at once wait for one another.
            "--kube-api-qps=50",
            "--kube-api-burst=100",
        ],
        "resources": resources::or(None, "10m", "32Mi", "512Mi"),
        "securityContext": security(),
        "volumeMounts": [{ "name": "socket", "mountPath": SOCKET_FOLDER }],
    })
}

fn resizer(release: &Release, spec: &StorageClusterSpec) -> Value {
    json!({
        "name": "csi-resizer",
        "image": spec.images.resizer.as_ref().unwrap_or(&release.resizer_image),
        "imagePullPolicy": pull_policy(spec),
        "args": [
            format!("--csi-address={SOCKET}"),
            "--timeout=60s",
            "--retry-interval-max=30s",
            // Volumes grow while they are used, so it has no need to watch every pod of the cluster.
            "--handle-volume-inuse-error=false",
            "--kube-api-qps=50",
            "--kube-api-burst=100",
        ],
        "resources": resources::or(None, "10m", "32Mi", "512Mi"),
        "securityContext": security(),
        "volumeMounts": [{ "name": "socket", "mountPath": SOCKET_FOLDER }],
    })
}
