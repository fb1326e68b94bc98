//! What becomes of one claim on a lost node. Pure: the objects as they were read in, the verdict out.

use std::collections::BTreeMap;

use crds::{names, storage_cluster::LossPolicy};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::ResourceExt;

/// One LogicalVolume's claim, as it was just read.
#[derive(Clone, Debug)]
pub struct ClaimFacts<'a> {
    pub node: &'a str,
    /// Name of the LogicalVolume: the volume's handle.
    pub volume: &'a str,
    pub claim: &'a PersistentVolumeClaim,
    pub bound: Option<&'a PersistentVolume>,
    pub namespace: Option<&'a Namespace>,
    /// All of the claim's namespace.
    pub stateful_sets: &'a [StatefulSet],
    /// The StorageCluster's policy and the DeviceClass's.
    pub policies: [LossPolicy; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// A StatefulSet makes it anew: it is deleted.
    Delete,
    /// It belongs to a pod, and goes with it: the pod is deleted.
    DeleteItsPod { uid: String, name: String },
    /// It waits for a person, who reads why.
    Keep(String),
    /// It has nothing to do with this volume.
    NotOurs,
}

pub fn judge(facts: &ClaimFacts<'_>) -> ClaimVerdict {
    let claim = facts.claim;
    let Some(bound) = facts.bound else { return ClaimVerdict::NotOurs };
    if !is_pinned(bound, facts) {
        return ClaimVerdict::NotOurs;
    }
    match careful(facts) {
        LossPolicy::None => {
            return ClaimVerdict::Keep(format!("{} says None", names::annotation::NODE_LOSS));
        }
        LossPolicy::Recreatable => {}
    }
    if let Some(pod) = ephemeral_owner(claim) {
        return ClaimVerdict::DeleteItsPod { uid: pod.uid.clone(), name: pod.name.clone() };
    }
    let spec = claim.spec.as_ref();
    if spec.is_some_and(|spec| spec.data_source.is_some() || spec.data_source_ref.is_some()) {
        return ClaimVerdict::Keep("it was made from a data source; delete it to have it made anew".to_owned());
    }
    let name = claim.name_any();
    // Two sets can give one name (`a-b` of template `data`, `b` of template `data-a`): then each of them has a say.
    let makers: Vec<(&StatefulSet, Ordinal)> =
        facts.stateful_sets.iter().filter_map(|set| Some((set, made_by(set, &name)?))).collect();
    if makers.is_empty() {
        return ClaimVerdict::Keep("no StatefulSet makes it anew; delete it to give its data up".to_owned());
    }
    for (set, ordinal) in makers {
        let set_name = set.name_any();
        if set.metadata.deletion_timestamp.is_some() {
            return ClaimVerdict::Keep(format!("StatefulSet {set_name} is being deleted"));
        }
        if ordinal == Ordinal::ScaledDown {
            return ClaimVerdict::Keep(format!(
                "StatefulSet {set_name} is scaled down below it; delete it to give its data up"
            ));
        }
    }
    ClaimVerdict::Delete
}

/// The claim is bound to a volume of ours that can be used on that node only.
fn is_pinned(bound: &PersistentVolume, facts: &ClaimFacts<'_>) -> bool {
    let Some(spec) = &bound.spec else { return false };
    let ours = spec.csi.as_ref().is_some_and(|csi| csi.driver == names::DRIVER && csi.volume_handle == facts.volume);
    let uid = facts.claim.metadata.uid.as_deref();
    let claimed = spec.claim_ref.as_ref().is_some_and(|claim| claim.uid.as_deref() == uid && uid.is_some());
    let bound_here =
        facts.claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == bound.metadata.name.as_deref();
    let value = names::topology_value(facts.node);
    let affinity = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let pinned = affinity.is_some_and(|required| {
        !required.node_selector_terms.is_empty()
            && required.node_selector_terms.iter().all(|term| {
                term.match_expressions.iter().flatten().any(|expression| {
                    expression.key == names::TOPOLOGY_NODE
                        && expression.operator == "In"
                        && expression.values.as_deref() == Some(std::slice::from_ref(&value))
                })
            })
    });
    ours && claimed && bound_here && pinned
}

/// Of the StorageCluster, the DeviceClass, the namespace and the claim, the most careful wins.
fn careful(facts: &ClaimFacts<'_>) -> LossPolicy {
    let said = |map: Option<&BTreeMap<String, String>>, key: &str| match map
        .and_then(|map| map.get(key))
        .map(String::as_str)
    {
        // `All` asks for more than this release does; what is not known keeps the claim.
        None | Some("All" | "Recreatable") => LossPolicy::Recreatable,
        Some(_) => LossPolicy::None,
    };
    // A namespace that is not there holds no claim: that it was not found says that something is wrong.
    let namespace = facts
        .namespace
        .map_or(LossPolicy::None, |namespace| said(namespace.metadata.labels.as_ref(), names::label::NODE_LOSS));
    let claim = said(facts.claim.metadata.annotations.as_ref(), names::annotation::NODE_LOSS);
    facts.policies.into_iter().fold(namespace.min(claim), LossPolicy::min)
}

/// The pod of a generic ephemeral volume: it owns its claim (Kubernetes, "Generic ephemeral volumes").
fn ephemeral_owner(
    claim: &PersistentVolumeClaim,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    claim.owner_references().iter().find(|owner| {
        owner.kind == "Pod"
            && owner.api_version == "v1"
            && owner.controller == Some(true)
            // `<pod>-<volume>`
            && claim.name_any().strip_prefix(owner.name.as_str()).is_some_and(|rest| rest.starts_with('-'))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordinal {
    Wanted,
    ScaledDown,
}

/// Whether one of the set's templates gives exactly this claim's name, `<template>-<set>-<ordinal>`.
fn made_by(set: &StatefulSet, claim: &str) -> Option<Ordinal> {
    let spec = &set.spec;
    let ordinal = spec.volume_claim_templates.iter().flatten().find_map(|template| {
        let number = claim.strip_prefix(&format!("{}-{}-", template.name_any(), set.name_any()))?;
        let ordinal: i32 = number.parse().ok()?;
        // `007` and `+7` are numbers, and no ordinals.
        (ordinal.to_string() == number).then_some(ordinal)
    })?;
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let end = start.saturating_add(spec.replicas.unwrap_or(1));
    Some(if (start..end).contains(&ordinal) { Ordinal::Wanted } else { Ordinal::ScaledDown })
}

/// Whether a pod has the claim among its volumes.
pub fn mounts(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|volume| {
        let named = volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim);
        let ephemeral = volume.ephemeral.is_some() && format!("{}-{}", pod.name_any(), volume.name) == claim;
        named || ephemeral
    })
}

/// The node that a pod was bound to; none while it waits for one.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty())
}
