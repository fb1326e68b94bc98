//! One round of giving up the claims of a node, in the order that lets their pods start elsewhere:
//! (a) live reads; (b) the claims are deleted; (c) the pods that are bound to the lost node are deleted, which claim
//! protection waits for; (d) the claims are gone; (e) pods that wait for a node and name a claim that is gone are deleted,
//! so that their set makes claim and pod anew.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crds::{
    condition::{self, kind, reason as why},
    logical_volume::LogicalVolume,
    names,
    node_storage::{LostWord, NodeStorage},
    storage_cluster::{ExecutionPolicy, LossPolicy, StorageCluster},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams},
};
use tokio::{sync::Mutex, time::Instant};

use super::{Policies, read};
use crate::{
    Context,
    apply::{gone, only},
    claim::{self, ClaimVerdict},
    events::reason,
    verdict::NodeNow,
};

/// How long a round waits for claims to vanish; what is left is the next round's.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(500);

/// Spreads deletions over time, for all nodes together.
#[derive(Default)]
pub struct Pace(Mutex<Option<Instant>>);

impl Pace {
    async fn wait(&self, per_minute: i32) {
        let gap = Duration::from_secs(60) / u32::try_from(per_minute).unwrap_or(1).max(1);
        let mut last = self.0.lock().await;
        if let Some(last) = *last {
            tokio::time::sleep_until(last + gap).await;
        }
        *last = Some(Instant::now());
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading {what}")]
    Read { what: &'static str, source: kube::Error },
    #[error("deleting {what}")]
    Delete { what: String, source: kube::Error },
    #[error("the decision to give up {node} is not in force any more")]
    Withdrawn { node: String },
}

pub struct Round<'a> {
    pub context: &'a Context,
    pub storage: &'a NodeStorage,
    pub policies: &'a Policies,
    pub pace: &'a Pace,
}

/// A claim that was deleted and may still be there.
pub struct Going {
    namespace: String,
    name: String,
    uid: Option<String>,
    volume: Arc<LogicalVolume>,
    /// Pods that waited for a node before the claim was deleted, and name it.
    waiting: Vec<Pod>,
}

/// What failed first: one claim does not stop the others.
#[derive(Default)]
struct First(Option<Error>);

impl First {
    fn note<T>(&mut self, outcome: Result<T, Error>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.get_or_insert(error);
                None
            }
        }
    }
}

impl Round<'_> {
    /// Tells `deleted` of each claim right after the API server took its deletion. `earlier`: what the round before left.
    /// Answers with what is left now.
    pub async fn run(
        &self,
        volumes: &[Arc<LogicalVolume>],
        earlier: Vec<Going>,
        deleted: impl Fn(String),
    ) -> (Vec<Going>, Result<(), Error>) {
        let mut first = First::default();
        let mut going = earlier;
        let mut pods = Vec::new();
        // Pods that wait now, before anything is deleted: only of these is it known that they are not new.
        let mut waiting = BTreeMap::new();
        for (volume, read) in first.note(self.found(volumes).await).unwrap_or_default() {
            let namespace = read.claim.namespace().unwrap_or_default();
            match read.verdict {
                ClaimVerdict::Keep(_) | ClaimVerdict::NotOurs => {}
                ClaimVerdict::DeleteItsPod { uid, name } => {
                    pods.push((namespace, name, uid, read::title(&read.claim), volume));
                }
                ClaimVerdict::Delete => {
                    if !waiting.contains_key(&namespace) {
                        let Some(pods) = first.note(self.pods(&namespace, "").await) else { continue };
                        waiting.insert(namespace.clone(), pods);
                    }
                    let outcome = self.delete_claim(&volume, &waiting[&namespace], &deleted).await;
                    if let Some(claim) = first.note(outcome).flatten() {
                        add(&mut going, claim);
                    }
                }
            }
        }
        for (namespace, name, uid, title, volume) in pods {
            if first.note(self.delete_owner(&namespace, &name, &uid, &volume).await) == Some(true) {
                deleted(title);
            }
        }
        self.delete_bound(&going, &mut first).await;
        let left = self.see_them_gone(going, &mut first).await;
        (left, first.0.map_or(Ok(()), Err))
    }

    async fn found(&self, volumes: &[Arc<LogicalVolume>]) -> Result<Vec<(Arc<LogicalVolume>, read::Read)>, Error> {
        self.still_decided(None).await?;
        let found = read::all(&self.context.client, &self.storage.name_any(), volumes, self.policies).await;
        found.map_err(|source| Error::Read { what: "claims", source })
    }

    /// (a) What was decided holds, for `volume` too: asked anew of the API server before each claim.
    async fn still_decided(&self, volume: Option<&LogicalVolume>) -> Result<(), Error> {
        let client = &self.context.client;
        let node = self.storage.name_any();
        let read = |what| move |source| Error::Read { what, source };
        let cluster = Api::<StorageCluster>::all(client.clone()).get_opt(names::STORAGE_CLUSTER).await;
        let storage = Api::<NodeStorage>::all(client.clone()).get_opt(&node).await;
        let now = super::node_now(client, &node).await.map_err(read("the Node"))?;
        let cluster = cluster.map_err(read("the StorageCluster"))?;
        let allowed = cluster.is_some_and(|cluster| {
            cluster.spec.execution_policy == ExecutionPolicy::Enforce
                && cluster.spec.node_loss.policy == LossPolicy::Recreatable
        });
        let storage = storage.map_err(read("the NodeStorage"))?;
        let decided = storage.is_some_and(|storage| is_decided(self.storage, &storage, &now, volume));
        if allowed && decided { Ok(()) } else { Err(Error::Withdrawn { node }) }
    }

    async fn pods(&self, namespace: &str, node: &str) -> Result<Vec<Pod>, Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), namespace);
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(pods.list(&bound).await.map_err(|source| Error::Read { what: "pods", source })?.items)
    }

    /// (b) Reads the claim once more and deletes exactly that.
    async fn delete_claim(
        &self,
        volume: &Arc<LogicalVolume>,
        waiting: &[Pod],
        deleted: &impl Fn(String),
    ) -> Result<Option<Going>, Error> {
        let client = &self.context.client;
        let node = self.storage.name_any();
        self.pace.wait(self.policies.deletions_per_minute).await;
        self.still_decided(Some(volume)).await?;
        let reading = |source| Error::Read { what: "a claim", source };
        let namespace = volume.spec.claim.as_ref().map(|claim| claim.namespace.clone()).unwrap_or_default();
        let around = read::around(client, &namespace).await.map_err(reading)?;
        let read = read::claim(client, &node, volume, &around, self.policies).await.map_err(reading)?;
        let Some(read) = read.filter(|read| read.verdict == ClaimVerdict::Delete) else { return Ok(None) };
        let claim = read.claim;
        if claim.metadata.deletion_timestamp.is_none() {
            let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
            let answer = claims.delete(&claim.name_any(), &only(claim.uid(), claim.resource_version())).await;
            match answer {
                Ok(_) => {}
                // It changed in between: the next round reads it again.
                Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => return Ok(None),
                Err(source) => return Err(Error::Delete { what: format!("claim {}", read::title(&claim)), source }),
            }
            deleted(read::title(&claim));
            let note =
                format!("node {node}, which held its data, is lost; its StatefulSet makes it anew elsewhere, empty");
            self.context.events.warning(&claim.object_ref(&()), reason::CLAIM_RELEASED, "Delete", note).await;
            let title = read::title(&claim);
            let note = format!("deleted claim {title}, which its StatefulSet makes anew elsewhere");
            self.context.events.normal(&self.storage.object_ref(&()), reason::CLAIM_RELEASED, &title, note).await;
        }
        let name = claim.name_any();
        let waiting = waiting.iter().filter(|pod| claim::mounts(pod, &name)).cloned().collect();
        Ok(Some(Going { namespace, name, uid: claim.uid(), volume: volume.clone(), waiting }))
    }

    /// (c) For a generic ephemeral volume: its pod, and the claim goes with it.
    async fn delete_owner(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        volume: &LogicalVolume,
    ) -> Result<bool, Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), namespace);
        let pod = pods.get_opt(name).await.map_err(|source| Error::Read { what: "a pod", source })?;
        let node = self.storage.name_any();
        match pod {
            Some(pod) if pod.uid().as_deref() == Some(uid) && claim::node_of(&pod) == Some(&node) => {
                self.pace.wait(self.policies.deletions_per_minute).await;
                self.still_decided(Some(volume)).await?;
                self.delete_pod(&pod, volume).await?;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// (c) Pods that are bound to the node and mount one of the claims.
    async fn delete_bound(&self, going: &[Going], first: &mut First) {
        let node = self.storage.name_any();
        let namespaces: BTreeSet<&String> = going.iter().map(|claim| &claim.namespace).collect();
        for namespace in namespaces {
            for pod in first.note(self.pods(namespace, &node).await).unwrap_or_default() {
                let mounts = |claim: &&Going| claim.namespace == *namespace && claim::mounts(&pod, &claim.name);
                if let Some(claim) = going.iter().find(mounts) {
                    first.note(self.delete_pod(&pod, &claim.volume).await);
                }
            }
        }
    }

    /// At once where no kubelet is left that could end it; in the ordinary way on a node that came back without its
    /// disks, where the pod waits for a volume that is not there, as is asked once more.
    async fn delete_pod(&self, pod: &Pod, volume: &LogicalVolume) -> Result<(), Error> {
        let node = self.storage.name_any();
        let now = super::node_now(&self.context.client, &node).await;
        let exactly = only(pod.uid(), None);
        let how: DeleteParams = match now.map_err(|source| Error::Read { what: "the Node", source })? {
            NodeNow::Absent => exactly.grace_period(0),
            NodeNow::Present { .. } if pod.metadata.deletion_timestamp.is_some() => return Ok(()),
            NodeNow::Present { .. } => {
                self.still_decided(Some(volume)).await?;
                exactly
            }
        };
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), &pod.namespace().unwrap_or_default());
        gone(pods.delete(&pod.name_any(), &how).await)
            .map_err(|source| Error::Delete { what: format!("pod {}", pod.name_any()), source })?;
        let note = format!("node {node}, which held its data, is lost");
        self.context.events.normal(&pod.object_ref(&()), reason::POD_RELEASED, "Delete", note).await;
        Ok(())
    }

    /// (d) and (e). Answers with the claims that are not dealt with yet.
    async fn see_them_gone(&self, mut going: Vec<Going>, first: &mut First) -> Vec<Going> {
        let began = Instant::now();
        let mut failed = Vec::new();
        while !going.is_empty() && began.elapsed() < PATIENCE {
            let mut left = Vec::new();
            let mut vanished = Vec::new();
            for claim in going {
                match first.note(self.is_there(&claim).await) {
                    Some(true) => left.push(claim),
                    Some(false) => vanished.push(claim),
                    None => failed.push(claim),
                }
            }
            going = left;
            for claim in vanished {
                let dealt_with = self.delete_waiting(&claim, &going).await;
                if first.note(dealt_with).is_none() {
                    failed.push(claim);
                }
            }
            if !going.is_empty() {
                tokio::time::sleep(POLL).await;
            }
        }
        going.extend(failed);
        going
    }

    async fn is_there(&self, claim: &Going) -> Result<bool, Error> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.context.client.clone(), &claim.namespace);
        let there = claims.get_metadata_opt(&claim.name).await;
        let there = there.map_err(|source| Error::Read { what: "a claim", source })?;
        Ok(there.is_some_and(|there| there.metadata.uid == claim.uid))
    }

    /// (e) A pod that was made before its claim was deleted would wait for it for ever. It goes when the last of its claims
    /// that are being deleted is gone.
    async fn delete_waiting(&self, claim: &Going, still_going: &[Going]) -> Result<(), Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), &claim.namespace);
        for pod in &claim.waiting {
            let waits = |other: &Going| other.namespace == claim.namespace && claim::mounts(pod, &other.name);
            if still_going.iter().any(waits) {
                continue;
            }
            let now = pods.get_opt(&pod.name_any()).await.map_err(|source| Error::Read { what: "a pod", source })?;
            // Bound meanwhile: it has what it needs.
            if now.is_none_or(|now| now.uid() != pod.uid() || claim::node_of(&now).is_some()) {
                continue;
            }
            gone(pods.delete(&pod.name_any(), &only(pod.uid(), None)).await)
                .map_err(|source| Error::Delete { what: format!("pod {}", pod.name_any()), source })?;
            let note = format!("its claim {} was on a lost node, and is made anew with it", claim.name);
            self.context.events.normal(&pod.object_ref(&()), reason::POD_RELEASED, "Delete", note).await;
        }
        Ok(())
    }
}

/// A claim that was going already has new pods that wait for it.
fn add(going: &mut Vec<Going>, claim: Going) {
    match going.iter_mut().find(|known| known.uid == claim.uid) {
        Some(known) => {
            let is_known = |pod: &Pod| known.waiting.iter().any(|known| known.uid() == pod.uid());
            let new: Vec<Pod> = claim.waiting.into_iter().filter(|pod| !is_known(pod)).collect();
            known.waiting.extend(new);
        }
        None => going.push(claim),
    }
}

/// Whether the NodeStorage as it is now still says what the round began with, for `volume` too: a node that is
/// back may have found the group of one volume and not that of another.
fn is_decided(begun: &NodeStorage, live: &NodeStorage, now: &NodeNow, volume: Option<&LogicalVolume>) -> bool {
    let conditions = live.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let released =
        |kind| condition::find(conditions, kind).is_some_and(|one| one.status == "True" && one.reason == why::RELEASED);
    let there = match now {
        NodeNow::Absent => released(kind::NODE_LOST),
        NodeNow::Present { uid } => {
            released(kind::DISKS_MISSING)
                && !condition::is_true(conditions, kind::NODE_LOST)
                && *uid == live.spec.node_uid
        }
    };
    there
        && volume.is_none_or(|volume| live.has_given_up(volume))
        && live.uid() == begun.uid()
        && live.spec.node_uid == begun.spec.node_uid
        && live.spec.lost != Some(LostWord::Keep)
}

#[cfg(test)]
mod tests {
    use crds::{
        logical_volume::{LogicalVolumeSpec, LogicalVolumeStatus, VolumeGroupRef},
        node_storage::{Agent, GroupState, NodeStorageSpec, NodeStorageStatus, VolumeGroupStatus},
    };

    use super::*;

    fn volume(group: &str) -> Arc<LogicalVolume> {
        let mut volume = LogicalVolume::new(
            "pvc-1",
            LogicalVolumeSpec {
                node_name: "n1".into(),
                device_class: "fast".into(),
                size: 1,
                access: Default::default(),
                claim: None,
                adopt: None,
                discard: false,
            },
        );
        let group = VolumeGroupRef { name: "g".into(), uuid: group.into() };
        volume.status = Some(LogicalVolumeStatus { volume_group: Some(group), ..LogicalVolumeStatus::default() });
        Arc::new(volume)
    }

    /// Back without the group `lost`, with the group `found`.
    fn back() -> NodeStorage {
        let spec = NodeStorageSpec { node_name: "n1".into(), node_uid: "new".into(), ..NodeStorageSpec::default() };
        let mut storage = NodeStorage::new("n1", spec);
        let found = VolumeGroupStatus {
            class: "fast".into(),
            name: "g".into(),
            uuid: "found".into(),
            size: 1,
            extent_size: 1,
            unmanaged: 0,
            reserve: 0,
            max_volume_size: 1,
            devices: 1,
            state: GroupState::Ready,
            last_error: None,
        };
        storage.status = Some(NodeStorageStatus {
            agent: Some(Agent { node_uid: "new".into(), ..Agent::default() }),
            volume_groups: vec![found],
            conditions: vec![condition::new(kind::DISKS_MISSING, "True", why::RELEASED, "", None)],
            ..NodeStorageStatus::default()
        });
        storage
    }

    #[test]
    fn what_a_live_look_finds_is_not_given_up() {
        let new = NodeNow::Present { uid: "new".into() };
        let is_decided =
            |live: &NodeStorage, now: &NodeNow, group| super::is_decided(&back(), live, now, Some(&volume(group)));
        assert!(is_decided(&back(), &new, "lost"));
        assert!(!is_decided(&back(), &new, "found"));
        assert!(!is_decided(&back(), &NodeNow::Absent, "lost"), "it is gone again, and that is another loss");
        assert!(!is_decided(&back(), &NodeNow::Present { uid: "newer".into() }, "lost"));
        for (what, change) in [
            ("looked for another Node", (|one| agent(one).node_uid = "old".into()) as fn(&mut NodeStorage)),
            ("found meanwhile", |one| groups(one)[0].uuid = "lost".into()),
            ("taken back", |one| conditions(one)[0].reason = why::GROUPS_MISSING.into()),
            ("lost again", |one| {
                conditions(one).push(condition::new(kind::NODE_LOST, "True", why::RELEASED, "", None))
            }),
            ("a word", |one| one.spec.lost = Some(LostWord::Keep)),
            ("another Node", |one| one.spec.node_uid = "newer".into()),
            ("made anew", |one| one.metadata.uid = Some("other".into())),
        ] {
            let mut live = back();
            change(&mut live);
            assert!(!is_decided(&live, &new, "lost"), "{what}");
        }
    }

    fn agent(storage: &mut NodeStorage) -> &mut Agent {
        storage.status.as_mut().unwrap().agent.as_mut().unwrap()
    }

    fn groups(storage: &mut NodeStorage) -> &mut Vec<VolumeGroupStatus> {
        &mut storage.status.as_mut().unwrap().volume_groups
    }

    fn conditions(storage: &mut NodeStorage) -> &mut Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
        &mut storage.status.as_mut().unwrap().conditions
    }

    #[test]
    fn a_claim_that_is_still_going_is_remembered_once_with_all_pods_that_wait_for_it() {
        let pod = |uid: &str| Pod {
            metadata: kube::api::ObjectMeta { uid: Some(uid.into()), ..Default::default() },
            ..Pod::default()
        };
        let claim = |uid: &str, pods: &[&str]| Going {
            namespace: "shop".into(),
            name: "data-web-0".into(),
            uid: Some(uid.into()),
            volume: volume("lost"),
            waiting: pods.iter().map(|uid| pod(uid)).collect(),
        };
        let mut going = vec![claim("1", &["a"])];
        add(&mut going, claim("1", &["a", "b"]));
        add(&mut going, claim("2", &[]));
        let known: Vec<_> = going.iter().map(|claim| (claim.uid.as_deref(), claim.waiting.len())).collect();
        assert_eq!(known, [(Some("1"), 2), (Some("2"), 0)]);
    }

    #[test]
    fn the_first_failure_is_told_and_stops_nothing() {
        let error = |node: &str| Err::<(), _>(Error::Withdrawn { node: node.into() });
        let mut first = First::default();
        assert_eq!(first.note(error("a")), None);
        assert_eq!(first.note(Ok(1)), Some(1));
        assert_eq!(first.note(error("b")), None);
        assert!(matches!(first.0, Some(Error::Withdrawn { node }) if node == "a"));
    }
}
