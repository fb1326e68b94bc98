//! The half that runs once per cluster, beside csi-provisioner and csi-resizer.
//!
//! In reading order: `run` (one controller at a time); `world` (what is watched), `entries` (what it
//! says), `ledger` (what is free, pure), `books` (the ledger as of now); `capacity` (what the scheduler is told); the calls:
//! `service`, then `request`, `standing`, `create`, `delete`, `expand`; `lost` and `orphans` (volumes whose node or object
//! is gone). `api`, `volumes`, `claims` and `events` are what is read and written; `metrics` what is counted.
//!
//! Deliberately absent: any connection to a node. The two halves meet only in objects.

mod api;
mod books;
mod capacity;
mod claims;
mod create;
mod delete;
mod entries;
mod events;
mod expand;
#[cfg(test)]
mod flows;
mod ledger;
mod lost;
mod metrics;
mod orphans;
mod request;
mod service;
mod standing;
mod volumes;
mod world;

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use crds::names;
use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use lease::Lease;
use prometheus_client::registry::Registry;
use runtime::health::{self, Health};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use self::{
    books::Books, capacity::Capacity, claims::Claims, events::Events, lost::Lost, metrics::Metrics, volumes::Volumes,
    world::World,
};
use crate::{
    csi::{controller_server::ControllerServer, identity_server::IdentityServer},
    identity::Identity,
    in_flight::InFlight,
};

/// What is held by one controller at a time.
const LEASE: &str = names::CONTROLLER_DEPLOYMENT;

/// For how long a call waits for a node. Less than the sidecars' `--timeout=60s`, so that they hear why.
const LIMIT: Duration = Duration::from_secs(50);

/// How long calls that run may go on when the program stops.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Where the Lease and the capacity objects are.
    #[arg(long, env = "NAMESPACE", default_value = crds::names::NAMESPACE)]
    pub namespace: String,
    /// The socket for csi-provisioner and csi-resizer. It is there while this process works.
    #[arg(long, env = "CSI_SOCKET", default_value = "/run/csi/csi.sock")]
    pub csi_socket: PathBuf,
    /// Who holds the Lease: the pod's name.
    #[arg(long, env = "IDENTITY")]
    pub identity: String,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, env = "HEALTH", default_value = "0.0.0.0:9809")]
    pub health: SocketAddr,
}

/// What every call works with.
pub struct Context {
    world: World,
    books: Books,
    capacity: Capacity,
    volumes: Volumes,
    claims: Claims,
    lost: Lost,
    events: Events,
    in_flight: InFlight,
    metrics: Metrics,
    limit: Duration,
}

impl Context {
    fn new(client: &Client, namespace: &str, identity: &str, world: World, metrics: Metrics) -> Self {
        let books = Books::new(world.clone());
        let volumes = Volumes::new(client);
        let events = Events::new(client, identity);
        Self {
            capacity: Capacity::new(client, namespace, world.clone(), books.clone(), metrics.clone()),
            lost: Lost::new(client, volumes.clone(), world.clone(), events.clone(), metrics.clone()),
            claims: Claims::new(client),
            in_flight: InFlight::default(),
            limit: LIMIT,
            world,
            books,
            volumes,
            events,
            metrics,
        }
    }
}

pub async fn run(args: Args, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    let stopping = CancellationToken::new();
    let stopped = stopping.clone();
    tokio::spawn(async move {
        stop.await;
        stopped.cancel();
    });
    // A socket that an earlier run left would make the sidecars believe that somebody serves it.
    close(&args.csi_socket).with_context(|| format!("removing {}", args.csi_socket.display()))?;
    let (health, metrics, mut registry) = (Health::default(), Metrics::default(), Registry::default());
    metrics.register(&mut registry);
    let health_served = health::serve(args.health, health.clone(), registry, stopping.clone().cancelled_owned());
    let work = async {
        let worked = work(&args, health, metrics, &stopping).await;
        // Health is served until here.
        stopping.cancel();
        worked
    };
    let (served, worked) = tokio::join!(
        async {
            let served = health_served.await;
            stopping.cancel();
            served
        },
        work
    );
    served?;
    worked
}

async fn work(args: &Args, health: Health, metrics: Metrics, stop: &CancellationToken) -> anyhow::Result<()> {
    let client = Client::try_default().await?;
    let lease = Lease::new(&client, &args.namespace, LEASE, args.identity.clone(), clock);
    tokio::select! {
        () = lease.take() => {}
        () = stop.cancelled() => return Ok(()),
    }
    // Each request has a limit of its own, see `api`.
    let client = lease::client(client, lease.validity(), None);
    let (world, mut watches) = World::watch(&client, &args.namespace);
    let context = Arc::new(Context::new(&client, &args.namespace, &args.identity, world.clone(), metrics));
    let served = async {
        tokio::select! {
            complete = world.complete() => complete?,
            () = stop.cancelled() => return Ok(()),
        }
        tracing::info!("every copy is complete");
        let serving = serve(&args.csi_socket, context.clone(), health, stop);
        tokio::select! {
            served = serving => served,
            () = context.capacity.run() => anyhow::bail!("the capacity objects are no longer kept"),
            () = orphans::look_after(&context, clock) => anyhow::bail!("orphans are no longer looked after"),
        }
    };
    let outcome = tokio::select! {
        served = served => served,
        lost = lease.keep() => Err(lost.into()),
        () = async { while watches.next().await.is_some() {} } => Err(anyhow::anyhow!("the watches have ended")),
    };
    if let Err(error) = close(&args.csi_socket) {
        tracing::warn!(%error, "removing the socket");
    }
    lease.release().await;
    outcome
}

async fn serve(path: &Path, context: Arc<Context>, health: Health, stop: &CancellationToken) -> anyhow::Result<()> {
    let opened = || -> io::Result<UnixListener> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        UnixListener::bind(path)
    };
    let listener = opened().with_context(|| format!("opening the socket {}", path.display()))?;
    tracing::info!(path = %path.display(), "serving csi-provisioner and csi-resizer");
    health.ready(true);
    let serving = Server::builder()
        .add_service(IdentityServer::new(Identity { health: health.clone() }))
        .add_service(ControllerServer::new(service::Service { context }))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.clone().cancelled_owned());
    let patience = async {
        stop.cancelled().await;
        health.ready(false);
        tokio::time::sleep(PATIENCE).await;
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = patience => {
            tracing::warn!("calls were still running when serving ended");
            Ok(())
        }
    }
}

fn close(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[expect(clippy::disallowed_methods, reason = "the entry point: everything below is given the time")]
fn clock() -> Timestamp {
    Timestamp::now()
}
