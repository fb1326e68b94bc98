//! Keeps the node's devices and groups as its NodeStorage wants them: look, publish, carry out, look again.
//!
//! One round at a time, in one task. What wakes it: the object, lvmd's word that a block device changed, the rescan
//! timer, and the wait after a failure.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crds::{
    logical_volume::LogicalVolume,
    node_storage::{NodeStorage, NodeStorageSpec, NodeStorageStatus},
    storage_cluster::ExecutionPolicy,
};
use kube::{ResourceExt, runtime::reflector::Store};
use lvmd::{
    proto::{DeleteVolumeRequest, InfoResponse, KnownGroup, VolumeId},
    report::{Report, SeenVolume},
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tonic::Code;

use super::{
    clock::now,
    pace::Pace,
    publish::{PublishError, Publisher},
    status::{self, Failure, Look},
};
use crate::hands::{Hands, HandsError};

/// A plan may need another look after each run (a new group shows new devices to take); a planner that never ends is
/// stopped here and goes on at the next wake.
const MOST_RUNS: usize = 8;

/// Between two looks that a device's change asked for.
const SHORTEST_GAP: Duration = Duration::from_secs(1);

/// An lvmd that starts beside this program, or restarts, is away for a few seconds: that is no news. With the waits
/// below this is six seconds.
const PATIENCE: u32 = 2;

/// How often it is asked, of memory alone, whether a group that is not to be seen was given up.
const GIVEN_UP: Duration = Duration::from_secs(5);

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// A plan that was tried and not done.
struct FailedPlan {
    hash: String,
    message: String,
    /// Whether an LVM command of it still runs.
    blocked: bool,
    /// Not tried again before.
    until: Instant,
}

pub struct Disks {
    pub hands: Hands,
    pub publisher: Publisher,
    /// This node's LogicalVolumes.
    pub volumes: Store<LogicalVolume>,
    /// The object as it was last seen, absent while there is none.
    pub node: watch::Receiver<Option<Arc<NodeStorage>>>,
    /// Told when a block device changed, or may have.
    pub changed: Arc<Notify>,
    memory: Memory,
}

/// What the next round needs to know of the earlier ones.
struct Memory {
    failed: Option<FailedPlan>,
    steps: Pace,
    rounds: Pace,
    removals: Pace,
    /// The groups that were known, while one of them is not to be seen.
    missing: Option<Vec<KnownGroup>>,
    /// Released volumes are not tried again before.
    removals_from: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("looking at the node")]
    Look(#[from] HandsError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("{MOST_RUNS} plans in a row were carried out or overtaken, and there is still one")]
    Endless,
}

impl Disks {
    pub fn new(
        hands: Hands,
        publisher: Publisher,
        volumes: Store<LogicalVolume>,
        node: watch::Receiver<Option<Arc<NodeStorage>>>,
        changed: Arc<Notify>,
    ) -> Self {
        let pace = Pace::new(FIRST_WAIT, LONGEST_WAIT);
        let memory =
            Memory { failed: None, steps: pace, rounds: pace, removals: pace, missing: None, removals_from: None };
        Self { hands, publisher, volumes, node, changed, memory }
    }

    /// Until the object's watcher ends.
    pub async fn run(mut self) {
        // An LV whose object was not listed yet would be published as an orphan.
        if self.volumes.wait_until_ready().await.is_err() {
            return;
        }
        let mut answered = None;
        let mut next = Instant::now();
        loop {
            let node = self.node.borrow_and_update().clone();
            // A write of a status moves no generation: the node's own do not wake it.
            let asked = node.as_ref().map(|node| (node.uid(), node.metadata.generation));
            if let Some(node) = node
                && (asked != answered || next <= Instant::now())
            {
                answered = asked;
                next = Instant::now() + self.one_round(&node).await;
                continue;
            }
            let woken = tokio::select! {
                changed = self.node.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                () = self.changed.notified() => Instant::now() + SHORTEST_GAP,
                () = tokio::time::sleep_until(next), if asked.is_some() => continue,
                () = tokio::time::sleep(GIVEN_UP), if self.memory.missing.is_some() => {
                    let now = self.node.borrow().clone().map(|node| self.known(&node));
                    if now == self.memory.missing { continue }
                    // Somebody gave up what was missing: the class may have another group.
                    Instant::now()
                }
            };
            next = next.min(woken);
        }
    }

    /// How long nothing needs to be done when nothing happens.
    async fn one_round(&mut self, node: &NodeStorage) -> Duration {
        let rescan =
            Duration::from_secs(u64::try_from(node.spec.rails.discovery.rescan_seconds).unwrap_or(600).max(30));
        let began = Instant::now();
        match self.round(node).await {
            Ok(()) => {
                self.memory.rounds.succeeded();
                let waits = [self.memory.failed.as_ref().map(|failed| failed.until), self.memory.removals_from];
                next_look(rescan, waits, began, Instant::now())
            }
            Err(RoundError::Publish(PublishError::Gone)) => rescan,
            Err(error) => {
                let wait = self.memory.rounds.failed();
                tracing::warn!(error = runtime::chain(&error), ?wait, "a round on the node's devices failed");
                wait
            }
        }
    }

    async fn round(&mut self, node: &NodeStorage) -> Result<(), RoundError> {
        let policy = node.spec.rails.execution_policy;
        if policy != ExecutionPolicy::Enforce {
            // Nothing is tried, so nothing is to be tried again.
            self.memory.failed = None;
            self.memory.removals_from = None;
        }
        let mut ran = None;
        for _ in 0..MOST_RUNS {
            let before = self.names();
            let known = self.known(node);
            let (info, report) = match self.look(&node.spec, &known).await {
                Ok(found) => found,
                Err(error) => {
                    let absent = matches!(error, HandsError::Absent { .. });
                    if !absent || self.memory.rounds.failures() >= PATIENCE {
                        self.publish_failure(node, &error).await?;
                    }
                    return Err(error.into());
                }
            };
            // A volume that is made or removed during the look is in one of the two sets.
            let names = before.into_iter().chain(self.names()).collect();
            let hash = report.plan.as_ref().map(|plan| plan.hash.clone());
            if ran.is_some() && ran == hash {
                self.fail(ran.take(), "the steps were carried out, and are still to be done".to_owned(), false);
            }
            if self.memory.failed.as_ref().map(|failed| &failed.hash) != hash.as_ref() {
                self.memory.failed = None;
            }
            self.publish_look(node, &info, &report, &names).await?;
            self.memory.missing = missing(&known, &report).then_some(known.clone());

            if policy == ExecutionPolicy::Enforce && self.remove_released(node, &report).await {
                continue;
            }
            let Some(plan) = report.plan.filter(|plan| status::safe_steps(Some(plan)) > 0) else {
                self.memory.steps.succeeded();
                return Ok(());
            };
            if self.node.borrow().as_ref().and_then(|now| now.metadata.generation) != node.metadata.generation {
                return Ok(());
            }
            let waits = self.memory.failed.as_ref().is_some_and(|failed| failed.until > Instant::now());
            if policy != ExecutionPolicy::Enforce || waits {
                return Ok(());
            }
            self.memory.failed = None;
            match self.hands.apply(&node.spec, &known, &plan.hash).await {
                Ok(done) => {
                    tracing::info!(steps = ?done, "carried out");
                    self.publisher.note(node, &done, None, now()).await;
                    ran = Some(plan.hash);
                }
                // Something changed since the look: the next one says what.
                Err(HandsError::Said { code: Code::FailedPrecondition, message, .. }) => {
                    tracing::info!(message, "the plan is another one by now");
                    ran = None;
                }
                Err(error) => {
                    let message = runtime::chain(&error);
                    let step = format!("carry out plan {}", plan.hash);
                    self.publisher.note(node, &[step], Some(&message), now()).await;
                    self.fail(Some(plan.hash), message, error.code() == Code::DeadlineExceeded);
                    ran = None;
                }
            }
        }
        Err(RoundError::Endless)
    }

    async fn look(&self, spec: &NodeStorageSpec, known: &[KnownGroup]) -> Result<(InfoResponse, Report), HandsError> {
        let info = self.hands.info().await?;
        Ok((info, self.hands.plan(spec, known).await?))
    }

    /// The groups that this node had, as far as anybody wrote it down.
    fn known(&self, node: &NodeStorage) -> Vec<KnownGroup> {
        let newest = self.node.borrow().clone().filter(|newest| newest.uid() == node.uid());
        let node = newest.as_deref().unwrap_or(node);
        known(&node.spec, &self.publisher.there(node), &self.volumes.state())
    }

    async fn publish_look(
        &mut self,
        node: &NodeStorage,
        info: &InfoResponse,
        report: &Report,
        names: &BTreeSet<String>,
    ) -> Result<(), PublishError> {
        let failed = self.memory.failed.as_ref();
        let make = |old: &NodeStorageStatus| {
            let look = Look {
                spec: &node.spec,
                generation: node.metadata.generation,
                info,
                report,
                volumes: names,
                step_failed: failed.map(|failed| failed.message.as_str()),
                blocked: failed.filter(|failed| failed.blocked).map(|failed| failed.message.as_str()),
            };
            status::after_look(old, &look, now())
        };
        self.publisher.publish(node, make).await
    }

    async fn publish_failure(&mut self, node: &NodeStorage, error: &HandsError) -> Result<(), PublishError> {
        let message = runtime::chain(error);
        let failure = Failure {
            generation: node.metadata.generation,
            message: &message,
            blocked: error.code() == Code::DeadlineExceeded,
        };
        self.publisher.publish(node, |old| status::after_failure(old, &failure, now())).await
    }

    fn names(&self) -> BTreeSet<String> {
        self.volumes.state().iter().map(|volume| volume.name_any()).collect()
    }

    fn fail(&mut self, hash: Option<String>, message: String, blocked: bool) {
        let wait = self.memory.steps.failed();
        tracing::warn!(message, ?wait, "the plan was not carried out");
        self.memory.failed = hash.map(|hash| FailedPlan { hash, message, blocked, until: Instant::now() + wait });
    }

    /// Removes the LVs of volumes that were given up while this node was lost, and no others. Whether any is gone.
    async fn remove_released(&mut self, node: &NodeStorage, report: &Report) -> bool {
        if self.memory.removals_from.is_some_and(|from| from > Instant::now()) {
            return false;
        }
        let (mut removed, mut failed) = (false, false);
        for seen in released(&node.spec, report, &self.volumes.state()) {
            let step = format!("remove volume {}, which was given up while the node was lost", seen.name);
            let outcome = self.hands.delete_volume(removal(&node.spec, seen)).await;
            let error = outcome.as_ref().err().map(|error| runtime::chain(error));
            *if error.is_none() { &mut removed } else { &mut failed } = true;
            self.publisher.note(node, &[step], error.as_deref(), now()).await;
        }
        if !failed {
            self.memory.removals.succeeded();
        }
        self.memory.removals_from = failed.then(|| Instant::now() + self.memory.removals.failed());
        removed
    }
}

/// The groups that the NodeStorage and the volumes of a node speak of. What was published of another Node of the same
/// name is no word on this one: whether its disks are lost is for the operator to find out, by its volumes.
fn known(spec: &NodeStorageSpec, status: &NodeStorageStatus, volumes: &[Arc<LogicalVolume>]) -> Vec<KnownGroup> {
    let groups = if status::is_of(status, spec) { status.volume_groups.as_slice() } else { &[] };
    let groups = groups.iter().map(|group| (group.class.clone(), group.uuid.clone(), group.name.clone()));
    let of_volumes = volumes.iter().filter_map(|volume| {
        let group = volume.status.as_ref()?.volume_group.as_ref()?;
        Some((volume.spec.device_class.clone(), group.uuid.clone(), group.name.clone()))
    });
    let all = groups.chain(of_volumes).filter(|(_, uuid, _)| !uuid.is_empty()).collect::<BTreeSet<_>>();
    all.into_iter().map(|(class, vg_uuid, vg_name)| KnownGroup { class, vg_uuid, vg_name }).collect()
}

fn missing(known: &[KnownGroup], report: &Report) -> bool {
    known.iter().any(|known| report.volume_groups.iter().all(|group| group.uuid != known.vg_uuid))
}

/// How long nothing needs to be done after a round that began at `began`, with what is not to be tried before `waits`.
fn next_look(
    rescan: Duration,
    waits: impl IntoIterator<Item = Option<Instant>>,
    began: Instant,
    now: Instant,
) -> Duration {
    // What could have been tried in this round, and was not, is not worth a look of its own.
    let soonest = waits.into_iter().flatten().filter(|at| *at > began).min();
    soonest.map_or(rescan, |at| at.saturating_duration_since(now)).min(rescan).max(SHORTEST_GAP)
}

/// The LVs that a machine which returns may remove: name and UUID are the ones that were given up, and nobody has made
/// an object for the LV since.
fn released<'a>(spec: &NodeStorageSpec, report: &'a Report, volumes: &[Arc<LogicalVolume>]) -> Vec<&'a SeenVolume> {
    let given_up = |seen: &&SeenVolume| spec.released.iter().any(|r| r.name == seen.name && r.lv_uuid == seen.lv_uuid);
    let taken = |seen: &&SeenVolume| {
        volumes.iter().any(|volume| volume.name_any() == seen.name && volume.metadata.deletion_timestamp.is_none())
    };
    report.volumes.iter().filter(given_up).filter(|seen| !taken(seen)).collect()
}

fn removal(spec: &NodeStorageSpec, seen: &SeenVolume) -> DeleteVolumeRequest {
    DeleteVolumeRequest {
        volume: Some(VolumeId {
            name: seen.name.clone(),
            cluster_id: spec.cluster_id.clone(),
            class: seen.class.clone(),
        }),
        vg_uuid: seen.vg_uuid.clone(),
        lv_uuid: seen.lv_uuid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        /// A round of looks costs a look at every disk: whatever is remembered, there is a pause between two.
        #[test]
        fn rounds_never_follow_each_other_without_a_pause(
            waits in proptest::collection::vec(proptest::option::of(0..2_000_u64), 0..3),
            began in 0..1_000_u64,
            took in 0..1_000_u64,
        ) {
            let start = Instant::now();
            let at = |second: u64| start + Duration::from_secs(second);
            let (rescan, now) = (Duration::from_secs(600), at(began + took));
            let next = next_look(rescan, waits.iter().map(|wait| wait.map(at)), at(began), now);
            prop_assert!((SHORTEST_GAP..=rescan).contains(&next), "{next:?}");
            // And nothing that is still to be tried is forgotten until the next rescan.
            for wait in waits.into_iter().flatten().filter(|wait| *wait > began) {
                prop_assert!(now + next <= at(wait).max(now + SHORTEST_GAP));
            }
        }
    }

    #[test]
    fn a_group_is_known_by_the_status_of_this_node_and_by_its_volumes() {
        let spec = NodeStorageSpec { node_uid: "new".into(), ..NodeStorageSpec::default() };
        let status = |uid: &str| {
            let group = json!({"class": "fast", "name": "vg", "uuid": "u1", "size": 1, "extentSize": 1, "unmanaged": 0,
                "reserve": 0, "maxVolumeSize": 1, "devices": 1, "state": "Ready"});
            let agent = json!({"version": "", "lvmVersion": "", "kernel": "", "bootID": "", "nodeUID": uid});
            serde_json::from_value::<NodeStorageStatus>(json!({"agent": agent, "volumeGroups": [group]})).unwrap()
        };
        let classes =
            |known: Vec<KnownGroup>| known.into_iter().map(|one| (one.class, one.vg_uuid)).collect::<Vec<_>>();
        let (fast, slow) = (("fast".to_owned(), "u1".to_owned()), ("slow".to_owned(), "u2".to_owned()));
        assert_eq!(classes(known(&spec, &status("new"), &[])), std::slice::from_ref(&fast));
        assert_eq!(classes(known(&spec, &status("old"), &[])), []);
        assert_eq!(classes(known(&spec, &NodeStorageStatus::default(), &[])), []);
        // Data was there, whatever Node it was.
        let mut volume = LogicalVolume::new(
            "pvc-1",
            serde_json::from_value(json!({"nodeName": "n", "deviceClass": "slow", "size": 1})).unwrap(),
        );
        let unmade = [Arc::new(volume.clone())];
        assert_eq!(classes(known(&spec, &status("new"), &unmade)), std::slice::from_ref(&fast));
        volume.status = serde_json::from_value(json!({"volumeGroup": {"name": "vg2", "uuid": "u2"}})).unwrap();
        assert_eq!(classes(known(&spec, &status("new"), &[Arc::new(volume)])), [fast, slow]);
    }
}
