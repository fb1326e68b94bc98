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
    node_storage::NodeStorage,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Context,
    apply::{is_new, only, params, why},
    events::reason,
    lost::{self, Lost, Policies},
    summary::class::Problems,
    tell::{self, Told},
    verdict::{self, Facts, NodeNow, Phase, Verdict},
};

mod seen;
mod specs;

/// After a failure; a change ends the wait as well.
const AGAIN: Duration = Duration::from_secs(5);
const AT_REST: Duration = Duration::from_secs(300);

pub async fn run(context: Arc<Context>) {
    let mut changes = context.world.changes();
    let mut memory = Memory::default();
    loop {
        context.metrics.node_passes.inc();
        let mut pass = Pass { context: &context, memory: &mut memory, failed: Vec::new(), wake: Vec::new() };
        let began = Instant::now();
        pass.run().await;
        tracing::debug!(took = ?began.elapsed(), "looked at all nodes");
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
    /// When the nodes were last asked for a look.
    asked: Option<Timestamp>,
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
            facts.insert(name.clone(), seen::facts_of(storage, node, held, ready_agents.contains(name)));
        }
        let policies = Policies::new(&cluster, &world.sorted_classes());
        self.survey(&storages, &mut facts, &volumes, &policies, now).await;
        let verdicts = verdict::judge(&facts, cluster.spec.execution_policy, &cluster.spec.node_loss, now);
        self.count(&verdicts);
        for (name, (phase, verdict)) in &verdicts {
            // The pod of a node that is gone looks Ready until it is collected.
            let ready = ready_agents.contains(name) && facts[name].node != NodeNow::Absent;
            self.deal_with(&storages[name], &facts[name], (phase, verdict), ready, &volumes, &policies).await;
        }
        let is_look = |(node, (_, verdict)): (&String, &(Phase, Verdict))| {
            matches!(verdict, Verdict::Look).then(|| (node.clone(), condition::whole_seconds(now)))
        };
        let looks = verdicts.iter().filter_map(is_look).collect();
        self.specs(&cluster, &nodes, &facts, &volumes, &looks).await;
    }

    /// The watched copies, or what was written since.
    fn storages(&mut self) -> BTreeMap<String, Arc<NodeStorage>> {
        let mut storages: BTreeMap<String, Arc<NodeStorage>> =
            self.context.world.storages.state().into_iter().map(|storage| (storage.name_any(), storage)).collect();
        self.memory.written.retain(|name, written| {
            let newer = storages
                .get(name)
                .is_some_and(|there| there.uid() == written.uid() && seen::version(there) < seen::version(written));
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
        storages: &BTreeMap<String, Arc<NodeStorage>>,
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
            let known = self.memory.lost.known(name);
            // What is being given up is judged by what was last read.
            let known = known.or_else(|| if facts.released { self.memory.lost.last(name) } else { None });
            facts.at_stake = known.as_ref().map(|survey| survey.delete.len());
            let listed = storages.get(name).is_some_and(|storage| !storage.spec.released.is_empty());
            facts.gave_up = facts.released && (listed || known.is_some_and(|survey| survey.claimless > 0));
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
        if verdict::word_is_stale(facts, phase)
            && !self.use_up_word(storage).await
            && matches!(phase, Phase::Other { .. })
        {
            // Once it is written down that disks are missing, the word would count.
            return;
        }
        let before = seen::told(storage);
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
            Verdict::Keep(_) | Verdict::Hold { .. } | Verdict::Look => {}
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
    /// Whether it is gone.
    async fn use_up_word(&mut self, storage: &NodeStorage) -> bool {
        let patch = json!({ "metadata": { "resourceVersion": storage.resource_version() }, "spec": { "lost": null } });
        let params = PatchParams { field_manager: Some(names::manager::OPERATOR.to_owned()), ..PatchParams::default() };
        let api = Api::<NodeStorage>::all(self.context.client.clone());
        let answer = api.patch(&storage.name_any(), &params, &Patch::Merge(&patch)).await;
        // A newer version may have another word: the next pass sees it.
        let what = format!("spec.lost of NodeStorage {}", storage.name_any());
        let Some(written) = self.note(&what, answer) else { return false };
        self.wrote(written);
        let note = "spec.lost: Confirm was about the Node that was gone, and is removed";
        self.context.events.normal(&storage.object_ref(&()), reason::WORD_USED, "RemoveWord", note).await;
        true
    }
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
