//! The half that runs on every node, beside lvmd.

use std::{future::Future, net::SocketAddr, path::PathBuf};

#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The node that this runs on.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// lvmd's socket.
    #[arg(long, env = "LVMD", default_value = "/run/stowage/lvmd.sock")]
    pub lvmd: PathBuf,
    /// kubelet's folder, the same path here as on the host.
    #[arg(long, env = "KUBELET_ROOT", default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// Where /healthz, /readyz and /metrics are served.
    #[arg(long, env = "HEALTH", default_value = "0.0.0.0:9808")]
    pub health: SocketAddr,
}

pub async fn run(_: Args, _: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    anyhow::bail!("not here yet")
}
