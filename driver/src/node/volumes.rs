//! Keeps the LVs of this node's LogicalVolumes as the objects want them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crds::{
    logical_volume::{LogicalVolume, LogicalVolumeStatus},
    names::{VOLUME_FINALIZER, manager},
    node_storage::NodeStorage,
};
use futures::{Stream, StreamExt};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        Controller, Predicate, WatchStreamExt,
        controller::{Action, Config},
        predicates,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use super::{
    clock::now,
    pace::Pace,
    staged::Staged,
    volume::{self, Attempt, Next},
};
use crate::hands::{Hands, HandsError};

/// At once; lvmd lets one change at a group, so more would only wait there.
const CONCURRENCY: u16 = 8;

const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

pub struct Context {
    pub hands: Hands,
    pub staged: Staged,
    /// The node's object, absent while there is none.
    pub node: watch::Receiver<Option<Arc<NodeStorage>>>,
    volumes: Api<LogicalVolume>,
    paces: Mutex<HashMap<String, Pace>>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("writing the status of LogicalVolume {name}")]
    Status { name: String, source: kube::Error },
    #[error("taking the finalizer off LogicalVolume {name}")]
    Finalizer { name: String, source: kube::Error },
}

impl Context {
    pub fn new(client: Client, hands: Hands, staged: Staged, node: watch::Receiver<Option<Arc<NodeStorage>>>) -> Self {
        Self { hands, staged, node, volumes: Api::all(client), paces: Mutex::default() }
    }

    /// How long to wait after one more failure with this volume.
    fn failed(&self, name: &str) -> Action {
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = paces.entry(name.to_owned()).or_insert(Pace::new(FIRST_WAIT, LONGEST_WAIT));
        Action::requeue(pace.failed())
    }

    fn succeeded(&self, name: &str) -> Action {
        self.paces.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Action::await_change()
    }

    /// Writes the status if it says something new.
    async fn publish(&self, volume: &LogicalVolume, mut status: LogicalVolumeStatus) -> Result<(), Error> {
        let name = volume.name_any();
        if let Some(made) = self.staged.of(&name) {
            status.filesystem = Some(made);
        }
        if Some(&status) != volume.status.as_ref() {
            let said = serde_json::json!({
                "apiVersion": LogicalVolume::api_version(&()),
                "kind": LogicalVolume::kind(&()),
                "metadata": { "uid": volume.uid() },
                "status": status,
            });
            let params = PatchParams::apply(manager::NODE).force();
            match self.volumes.patch_status(&name, &params, &Patch::Apply(&said)).await {
                Ok(_) => {}
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                Err(source) => return Err(Error::Status { name, source }),
            }
        }
        self.staged.forget(&name);
        Ok(())
    }

    /// Says that no LV is behind the object any more. The resource version keeps others' finalizers whole.
    async fn release(&self, volume: &LogicalVolume) -> Result<(), Error> {
        let name = volume.name_any();
        let left: Vec<_> = volume.finalizers().iter().filter(|finalizer| *finalizer != VOLUME_FINALIZER).collect();
        let patch = serde_json::json!({
            "metadata": { "resourceVersion": volume.resource_version(), "finalizers": left },
        });
        let params = PatchParams { field_manager: Some(manager::NODE.to_owned()), ..PatchParams::default() };
        match self.volumes.patch(&name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            Err(source) => Err(Error::Finalizer { name, source }),
        }
    }

    async fn refused(&self, volume: &LogicalVolume, attempt: Attempt, error: HandsError) -> Result<Action, Error> {
        tracing::warn!(?attempt, error = runtime::chain(&error), "lvmd has not done it");
        self.publish(volume, volume::failed(volume, attempt, &error, now())).await?;
        Ok(self.failed(&volume.name_any()))
    }
}

#[tracing::instrument(skip_all, fields(volume = %volume.name_any()))]
pub async fn reconcile(volume: Arc<LogicalVolume>, context: Arc<Context>) -> Result<Action, Error> {
    let Some(node) = context.node.borrow().clone() else { return Ok(Action::await_change()) };
    let name = volume.name_any();
    match volume::next(&volume, &node) {
        Next::Nothing => Ok(context.succeeded(&name)),
        Next::Settled => {
            context.publish(&volume, volume::settled(&volume, now())).await?;
            Ok(context.succeeded(&name))
        }
        // The NodeStorage's next change wakes every volume.
        Next::Wait(obstacle) => {
            context.publish(&volume, volume::waiting(&volume, &obstacle, now())).await?;
            Ok(context.succeeded(&name))
        }
        Next::Create(request) => match context.hands.create_volume(request).await {
            Ok(lv) => {
                tracing::info!(lv = lv.lv_uuid, size = lv.size, group = lv.vg_name, "the LV is there");
                context.publish(&volume, volume::made(&volume, &lv, now())).await?;
                Ok(context.succeeded(&name))
            }
            Err(error) => context.refused(&volume, Attempt::Create, error).await,
        },
        Next::Grow(request) => match context.hands.grow_volume(request).await {
            Ok(lv) => {
                tracing::info!(lv = lv.lv_uuid, size = lv.size, "the LV was grown");
                context.publish(&volume, volume::made(&volume, &lv, now())).await?;
                Ok(context.succeeded(&name))
            }
            Err(error) => context.refused(&volume, Attempt::Grow, error).await,
        },
        Next::Delete(request) => match context.hands.delete_volume(request).await {
            Ok(()) => {
                tracing::info!("the LV is gone");
                context.release(&volume).await?;
                context.staged.forget(&name);
                Ok(context.succeeded(&name))
            }
            Err(error) => context.refused(&volume, Attempt::Delete, error).await,
        },
    }
}

fn error_policy(volume: Arc<LogicalVolume>, _: &Error, context: Arc<Context>) -> Action {
    context.failed(&volume.name_any())
}

/// The volumes of this node, and the work on them. The store is filled while the work runs.
pub fn work(
    client: Client,
    node_name: &str,
    context: Context,
    woken: impl Stream<Item = ObjectRef<LogicalVolume>> + Send + 'static,
    stop: CancellationToken,
) -> (Store<LogicalVolume>, impl Future<Output = ()>) {
    let (store, writer) = reflector::store();
    let mine = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
    let changed = watcher(Api::<LogicalVolume>::all(client), mine)
        .default_backoff()
        .modify(|volume| volume.managed_fields_mut().clear())
        .reflect(writer)
        .applied_objects()
        // Writes of a status move no generation, a deletion does.
        .predicate_filter(predicates::generation.combine(predicates::finalizers), Default::default());
    let node_changed = about_groups(context.node.clone());
    let work = Controller::for_stream(changed, store.clone())
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_on(woken)
        .reconcile_all_on(node_changed)
        .graceful_shutdown_on(stop.cancelled_owned())
        .run(reconcile, error_policy, Arc::new(context))
        .for_each(|outcome| async {
            if let Err(error) = outcome {
                tracing::warn!(error = runtime::chain(&error), "the work on volumes met an error and goes on");
            }
        });
    (store, work)
}

/// Each change of the node's object that matters to volumes: what may be done, and where.
fn about_groups(node: watch::Receiver<Option<Arc<NodeStorage>>>) -> impl Stream<Item = ()> + Send + 'static {
    WatchStream::new(node)
        .map(|node| {
            node.map(|node| {
                let classes: Vec<_> = node.spec.classes.iter().map(|class| class.name.clone()).collect();
                let status = node.status.as_ref();
                let groups = status.map(|status| status.volume_groups.clone()).unwrap_or_default();
                let looked = status.is_some_and(|status| status.agent.is_some());
                (node.spec.rails.execution_policy, node.spec.cluster_id.clone(), classes, groups, looked)
            })
        })
        .scan(None, |last, this| {
            let news = last.as_ref() != Some(&this);
            *last = Some(this);
            std::future::ready(Some(news))
        })
        .filter_map(|news| std::future::ready(news.then_some(())))
}
