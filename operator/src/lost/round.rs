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
struct Going {
    namespace: String,
    name: String,
    uid: Option<String>,
}

impl Round<'_> {
    /// Tells `deleted` of each claim right after the API server took its deletion.
    pub async fn run(&self, volumes: &[Arc<LogicalVolume>], deleted: impl Fn(String)) -> Result<(), Error> {
        let client = &self.context.client;
        let node = self.storage.name_any();
        self.still_decided().await?;
        let reading = |source| Error::Read { what: "claims", source };
        let found = read::all(client, &node, volumes, self.policies).await.map_err(reading)?;

        // Pods that wait now, before anything is deleted: only of these is it known that they are not new.
        let namespaces: BTreeSet<String> = found.iter().filter_map(|(_, read)| read.claim.namespace()).collect();
        let mut waiting = BTreeMap::new();
        for namespace in &namespaces {
            waiting.insert(namespace.clone(), self.pods(namespace, "").await?);
        }

        let mut going = Vec::new();
        let mut pods = Vec::new();
        for (volume, read) in found {
            match read.verdict {
                ClaimVerdict::Keep(_) | ClaimVerdict::NotOurs => {}
                ClaimVerdict::DeleteItsPod { uid, name } => {
                    pods.push((read.claim.namespace().unwrap_or_default(), name, uid, read::title(&read.claim)));
                }
                ClaimVerdict::Delete => going.extend(self.delete_claim(&volume, &deleted).await?),
            }
        }
        for (namespace, name, uid, title) in pods {
            if self.delete_owner(&namespace, &name, &uid).await? {
                deleted(title);
            }
        }
        self.delete_bound(&going).await?;
        self.see_them_gone(going, &waiting).await
    }

    /// (a) What was decided holds: asked anew of the API server before each claim.
    async fn still_decided(&self) -> Result<(), Error> {
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
        let decided = storage.is_some_and(|storage| {
            let conditions = storage.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            let released = |kind| {
                condition::find(conditions, kind).is_some_and(|one| one.status == "True" && one.reason == why::RELEASED)
            };
            let there = match &now {
                NodeNow::Absent => released(kind::NODE_LOST),
                NodeNow::Present { uid } => released(kind::DISKS_MISSING) && *uid == storage.spec.node_uid,
            };
            there
                && storage.uid() == self.storage.uid()
                && storage.spec.node_uid == self.storage.spec.node_uid
                && storage.spec.lost != Some(LostWord::Keep)
        });
        if allowed && decided { Ok(()) } else { Err(Error::Withdrawn { node }) }
    }

    async fn pods(&self, namespace: &str, node: &str) -> Result<Vec<Pod>, Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), namespace);
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(pods.list(&bound).await.map_err(|source| Error::Read { what: "pods", source })?.items)
    }

    /// (b) Reads the claim once more and deletes exactly that.
    async fn delete_claim(&self, volume: &LogicalVolume, deleted: &impl Fn(String)) -> Result<Option<Going>, Error> {
        let client = &self.context.client;
        let node = self.storage.name_any();
        self.pace.wait(self.policies.deletions_per_minute).await;
        self.still_decided().await?;
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
        Ok(Some(Going { namespace, name: claim.name_any(), uid: claim.uid() }))
    }

    /// (c) For a generic ephemeral volume: its pod, and the claim goes with it.
    async fn delete_owner(&self, namespace: &str, name: &str, uid: &str) -> Result<bool, Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), namespace);
        let pod = pods.get_opt(name).await.map_err(|source| Error::Read { what: "a pod", source })?;
        let node = self.storage.name_any();
        match pod {
            Some(pod) if pod.uid().as_deref() == Some(uid) && claim::node_of(&pod) == Some(&node) => {
                self.pace.wait(self.policies.deletions_per_minute).await;
                self.still_decided().await?;
                self.delete_pod(&pod).await?;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        }
    }

    /// (c) Pods that are bound to the node and mount one of the claims.
    async fn delete_bound(&self, going: &[Going]) -> Result<(), Error> {
        let node = self.storage.name_any();
        let namespaces: BTreeSet<&String> = going.iter().map(|claim| &claim.namespace).collect();
        for namespace in namespaces {
            for pod in self.pods(namespace, &node).await? {
                let mounts = |claim: &Going| claim.namespace == *namespace && claim::mounts(&pod, &claim.name);
                if going.iter().any(mounts) {
                    self.delete_pod(&pod).await?;
                }
            }
        }
        Ok(())
    }

    /// At once where no kubelet is left that could end it; in the ordinary way on a node that came back without its
    /// disks, where the pod waits for a volume that is not there.
    async fn delete_pod(&self, pod: &Pod) -> Result<(), Error> {
        let node = self.storage.name_any();
        let now = super::node_now(&self.context.client, &node).await;
        let exactly = only(pod.uid(), None);
        let how: DeleteParams = match now.map_err(|source| Error::Read { what: "the Node", source })? {
            NodeNow::Absent => exactly.grace_period(0),
            NodeNow::Present { .. } if pod.metadata.deletion_timestamp.is_some() => return Ok(()),
            NodeNow::Present { .. } => exactly,
        };
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), &pod.namespace().unwrap_or_default());
        gone(pods.delete(&pod.name_any(), &how).await)
            .map_err(|source| Error::Delete { what: format!("pod {}", pod.name_any()), source })?;
        let note = format!("node {node}, which held its data, is lost");
        self.context.events.normal(&pod.object_ref(&()), reason::POD_RELEASED, "Delete", note).await;
        Ok(())
    }

    /// (d) and (e)
    async fn see_them_gone(&self, mut going: Vec<Going>, waiting: &BTreeMap<String, Vec<Pod>>) -> Result<(), Error> {
        let began = Instant::now();
        while !going.is_empty() && began.elapsed() < PATIENCE {
            let mut left = Vec::new();
            let mut vanished = Vec::new();
            for claim in going {
                let claims = Api::<PersistentVolumeClaim>::namespaced(self.context.client.clone(), &claim.namespace);
                let there = claims.get_metadata_opt(&claim.name).await;
                match there.map_err(|source| Error::Read { what: "a claim", source })? {
                    Some(there) if there.metadata.uid == claim.uid => left.push(claim),
                    Some(_) | None => vanished.push(claim),
                }
            }
            going = left;
            for claim in &vanished {
                self.delete_waiting(claim, &going, waiting).await?;
            }
            if !going.is_empty() {
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }

    /// (e) A pod that was made before its claim was deleted would wait for it for ever. It goes when the last of its claims
    /// that are being deleted is gone.
    async fn delete_waiting(
        &self,
        claim: &Going,
        still_going: &[Going],
        waiting: &BTreeMap<String, Vec<Pod>>,
    ) -> Result<(), Error> {
        let pods = Api::<Pod>::namespaced(self.context.client.clone(), &claim.namespace);
        for pod in waiting.get(&claim.namespace).into_iter().flatten() {
            let waits = |other: &Going| other.namespace == claim.namespace && claim::mounts(pod, &other.name);
            if !claim::mounts(pod, &claim.name) || still_going.iter().any(waits) {
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
