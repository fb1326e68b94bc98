//! Keeps one NodeStorage per node: its spec in step with labels, classes and rails, and the operator's part of its status.
//! One pass looks at all nodes, since what is decided about one depends on the others: a disk that two nodes see, and how
//! many nodes are lost at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crds::{
    condition::{self, kind},
    logical_volume::LogicalVolume,
    names,
    node_storage::{LostWord, NodeStorage, NodeStorageSpec, Rails, device_reason},
    storage_cluster::{ExecutionPolicy, StorageCluster},
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;

use crate::{
    Context,
    apply::{is_new, only, params, why},
    assign, clear,
    events::reason,
    lost::{self, Lost, Policies},
    summary::class::Problems,
    tell::{self, Told},
    verdict::{self, Facts, NodeNow, Phase, Verdict},
};

/// After a failure; a change ends the wait as well.
const AGAIN: Duration = Duration::from_secs(5);
const AT_REST: Duration = Duration::from_secs(300);

pub async fn run(context: Arc<Context>) {
    let mut changes = context.world.changes();
    let mut memory = Memory::default();
    loop {
        context.metrics.node_passes.inc();
        let mut pass = Pass { context: &context, memory: &mut memory, failed: Vec::new(), wake: Vec::new() };
        pass.run().await;
        let Pass { failed, wake, .. } = pass;
        for failure in &failed {
            context.metrics.failures.inc();
            tracing::warn!("{failure}");
        }
        let now = (context.clock)();
        let until = |time: &Timestamp| Duration::try_from(time.duration_since(now)).unwrap_or(Duration::ZERO);
        let wake = wake.iter().map(until).min().unwrap_or(AT_REST).min(AT_REST);
        crate::next(&mut changes, if failed.is_empty() { wake } else { wake.min(AGAIN) }).await;
    }
}

/// What one pass leaves to the next. All of it may be lost.
#[derive(Default)]
struct Memory {
    first_listed: BTreeMap<String, Timestamp>,
    lost: Lost,
    /// Our own writes, as long as the watched copy is older.
    written: BTreeMap<String, Arc<NodeStorage>>,
    problems: BTreeMap<String, Problems>,
}

struct Pass<'a> {
    context: &'a Arc<Context>,
    memory: &'a mut Memory,
    failed: Vec<String>,
    /// When something is to be done though nothing changes.
    wake: Vec<Timestamp>,
}

type Volumes = BTreeMap<String, Vec<Arc<LogicalVolume>>>;

impl Pass<'_> {
    async fn run(&mut self) {
        let world = &self.context.world;
        let Some(cluster) = world.cluster() else { return };
        let now = (self.context.clock)();
        let nodes: BTreeMap<String, Arc<PartialObjectMeta<Node>>> =
            world.nodes.state().into_iter().map(|node| (node.name_any(), node)).collect();
        let storages = self.storages();
        let mut volumes = Volumes::new();
        for volume in world.volumes.state() {
            volumes.entry(volume.spec.node_name.clone()).or_default().push(volume);
        }
        let ready_agents = ready_agents(self.context);

        let mut facts = BTreeMap::new();
        for (name, storage) in &storages {
            let held = volumes.get(name).map(Vec::as_slice).unwrap_or_default();
            let Some(node) = self.node_now(name, storage, nodes.get(name)).await else { continue };
            facts.insert(name.clone(), facts_of(storage, node, held));
        }
        let policies = Policies::new(&cluster, &world.sorted_classes());
        self.survey(&mut facts, &volumes, &policies, now).await;
        let verdicts = verdict::judge(&facts, cluster.spec.execution_policy, &cluster.spec.node_loss, now);
        self.count(&verdicts);
        for (name, (phase, verdict)) in &verdicts {
            // The pod of a node that is gone looks Ready until it is collected.
            let ready = ready_agents.contains(name) && facts[name].node != NodeNow::Absent;
            self.deal_with(&storages[name], &facts[name], (phase, verdict), ready, &volumes, &policies).await;
        }
        self.specs(&cluster, &nodes, &facts, &volumes).await;
    }

    /// The watched copies, or what was written since.
    fn storages(&mut self) -> BTreeMap<String, Arc<NodeStorage>> {
        let mut storages: BTreeMap<String, Arc<NodeStorage>> =
            self.context.world.storages.state().into_iter().map(|storage| (storage.name_any(), storage)).collect();
        self.memory.written.retain(|name, written| {
            let newer =
                storages.get(name).is_some_and(|seen| seen.uid() == written.uid() && version(seen) < version(written));
            if newer {
                storages.insert(name.clone(), written.clone());
            }
            newer
        });
        storages
    }

    /// That a Node is gone is asked of the API server once, before it is written down. `None`: no answer.
    async fn node_now(
        &mut self,
        name: &str,
        storage: &NodeStorage,
        seen: Option<&Arc<PartialObjectMeta<Node>>>,
    ) -> Option<NodeNow> {
        if let Some(node) = seen {
            return Some(NodeNow::Present { uid: node.metadata.uid.clone().unwrap_or_default() });
        }
        let loss = storage.status.as_ref().and_then(|status| status.loss.as_ref());
        if loss.is_some_and(|loss| loss.node_uid == storage.spec.node_uid) {
            return Some(NodeNow::Absent);
        }
        let node = lost::node_now(&self.context.client, name).await;
        self.note(&format!("reading Node {name}"), node)
    }

    fn note<T>(&mut self, what: &str, answer: Result<T, kube::Error>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.push(format!("{what}: {}", why(&error)));
                None
            }
        }
    }

    /// Finds out what is at stake on nodes that are gone.
    async fn survey(
        &mut self,
        facts: &mut BTreeMap<String, Facts>,
        volumes: &Volumes,
        policies: &Policies,
        now: Timestamp,
    ) {
        self.memory.lost.forget_others(facts);
        for (name, facts) in facts {
            let at_risk = match verdict::phase(facts, now) {
                Phase::Here | Phase::Back => continue,
                Phase::Gone { .. } | Phase::Unseen { .. } => lost::AtRisk::All,
                Phase::Other { missing, .. } => lost::AtRisk::Groups(missing),
            };
            let there = lost::at_risk(volumes.get(name).map(Vec::as_slice).unwrap_or_default(), &at_risk);
            let surveyed = self.memory.lost.survey(&self.context.client, name, &there, policies, now).await;
            if let Some(next) = self.note(&format!("reading the claims on {name}"), surveyed) {
                self.wake.extend(next);
            }
            facts.at_stake = self.memory.lost.known(name).map(|survey| survey.delete.len());
        }
    }

    fn count(&self, verdicts: &BTreeMap<String, (Phase, Verdict)>) {
        let count = |test: fn(&(Phase, Verdict)) -> bool| {
            i64::try_from(verdicts.values().filter(|one| test(one)).count()).unwrap_or(i64::MAX)
        };
        let metrics = &self.context.metrics;
        metrics.nodes.set(count(|_| true));
        metrics.nodes_lost.set(count(|(phase, _)| matches!(phase, Phase::Gone { .. } | Phase::Unseen { .. })));
        metrics.nodes_held.set(count(|(_, verdict)| matches!(verdict, Verdict::Hold { .. })));
    }

    /// Writes down what was decided about a node, and only then does it.
    async fn deal_with(
        &mut self,
        storage: &Arc<NodeStorage>,
        facts: &Facts,
        (phase, verdict): (&Phase, &Verdict),
        agent_ready: bool,
        volumes: &Volumes,
        policies: &Policies,
    ) {
        let name = storage.name_any();
        let before = told(storage);
        let released = self.memory.lost.released(&name);
        let survey = self.memory.lost.known(&name);
        let now = (self.context.clock)();
        let known = tell::Known { facts, survey: survey.as_ref(), released: &released, agent_ready };
        let after = tell::tell(&known, phase, verdict, &before, now);
        if after != before {
            if !self.write_status(storage, &after).await {
                return;
            }
            self.memory.lost.written(&name, released.len());
            self.tell_changes(storage, &before, &after).await;
        }
        match verdict {
            Verdict::Keep(_) | Verdict::Hold { .. } => {}
            Verdict::Wait { until } => self.wake.push(*until),
            Verdict::Release { forget_at } => {
                self.wake.extend(*forget_at);
                let at_risk = match phase {
                    Phase::Other { missing, .. } => lost::AtRisk::Groups(missing.clone()),
                    Phase::Here | Phase::Gone { .. } | Phase::Unseen { .. } | Phase::Back => lost::AtRisk::All,
                };
                let there = lost::at_risk(volumes.get(&name).map(Vec::as_slice).unwrap_or_default(), &at_risk);
                self.memory.lost.release(self.context, storage, there, policies);
            }
            Verdict::Forget => self.forget(storage).await,
        }
        if matches!(phase, Phase::Here) && storage.spec.lost == Some(LostWord::Confirm) {
            self.use_up_word(storage).await;
        }
    }

    async fn write_status(&mut self, storage: &NodeStorage, told: &Told) -> bool {
        let mut said = json!({
            "apiVersion": NodeStorage::api_version(&()),
            "kind": NodeStorage::kind(&()),
            // The same object, not one that was made anew under its name.
            "metadata": { "uid": storage.uid() },
            "status": { "conditions": told.conditions },
        });
        // Left out, not null: what is left out is given up, and vanishes.
        if let Some(loss) = &told.loss {
            said["status"]["loss"] = json!(loss);
        }
        let api = Api::<NodeStorage>::all(self.context.client.clone());
        let answer = api.patch_status(&storage.name_any(), &params(), &Patch::Apply(&said)).await;
        let Some(written) = self.note(&format!("the status of NodeStorage {}", storage.name_any()), answer) else {
            return false;
        };
        self.wrote(written);
        true
    }

    fn wrote(&mut self, written: NodeStorage) {
        self.context.metrics.writes.inc();
        self.memory.written.insert(written.name_any(), Arc::new(written));
    }

    async fn tell_changes(&self, storage: &NodeStorage, before: &Told, after: &Told) {
        let about = storage.object_ref(&());
        for (kind, bad, good) in [
            (kind::NODE_LOST, reason::NODE_LOST, reason::NODE_BACK),
            (kind::LOSS_HELD, reason::LOSS_HELD, reason::LOSS_HELD),
            (kind::DISKS_MISSING, reason::DISKS_MISSING, reason::DISKS_MISSING),
        ] {
            let Some(new) = condition::find(&after.conditions, kind) else { continue };
            let old = condition::find(&before.conditions, kind);
            if old.is_some_and(|old| old.status == new.status && old.reason == new.reason) {
                continue;
            }
            if new.status == "True" {
                self.context.events.warning(&about, bad, &new.reason, new.message.clone()).await;
            } else if old.is_some() {
                self.context.events.normal(&about, good, &new.reason, new.message.clone()).await;
            }
        }
    }

    /// Nothing of it is left but this object. What returns later is an orphan, and stays on its disks.
    async fn forget(&mut self, storage: &NodeStorage) {
        let name = storage.name_any();
        let node = lost::node_now(&self.context.client, &name).await;
        if self.note(&format!("reading Node {name}"), node) != Some(NodeNow::Absent) {
            return;
        }
        let left = lost::has_volumes(&self.context.client, &name).await;
        if self.note("listing LogicalVolumes", left) != Some(false) {
            return;
        }
        let api = Api::<NodeStorage>::all(self.context.client.clone());
        let deleted = is_new(api.delete(&name, &only(storage.uid(), storage.resource_version())).await);
        if self.note(&format!("deleting NodeStorage {name}"), deleted) == Some(true) {
            self.context.metrics.writes.inc();
            let note = "the node was lost, and no volume of it is left";
            self.context.events.normal(&storage.object_ref(&()), reason::FORGOTTEN, "Delete", note).await;
        }
    }

    /// A person's Confirm was about the loss that is over: left there, it would answer for the next one as well.
    async fn use_up_word(&mut self, storage: &NodeStorage) {
        let patch = json!({ "metadata": { "resourceVersion": storage.resource_version() }, "spec": { "lost": null } });
        let params = PatchParams { field_manager: Some(names::manager::OPERATOR.to_owned()), ..PatchParams::default() };
        let api = Api::<NodeStorage>::all(self.context.client.clone());
        let answer = is_new(api.patch(&storage.name_any(), &params, &Patch::Merge(&patch)).await);
        if self.note(&format!("spec.lost of NodeStorage {}", storage.name_any()), answer) == Some(true) {
            self.context.metrics.writes.inc();
            let note = "spec.lost: Confirm was about a loss that is over, and is removed";
            self.context.events.normal(&storage.object_ref(&()), reason::WORD_USED, "RemoveWord", note).await;
        }
    }

    /// Writes the specs of nodes that are there, and makes and removes NodeStorages.
    async fn specs(
        &mut self,
        cluster: &StorageCluster,
        nodes: &BTreeMap<String, Arc<PartialObjectMeta<Node>>>,
        facts: &BTreeMap<String, Facts>,
        volumes: &Volumes,
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
            match (storage, node) {
                (None, _) if deleting || !runs_agent && held.is_empty() => continue,
                (Some(storage), Some(_)) if !runs_agent && held.is_empty() => {
                    self.drop_storage(storage).await;
                    continue;
                }
                // Its labels are not known any more: what was wanted there last goes on being wanted.
                (Some(_), None) => continue,
                (None | Some(_), _) => {}
            }
            let mut spec = NodeStorageSpec {
                node_name: name.clone(),
                node_uid: self.node_uid(storage, node, facts.get(name)),
                cluster_id: self.context.cluster_id.clone(),
                rails: rails.clone(),
                cleared: cleared.cleared.get(name).cloned().unwrap_or_default(),
                look_after: cleared
                    .ask
                    .get(name)
                    .map(|time| Time(*time))
                    .or_else(|| storage.and_then(|storage| storage.spec.look_after.clone())),
                ..NodeStorageSpec::default()
            };
            if runs_agent {
                let assigned = assign::assign(name, &labels, &classes, &groups_of(storage), &classes_of(held));
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
        if before.is_empty() || written_down || nothing_to_lose { there } else { before.clone() }
    }

    fn clear(&mut self, storages: &BTreeMap<String, Arc<NodeStorage>>) -> clear::Clear {
        let published: Vec<clear::Published> = storages.values().map(|storage| published(storage)).collect();
        // Whole seconds, as the API server keeps them.
        let now = condition::whole_seconds((self.context.clock)());
        clear::note(&mut self.memory.first_listed, &published, now);
        clear::clear(&published, &self.memory.first_listed)
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

/// Of a spec only this is the operator's; the rest belongs to a person or to the driver.
fn is_ours_equal(there: &NodeStorageSpec, wanted: &NodeStorageSpec) -> bool {
    there.node_uid == wanted.node_uid
        && there.cluster_id == wanted.cluster_id
        && there.classes == wanted.classes
        && there.rails == wanted.rails
        && there.cleared == wanted.cleared
        && there.look_after == wanted.look_after
}

/// Versions of one kind are numbers that grow (Kubernetes, "Resource versions").
fn version(storage: &NodeStorage) -> u64 {
    storage.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn ready_agents(context: &Context) -> BTreeSet<String> {
    let is_ready = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        pod.metadata.deletion_timestamp.is_none()
            && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let ready = context.world.agents.state_filter(is_ready);
    ready.iter().filter_map(|pod| crate::claim::node_of(pod)).map(str::to_owned).collect()
}

fn facts_of(storage: &NodeStorage, node: NodeNow, volumes: &[Arc<LogicalVolume>]) -> Facts {
    let status = storage.status.clone().unwrap_or_default();
    let missing = condition::find(&status.conditions, kind::DISKS_MISSING).filter(|found| found.status == "True");
    Facts {
        node,
        spec_uid: storage.spec.node_uid.clone(),
        looked: storage.was_looked_at(),
        groups: status.volume_groups.iter().map(|group| group.uuid.clone()).collect(),
        volumes: volumes.len(),
        volume_groups: volumes.iter().filter_map(|volume| lost::group_of(volume)).map(str::to_owned).collect(),
        disks_missing_since: missing.map(|condition| condition.last_transition_time.0),
        held: condition::is_true(&status.conditions, kind::LOSS_HELD),
        word: storage.spec.lost,
        at_stake: (volumes.is_empty()).then_some(0),
        loss: status.loss,
    }
}

/// What of the status is the operator's.
fn told(storage: &NodeStorage) -> Told {
    let status = storage.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    Told {
        conditions: conditions.iter().filter(|one| tell::KINDS.contains(&one.type_.as_str())).cloned().collect(),
        loss: status.and_then(|status| status.loss.clone()),
    }
}

fn groups_of(storage: Option<&Arc<NodeStorage>>) -> BTreeSet<(String, String)> {
    let status = storage.and_then(|storage| storage.status.as_ref());
    status.into_iter().flat_map(|status| &status.volume_groups).map(|g| (g.class.clone(), g.name.clone())).collect()
}

fn classes_of(volumes: &[Arc<LogicalVolume>]) -> BTreeSet<String> {
    volumes.iter().map(|volume| volume.spec.device_class.clone()).collect()
}

fn published(storage: &NodeStorage) -> clear::Published {
    let status = storage.status.clone().unwrap_or_default();
    let waiting = status
        .devices
        .iter()
        .filter(|device| device.reasons.iter().any(|reason| reason.code == device_reason::NOT_CLEARED))
        .map(|device| device.id.clone());
    clear::Published {
        node: storage.name_any(),
        agent_ready: condition::is_true(&status.conditions, kind::AGENT_READY),
        waiting: waiting.collect(),
        cleared: storage.spec.cleared.clone(),
        look_after: storage.spec.look_after.as_ref().map(|time| time.0),
        answered: storage.metadata.generation.is_some()
            && status.observed_generation == storage.metadata.generation
            && storage.was_looked_at(),
        devices: status.devices.into_iter().map(|device| device.id).collect(),
    }
}
