//! Whole clusters as files: the machines' memories and disks, etcd's data, the certificates.
//!
//! Saved without a test's disks, so that one serves every test that wants as many nodes; they are plugged in later.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    cache::{self, Inputs},
    control_plane::{ControlPlane, Options},
    error::{Context, Error, Result},
    guest_image::copy,
    node::{Node, NodeOptions, NodeParts},
    progress::{say, wait_until},
    run::Run,
};

/// The name of the rig that is started only to be saved.
const SAVING: &str = "saving";
/// For kubelet to find the API server again.
const BACK: Duration = Duration::from_secs(60);
const FOLDERS: [&str; 2] = ["etcd", "pki"];
const FILES: [&str; 3] = ["admin.kubeconfig", "controller-manager.kubeconfig", "scheduler.kubeconfig"];

/// A cluster like the one that is asked for, from a saved one that is made if there is none.
pub(crate) fn restore(
    name: &str,
    options: &Options,
    nodes: &[(&str, NodeOptions)],
) -> Result<(ControlPlane, Vec<Arc<Node>>)> {
    let from = ensure(options, nodes)?;
    let cluster = ControlPlane::prepared(name, options.clone())?;
    let folder = cluster.folder();
    for tree in FOLDERS {
        Run::new("cp").arg("-a").arg(from.join(tree)).arg(folder.join(tree)).check()?;
    }
    FILES.iter().try_for_each(|file| copy(&from.join(file), &folder.join(file)))?;
    let restored: Vec<Arc<Node>> = nodes
        .iter()
        .map(|(name, _)| Node::saved(&cluster, name, &from).map(|node| cluster.take_in(node)))
        .collect::<Result<_>>()?;
    // The machines load while the control plane starts; none runs before the API server is there to be found.
    cluster.run()?;
    restored.iter().try_for_each(|node| node.resume())?;
    for node in &restored {
        wait_for_kubelet(&cluster, node.name())?;
    }
    say("nodes are back");
    for (node, (_, options)) in restored.iter().zip(nodes) {
        options.disks.iter().try_for_each(|disk| node.plug_disk(disk))?;
    }
    Ok((cluster, restored))
}

fn ensure(options: &Options, nodes: &[(&str, NodeOptions)]) -> Result<PathBuf> {
    let mut inputs = Inputs::default()
        .text(&Run::new("qemu-system-x86_64").arg("--version").check()?)
        .text(concat!(include_str!("qemu.rs"), include_str!("control_plane/programs.rs"), include_str!("saved.rs")))
        .text(&format!("{options:?}"));
    for (name, node) in nodes {
        let parts = NodeParts::ensure(&crate::parts::Parts::ensure()?, node.stowage.as_ref())?;
        inputs = inputs.text(name).text(&node.memory_mib.to_string()).text(&parts.inputs(options.timing).key());
    }
    cache::entry("saved", &inputs, |folder| {
        let cluster = ControlPlane::start(SAVING, options.clone())?;
        let without_disks = |options: &NodeOptions| NodeOptions { disks: Vec::new(), ..options.clone() };
        let nodes: Vec<(&str, NodeOptions)> =
            nodes.iter().map(|(name, options)| (*name, without_disks(options))).collect();
        let nodes = cluster.add_nodes(&nodes)?;
        save(&cluster, &nodes, folder)
    })
}

fn save(cluster: &ControlPlane, nodes: &[Arc<Node>], to: &Path) -> Result<()> {
    // First those that would see the others go; with the API server no guest keeps a connection open.
    for process in ["kube-controller-manager", "kube-scheduler", "kube-apiserver"] {
        cluster.process(process)?.kill()?;
    }
    std::thread::sleep(Duration::from_millis(300));
    nodes.iter().try_for_each(|node| node.save(to))?;
    cluster.process("etcd")?.kill()?;
    for tree in FOLDERS {
        Run::new("cp").arg("-a").arg(cluster.folder().join(tree)).arg(to.join(tree)).check()?;
    }
    FILES.iter().try_for_each(|file| copy(&cluster.folder().join(file), &to.join(file)))?;
    let size = |node: &Arc<Node>| fs::metadata(to.join(node.name()).join("memory")).map(|data| data.len() >> 20);
    let sizes: Vec<u64> = nodes.iter().filter_map(|node| size(node).ok()).collect();
    say(format!("  saved {} machines of {sizes:?} MiB", nodes.len()));
    Ok(())
}

/// The Node object says Ready since before it was saved: what counts is that kubelet answers, and talks to the API
/// server again.
fn wait_for_kubelet(cluster: &ControlPlane, name: &str) -> Result<()> {
    let health = format!("/api/v1/nodes/{name}/proxy/healthz");
    let answers = || Ok::<_, Error>(cluster.try_kubectl(["get", "--raw", &health])?.status.success().then_some(()));
    wait_until(BACK, Duration::from_millis(200), answers)
        .context(|| format!("waiting for {name}'s kubelet"))?
        .ok_or_else(|| Error::unexpected(name, "its kubelet does not answer after it was restored"))
}
