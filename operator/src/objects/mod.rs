//! The objects that the operator applies, as pure functions of the StorageCluster, the DeviceClasses and this release's
//! settings. They are written as manifests, in the words of the Kubernetes reference; the API server checks every field
//! of them (`fieldValidation=Strict`), and the golden files show them.

pub mod controller;
pub mod csi_driver;
pub mod node;
pub mod policy;
pub mod resources;
pub mod storage_class;

use crds::{names, storage_cluster::StorageClusterSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ApiResource;
use serde_json::{Value, json};

/// ServiceAccounts, which `config/rbac` brings with their permissions.
pub mod account {
    pub const OPERATOR: &str = "stowage-operator";
    pub const NODE: &str = "stowage-node";
    pub const CONTROLLER: &str = "stowage-controller";
}

/// What this release brings along, where the StorageCluster does not say otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub namespace: String,
    pub stowage_image: String,
    pub provisioner_image: String,
    pub resizer_image: String,
}

/// An object that the operator applies as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Owned {
    pub resource: ApiResource,
    pub namespace: Option<String>,
    pub name: String,
    pub body: Value,
}

impl Owned {
    /// Takes name and namespace from `body`.
    fn new(resource: ApiResource, mut body: Value) -> Self {
        body["apiVersion"] = json!(resource.api_version);
        body["kind"] = json!(resource.kind);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            namespace: text(&body["metadata"]["namespace"]),
            name: text(&body["metadata"]["name"]).unwrap_or_default(),
            resource,
            body,
        }
    }

    pub fn storage_class(class: &StorageClass) -> Self {
        Self::new(ApiResource::erase::<StorageClass>(&()), json!(class))
    }

    /// `DaemonSet stowage-node`, for log lines and Events.
    pub fn title(&self) -> String {
        format!("{} {}", self.resource.kind, self.name)
    }
}

/// Everything but StorageClasses, in the order in which it is applied: what holds the node agents within their
/// bounds comes before the agents.
pub fn all(release: &Release, spec: &StorageClusterSpec) -> Vec<Owned> {
    let mut all = policy::all(&release.namespace);
    all.push(csi_driver::csi_driver());
    all.push(controller::deployment(release, spec));
    all.push(node::daemon_set(release, spec));
    all
}

/// The labels by which the pods of `component` are found; a selector can never be changed.
pub fn pod_labels(component: &str) -> Value {
    json!({ names::label::NAME: "stowage", names::label::COMPONENT: component })
}

/// The labels of an object that the operator owns.
fn labels(component: &str) -> Value {
    json!({
        names::label::NAME: "stowage",
        names::label::COMPONENT: component,
        names::label::MANAGED_BY: names::label::OWNED_BY_OPERATOR,
    })
}

fn pull_policy(spec: &StorageClusterSpec) -> &'static str {
    use crds::storage_cluster::PullPolicy;
    match spec.images.pull_policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

/// Of an HTTP server that `runtime::health` runs in a container with a port named `health`. Liveness asks only whether
/// the process answers: it must not depend on the API server.
fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Value {
    json!({
        "httpGet": { "path": path, "port": "health" },
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failure_threshold,
    })
}
