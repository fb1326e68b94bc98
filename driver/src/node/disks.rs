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
    proto::{DeleteVolumeRequest, InfoResponse, VolumeId},
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
        let memory = Memory { failed: None, steps: pace, rounds: pace, removals: pace, removals_from: None };
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
            };
            next = next.min(woken);
        }
    }

    /// How long nothing needs to be done when nothing happens.
    async fn one_round(&mut self, node: &NodeStorage) -> Duration {
        let rescan =
            Duration::from_secs(u64::try_from(node.spec.rails.discovery.rescan_seconds).unwrap_or(600).max(30));
        match self.round(node).await {
            Ok(()) => {
                self.memory.rounds.succeeded();
                let waits = [self.memory.failed.as_ref().map(|failed| failed.until), self.memory.removals_from];
                let soonest = waits.into_iter().flatten().min();
                soonest.map_or(rescan, |at| at.saturating_duration_since(Instant::now())).min(rescan)
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
        let mut ran = None;
        for _ in 0..MOST_RUNS {
            let before = self.names();
            let (info, report) = match self.look(&node.spec).await {
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

            let policy = node.spec.rails.execution_policy;
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
            match self.hands.apply(&node.spec, &plan.hash).await {
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

    async fn look(&self, spec: &NodeStorageSpec) -> Result<(InfoResponse, Report), HandsError> {
        let info = self.hands.info().await?;
        Ok((info, self.hands.plan(spec).await?))
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
