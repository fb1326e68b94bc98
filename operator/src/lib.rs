//! The operator: applies what Stowage runs as, says to each node what is wanted there, and deals with nodes that are gone.
//! It has no right on any node; everything it does is a write to the API server.
//!
//! In reading order: `world` (what is seen), `objects` and `cluster` (what is applied), `assign`, `clear` and `nodes` (what
//! each node is told), `verdict`, `claim` and `lost` (nodes that are gone), `tell` and `summary` (what the statuses say),
//! `apply` and `events` (how it is written).
//!
//! `objects`, `assign`, `clear`, `verdict`, `claim`, `tell` and `summary` are pure: no client, no clock.
//!
//! Deliberately absent: anything that touches a volume or a disk.

pub mod world;

pub mod cluster;
pub mod objects;

pub mod assign;
pub mod clear;
pub mod nodes;

pub mod claim;
pub mod lost;
pub mod verdict;

pub mod summary;
pub mod tell;

pub mod apply;
pub mod events;
pub mod metrics;

use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use lease::Lease;
use prometheus_client::registry::Registry;

use crate::{events::Events, metrics::Metrics, objects::Release, summary::class::Problems, world::World};

/// Runs Stowage in this cluster.
#[derive(clap::Parser, Debug)]
#[command(version)]
pub struct Args {
    #[command(flatten)]
    pub log: runtime::LogArgs,
    /// The namespace of everything that the operator runs.
    #[arg(long, env = "NAMESPACE", default_value = crds::names::NAMESPACE)]
    pub namespace: String,
    /// The image with `driver` and `lvmd`.
    #[arg(long, env = "STOWAGE_IMAGE", default_value = "stowage.dev/stowage:dev")]
    pub image: String,
    /// The image of csi-provisioner.
    #[arg(long, env, default_value = "registry.k8s.io/sig-storage/csi-provisioner:v6.4.0")]
    pub provisioner_image: String,
    /// The image of csi-resizer.
    #[arg(long, env, default_value = "registry.k8s.io/sig-storage/csi-resizer:v2.3.0")]
    pub resizer_image: String,
    /// What this process is called in the lease, unique among all operators: its pod's name.
    #[arg(long, env = "POD_NAME")]
    pub identity: String,
    /// Where health and metrics are served.
    #[arg(long, env, default_value = "0.0.0.0:9810")]
    pub health: SocketAddr,
}

/// What every part of the operator works with.
pub struct Context {
    pub client: Client,
    pub world: World,
    pub events: Events,
    pub metrics: Metrics,
    pub release: Release,
    /// UID of the namespace kube-system.
    pub cluster_id: String,
    pub clock: fn() -> Timestamp,
    problems: Mutex<BTreeMap<String, Problems>>,
}

impl Context {
    /// What the assignment of classes to nodes has found, by DeviceClass.
    pub fn problems(&self) -> MutexGuard<'_, BTreeMap<String, Problems>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The API server answers in milliseconds, a busy one in seconds; what takes this long has lost its way.
const LIMIT: Duration = Duration::from_secs(20);

/// A burst of changes is one change.
const SETTLE: Duration = Duration::from_millis(200);

#[expect(clippy::disallowed_methods, reason = "the one clock: all else is given the time")]
fn clock() -> Timestamp {
    Timestamp::now()
}

/// Runs until `stop` ends, or the lease is lost.
pub async fn run(args: Args, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    let mut registry = Registry::with_prefix("stowage_operator");
    let metrics = Metrics::new(&mut registry);
    let health = runtime::health::Health::default();
    let (stopping, stopped) = tokio::sync::watch::channel(());
    let served = runtime::health::serve(args.health, health.clone(), registry, async move {
        let mut stopped = stopped;
        // An error says that the sender is gone, which is the end too.
        let _ = stopped.changed().await;
    });
    let client = Client::try_default().await.context("reading the cluster's address and the token")?;
    let lease = Lease::new(&client, &args.namespace, crds::names::OPERATOR_DEPLOYMENT, args.identity.clone(), clock);

    let result = tokio::select! {
        () = stop => Ok(()),
        ended = served => ended.context("serving health and metrics"),
        ended = lead(&args, &client, &lease, metrics, &health) => ended,
    };
    health.ready(false);
    drop(stopping);
    // Also after a failure: what was begun has ended with it.
    lease.release().await;
    result
}

async fn lead(
    args: &Args,
    client: &Client,
    lease: &Lease,
    metrics: Metrics,
    health: &runtime::health::Health,
) -> anyhow::Result<()> {
    // Waiting for its turn is an operator's work too.
    health.ready(true);
    lease.take().await;
    let client = &lease::client(client.clone(), lease.validity(), Some(LIMIT));

    let (world, follow) = World::watch(client, &args.namespace);
    let follow = follow.for_each(|()| std::future::ready(()));
    let work = async {
        let cluster_id = cluster_id(client).await;
        world.complete().await.context("the watches have ended")?;
        tracing::info!(cluster_id, "everything is seen");
        let context = Arc::new(Context {
            client: client.clone(),
            events: Events::new(client.clone(), args.identity.clone()),
            world,
            metrics,
            release: Release {
                namespace: args.namespace.clone(),
                stowage_image: args.image.clone(),
                provisioner_image: args.provisioner_image.clone(),
                resizer_image: args.resizer_image.clone(),
            },
            cluster_id,
            clock,
            problems: Mutex::default(),
        });
        futures::future::join(cluster::run(context.clone()), nodes::run(context)).await;
        anyhow::Ok(())
    };
    tokio::select! {
        lost = lease.keep() => Err(lost.into()),
        () = follow => anyhow::bail!("the watches have ended"),
        ended = work => ended,
    }
}

/// Asks until it is answered: nothing can be said to a node without it.
async fn cluster_id(client: &Client) -> String {
    loop {
        match Api::<Namespace>::all(client.clone()).get_metadata("kube-system").await {
            Ok(namespace) => match namespace.metadata.uid {
                Some(uid) => return uid,
                None => tracing::warn!("the namespace kube-system has no UID"),
            },
            Err(error) => tracing::warn!(error = runtime::chain(&error), "reading the namespace kube-system"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Waits for a change, or for `pause`; then for the burst to settle.
async fn next(changes: &mut tokio::sync::watch::Receiver<()>, pause: Duration) {
    // An error says that nothing will change any more: then the pause alone counts.
    let changed = async {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let _ = tokio::time::timeout(pause, changed).await;
    tokio::time::sleep(SETTLE).await;
    changes.mark_unchanged();
}
