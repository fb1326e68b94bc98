//! Which DeviceClasses a node has. Pure: labels and classes in, the list for `NodeStorage.spec.classes` out.

use std::collections::{BTreeMap, BTreeSet};

use crds::{
    device_class::{DeviceClass, Membership, group_name},
    node_storage::AssignedClass,
};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use kube::ResourceExt;

/// `NodeStorage.spec.classes` has at most so many entries.
const MOST_CLASSES: usize = 16;

type Labels = BTreeMap<String, String>;

/// What one node gets.
#[derive(Debug, Default, PartialEq)]
pub struct Assigned {
    /// The highest priority first.
    pub classes: Vec<AssignedClass>,
    /// Classes that match this node and are not assigned: two that name one volume group, with its name.
    pub same_group: BTreeMap<String, String>,
    /// Classes that match this node and are one too many.
    pub too_many: Vec<String>,
}

/// Whether a node with these labels runs the agent.
pub fn runs_agent(labels: &Labels, node_selector: &Labels) -> bool {
    labels.get("kubernetes.io/os").is_some_and(|os| os == "linux")
        && node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// `groups` are the volume groups that Stowage has on the node already, `(class, name)`; `volumes` the classes
/// of the volumes on it.
pub fn assign(
    node: &str,
    labels: &Labels,
    classes: &[&DeviceClass],
    groups: &BTreeSet<(String, String)>,
    volumes: &BTreeSet<String>,
) -> Assigned {
    let mut matching: Vec<&DeviceClass> = classes
        .iter()
        .copied()
        .filter(|class| class.spec.node_selector.as_ref().is_none_or(|selector| matches(selector, node, labels)))
        // A class that is being deleted is kept where it has volumes, so that these go on working.
        .filter(|class| class.metadata.deletion_timestamp.is_none() || volumes.contains(&class.name_any()))
        .collect();
    matching.sort_by_key(|class| (-class.spec.priority, class.name_any()));

    let mut assigned = Assigned::default();
    let mut by_group: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for class in &matching {
        by_group.entry(group_name(&class.name_any(), &class.spec)).or_default().push(class.name_any());
    }
    for (group, rivals) in by_group {
        let owns = |class: &&String| groups.contains(&((*class).clone(), group.clone()));
        let owners: Vec<&String> = rivals.iter().filter(owns).collect();
        // The one that has the group keeps it: a mistake in a new class stops no volume of an old one.
        let keeps = match owners.as_slice() {
            [owner] => Some((*owner).clone()),
            [] | [_, ..] => None,
        };
        if rivals.len() > 1 {
            assigned.same_group.extend(
                rivals.into_iter().filter(|class| Some(class) != keeps.as_ref()).map(|class| (class, group.clone())),
            );
        }
    }
    for class in matching {
        let name = class.name_any();
        if assigned.same_group.contains_key(&name) {
            continue;
        }
        if assigned.classes.len() == MOST_CLASSES {
            assigned.too_many.push(name);
            continue;
        }
        let mut spec = class.spec.clone();
        // Said by the class, and not of use on a node: fewer bytes, and no wake-up when only these change.
        spec.storage_classes.clear();
        spec.node_selector = None;
        if class.metadata.deletion_timestamp.is_some() {
            spec.devices.membership = Membership::Static;
        }
        assigned.classes.push(AssignedClass { name, generation: class.metadata.generation.unwrap_or_default(), spec });
    }
    assigned
}

/// Terms are alternatives; a term without any requirement matches nothing, as in Kubernetes
/// (component-helpers/scheduling/corev1/nodeaffinity).
pub fn matches(selector: &NodeSelector, node: &str, labels: &Labels) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node, labels))
}

fn term_matches(term: &NodeSelectorTerm, node: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let by_name = |field: &NodeSelectorRequirement| {
        field.key == "metadata.name" && ["In", "NotIn"].contains(&field.operator.as_str()) && holds(field, Some(node))
    };
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|expression| holds(expression, labels.get(&expression.key).map(String::as_str)))
        && fields.iter().all(by_name)
}

/// An operator that is not known holds for no node.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let numbers = || match values {
        [bound] => Some((value?.parse::<i64>().ok()?, bound.parse::<i64>().ok()?)),
        [] | [_, ..] => None,
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
