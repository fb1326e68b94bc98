//! A Kubernetes node: a machine with containerd and kubelet, joined to a control plane.

mod state_disk;

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    sync::PoisonError,
    time::Duration,
};

use serde_json::json;

use crate::{
    cache::Inputs,
    control_plane::{ControlPlane, Timing},
    disk::Disk,
    error::{Context, Error, Result, Tail},
    guest::Guest,
    guest_image::{GuestImage, NodePrograms},
    image::StowageImage,
    network::{self, HOST, Place},
    parts::Parts,
    pki::Pki,
    progress::say,
    qemu::{Machine, Network},
    run::Run,
};

/// With both processors busy, a node was seen to need a minute.
const READY: Duration = Duration::from_secs(240);
const START: &str = "sh /opt/rig/start.sh";
const SOCKET: &str = "/run/containerd/containerd.sock";

#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub memory_mib: u32,
    pub disks: Vec<Disk>,
    /// The node has it from the start.
    pub stowage: Option<StowageImage>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self { memory_mib: 768, disks: Vec::new(), stowage: None }
    }
}

/// The cached files that a node starts from.
pub(crate) struct NodeParts {
    image: GuestImage,
    programs: NodePrograms,
    state: PathBuf,
}

impl NodeParts {
    /// Changes whenever a node would be another.
    pub(crate) fn inputs(&self, timing: Timing) -> Inputs {
        let files = [self.programs.disk(), self.state.clone()].map(|path| path.display().to_string());
        let inputs = Inputs::default().text(&self.image.key()).text(&files.join("\n"));
        inputs.text(&kubelet_configuration(timing)).text(&pod_network(1))
    }

    pub(crate) fn ensure(parts: &Parts, stowage: Option<&StowageImage>) -> Result<Self> {
        let image = GuestImage::ensure()?;
        let state = state_disk::ensure(parts, &image, stowage)?;
        Ok(Self { programs: NodePrograms::ensure(parts)?, image, state })
    }
}

/// Everything that a [`Guest`] can do, and Kubernetes on it.
pub struct Node {
    guest: Guest,
    number: u8,
    timing: Timing,
    pki: Pki,
}

impl Deref for Node {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Node {
    pub(crate) fn join(cluster: &ControlPlane, name: &str, options: &NodeOptions) -> Result<Self> {
        let NodeParts { image, programs, state } = NodeParts::ensure(&cluster.parts, options.stowage.as_ref())?;
        let scope = &cluster.scope;
        let (guest, number) = {
            let _turn = cluster.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            let number =
                u8::try_from(scope.guests().len() + 1).map_err(|err| Error::unexpected("a node's number", err))?;
            let mut machine = Machine::new(name, options.memory_mib, &image);
            machine.read_only.push(("rignode".to_owned(), programs.disk()));
            let overlay = scope.folder().join(name).join("state.disk");
            machine.state = Some(overlay.clone());
            let Place { tap, mac, .. } = Place::of(number);
            machine.network = Some(Network { namespace: scope.network(), tap, mac });
            network::add_node(scope, number)?;
            let guest = Guest::make(scope, machine, &options.disks)?;
            let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
            Run::new("qemu-img").args(create).arg(&state).arg(&overlay).check()?;
            (guest, number)
        };
        cluster.pki.certificate(
            name,
            &format!("/O=system:nodes/CN=system:node:{name}"),
            &alternatives(name, number),
        )?;
        let node = Self { guest, number, timing: cluster.timing, pki: cluster.pki.clone() };
        node.guest.power_on()?;
        node.come_up()?;
        node.wait_ready(cluster)?;
        Ok(node)
    }

    /// A node of a saved cluster, standing still.
    pub(crate) fn saved(cluster: &ControlPlane, name: &str, from: &Path) -> Result<Self> {
        let guest = Guest::saved(&cluster.scope, name, from)?;
        let number = guest.number().ok_or_else(|| Error::unexpected(name, "it has no network"))?;
        network::add_node(&cluster.scope, number)?;
        guest.load(from)?;
        Ok(Self { guest, number, timing: cluster.timing, pki: cluster.pki.clone() })
    }

    pub(crate) fn attach(cluster: &ControlPlane, name: &str) -> Result<Self> {
        let guest = Guest::attach(&cluster.scope, name)?;
        let number = guest.number().ok_or_else(|| Error::unexpected(name, "it has no network"))?;
        Ok(Self { guest, number, timing: cluster.timing, pki: cluster.pki.clone() })
    }

    /// Builds and caches all that a node starts from, so that the time is not spent when one is added.
    pub fn prepare(stowage: Option<&StowageImage>) -> Result<()> {
        NodeParts::ensure(&Parts::ensure()?, stowage).map(drop)
    }

    /// Starts a node that was cut off; its Node object comes back by itself.
    pub fn start_again(&self) -> Result<()> {
        self.guest.power_cut()?;
        self.guest.power_on()?;
        self.come_up()
    }

    /// Waits until the Node is Ready; an error shows kubelet's last lines.
    pub fn wait_ready(&self, cluster: &ControlPlane) -> Result<()> {
        let node = format!("node/{}", self.name());
        let timeout = format!("--timeout={}s", READY.as_secs());
        // A Node that was Ready before a power cut stays so for a while: what counts is said since this boot.
        let boot = self.sh("cat /proc/sys/kernel/random/boot_id")?;
        let boot = format!("--for=jsonpath={{.status.nodeInfo.bootID}}={}", boot.trim());
        for condition in ["--for=create", &boot, "--for=condition=Ready"] {
            let wait = cluster.try_kubectl(["wait", condition, &node, &timeout])?;
            if !wait.status.success() {
                let tail = Tail(vec![
                    ("kubectl".to_owned(), wait.stderr),
                    ("kubelet".to_owned(), self.log_tail("kubelet")),
                    ("containerd".to_owned(), self.log_tail("containerd")),
                    ("console".to_owned(), self.console_tail()),
                ]);
                let what = format!("{node} to be Ready ({condition})");
                return Err(Error::TimedOut { what, seconds: READY.as_secs(), tail });
            }
        }
        say(format!("{} is Ready", self.name()));
        Ok(())
    }

    /// Loads an image archive into the node's containerd.
    pub fn load_image(&self, archive: impl AsRef<[u8]>) -> Result<()> {
        let path = "/var/lib/rig/image.tar";
        self.push(path, archive)?;
        self.wait_for_containerd()?;
        self.sh(&format!("/opt/rig/bin/ctr -n k8s.io images import --local {path} && rm {path}"))?;
        Ok(())
    }

    /// Loads Stowage's image; only its programs are sent.
    pub fn load_stowage(&self, image: &StowageImage) -> Result<()> {
        let bytes = fs::read(&image.update).context(|| format!("reading {}", image.update.display()))?;
        self.load_image(bytes)?;
        say(format!("{} has Stowage's image", self.name()));
        Ok(())
    }

    fn wait_for_containerd(&self) -> Result<()> {
        let script = format!(
            "for try in $(seq 1200); do [ -S {SOCKET} ] && exit; sleep 0.05; done; tail -n 25 /var/log/containerd.log; exit 1"
        );
        self.sh(&script).map(drop).context(|| format!("waiting for containerd on {}", self.name()))
    }

    /// From power on to kubelet's start.
    fn come_up(&self) -> Result<()> {
        self.guest.wait()?;
        say(format!("{} has booted", self.name()));
        for (path, bytes) in self.files()? {
            self.push(path, bytes)?;
        }
        let Place { address, .. } = Place::of(self.number);
        let mount = "mkdir -p /opt/rig && mount -t erofs -o ro /dev/disk/by-id/virtio-rignode /opt/rig";
        self.sh(&format!("{mount} && NODE={} IP={address} GATEWAY={HOST} {START}", self.name()))?;
        Ok(())
    }

    fn files(&self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let name = self.name();
        let id = Inputs::default().text(name).key();
        Ok(vec![
            ("/etc/machine-id", format!("{id}{id}\n").into_bytes()),
            ("/etc/kubernetes/ca.crt", self.pki.read("ca", "crt")?),
            ("/etc/kubernetes/kubelet.crt", self.pki.read(name, "crt")?),
            ("/etc/kubernetes/kubelet.key", self.pki.read(name, "key")?),
            ("/etc/kubernetes/kubelet.conf", self.pki.kubeconfig(&format!("https://{HOST}"), name)?.into_bytes()),
            ("/etc/kubernetes/kubelet.json", kubelet_configuration(self.timing).into_bytes()),
            ("/etc/cni/net.d/10-rig.conflist", pod_network(self.number).into_bytes()),
        ])
    }
}

fn alternatives(name: &str, number: u8) -> String {
    format!("DNS:{name},IP:{}", Place::of(number).address)
}

fn kubelet_configuration(timing: Timing) -> String {
    let (lease, status) = match timing {
        Timing::Default => (40, "10s"),
        Timing::Fast => (4, "2s"),
    };
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": false,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": false },
            "x509": { "clientCAFile": "/etc/kubernetes/ca.crt" },
        },
        "authorization": { "mode": "AlwaysAllow" },
        "tlsCertFile": "/etc/kubernetes/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
        "readOnlyPort": 0,
        "healthzPort": 0,
        "resolvConf": "",
        "makeIPTablesUtilChains": false,
        // Images come from nowhere: one that is removed can't be had again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
        },
        "serializeImagePulls": false,
        "nodeLeaseDurationSeconds": lease,
        "nodeStatusUpdateFrequency": status,
        // A mounted filesystem grows when kubelet next looks at its pod: by default that is up to 90 s later.
        "syncFrequency": "15s",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "localStorageCapacityIsolation": false,
        "volumeStatsAggPeriod": "10s",
        "enableProfilingHandler": false,
        "maxPods": 30,
    })
    .to_string()
}

fn pod_network(number: u8) -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": "rig",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/rig-pod-addresses",
                "ranges": [[{ "subnet": Place::of(number).pods }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
    .to_string()
}
