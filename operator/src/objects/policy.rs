//! Admission policies: what a node's token may write, what a LogicalVolume is born with, and what nobody deletes by
//! accident. They need no webhook; the API server evaluates them itself.

use crds::{condition::kind, names};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ApiResource;
use serde_json::{Value, json};

use super::{Owned, account, labels};

/// Conditions of a NodeStorage that its node must leave alone.
const OPERATORS_CONDITIONS: [&str; 4] = [kind::NODE_LOST, kind::LOSS_HELD, kind::DISKS_MISSING, kind::AGENT_READY];

pub fn all(namespace: &str) -> Vec<Owned> {
    [
        ("stowage-node-scope", node_scope(namespace)),
        ("stowage-volume-finalizer", volume_finalizer()),
        ("stowage-deletion", deletion(namespace)),
    ]
    .into_iter()
    .flat_map(|(name, spec)| {
        let metadata = json!({ "name": name, "labels": labels("policy") });
        let binding = json!({ "policyName": name, "validationActions": ["Deny"] });
        [
            Owned::new(
                ApiResource::erase::<ValidatingAdmissionPolicy>(&()),
                json!({ "metadata": metadata.clone(), "spec": spec }),
            ),
            Owned::new(
                ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()),
                json!({ "metadata": metadata, "spec": binding }),
            ),
        ]
    })
    .collect()
}

/// As the API server calls a ServiceAccount.
fn user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

/// A validation that says in its message what to do instead.
fn rule(expression: impl Into<String>, message: &str) -> Value {
    json!({ "expression": expression.into(), "message": message, "reason": "Forbidden" })
}

fn variable(name: &str, expression: impl Into<String>) -> Value {
    json!({ "name": name, "expression": expression.into() })
}

/// What the token of one node's agent may write: the status of its own node's objects, and the removal of our finalizer
/// from a volume whose data may go. A stolen token of one node does no harm to another.
fn node_scope(namespace: &str) -> Value {
    // A field that is absent and an empty one are the same here.
    let metadata = |field: &str, empty: &str| {
        let of = |object: &str| format!("(has({object}.metadata.{field}) ? {object}.metadata.{field} : {empty})");
        format!("{} == {}", of("object"), of("oldObject"))
    };
    let operators = OPERATORS_CONDITIONS.map(|kind| format!("'{kind}'")).join(", ");
    let conditions = |object: &str| {
        format!(
            "has({object}.status) && has({object}.status.conditions) ? {object}.status.conditions.filter(c, c.type in [{operators}]) : []"
        )
    };
    let has_loss = |object: &str| format!("(has({object}.status) && has({object}.status.loss))");
    let finalizer = names::VOLUME_FINALIZER;
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{
                "apiGroups": [names::GROUP],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                // All resources and all their subresources: a rule for a resource does not cover these.
                "resources": ["*/*"],
                "scope": "*",
            }],
        },
        "matchConditions": [{
            "name": "by-a-node",
            "expression": format!("request.userInfo.username == '{}'", user(namespace, account::NODE)),
        }],
        "variables": [
            // The API server puts the node of the pod that a token is bound to into the token.
            variable(
                "node",
                "has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra && request.userInfo.extra['authentication.kubernetes.io/node-name'].size() == 1 ? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''",
            ),
            variable(
                "what",
                "request.resource.resource + (has(request.subResource) ? '/' + request.subResource : '')",
            ),
            variable("update", "request.operation == 'UPDATE'"),
            variable("nodeStatus", "variables.update && variables.what == 'nodestorages/status'"),
            variable("volumeStatus", "variables.update && variables.what == 'logicalvolumes/status'"),
            variable("volume", "variables.update && variables.what == 'logicalvolumes'"),
            variable("before", conditions("oldObject")),
            variable("after", conditions("object")),
        ],
        "validations": [
            rule(
                "variables.node != ''",
                "this token of stowage-node names no node: only a token that is bound to a pod does",
            ),
            rule(
                "variables.nodeStatus || variables.volumeStatus || variables.volume",
                "a node writes the status of its NodeStorage and of its LogicalVolumes, and removes a finalizer: nothing else",
            ),
            rule(
                "!variables.nodeStatus || oldObject.metadata.name == variables.node",
                "this NodeStorage is another node's",
            ),
            rule(
                "!variables.nodeStatus || variables.before.size() == variables.after.size() && variables.before.all(b, variables.after.exists(a, a == b))",
                "the conditions NodeLost, LossHeld, DisksMissing and AgentReady are the operator's",
            ),
            rule(
                format!(
                    "!variables.nodeStatus || {} == {} && (!{} || object.status.loss == oldObject.status.loss)",
                    has_loss("object"),
                    has_loss("oldObject"),
                    has_loss("object"),
                ),
                "status.loss is the operator's",
            ),
            rule(
                "!(variables.volumeStatus || variables.volume) || oldObject.spec.nodeName == variables.node",
                "this LogicalVolume is on another node",
            ),
            rule(
                "!variables.volume || has(oldObject.metadata.deletionTimestamp) && has(oldObject.spec.discard) && oldObject.spec.discard",
                "a node changes a LogicalVolume only when it is being deleted and its data may go (spec.discard)",
            ),
            rule(
                format!(
                    "!variables.volume || object.spec == oldObject.spec && {} && {} && {}",
                    metadata("labels", "{}"),
                    metadata("annotations", "{}"),
                    metadata("ownerReferences", "[]"),
                ),
                "a node removes the finalizer of a LogicalVolume and changes nothing else of it",
            ),
            rule(
                format!(
                    "!variables.volume || (has(object.metadata.finalizers) ? object.metadata.finalizers : []) == oldObject.metadata.finalizers.filter(f, f != '{finalizer}')",
                ),
                "a node removes the finalizer stowage.dev/logical-volume and no other",
            ),
        ],
    })
}

/// The schema of a CRD can not see finalizers. A LogicalVolume without ours would vanish before its LV does.
fn volume_finalizer() -> Value {
    let finalizer = names::VOLUME_FINALIZER;
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [{
                "apiGroups": [names::GROUP],
                "apiVersions": ["*"],
                "operations": ["CREATE"],
                "resources": ["logicalvolumes"],
                "scope": "*",
            }],
        },
        "validations": [rule(
            format!("has(object.metadata.finalizers) && '{finalizer}' in object.metadata.finalizers"),
            "a LogicalVolume is created with the finalizer stowage.dev/logical-volume",
        )],
    })
}

/// Deleting one of these by accident (a pruning GitOps tool, `kubectl delete -k`) would stop all storage of the cluster.
fn deletion(namespace: &str) -> Value {
    let constraint = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": ["DELETE"],
            "resources": resources,
            "scope": "*",
        })
    };
    let accounts = format!("['{}', '{}']", account::NODE, account::CONTROLLER);
    let here = format!("oldObject.metadata.namespace == '{namespace}'");
    let ours = [
        ("customresourcedefinitions", format!("oldObject.metadata.name.endsWith('.{}')", names::GROUP)),
        ("namespaces", format!("oldObject.metadata.name == '{namespace}'")),
        ("daemonsets", format!("{here} && oldObject.metadata.name == '{}'", names::NODE_DAEMON_SET)),
        ("csidrivers", format!("oldObject.metadata.name == '{}'", names::DRIVER)),
        // Without its account or a permission the driver that is left can do nothing.
        ("serviceaccounts", format!("{here} && oldObject.metadata.name in {accounts}")),
        ("roles", format!("{here} && oldObject.metadata.name in {accounts}")),
        ("rolebindings", format!("{here} && oldObject.metadata.name in {accounts}")),
        ("clusterroles", format!("oldObject.metadata.name in {accounts}")),
        ("clusterrolebindings", format!("oldObject.metadata.name in {accounts}")),
    ]
    .map(|(resource, which)| format!("(request.resource.resource == '{resource}' && {which})"))
    .join(" || ");
    let annotation = names::annotation::ALLOW_DELETE;
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "resourceRules": [
                constraint("apiextensions.k8s.io", &["customresourcedefinitions"]),
                constraint("", &["namespaces", "serviceaccounts"]),
                constraint("apps", &["daemonsets"]),
                constraint("storage.k8s.io", &["csidrivers"]),
                constraint(
                    "rbac.authorization.k8s.io",
                    &["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
                ),
            ],
        },
        "matchConditions": [
            { "name": "ours", "expression": ours },
            {
                "name": "not-by-the-operator",
                "expression": format!("request.userInfo.username != '{}'", user(namespace, account::OPERATOR)),
            },
        ],
        "validations": [rule(
            format!(
                "has(oldObject.metadata.deletionTimestamp) || has(oldObject.metadata.annotations) && '{annotation}' in oldObject.metadata.annotations || namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp)"
            ),
            "Stowage's volumes need this object. To leave Stowage delete the StorageCluster first and wait until it is gone; to delete this object all the same annotate it with stowage.dev/allow-delete=yes",
        )],
    })
}
