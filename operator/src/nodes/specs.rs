//! The specs of NodeStorages: what is wanted on each node that is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crds::{
    condition, names,
    node_storage::{LostWord, NodeStorage, NodeStorageSpec, Rails},
    storage_cluster::{ExecutionPolicy, StorageCluster},
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Api, Resource, ResourceExt, api::Patch, core::PartialObjectMeta};
use serde_json::json;

use super::{Pass, Volumes, seen};
use crate::{
    apply::{is_new, only, params},
    assign, clear, lost,
    summary::class::Problems,
    verdict::Facts,
};

/// What becomes of a NodeStorage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Apply,
    Leave,
    Drop,
}

impl Pass<'_> {
    /// Writes the specs of nodes that are there, and makes and removes NodeStorages.
    pub(super) async fn specs(
        &mut self,
        cluster: &StorageCluster,
        nodes: &BTreeMap<String, Arc<PartialObjectMeta<Node>>>,
        facts: &BTreeMap<String, Facts>,
        volumes: &Volumes,
        looks: &BTreeMap<String, Timestamp>,
    ) {
        // With the statuses that were just written.
        let storages = self.storages();
        let cleared = self.clear(&storages);
        let classes = self.context.world.sorted_classes();
        let classes: Vec<_> = classes.iter().map(AsRef::as_ref).collect();
        let deleting = cluster.metadata.deletion_timestamp.is_some();
        let rails = Rails {
            // Nothing new is begun on disks by a cluster that is being taken down.
            execution_policy: match cluster.spec.execution_policy {
                ExecutionPolicy::Enforce if deleting => ExecutionPolicy::Plan,
                policy @ (ExecutionPolicy::Enforce | ExecutionPolicy::Plan | ExecutionPolicy::Pause) => policy,
            },
            discovery: cluster.spec.discovery.clone(),
            safety: cluster.spec.safety.clone(),
        };
        let mut problems: BTreeMap<String, Problems> = BTreeMap::new();
        let mut all: BTreeSet<&String> = volumes.keys().collect();
        all.extend(nodes.keys());
        for name in all {
            let node = nodes.get(name);
            let labels = node.map(|node| node.labels().clone()).unwrap_or_default();
            let runs_agent = node.is_some() && assign::runs_agent(&labels, &cluster.spec.node_agent.node_selector);
            let held = volumes.get(name).map(Vec::as_slice).unwrap_or_default();
            let storage = storages.get(name);
            match place(At {
                exists: storage.is_some(),
                node_is_there: node.is_some(),
                runs_agent,
                has_volumes: !held.is_empty(),
                deleting,
            }) {
                Place::Apply => {}
                Place::Leave => continue,
                Place::Drop => {
                    if let Some(storage) = storage {
                        self.drop_storage(storage).await;
                    }
                    continue;
                }
            }
            let mut spec = NodeStorageSpec {
                node_name: name.clone(),
                node_uid: self.node_uid(storage, node, facts.get(name)),
                cluster_id: self.context.cluster_id.clone(),
                rails: rails.clone(),
                cleared: cleared.cleared.get(name).cloned().unwrap_or_default(),
                look_after: later(
                    storage.and_then(|storage| storage.spec.look_after.as_ref()).map(|time| time.0),
                    cleared.ask.get(name).max(looks.get(name)).copied(),
                ),
                ..NodeStorageSpec::default()
            };
            if runs_agent {
                let assigned =
                    assign::assign(name, &labels, &classes, &seen::groups_of(storage), &seen::classes_of(held));
                for (class, group) in assigned.same_group {
                    problems.entry(class).or_default().same_group.insert(name.clone(), group);
                }
                for class in assigned.too_many {
                    problems.entry(class).or_default().too_many.push(name.clone());
                }
                spec.classes = assigned.classes;
            }
            self.apply_spec(name, storage, &spec).await;
        }
        if self.memory.problems != problems {
            self.memory.problems = problems.clone();
            *self.context.problems() = problems;
            self.context.world.poke();
        }
    }

    /// The UID of the Node that is there; that of the one before until its loss is written down, or there is nothing
    /// to lose.
    fn node_uid(
        &self,
        storage: Option<&Arc<NodeStorage>>,
        node: Option<&Arc<PartialObjectMeta<Node>>>,
        facts: Option<&Facts>,
    ) -> String {
        let there = node.and_then(|node| node.metadata.uid.clone()).unwrap_or_default();
        let Some(storage) = storage else { return there };
        let before = &storage.spec.node_uid;
        let written_down = storage.status.as_ref().is_some_and(|status| status.loss.is_some());
        let nothing_to_lose = facts.is_some_and(|facts| facts.volume_groups.is_empty());
        // A word that was given to the Node that is gone goes first: after the look it would answer for its disks.
        let has_old_word = *before != there && storage.spec.lost == Some(LostWord::Confirm);
        let goes_on = before.is_empty() || written_down && !has_old_word || nothing_to_lose;
        if goes_on { there } else { before.clone() }
    }

    fn clear(&mut self, storages: &BTreeMap<String, Arc<NodeStorage>>) -> clear::Clear {
        let published: Vec<clear::Published> = storages.values().map(|storage| seen::published(storage)).collect();
        // Whole seconds, as the API server keeps them.
        let now = condition::whole_seconds((self.context.clock)());
        clear::note(&mut self.memory.first_listed, &published, now);
        let mut clear = clear::clear(&published, &self.memory.first_listed);
        if !clear.ask.is_empty() {
            let asked = self.memory.asked.and_then(|asked| asked.checked_add(clear::pause(published.len())).ok());
            match asked.filter(|next| now < *next) {
                Some(next) => {
                    clear.ask.clear();
                    self.wake.push(next);
                }
                None => self.memory.asked = Some(now),
            }
        }
        clear
    }

    async fn apply_spec(&mut self, name: &str, storage: Option<&Arc<NodeStorage>>, wanted: &NodeStorageSpec) {
        if storage.is_some_and(|storage| is_ours_equal(&storage.spec, wanted)) {
            return;
        }
        let said = json!({
            "apiVersion": NodeStorage::api_version(&()),
            "kind": NodeStorage::kind(&()),
            "metadata": { "name": name, "labels": { names::label::MANAGED_BY: names::label::OWNED_BY_OPERATOR } },
            "spec": wanted,
        });
        let api = Api::<NodeStorage>::all(self.context.client.clone());
        let answer = api.patch(name, &params(), &Patch::Apply(&said)).await;
        if let Some(written) = self.note(&format!("the spec of NodeStorage {name}"), answer) {
            self.wrote(written);
        }
    }

    /// The node is there, runs no agent any more, and has no volume.
    async fn drop_storage(&mut self, storage: &NodeStorage) {
        let name = storage.name_any();
        let left = lost::has_volumes(&self.context.client, &name).await;
        if self.note("listing LogicalVolumes", left) != Some(false) {
            return;
        }
        let api = Api::<NodeStorage>::all(self.context.client.clone());
        let deleted = is_new(api.delete(&name, &only(storage.uid(), None)).await);
        if self.note(&format!("deleting NodeStorage {name}"), deleted) == Some(true) {
            self.context.metrics.writes.inc();
        }
    }
}

/// It is never moved back.
fn later(before: Option<Timestamp>, asked: Option<Timestamp>) -> Option<Time> {
    before.max(asked).map(Time)
}

/// What decides about it.
#[derive(Clone, Copy, Debug)]
struct At {
    exists: bool,
    node_is_there: bool,
    runs_agent: bool,
    has_volumes: bool,
    /// The StorageCluster is being deleted.
    deleting: bool,
}

fn place(at: At) -> Place {
    let needed = at.runs_agent || at.has_volumes;
    match (at.exists, at.node_is_there) {
        // Its labels are not known any more: what was wanted there last goes on being wanted.
        (true, false) => Place::Leave,
        (true, true) if needed => Place::Apply,
        (true, true) => Place::Drop,
        (false, _) if needed && !at.deleting => Place::Apply,
        (false, _) => Place::Leave,
    }
}

/// Of a spec only this is the operator's; the rest belongs to a person or to the driver.
fn is_ours_equal(there: &NodeStorageSpec, wanted: &NodeStorageSpec) -> bool {
    there.node_uid == wanted.node_uid
        && there.cluster_id == wanted.cluster_id
        && there.classes == wanted.classes
        && there.rails == wanted.rails
        && there.cleared == wanted.cleared
        && there.look_after == wanted.look_after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_storage_while_it_runs_the_agent_or_has_a_volume() {
        for (exists, node_is_there, runs_agent, has_volumes, deleting, expected) in [
            (false, true, true, false, false, Place::Apply),
            (false, true, false, false, false, Place::Leave),
            (false, true, false, true, false, Place::Apply),
            // A volume names a node that nobody has heard of.
            (false, false, false, true, false, Place::Apply),
            (false, true, true, true, true, Place::Leave),
            (true, true, true, false, true, Place::Apply),
            (true, true, false, true, false, Place::Apply),
            (true, true, false, false, false, Place::Drop),
            (true, false, false, false, false, Place::Leave),
            (true, false, false, true, true, Place::Leave),
        ] {
            let at = At { exists, node_is_there, runs_agent, has_volumes, deleting };
            assert_eq!(place(at), expected, "{at:?}");
        }
    }

    #[test]
    fn a_request_for_a_look_is_never_moved_back() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        for (before, asked, expected) in [
            (None, None, None),
            (at(5), None, at(5)),
            (at(5), at(7), at(7)),
            (at(7), at(5), at(7)),
            (None, at(5), at(5)),
        ] {
            assert_eq!(later(before, asked).map(|time| time.0), expected);
        }
    }
}
