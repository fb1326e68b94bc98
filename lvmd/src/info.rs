//! What this node has and what it lacks, a sentence each. lvmd runs without them and says so.

use std::{fs, path::Path, time::Duration};

use crate::{
    lvm::config::{has_rules, has_udev, is_host_ipc},
    mount::table::Table,
    run::{Argv, Run},
};

/// Programs that lvmd starts; all are part of its image.
const PROGRAMS: [&str; 9] = [
    "/usr/sbin/lvm",
    "/usr/bin/lsblk",
    "/usr/sbin/wipefs",
    "/usr/sbin/mkfs.xfs",
    "/usr/sbin/mkfs.ext4",
    "/usr/sbin/e2fsck",
    "/usr/sbin/resize2fs",
    "/usr/sbin/xfs_growfs",
    "/usr/sbin/dmsetup",
];

/// openat2, fsopen and move_mount are there since Linux 5.6.
const KERNEL: (u32, u32) = (5, 6);

/// Makes the kernel load device-mapper's targets, as far as it has them. Without modprobe in the image, asking for a
/// target's version is what loads it.
pub async fn load_targets(run: &impl Run) {
    for target in ["linear", "striped"] {
        let argv = Argv::new("/usr/sbin/dmsetup").arg("target-version").arg(target);
        match tokio::time::timeout(Duration::from_secs(20), run.run(argv)).await {
            Ok(Ok(_)) => {}
            Ok(Err(err)) => tracing::warn!(error = runtime::chain(&err), target, "a device-mapper target is missing"),
            Err(_) => tracing::warn!(target, "asking for a device-mapper target did not end"),
        }
    }
}

pub fn missing(kubelet_root: &Path) -> Vec<String> {
    let mut all = PROGRAMS
        .iter()
        .filter(|program| !Path::new(program).exists())
        .map(|program| {
            format!("the program {program} is missing: it is part of lvmd's image, look at the image that runs")
        })
        .collect::<Vec<_>>();
    if !has_device_mapper() {
        all.push(
            "the kernel has no device-mapper: load the module dm_mod, for example with a file in /etc/modules-load.d on the node"
                .to_owned(),
        );
    }
    if !is_host_ipc() {
        all.push(
            "lvmd is not in the host's IPC namespace: set hostIPC on its pod; until then LVM does not wait for udev"
                .to_owned(),
        );
    }
    match (has_udev(), has_rules()) {
        (false, _) => all.push(
            "/run/udev/control is not there: mount the host's /run/udev into lvmd's container, or start udev on the node; until then devices have no stable paths"
                .to_owned(),
        ),
        // Hosts without LVM's packages are served: LVM makes its nodes itself.
        (true, false) => tracing::debug!("the host's udev has no device-mapper rules"),
        (true, true) => {}
    }
    all.extend(Table::read().map(|table| mounts(&table, kubelet_root)).unwrap_or_default());
    if let Some(kernel) = too_old(&kernel()) {
        all.push(format!(
            "the kernel {kernel} is too old to mount volumes: Linux {}.{} or newer is needed",
            KERNEL.0, KERNEL.1
        ));
    }
    all
}

fn mounts(table: &Table, kubelet_root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    if table.under(Path::new("/dev")).is_none_or(|mount| mount.kind != "devtmpfs") {
        all.push("/dev is not the host's: mount the host's /dev into lvmd's container; until then disks and volumes have no device nodes".to_owned());
    }
    if table.under(kubelet_root).is_none_or(|mount| !mount.shared) {
        all.push(format!(
            "what is mounted below {0} is not handed on to the host: mount the host's {0} at the same path with mountPropagation Bidirectional; until then pods do not see their volumes",
            kubelet_root.display()
        ));
    }
    all
}

fn has_device_mapper() -> bool {
    // /dev/mapper/control is there once the module is, and the module is loaded when it is opened.
    let devices = fs::read_to_string("/proc/devices").unwrap_or_default();
    devices.lines().any(|line| line.trim().ends_with(" device-mapper"))
}

fn too_old(release: &str) -> Option<&str> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    (version < KERNEL).then_some(release)
}

pub fn kernel() -> String {
    line("/proc/sys/kernel/osrelease")
}

pub fn boot_id() -> String {
    line("/proc/sys/kernel/random/boot_id")
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// `2.03.16(2) (2022-05-18)`, from `lvm version`.
pub async fn lvm_version(run: &impl Run) -> Option<String> {
    let answer = run.run(Argv::new("/usr/sbin/lvm").arg("version")).await;
    let answer = answer.map(|output| output.stdout).unwrap_or_default();
    let version = answer.lines().find_map(|line| line.trim().strip_prefix("LVM version:"));
    version.map(|version| version.trim().to_owned()).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_pods_would_not_see_are_told() {
        let root = Path::new("/var/lib/kubelet");
        let table = |text: &str| Table::parse(text.as_bytes()).unwrap();
        let good = "1 0 0:6 / /dev rw - devtmpfs udev rw\n2 0 8:1 / /var/lib/kubelet rw shared:1 - ext4 /dev/sda1 rw\n";
        assert!(mounts(&table(good), root).is_empty());
        assert_eq!(mounts(&table(&good.replace("devtmpfs", "tmpfs")), root).len(), 1);
        assert_eq!(mounts(&table(&good.replace(" shared:1", "")), root).len(), 1);
    }

    #[test]
    fn old_kernels_are_told_from_new_ones() {
        assert!(too_old("4.18.0-553.el8_10.x86_64").is_some());
        assert!(too_old("5.4.0-200-generic").is_some());
        assert!(too_old("5.6.0").is_none());
        assert!(too_old("6.12.57+deb13-cloud-amd64").is_none());
        assert!(too_old("odd").is_none());
    }
}
