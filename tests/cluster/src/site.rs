//! A cluster with Stowage on it: nodes with disks, what is installed, and the
//! questions that tests ask of both.

pub mod measure;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use crds::names;
use rig::{
    control_plane::{ControlPlane, Options, Timing},
    disk::{Content, Disk, GIB, MIB},
    guest::Link,
    image::StowageImage,
    node::NodeOptions,
    run::Run,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    api::{Api, wait_for},
    main_job::PATIENCE,
};

/// Serial numbers of the disks that are blank when a node starts.
pub const BLANK_DISKS: [&str; 2] = ["blank-a", "blank-b"];
/// Serial number of the disk with an ext4 filesystem and a file on it.
pub const DATA_DISK: &str = "files";
/// The group that the samples' class makes.
pub const GROUP: &str = "stowage-standard";

pub struct Site {
    cluster: ControlPlane,
    api: Api,
    image: StowageImage,
    root: PathBuf,
    /// By node: the checksum of its data disk before it was plugged in.
    checksums: BTreeMap<String, String>,
}

impl Site {
    /// A control plane without nodes.
    pub fn start(name: &str) -> anyhow::Result<Self> {
        // Debug builds are linked sooner than release builds: PROGRAMS=target/debug while working on them.
        let image = match std::env::var_os("PROGRAMS") {
            Some(folder) => StowageImage::of(Path::new(&folder))?,
            None => StowageImage::ensure()?,
        };
        let cluster = ControlPlane::start(name, Options { timing: Timing::Fast, ..Options::default() })?;
        let api = Api::connect(&cluster.kubeconfig_path())?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
        Ok(Self { cluster, api, image, root, checksums: BTreeMap::new() })
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Lets the cluster run on when this is gone, and says how to reach it.
    pub fn leave_running(self) -> anyhow::Result<PathBuf> {
        self.cluster.keep()?;
        Ok(self.cluster.kubeconfig_path())
    }

    /// Starts machines with two blank disks and one with files each, and waits until all are Ready.
    pub fn add_nodes(&mut self, nodes: &[&str]) -> anyhow::Result<()> {
        let mut options = Vec::new();
        for node in nodes {
            let files = self.cluster.folder().join(format!("{node}-{DATA_DISK}.img"));
            make_ext4(&files)?;
            let mut disks: Vec<Disk> = BLANK_DISKS.iter().map(|serial| Disk::blank(*serial, GIB)).collect();
            disks.push(Disk::blank(DATA_DISK, DATA_SIZE).with(Content::File(files.clone())));
            self.checksums.insert((*node).to_owned(), checksum(&files)?);
            options.push((*node, NodeOptions { disks, stowage: Some(self.image.clone()), ..NodeOptions::default() }));
        }
        self.cluster.add_nodes(&options)?;
        Ok(())
    }

    /// Every node that was ever started here.
    pub fn nodes(&self) -> Vec<String> {
        self.checksums.keys().cloned().collect()
    }

    /// The nodes that have a Node object.
    pub fn nodes_in_cluster(&self) -> anyhow::Result<Vec<String>> {
        let nodes = self.api.list("/api/v1/nodes")?;
        Ok(nodes.iter().filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned)).collect())
    }

    pub fn power_off(&self, node: &str) -> anyhow::Result<()> {
        Ok(self.cluster.node(node)?.power_cut()?)
    }

    pub fn cut_link(&self, node: &str) -> anyhow::Result<()> {
        Ok(self.cluster.node(node)?.link(Link::Down)?)
    }

    /// Definitions, permissions and the operator, as a person installs them.
    pub fn install(&self) -> anyhow::Result<()> {
        self.kubectl(&["apply", "-k", &self.path("config/default")])?;
        wait_for("the operator runs", PATIENCE, || {
            let path = "/apis/apps/v1/namespaces/stowage-system/deployments/stowage-operator";
            let deployment = self.api.get(path)?.unwrap_or_default();
            Ok((deployment["status"]["availableReplicas"].as_i64() == Some(1)).then_some(()))
        })
    }

    pub fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        Ok(self.cluster.kubectl(args.iter().copied())?)
    }

    pub fn apply(&self, manifest: &str) -> anyhow::Result<String> {
        Ok(self.cluster.kubectl_with(manifest, ["apply", "-f", "-"])?)
    }

    /// A file of the repository.
    pub fn apply_file(&self, file: &str) -> anyhow::Result<String> {
        self.kubectl(&["apply", "-f", &self.path(file)])
    }

    /// Where a file of the repository is.
    pub fn file(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    fn path(&self, inside: &str) -> String {
        self.file(inside).to_string_lossy().into_owned()
    }

    /// A shell line on the machine itself, past Kubernetes.
    pub fn node_sh(&self, node: &str, line: &str) -> anyhow::Result<String> {
        Ok(self.cluster.node(node)?.sh(line)?)
    }

    /// A shell line in a pod of the namespace `default`. The connection to kubelet may break while nodes come and go.
    pub fn exec(&self, pod: &str, line: &str) -> anyhow::Result<String> {
        self.kubectl(&["exec", pod, "--", "/bin/sh", "-c", line])
    }

    /// Waits until the pod runs and is not the one with the UID `not`; its UID.
    pub fn wait_pod_running(&self, pod: &str, not: &str) -> anyhow::Result<String> {
        wait_for(&format!("the pod {pod} runs"), PATIENCE, || {
            let object = self.pod(pod)?.unwrap_or_default();
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let statuses = object["status"]["containerStatuses"].as_array();
            let ready = statuses.is_some_and(|all| all.iter().all(|container| container["ready"] == true));
            let runs = object["status"]["phase"] == "Running" && object["metadata"]["deletionTimestamp"].is_null();
            Ok((runs && ready && uid != not).then_some(uid))
        })
        .with_context(|| self.kubectl(&["describe", "pod", pod]).unwrap_or_default())
    }

    fn pod(&self, pod: &str) -> anyhow::Result<Option<Value>> {
        self.api.get(&format!("/api/v1/namespaces/default/pods/{pod}"))
    }

    pub fn pod_uid(&self, pod: &str) -> anyhow::Result<String> {
        let object = self.pod(pod)?.with_context(|| format!("there is no pod {pod}"))?;
        Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    }

    pub fn node_of_pod(&self, pod: &str) -> anyhow::Result<String> {
        let object = self.pod(pod)?.with_context(|| format!("there is no pod {pod}"))?;
        object["spec"]["nodeName"].as_str().map(str::to_owned).with_context(|| format!("{pod} is on no node"))
    }

    pub fn claim(&self, name: &str) -> anyhow::Result<Option<Value>> {
        self.api.get(&format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}"))
    }

    pub fn node_storage(&self, node: &str) -> anyhow::Result<Value> {
        Ok(self.api.get(&format!("/apis/stowage.dev/v1alpha1/nodestorages/{node}"))?.unwrap_or_default())
    }

    /// What is published as free for the samples' StorageClass on a node, in bytes.
    pub fn capacity_of(&self, node: &str) -> anyhow::Result<Option<u64>> {
        let all = self.api.list("/apis/storage.k8s.io/v1/namespaces/stowage-system/csistoragecapacities")?;
        let segment = names::topology_value(node);
        let of_node = all.iter().find(|object| {
            object["nodeTopology"]["matchLabels"][names::TOPOLOGY_NODE] == segment.as_str()
                && object["storageClassName"] == "stowage-standard"
        });
        let Some(text) = of_node.and_then(|object| object["capacity"].as_str()) else { return Ok(None) };
        Ok(Some(crds::quantity::parse(text)?))
    }

    /// What LVM on the node says is free in the group, in bytes.
    pub fn free_in_group(&self, node: &str) -> anyhow::Result<u64> {
        let said = self.node_sh(node, &format!("vgs --noheadings --units b --nosuffix -o vg_free {GROUP}"))?;
        said.trim().parse().with_context(|| format!("vgs on {node} said {said:?}"))
    }

    pub fn data_disk_is_untouched(&self, node: &str) -> anyhow::Result<()> {
        let now = checksum(&self.cluster.node(node)?.disk_file(DATA_DISK))?;
        ensure!(self.checksums.get(node) == Some(&now), "the disk with files on {node} is not what it was");
        Ok(())
    }

    /// Writes what every part said last into a folder, and says which. For the error of a test that failed.
    pub fn diagnose(&self) -> PathBuf {
        let folder =
            self.root.join("target/report/diagnosis").join(self.cluster.folder().file_name().unwrap_or_default());
        // What can not be asked any more is left out: the failure itself is reported already.
        let _ = std::fs::create_dir_all(&folder);
        let keep = |name: &str, text: String| {
            let _ = std::fs::write(folder.join(name), text);
        };
        let said = |result: anyhow::Result<String>| result.unwrap_or_else(|error| format!("{error:#}"));
        for kinds in ["pods,pvc,events", "nodes,pv,storageclasses,csinodes", "stowage"] {
            let text = said(self.kubectl(&["get", kinds, "-A", "-o", "wide"]));
            keep(&format!("{kinds}.txt"), text);
            keep(&format!("{kinds}.yaml"), said(self.kubectl(&["get", kinds, "-A", "-o", "yaml"])));
        }
        keep("capacities.yaml", said(self.kubectl(&["get", "csistoragecapacities", "-A", "-o", "yaml"])));
        for pod in self.api.list("/api/v1/namespaces/stowage-system/pods").unwrap_or_default() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            keep(&format!("{name}.describe"), said(self.kubectl(&["-n", "stowage-system", "describe", "pod", &name])));
            let logs = ["-n", "stowage-system", "logs", &name, "--all-containers", "--prefix", "--timestamps"];
            keep(&format!("{name}.log"), said(self.kubectl(&logs)));
            keep(&format!("{name}.previous.log"), said(self.kubectl(&[&logs[..], &["--previous"]].concat())));
        }
        for node in self.nodes() {
            let line = "dmesg | tail -50; vgs; lvs -a; lsblk; tail -200 /var/log/kubelet.log";
            keep(&format!("{node}.txt"), said(self.node_sh(&node, line)));
        }
        folder
    }
}

const DATA_SIZE: u64 = 64 * MIB;

/// A disk with an ext4 filesystem and a file on it, made without mounting anything.
fn make_ext4(disk: &Path) -> anyhow::Result<()> {
    let content = disk.with_extension("content");
    std::fs::create_dir_all(&content)?;
    std::fs::write(content.join("precious"), "the only copy\n".repeat(1000))?;
    std::fs::File::create(disk)?.set_len(DATA_SIZE)?;
    Run::new("mkfs.ext4").args(["-q", "-d"]).arg(&content).arg(disk).check()?;
    Ok(())
}

/// SHA-256 of the whole file.
fn checksum(file: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}
