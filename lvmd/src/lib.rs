//! The one program that touches devices, LVM and mounts. It answers `driver node` over a Unix socket that only the two
//! of them share, and trusts nothing that comes over it.
//!
//! In reading order: `name` and `run` (checked words, and the one place that starts programs), `disk` and `lvm` (what
//! a look finds), `seen` (one look), `plan` (pure: what to do), `carry_out` and `volume` (doing it, one at a time:
//! `turn`), `mount` (from an LV to a path in a pod), `server` (the calls), `uevents` (when to look).
//!
//! Deliberately absent: a Kubernetes client, a token, a network listener, any decision about what is wanted.

pub mod name;
pub mod run;

pub mod disk;
pub mod dm;
pub mod lvm;

pub mod begun;
pub mod seen;

pub mod plan;

pub mod node;
pub mod turn;

pub mod carry_out;
pub mod volume;

pub mod mount;

pub mod info;
pub mod server;
pub mod uevents;

pub mod proto;
pub mod report;

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use tokio::{
    net::UnixListener,
    sync::{broadcast, watch},
};
use tokio_stream::wrappers::UnixListenerStream;

use crate::{
    lvm::config,
    node::Node,
    proto::lvmd_server::LvmdServer,
    run::{HostLock, System},
    server::Server,
};

/// Looks after the devices, volume groups and mounts of one node, for `driver node`.
#[derive(clap::Parser, Clone, Debug)]
#[command(version)]
pub struct Args {
    /// The socket to listen on. Its folder is shared with `driver node` and with nobody else.
    #[arg(long, env = "LVMD_SOCKET", default_value = "/run/stowage/lvmd.sock")]
    pub socket: PathBuf,
    /// kubelet's root folder, at the same path as on the host: nothing is mounted outside of it.
    #[arg(long, env = "KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// Where LVM's settings and its archive of metadata are kept. On the host's disk.
    #[arg(long, env = "STATE", default_value = "/var/lib/stowage")]
    pub state: PathBuf,
    /// Where the lock is that lets one lvmd at a time start LVM. The host's.
    #[arg(long, env = "LOCK", default_value = "/run/lock/stowage")]
    pub lock: PathBuf,
    #[command(flatten)]
    pub log: runtime::LogArgs,
}

/// Serves until `stop` ends and the changes that are running then have ended.
pub async fn run(args: Args, stop: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    fs::create_dir_all(&args.state).with_context(|| format!("making {}", args.state.display()))?;
    let udev = config::udev();
    let lvm = config::write(&args.state, udev).context("writing LVM's settings")?;
    let lock = HostLock::open(&args.lock).with_context(|| format!("opening the lock in {}", args.lock.display()))?;
    let system = Arc::new(System::new(lvm, lock));
    info::missing(&args.kubelet_root).iter().for_each(|missing| tracing::warn!("{missing}"));
    tracing::info!(?udev, version = env!("CARGO_PKG_VERSION"), "started");
    tokio::spawn(wait_for_lock(system.clone()));
    info::load_targets(&system).await;

    let node = Arc::new(Node::new(system, args.kubelet_root, &args.state));
    let listeners = Arc::new(broadcast::Sender::new(1));
    tokio::spawn(hear(node.clone(), listeners.clone()));
    let (stopping, stopped) = watch::channel(false);
    let turns = node.turns.clone();
    let server = Server { node, lvm_version: tokio::sync::OnceCell::new(), listeners, stopping: stopped };
    let socket = listen(&args.socket).with_context(|| format!("listening on {}", args.socket.display()))?;
    let calls = LvmdServer::new(server).max_decoding_message_size(LARGEST_REQUEST);
    tonic::transport::Server::builder()
        .add_service(calls)
        .serve_with_incoming_shutdown(UnixListenerStream::new(socket), async move {
            stop.await;
            let _ = stopping.send(true);
        })
        .await
        .context("serving")?;
    // Whatever is cut off here is taken up again after the next start; that it need not be is better.
    if tokio::time::timeout(LAST_CHANGES, turns.idle()).await.is_err() {
        tracing::warn!("a change is still running and is cut off with this process");
    }
    Ok(())
}

/// Less than the 30 s after which Kubernetes kills a container.
const LAST_CHANGES: Duration = Duration::from_secs(20);

/// A spec with 16 classes, 256 cleared devices and 1,024 released volumes is a few hundred KiB.
const LARGEST_REQUEST: usize = 8 << 20;

/// A socket that only the owner of this process may open. One that an earlier process left is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        Ok(()) | Err(_) => {}
    }
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}

/// Takes the lock as soon as it can be had. Until then calls that need LVM are refused, and mounts go on.
async fn wait_for_lock(system: Arc<System>) {
    let mut said = false;
    while !system.lock().try_hold() {
        if !said {
            tracing::warn!(
                lock = %system.lock().path().display(),
                "another lvmd, or an LVM command of one that was ended, is still at work: waiting for it"
            );
            said = true;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tracing::info!("this is the one lvmd of the node");
}

/// Without the kernel's events the node is looked at by the timer of `driver node` alone.
async fn hear(node: Arc<Node<System>>, listeners: Arc<broadcast::Sender<()>>) {
    match uevents::open() {
        Ok(events) => {
            node.hears();
            uevents::watch(events, node.turns.clone(), || node.changed(), listeners).await;
        }
        Err(error) => {
            tracing::error!(%error, "the kernel's events can not be heard: new disks are seen at the next rescan only");
        }
    }
}
