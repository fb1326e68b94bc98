//! Gives up the claims of a node that is lost, so that their pods start elsewhere. Every delete is preceded by a live read
//! and carries the UID that was read; the order of the deletes is that of DESIGN 4.3.4.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crds::{
    device_class::DeviceClass,
    logical_volume::LogicalVolume,
    node_storage::NodeStorage,
    storage_cluster::{LossPolicy, StorageCluster},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::task::JoinSet;

use crate::{
    Context,
    tell::Survey,
    verdict::{Facts, NodeNow},
};

pub mod read;
pub mod round;

/// What is known of the claims is looked at again after so long, while there is something to give up; a change of the
/// volumes ends the wait.
const SURVEY_AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// And while all that is left waits for a person.
const SURVEY_SETTLED: SignedDuration = SignedDuration::from_mins(5);

/// Which volumes of a node are given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtRisk {
    /// The node is gone.
    All,
    /// The node came back without these groups.
    Groups(BTreeSet<String>),
}

pub fn at_risk(volumes: &[Arc<LogicalVolume>], which: &AtRisk) -> Vec<Arc<LogicalVolume>> {
    let is_at_risk = |volume: &&Arc<LogicalVolume>| match which {
        AtRisk::All => true,
        AtRisk::Groups(missing) => group_of(volume).is_some_and(|group| missing.contains(group)),
    };
    volumes.iter().filter(is_at_risk).cloned().collect()
}

pub fn group_of(volume: &LogicalVolume) -> Option<&str> {
    volume.status.as_ref()?.volume_group.as_ref().map(|group| group.uuid.as_str())
}

/// What may be given up, by the StorageCluster and by each DeviceClass.
#[derive(Clone, Debug)]
pub struct Policies {
    cluster: LossPolicy,
    classes: BTreeMap<String, LossPolicy>,
    pub deletions_per_minute: i32,
}

impl Policies {
    pub fn new(cluster: &StorageCluster, classes: &[Arc<DeviceClass>]) -> Self {
        let of = |class: &Arc<DeviceClass>| {
            let policy = class.spec.node_loss.as_ref().map_or(LossPolicy::Recreatable, |own| own.policy);
            (class.name_any(), policy)
        };
        Self {
            cluster: cluster.spec.node_loss.policy,
            classes: classes.iter().map(of).collect(),
            deletions_per_minute: cluster.spec.node_loss.max_deletions_per_minute,
        }
    }

    /// A class that is not there says nothing, and nothing is not consent.
    pub fn of(&self, volume: &LogicalVolume) -> [LossPolicy; 2] {
        let class = self.classes.get(&volume.spec.device_class).copied().unwrap_or(LossPolicy::None);
        [self.cluster, class]
    }
}

/// The Node of this name, asked of the API server.
pub async fn node_now(client: &Client, name: &str) -> Result<NodeNow, kube::Error> {
    let node = Api::<Node>::all(client.clone()).get_metadata_opt(name).await?;
    Ok(match node {
        None => NodeNow::Absent,
        Some(node) => NodeNow::Present { uid: node.metadata.uid.unwrap_or_default() },
    })
}

/// Whether a LogicalVolume names the node, asked of the API server.
pub async fn has_volumes(client: &Client, node: &str) -> Result<bool, kube::Error> {
    let params = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(1);
    Ok(!Api::<LogicalVolume>::all(client.clone()).list_metadata(&params).await?.items.is_empty())
}

/// What is under way for lost nodes. All of it may be forgotten: it is found out again.
#[derive(Default)]
pub struct Lost {
    surveys: BTreeMap<String, Surveyed>,
    shared: Arc<Shared>,
    /// They end with this: nothing is begun without the lease.
    rounds: JoinSet<()>,
}

struct Surveyed {
    at: Timestamp,
    /// A later look failed: this is what was known before.
    outdated: bool,
    /// Changes with the volumes.
    of: u64,
    survey: Survey,
}

impl Surveyed {
    /// When it is to be looked at again.
    fn next(&self) -> Option<Timestamp> {
        let settled = self.survey.delete.is_empty();
        self.at.checked_add(if settled { SURVEY_SETTLED } else { SURVEY_AGAIN }).ok()
    }
}

/// What a round and the passes have in common.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    pace: round::Pace,
}

#[derive(Default)]
struct State {
    /// Nodes with a round under way.
    busy: BTreeSet<String>,
    /// Nodes whose claims are to be looked at anew.
    stale: BTreeSet<String>,
    /// Claims that were deleted and are in no status yet.
    released: BTreeMap<String, Vec<String>>,
    /// Claims that were deleted in earlier rounds, and whose pods were not all dealt with.
    going: BTreeMap<String, Vec<round::Going>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lost {
    pub fn known(&self, node: &str) -> Option<Survey> {
        self.surveys.get(node).filter(|surveyed| !surveyed.outdated).map(|surveyed| surveyed.survey.clone())
    }

    /// What was known last, also when it could not be read since.
    pub fn last(&self, node: &str) -> Option<Survey> {
        self.surveys.get(node).map(|surveyed| surveyed.survey.clone())
    }

    /// Drops what is known of nodes that are there no more.
    pub fn forget_others(&mut self, facts: &BTreeMap<String, Facts>) {
        self.surveys.retain(|node, _| facts.contains_key(node));
        self.shared.state().going.retain(|node, _| facts.contains_key(node));
    }

    /// Looks at the claims, unless that was done a moment ago. Answers when it is to be done again.
    pub async fn survey(
        &mut self,
        client: &Client,
        node: &str,
        volumes: &[Arc<LogicalVolume>],
        policies: &Policies,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, kube::Error> {
        if volumes.is_empty() {
            let nothing = Surveyed { at: now, outdated: false, of: 0, survey: Survey::default() };
            self.surveys.insert(node.to_owned(), nothing);
            return Ok(None);
        }
        let of = fingerprint(volumes, policies);
        let stale = self.shared.state().stale.remove(node);
        if let Some(known) = self.surveys.get(node)
            && !stale
            && !known.outdated
            && known.of == of
            && known.next().is_some_and(|next| now < next)
        {
            return Ok(known.next());
        }
        // While it can not be read, what was known is not known any more.
        if let Some(known) = self.surveys.get_mut(node) {
            known.outdated = true;
        }
        let survey = read::survey(client, node, volumes, policies).await?;
        let known = Surveyed { at: now, outdated: false, of, survey };
        let next = known.next();
        self.surveys.insert(node.to_owned(), known);
        Ok(next)
    }

    /// Claims that were deleted and are in no status yet.
    pub fn released(&self, node: &str) -> Vec<String> {
        self.shared.state().released.get(node).cloned().unwrap_or_default()
    }

    /// The first `count` of them are in the status now.
    pub fn written(&self, node: &str, count: usize) {
        let mut state = self.shared.state();
        if let Some(released) = state.released.get_mut(node) {
            released.drain(..count.min(released.len()));
        }
        state.released.retain(|_, released| !released.is_empty());
    }

    /// Starts a round for the node, unless one is under way or there is nothing to give up.
    pub fn release(
        &mut self,
        context: &Arc<Context>,
        storage: &Arc<NodeStorage>,
        volumes: Vec<Arc<LogicalVolume>>,
        policies: &Policies,
    ) {
        let node = storage.name_any();
        while self.rounds.try_join_next().is_some() {}
        let nothing = self.known(&node).is_none_or(|known| known.delete.is_empty());
        let earlier = {
            let mut state = self.shared.state();
            let nothing = nothing && !state.going.contains_key(&node);
            if nothing || !state.busy.insert(node.clone()) {
                return;
            }
            state.going.remove(&node).unwrap_or_default()
        };
        let (context, storage, policies, shared) =
            (context.clone(), storage.clone(), policies.clone(), self.shared.clone());
        self.rounds.spawn(async move {
            let told = |claim: String| {
                context.metrics.claims_released.inc();
                shared.state().released.entry(node.clone()).or_default().push(claim);
            };
            let round = round::Round { context: &context, storage: &storage, policies: &policies, pace: &shared.pace };
            let (left, ended) = round.run(&volumes, earlier, told).await;
            if !left.is_empty() {
                shared.state().going.insert(node.clone(), left);
            }
            if let Err(error) = &ended {
                context.metrics.failures.inc();
                tracing::warn!(node, error = runtime::chain(error), "giving up the claims of a lost node");
                // Busy meanwhile, so that a failure is not tried again at once.
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            {
                let mut state = shared.state();
                state.busy.remove(&node);
                state.stale.insert(node);
            }
            context.world.poke();
        });
    }
}

fn fingerprint(volumes: &[Arc<LogicalVolume>], policies: &Policies) -> u64 {
    let mut names: Vec<(String, [LossPolicy; 2])> =
        volumes.iter().map(|volume| (volume.name_any(), policies.of(volume))).collect();
    names.sort();
    let mut hasher = DefaultHasher::new();
    for (name, policies) in names {
        name.hash(&mut hasher);
        policies.map(|policy| policy == LossPolicy::None).hash(&mut hasher);
    }
    hasher.finish()
}
