//! Live reads of what stands before a volume: its PersistentVolume and its claim. No copy of them is kept, since they are
//! asked for seldom and a decision hangs on each answer.

use std::collections::HashMap;

use crds::{logical_volume::LogicalVolume, names};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    api::{self, ApiError},
    entries,
};

/// Of a list; a page of PersistentVolumes is about 1 MB.
const PAGE: u32 = 500;

#[derive(Clone)]
pub struct Claims {
    client: Client,
    volumes: Api<PersistentVolume>,
}

impl Claims {
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), volumes: Api::all(client.clone()) }
    }

    /// Whether there is a PersistentVolume of the name that csi-provisioner gives to that of a volume.
    pub async fn volume_exists(&self, name: &str) -> Result<bool, ApiError> {
        let volume = api::answer("reading PersistentVolume", name, self.volumes.get_opt(name)).await?;
        Ok(volume.is_some_and(|volume| handle(&volume) == Some(name)))
    }

    /// Every PersistentVolume of ours by its volume, whatever its own name.
    pub async fn persistent_volumes(&self) -> Result<HashMap<String, PersistentVolume>, ApiError> {
        let mut all = HashMap::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api::answer("listing", "PersistentVolumes", self.volumes.list(&page)).await?;
            let next = list.metadata.continue_.clone().filter(|next| !next.is_empty());
            all.extend(list.items.into_iter().filter_map(|volume| Some((handle(&volume)?.to_owned(), volume))));
            let Some(next) = next else { return Ok(all) };
            page.continue_token = Some(next);
        }
    }

    /// Whether the claim that `volume` was made for is there: the one with its UID, not one of the same name.
    pub async fn claim_exists(&self, volume: &str, claim: Option<(&str, &str)>) -> Result<bool, ApiError> {
        // A volume that no claim's UID names, or whose claim's name is not known, may be anybody's.
        let (Some(uid), Some((namespace, name))) = (entries::claim_uid(volume), claim) else { return Ok(true) };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let there = api::answer("reading PersistentVolumeClaim", name, claims.get_opt(name)).await?;
        Ok(there.is_some_and(|claim| claim.uid().as_deref() == Some(uid)))
    }
}

/// The volume of ours that a PersistentVolume stands for.
pub fn handle(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    (source.driver == names::DRIVER).then_some(source.volume_handle.as_str())
}

/// Whether a PersistentVolume can be used on `node` and nowhere else.
pub fn is_pinned_to(volume: &PersistentVolume, node: &str) -> bool {
    let terms = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref())
        .map_or(&[][..], |required| &required.node_selector_terms);
    let value = names::topology_value(node);
    // Terms are alternatives: each must pin it.
    !terms.is_empty()
        && terms.iter().all(|term| {
            term.match_expressions
                .iter()
                .flatten()
                .any(|e| e.key == names::TOPOLOGY_NODE && e.operator == "In" && e.values.iter().flatten().eq([&value]))
        })
}

/// The claim that a LogicalVolume names.
pub fn claim_of(volume: &LogicalVolume) -> Option<(&str, &str)> {
    volume.spec.claim.as_ref().map(|claim| (claim.namespace.as_str(), claim.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(driver: &str, expressions: serde_json::Value) -> PersistentVolume {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "pv" },
            "spec": {
                "csi": { "driver": driver, "volumeHandle": "pvc-1" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": expressions } },
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_is_pinned_only_where_each_term_names_the_node() {
        let on = |values: &[&str]| {
            serde_json::json!({
                "matchExpressions": [{ "key": names::TOPOLOGY_NODE, "operator": "In", "values": values }],
            })
        };
        for (terms, pinned) in [
            (serde_json::json!([on(&["n1"])]), true),
            (serde_json::json!([on(&["n1"]), on(&["n1"])]), true),
            (serde_json::json!([on(&["n1"]), on(&["n2"])]), false),
            (serde_json::json!([on(&["n1", "n2"])]), false),
            (serde_json::json!([on(&["n2"])]), false),
            (serde_json::json!([{}]), false),
            (serde_json::json!([]), false),
        ] {
            assert_eq!(is_pinned_to(&volume(names::DRIVER, terms.clone()), "n1"), pinned, "{terms}");
        }
    }

    #[test]
    fn only_our_volumes_have_a_handle_here() {
        assert_eq!(handle(&volume(names::DRIVER, serde_json::json!([]))), Some("pvc-1"));
        assert_eq!(handle(&volume("other", serde_json::json!([]))), None);
        assert_eq!(handle(&PersistentVolume::default()), None);
    }
}
