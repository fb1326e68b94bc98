//! The devices that this node runs from. Their whole ancestry is untouchable.
//!
//! Found in three places: lvmd's own mount table (its hostPaths lead to the host's root, so the device of `/dev`'s
//! neighbours like `/var/lib/stowage` is the host's), the swap areas, and the partition types that firmware boots
//! from. Mounts of the host that lvmd does not see show as EBUSY on the exclusive open.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};

use crate::mount::table::Table;

/// GPT types (UEFI specification 2.10, table 5.7; Discoverable Partitions Specification; GRUB manual) and the MBR type
/// of partitions that a machine boots from.
const BOOT_PARTITIONS: [(&str, &str); 4] = [
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "an EFI system partition"),
    ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "an extended boot partition"),
    ("21686148-6449-6e6f-744e-656564454649", "a BIOS boot partition"),
    ("0xef", "an EFI system partition"),
];

/// Device numbers, and what this node has on each.
pub type SystemDevices = BTreeMap<(u32, u32), String>;

/// What firmware boots from, if this is the type of such a partition.
pub fn boot_partition(kind: &str) -> Option<&'static str> {
    BOOT_PARTITIONS.iter().find(|(known, _)| kind.eq_ignore_ascii_case(known)).map(|(_, name)| *name)
}

/// The devices of all mounts outside kubelet's root and of all swap areas. Below kubelet's root there are volumes:
/// these are in use while they are mounted, but the node does not run from them.
pub fn read(table: &Table, kubelet_root: &Path) -> std::io::Result<SystemDevices> {
    let swaps = match std::fs::read_to_string("/proc/swaps") {
        // A kernel without swap has no such file.
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    Ok(numbers(table, &swaps, kubelet_root, |path| {
        let meta = std::fs::metadata(path).ok()?;
        // A swap file counts as the device of its filesystem.
        let number = if meta.rdev() == 0 { meta.dev() } else { meta.rdev() };
        Some((major(number), minor(number)))
    }))
}

fn numbers(
    table: &Table,
    swaps: &str,
    kubelet_root: &Path,
    number_of: impl Fn(&Path) -> Option<(u32, u32)>,
) -> SystemDevices {
    let mounts = table.0.iter().filter(|mount| !mount.point.starts_with(kubelet_root) || mount.point == kubelet_root);
    let mut all = SystemDevices::new();
    for mount in mounts {
        let what = || format!("{} is mounted from it", mount.point.display());
        // Btrfs has a number of its own that is no block device's; its source names one.
        let named = mount.source.starts_with("/dev").then(|| number_of(&mount.source)).flatten();
        for number in std::iter::once(mount.number).chain(named).filter(|(major, _)| *major != 0) {
            all.entry(number).or_insert_with(what);
        }
    }
    let swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(PathBuf::from);
    for swap in swaps {
        if let Some(number) = number_of(&swap).filter(|(major, _)| *major != 0) {
            all.entry(number).or_insert_with(|| format!("{} is swap", swap.display()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_swap_are_the_systems_own_but_volumes_are_not() {
        let table = Table::parse(
            b"1 0 254:0 / / rw - ext4 /dev/vda rw\n\
              2 1 0:40 / /data rw - btrfs /dev/vdb rw\n\
              3 1 0:5 / /dev rw - devtmpfs udev rw\n\
              4 1 252:7 / /var/lib/kubelet/pods/u/volumes/x/mount rw - xfs /dev/dm-7 rw\n\
              5 1 254:32 / /var/lib/kubelet rw - ext4 /dev/vdc rw\n",
        )
        .unwrap();
        let swaps = "Filename Type Size Used Priority\n/dev/vdd partition 1 0 -2\n/swapfile file 1 0 -3\n";
        let found = numbers(&table, swaps, Path::new("/var/lib/kubelet"), |path| match path.to_str() {
            Some("/dev/vdb") => Some((254, 16)),
            Some("/dev/vdd") => Some((254, 48)),
            Some("/swapfile") => Some((254, 0)),
            Some(_) | None => None,
        });
        let numbers = found.keys().copied().collect::<Vec<_>>();
        assert_eq!(numbers, [(254, 0), (254, 16), (254, 32), (254, 48)]);
        assert_eq!(found[&(254, 0)], "/ is mounted from it");
    }

    #[test]
    fn firmware_boots_from_these() {
        assert!(boot_partition("C12A7328-F81F-11D2-BA4B-00A0C93EC93B").is_some());
        assert!(boot_partition("0xef").is_some());
        assert_eq!(boot_partition("0x83"), None);
    }
}
