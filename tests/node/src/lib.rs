//! A machine with disks and `lvmd` on it, and questions to both.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, bail};
use crds::{
    device_class::{DeviceClassSpec, DeviceTerm, DeviceType, Devices},
    node_storage::{AssignedClass, NodeStorageSpec},
};
use rig::{
    disk::Disk,
    guest::{Guest, GuestOptions},
};
use serde_json::{Value, json};

pub const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
pub const CLASS: &str = "standard";
const SOCKET: &str = "/run/stowage/lvmd.sock";
const KUBELET_ROOT: &str = "/var/lib/kubelet";

pub struct Machine {
    pub guest: Guest,
}

impl Machine {
    /// Boots a machine with these disks and starts lvmd on it.
    pub fn boot(name: &str, disks: Vec<Disk>) -> anyhow::Result<Self> {
        // Tests of one program may run side by side.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let guest = Guest::boot(&name, GuestOptions { disks, ..GuestOptions::default() })?;
        let machine = Self { guest };
        machine.start_lvmd()?;
        Ok(machine)
    }

    /// Puts lvmd on the machine and starts it, as after a reboot.
    pub fn start_lvmd(&self) -> anyhow::Result<()> {
        for program in ["lvmd", "lvmd-call"] {
            let path = programs().join(program);
            let bytes = std::fs::read(&path).with_context(|| {
                format!("reading {}: build it with cargo build -p lvmd -p node-tests", path.display())
            })?;
            self.guest.push(&format!("/run/{program}"), bytes)?;
        }
        self.guest.sh(&format!(
            "mkdir -p /run/stowage {KUBELET_ROOT} /var/lib/stowage && \
             {{ mountpoint -q {KUBELET_ROOT} || mount -t tmpfs kubelet {KUBELET_ROOT}; }} && \
             chmod 755 /run/lvmd /run/lvmd-call && rm -f {SOCKET} && \
             (setsid /run/lvmd --socket {SOCKET} --kubelet-root {KUBELET_ROOT} --state /var/lib/stowage \
              --log-level debug > /run/lvmd.log 2>&1 < /dev/null & echo $! > /run/lvmd.pid) && \
             for i in $(seq 200); do [ -S {SOCKET} ] && exit 0; sleep 0.05; done; cat /run/lvmd.log >&2; exit 1"
        ))?;
        Ok(())
    }

    /// Ends lvmd as the kernel would when it runs out of memory.
    pub fn kill_lvmd(&self) -> anyhow::Result<()> {
        self.guest.sh("p=$(cat /run/lvmd.pid); kill -9 $p; while [ -d /proc/$p ]; do sleep 0.02; done")?;
        Ok(())
    }

    pub fn sh(&self, line: &str) -> anyhow::Result<String> {
        Ok(self.guest.sh(line)?)
    }

    pub fn ask(&self, method: &str, question: &Value) -> anyhow::Result<Value> {
        let quoted = question.to_string().replace('\'', r"'\''");
        let said = self.guest.try_sh(&format!("/run/lvmd-call {SOCKET} {method} '{quoted}'"))?;
        if said.code != 0 {
            bail!("{}", said.err.trim());
        }
        serde_json::from_str(&said.out).with_context(|| format!("{method} answered {:?}", said.out))
    }

    /// What lvmd says of a refusal: `CODE: message`.
    pub fn refusal(&self, method: &str, question: &Value) -> anyhow::Result<String> {
        match self.ask(method, question) {
            Ok(answer) => bail!("{method} was to be refused and answered {answer}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }

    /// Plans and carries out until nothing is left to do; the last report.
    pub fn settle(&self, wanted: &NodeStorageSpec) -> anyhow::Result<Value> {
        for _ in 0..8 {
            let report = self.ask("plan", &json!({"wanted": wanted}))?;
            if report["plan"].is_null() {
                return Ok(report);
            }
            self.ask("apply", &json!({"wanted": wanted, "hash": report["plan"]["hash"]}))?;
        }
        bail!("there is still something to do after eight runs");
    }
}

/// A question about a volume of the class, with more fields.
pub fn volume(name: &str, more: Value) -> Value {
    let mut question = json!({"name": name, "cluster": CLUSTER, "class": CLASS});
    if let (Some(question), Value::Object(more)) = (question.as_object_mut(), more) {
        question.extend(more);
    }
    question
}

/// One class that takes every blank disk.
pub fn every_blank_disk() -> NodeStorageSpec {
    let term = DeviceTerm { types: Some(vec![DeviceType::Disk]), ..DeviceTerm::default() };
    let spec = DeviceClassSpec {
        devices: Devices { include: vec![term], ..Devices::default() },
        ..DeviceClassSpec::default()
    };
    NodeStorageSpec {
        node_name: "node".into(),
        node_uid: "uid".into(),
        cluster_id: CLUSTER.into(),
        classes: vec![AssignedClass { name: CLASS.into(), generation: 1, spec }],
        ..NodeStorageSpec::default()
    }
}

pub fn staging(name: &str) -> String {
    format!("{KUBELET_ROOT}/plugins/kubernetes.io/csi/csi.stowage.dev/{name}/globalmount")
}

pub fn target(name: &str, pod: &str) -> String {
    format!("{KUBELET_ROOT}/pods/{pod}/volumes/kubernetes.io~csi/{name}/mount")
}

pub fn block_staging(name: &str) -> String {
    format!("{KUBELET_ROOT}/plugins/kubernetes.io/csi/volumeDevices/staging/{name}")
}

pub fn block_target(name: &str, pod: &str) -> String {
    format!("{KUBELET_ROOT}/plugins/kubernetes.io/csi/volumeDevices/publish/{name}/{pod}")
}

/// The folder that this test's own program was built into.
fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).map(PathBuf::from).unwrap_or_default()
}
