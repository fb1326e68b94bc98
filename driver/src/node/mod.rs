//! The half that runs on every node, beside lvmd.
//!
//! In reading order: what kubelet sees (`registration`, `service` with `capability`, `error` and `staged`; `socket` is
//! what both are served on), then what is done for the objects: `disks` (with `status`, `news` and `publish`) for the
//! NodeStorage, `volumes` (with `volume`) for the LogicalVolumes.
//!
//! kubelet's side starts first and needs no API server: mounts and unmounts go on while it is gone.

mod capability;
mod clock;
mod disks;
mod error;
mod news;
mod pace;
mod publish;
pub mod registration;
pub mod service;
mod socket;
mod staged;
mod status;
mod volume;
mod volumes;
mod watching;

#[cfg(test)]
mod api_tests;

use std::{
    future::Future,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::Stream;
use kube::{Client, runtime::reflector::ObjectRef};
use runtime::health::{self, Health};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::{
    csi::{identity_server::IdentityServer, node_server::NodeServer},
    hands::Hands,
    identity::Identity,
};

/// How often a socket's file is looked for.
const SOCKET_PACE: Duration = Duration::from_secs(10);

/// Between two attempts at what is not there yet.
const RETRY: Duration = Duration::from_secs(2);

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// lvmd's socket.
    #[arg(long, env = "LVMD", default_value = "/run/stowage/lvmd.sock")]
    pub lvmd: PathBuf,
    /// kubelet's folder. Its `plugins_registry` and `plugins/csi.stowage.dev` are at the same path here as on the host.
    #[arg(long, env = "KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, env = "HEALTH", default_value = "0.0.0.0:9808")]
    pub health: SocketAddr,
}

pub async fn run(args: Args, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    let stopping = CancellationToken::new();
    let stopped = stopping.clone();
    tokio::spawn(async move {
        stop.await;
        stopped.cancel();
    });
    let health = Health::default();
    let hands = Hands::new(&args.lvmd)?;
    let (staged, woken) = staged::Staged::new();
    let (served, is_served) = watch::channel(false);

    let kubelet = serve_kubelet(&args.kubelet_root, &args.node_name, &hands, &staged, &health, served, &stopping);
    let registration = async {
        // kubelet calls NodeGetInfo as soon as it finds the registration.
        if is_true(is_served.clone(), &stopping).await {
            registration::serve(&args.kubelet_root, SOCKET_PACE, &stopping).await;
        }
    };
    let readiness = async {
        if is_true(is_served.clone(), &stopping).await {
            say_ready(&hands, &health, &stopping).await;
        }
    };
    let objects = look_after_objects(&args.node_name, &hands, &staged, woken, &stopping);
    let health = async {
        let served = health::serve(args.health, health.clone(), Default::default(), stopping.clone().cancelled_owned());
        let outcome = served.await;
        // Without it the kubelet would kill this container anyway, only later.
        stopping.cancel();
        outcome
    };
    let ((), (), (), (), outcome) = tokio::join!(kubelet, registration, readiness, objects, health);
    Ok(outcome?)
}

async fn serve_kubelet(
    root: &Path,
    node_name: &str,
    hands: &Hands,
    staged: &staged::Staged,
    health: &Health,
    served: watch::Sender<bool>,
    stop: &CancellationToken,
) {
    let service = Arc::new(service::Service::new(node_name.to_owned(), hands.clone(), staged.clone()));
    let router = || {
        Server::builder()
            .add_service(IdentityServer::new(Identity { health: health.clone() }))
            .add_service(NodeServer::from_arc(service.clone()))
    };
    let opened = || {
        served.send_replace(true);
    };
    socket::serve(&registration::csi_socket_path(root), SOCKET_PACE, router, opened, stop).await;
}

/// Whether it became true before the stop.
async fn is_true(mut is: watch::Receiver<bool>, stop: &CancellationToken) -> bool {
    tokio::select! {
        changed = is.wait_for(|is| *is) => changed.is_ok(),
        () = stop.cancelled() => false,
    }
}

/// Ready once lvmd has answered: from then on kubelet's calls can be served. The API server has no part in it.
async fn say_ready(hands: &Hands, health: &Health, stop: &CancellationToken) {
    loop {
        match hands.info().await {
            Ok(info) => {
                tracing::info!(lvmd = info.version, lvm = info.lvm_version, missing = ?info.missing, "lvmd answers");
                health.ready(true);
                return;
            }
            Err(error) => tracing::warn!(error = runtime::chain(&error), "lvmd does not answer yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Everything that needs the API server.
async fn look_after_objects(
    node_name: &str,
    hands: &Hands,
    staged: &staged::Staged,
    woken: impl Stream<Item = ObjectRef<crds::logical_volume::LogicalVolume>> + Send + 'static,
    stop: &CancellationToken,
) {
    let Some(client) = client(stop).await else { return };
    let (node_found, node) = watch::channel(None);
    let changed = Arc::new(Notify::new());
    let context = volumes::Context::new(client.clone(), hands.clone(), staged.clone(), node.clone());
    let (store, volumes) = volumes::work(client.clone(), node_name, context, woken, stop.clone());
    let publisher = publish::Publisher::new(client.clone(), node_name);
    let disks = disks::Disks::new(hands.clone(), publisher, store, node, changed.clone());
    let rest = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = disks.run() => {}
            () = watching::node(client, node_name, node_found) => {}
            () = watching::devices(hands, &changed) => {}
        }
    };
    tokio::join!(volumes, rest);
}

/// A wrong setting is tried again, not died of: kubelet's calls need no API server.
async fn client(stop: &CancellationToken) -> Option<Client> {
    loop {
        match Client::try_default().await {
            Ok(client) => return Some(client),
            Err(error) => tracing::error!(error = runtime::chain(&error), "there is no way to the API server"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stop.cancelled() => return None,
        }
    }
}
