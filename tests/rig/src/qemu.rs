//! QEMU's command line, and which accelerator to ask for.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    cache,
    disk::{Disk, raw_backend},
    error::{Context, Error, Result},
    guest_image::GuestImage,
    progress::say,
    run::Run,
};

/// PCI slots for disks that are there at boot or plugged in later.
pub(crate) const SLOTS: usize = 10;
pub(crate) const AGENT_SOCKET: &str = "agent";
pub(crate) const SHELL_SOCKET: &str = "shell";
pub(crate) const QMP_SOCKET: &str = "qmp";
pub(crate) const CONSOLE: &str = "console";

/// Everything about a machine that its command line depends on; kept in its folder, so that another program can start it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub name: String,
    pub memory_mib: u32,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub root: PathBuf,
    /// Read-only: serial and file.
    pub read_only: Vec<(String, PathBuf)>,
    /// What a node keeps over a restart, in qcow2.
    pub state: Option<PathBuf>,
    pub disks: Vec<Plugged>,
    pub network: Option<Network>,
}

/// A disk and the slot it sits in, if it needs one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plugged {
    pub disk: Disk,
    pub slot: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network {
    /// `ip netns` name.
    pub namespace: String,
    pub tap: String,
    pub mac: String,
}

impl Machine {
    pub fn new(name: &str, memory_mib: u32, image: &GuestImage) -> Self {
        Self {
            name: name.to_owned(),
            memory_mib,
            kernel: image.kernel(),
            initramfs: image.initramfs(),
            root: image.root(),
            read_only: Vec::new(),
            state: None,
            disks: Vec::new(),
            network: None,
        }
    }

    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).map_err(|err| Error::unexpected(path.display().to_string(), err))
    }

    pub fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.disks.iter().all(|plugged| plugged.slot != Some(*slot)))
    }

    /// QEMU's arguments, without its own name.
    pub fn arguments(&self, folder: &Path, accelerator: Accelerator) -> Vec<String> {
        let file = |name: &str| folder.join(name).display().to_string();
        let mut args: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35"]);
        add(&["-name", &self.name]);
        match accelerator {
            Accelerator::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
            // A smaller buffer of translated code is emptied by a node with a few pods.
            Accelerator::Emulation => add(&["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max"]),
        }
        // One processor: with two, a race in multi-threaded emulation was seen.
        add(&["-smp", "1", "-m", &format!("{}M", self.memory_mib)]);
        add(&["-kernel", &self.kernel.display().to_string(), "-initrd", &self.initramfs.display().to_string()]);
        add(&["-append", &self.kernel_line()]);
        add(&["-serial", &format!("file:{}", file(CONSOLE))]);
        add(&["-qmp", &format!("unix:{},server=on,wait=off", file(QMP_SOCKET))]);
        add(&["-device", "virtio-serial-pci"]);
        for port in [AGENT_SOCKET, SHELL_SOCKET] {
            add(&["-chardev", &format!("socket,id={port},path={},server=on,wait=off", file(port))]);
            add(&["-device", &format!("virtserialport,chardev={port},name=rig.{port}")]);
        }
        add(&["-device", "virtio-rng-pci", "-device", "virtio-scsi-pci,id=scsi"]);

        let read_only = [("rigroot".to_owned(), self.root.clone())].into_iter().chain(self.read_only.iter().cloned());
        for (serial, path) in read_only {
            let backend = json!({ "driver": "raw", "node-name": serial, "read-only": true,
                "file": { "driver": "file", "filename": path, "read-only": true, "locking": "off" } });
            add(&["-blockdev", &backend.to_string()]);
            add(&["-device", &json!({ "driver": "virtio-blk-pci", "drive": serial, "serial": serial }).to_string()]);
        }
        if let Some(path) = &self.state {
            let mut backend = raw_backend("rigstate", path);
            backend["driver"] = json!("qcow2");
            add(&["-blockdev", &backend.to_string()]);
            let device = json!({ "driver": "virtio-blk-pci", "drive": "rigstate", "serial": "rigstate" });
            add(&["-device", &device.to_string()]);
        }
        for slot in 0..SLOTS {
            add(&["-device", &format!("pcie-root-port,id={},chassis={}", slot_name(slot), slot + 1)]);
        }
        for Plugged { disk, slot } in &self.disks {
            let path = folder.join(disk_file(&disk.id));
            add(&["-blockdev", &disk.backend(&path).to_string()]);
            let device: Value = disk.device(&slot.map(slot_name).unwrap_or_default());
            add(&["-device", &device.to_string()]);
        }
        if let Some(Network { tap, mac, .. }) = &self.network {
            add(&["-netdev", &format!("tap,id=net,ifname={tap},script=no,downscript=no")]);
            add(&["-device", &format!("virtio-net-pci,id=nic,netdev=net,romfile=,mac={mac}")]);
        }
        args
    }

    fn kernel_line(&self) -> String {
        // `norandmaps`: translated code is used again by the next process only if it lies at the same address;
        // everything that starts processes is two to four times as fast.
        let mut line = "console=ttyS0 quiet panic=-1 reboot=t mitigations=off tsc=reliable no_timer_check nokaslr \
            nowatchdog random.trust_cpu=on net.ifnames=0 norandmaps"
            .to_owned();
        line += &format!(" rig.name={}", self.name);
        let scsi = self.disks.iter().any(|plugged| !plugged.disk.needs_slot());
        let nvme = self.disks.iter().any(|plugged| plugged.disk.bus == crate::disk::Bus::Nvme);
        let modules: Vec<&str> =
            [scsi.then_some("virtio_scsi,sd_mod"), nvme.then_some("nvme")].into_iter().flatten().collect();
        if !modules.is_empty() {
            line += &format!(" rig.modules={}", modules.join(","));
        }
        line
    }
}

pub(crate) fn slot_name(slot: usize) -> String {
    format!("slot{slot}")
}

/// The file of a disk, in its machine's folder.
pub(crate) fn disk_file(id: &str) -> String {
    format!("{id}.disk")
}

/// How a guest's code is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    Emulation,
}

/// KVM where a guest really boots with it: on some hosts the device is there, and a guest hangs.
pub fn accelerator(kernel: &Path) -> Accelerator {
    static FOUND: OnceLock<Accelerator> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let capable = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
        if !capable || !Path::new("/dev/kvm").exists() {
            return Accelerator::Emulation;
        }
        // A host's answer holds until it is started again.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let note = cache::folder().join("accelerator");
        let known = fs::read_to_string(&note).unwrap_or_default();
        let works = match known.strip_prefix(&boot) {
            Some(answer) => answer == "kvm",
            None => trial_boot(kernel),
        };
        let _ = fs::write(&note, boot + if works { "kvm" } else { "tcg" });
        say(if works { "KVM works here" } else { "KVM does not work here: guests are emulated" });
        if works { Accelerator::Kvm } else { Accelerator::Emulation }
    })
}

/// Without a root the kernel ends in a panic; that it comes so far is the proof.
fn trial_boot(kernel: &Path) -> bool {
    let output = Run::new("timeout")
        .args(["5", "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-M", "q35", "-accel", "kvm", "-cpu", "host", "-m", "256", "-serial", "stdio", "-kernel"])
        .arg(kernel)
        .args(["-append", "console=ttyS0 panic=-1 reboot=t"])
        .output();
    output.is_ok_and(|output| output.stdout.contains("Kernel panic"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Bus, GIB, Rotation};

    fn machine() -> Machine {
        Machine {
            name: "n1".to_owned(),
            memory_mib: 512,
            kernel: "/k".into(),
            initramfs: "/i".into(),
            root: "/r".into(),
            read_only: vec![("rignode".to_owned(), "/n".into())],
            state: Some("/s".into()),
            disks: Vec::new(),
            network: None,
        }
    }

    fn after<'a>(args: &'a [String], flag: &str) -> Vec<&'a str> {
        args.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn the_rigs_own_disks_are_told_by_their_serial() {
        let args = machine().arguments(Path::new("/run"), Accelerator::Emulation);
        let devices = after(&args, "-device").join(" ");
        for serial in ["rigroot", "rignode", "rigstate"] {
            assert!(devices.contains(&format!("\"serial\":\"{serial}\"")), "{devices}");
        }
        assert!(after(&args, "-blockdev").iter().any(|backend| backend.contains("qcow2")));
        assert!(after(&args, "-netdev").is_empty());
    }

    #[test]
    fn every_disk_has_a_slot_of_its_own() {
        let mut machine = machine();
        for id in ["a", "b"] {
            let slot = machine.free_slot();
            machine.disks.push(Plugged { disk: Disk::blank(id, GIB), slot });
        }
        let scsi = Disk::blank("c", GIB).on(Bus::Scsi { wwn: None, rotation: Rotation::Ssd });
        machine.disks.push(Plugged { disk: scsi, slot: None });
        assert_eq!(machine.free_slot(), Some(2));
        machine.disks.remove(0);
        assert_eq!(machine.free_slot(), Some(0));
        let args = machine.arguments(Path::new("/run"), Accelerator::Kvm);
        assert!(after(&args, "-append")[0].contains("rig.modules=virtio_scsi,sd_mod"));
        assert!(after(&args, "-device").iter().any(|device| device.contains("\"bus\":\"slot1\"")));
        assert_eq!(after(&args, "-accel"), ["kvm"]);
    }
}
