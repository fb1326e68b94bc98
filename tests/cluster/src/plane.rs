//! A control plane with Stowage's own programs beside it, and nodes without
//! machines: what can be asked without a disk.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use crds::{names, quantity};
use rig::{
    control_plane::{ControlPlane, Options},
    run::Process,
};
use serde_json::Value;

use crate::{
    api::{Api, wait_for},
    fleet::Fleet,
    main_job::PATIENCE,
};

const VOLUMES: &str = "/apis/stowage.dev/v1alpha1/logicalvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/stowage-system/csistoragecapacities";

/// Runs a story on a plane of its own; its error has the last words of all programs.
pub fn on_a_plane(name: &str, story: impl FnOnce(&Plane) -> anyhow::Result<()>) {
    let plane = Plane::start(name).unwrap_or_else(|error| panic!("{error:#}"));
    if let Err(error) = story(&plane) {
        panic!("{error:#}\n{}", plane.last_words());
    }
}

pub struct Plane {
    // The fleet's thread ends before the API server that it asks.
    pub fleet: Fleet,
    pub api: Api,
    pub cluster: ControlPlane,
}

impl Plane {
    /// The definitions, permissions and accounts are installed; no program of Stowage runs.
    pub fn start(name: &str) -> anyhow::Result<Self> {
        let cluster = ControlPlane::start(name, Options::default())?;
        cluster.kubectl(["apply", "-k", &repository("config/default").to_string_lossy()])?;
        for kind in ["storageclusters", "deviceclasses", "nodestorages", "logicalvolumes"] {
            let crd = format!("crd/{kind}.stowage.dev");
            cluster.kubectl(["wait", "--for=condition=Established", &crd, "--timeout=60s"])?;
        }
        let kubeconfig = cluster.kubeconfig_path();
        Ok(Self { fleet: Fleet::start(&kubeconfig)?, api: Api::connect(&kubeconfig)?, cluster })
    }

    pub fn run_operator(&self) -> anyhow::Result<Process> {
        let kubeconfig = self.cluster.service_account_kubeconfig("stowage-system", "stowage-operator")?;
        let program = program("operator")?;
        let argv = [&*program, "--namespace=stowage-system", "--identity=test", "--health=127.0.0.1:9810"];
        Ok(self.cluster.spawn_in_net("operator", &argv, &[("KUBECONFIG", &kubeconfig.to_string_lossy())])?)
    }

    /// `driver controller` with the sidecars that stand beside it in its pod.
    pub fn run_controller(&self) -> anyhow::Result<()> {
        let kubeconfig = self.cluster.service_account_kubeconfig("stowage-system", "stowage-controller")?;
        let kubeconfig = kubeconfig.to_string_lossy();
        let socket = self.cluster.folder().join("csi.sock");
        let csi_socket = format!("--csi-socket={}", socket.display());
        let program = program("driver")?;
        let argv = [
            &*program,
            "controller",
            "--namespace=stowage-system",
            "--identity=test",
            &csi_socket,
            "--health=127.0.0.1:9809",
        ];
        self.cluster.spawn_in_net("driver-controller", &argv, &[("KUBECONFIG", &kubeconfig)])?;
        wait_for("driver controller leads and serves", PATIENCE, || Ok(socket.exists().then_some(())))?;
        let (address, kubeconfig) =
            (format!("--csi-address={}", socket.display()), format!("--kubeconfig={kubeconfig}"));
        let provisioner = self.cluster.program("csi-provisioner").to_string_lossy().into_owned();
        let argv = [
            &*provisioner,
            &address,
            &kubeconfig,
            "--strict-topology",
            "--extra-create-metadata",
            "--timeout=60s",
            "--retry-interval-max=30s",
            "--leader-election=false",
        ];
        self.cluster.spawn_in_net("csi-provisioner", &argv, &[])?;
        let resizer = self.cluster.program("csi-resizer").to_string_lossy().into_owned();
        let argv = [&*resizer, &address, &kubeconfig, "--timeout=60s", "--leader-election=false"];
        self.cluster.spawn_in_net("csi-resizer", &argv, &[])?;
        Ok(())
    }

    pub fn apply(&self, objects: &str) -> anyhow::Result<String> {
        Ok(self.cluster.kubectl_with(objects, ["apply", "-f", "-"])?)
    }

    /// The quickstart with other settings for lost nodes, and the same nodes as the fleet's.
    pub fn apply_quickstart(&self, node_loss: &str) -> anyhow::Result<()> {
        let sample = std::fs::read_to_string(repository("config/samples/quickstart.yaml"))?;
        self.apply(&sample.replace("spec: {}", &format!("spec: {{ nodeLoss: {node_loss} }}")))?;
        Ok(())
    }

    /// Waits until the claim, of the namespace `default`, is bound.
    pub fn bound(&self, claim: &str) -> anyhow::Result<Value> {
        wait_for(&format!("the claim {claim} is bound"), PATIENCE, || {
            let object = self.api.get(&format!("{CLAIMS}/{claim}"))?.unwrap_or_default();
            Ok((object["status"]["phase"] == "Bound").then_some(object))
        })
    }

    /// The LogicalVolume of a claim that is bound.
    pub fn volume_of(&self, claim: &Value) -> anyhow::Result<Value> {
        let name = claim["spec"]["volumeName"].as_str().context("the claim is not bound")?;
        self.api.get(&format!("{VOLUMES}/{name}"))?.with_context(|| format!("there is no LogicalVolume {name}"))
    }

    /// Published capacity by node, in bytes. Each object must say the largest volume too (D8).
    pub fn capacities(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let bytes = |object: &Value| {
            ensure!(object["maximumVolumeSize"].is_string(), "a capacity without maximumVolumeSize: {object}");
            let node = &object["nodeTopology"]["matchLabels"][names::TOPOLOGY_NODE];
            let capacity = quantity::parse(object["capacity"].as_str().unwrap_or_default())?;
            Ok((node.as_str().unwrap_or_default().to_owned(), i64::try_from(capacity)?))
        };
        self.api.list(CAPACITIES)?.iter().map(bytes).collect()
    }

    /// What the last lines of Stowage's own programs are, for the error of a test that failed.
    pub fn last_words(&self) -> String {
        let names = ["operator", "driver-controller", "csi-provisioner"];
        let logs = names.map(|name| {
            let log = self.cluster.folder().join(format!("logs/{name}.log"));
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("── {name}\n{}", lines[lines.len().saturating_sub(25)..].join("\n"))
        });
        logs.join("\n")
    }
}

/// A file of the repository.
pub fn repository(inside: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(inside)
}

/// One of Stowage's programs, from the folder that this test's own program was built into.
fn program(name: &str) -> anyhow::Result<String> {
    let own = std::env::current_exe()?;
    let path = own.ancestors().nth(2).map(|folder| folder.join(name)).filter(|path| path.exists());
    let path = path.with_context(|| format!("{name} is not built: cargo build -p {name}"))?;
    Ok(path.to_string_lossy().into_owned())
}
