//! The settings that LVM runs with: lvmd's own `lvm.conf`, whatever the image or the host has.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Whether LVM may wait for udev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Udev {
    /// The host's udev has device-mapper rules and can end the cookies that LVM waits on.
    Answers,
    /// It has none, or lvmd is not in the host's IPC namespace, where the cookies (SysV semaphores) are: LVM would wait
    /// for ever, so it makes its nodes itself.
    Silent,
}

/// Files below a folder of rules that make udev end device-mapper's cookies.
const RULES: &str = "95-dm-notify.rules";

/// The folders of udev(7).
pub const RULES_FOLDERS: [&str; 4] =
    ["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"];

/// The inode of the first IPC namespace (`PROC_IPC_INIT_INO` in include/linux/proc_ns.h).
const HOST_IPC: &str = "ipc:[4026531839]";

/// Whether this process is in the host's IPC namespace.
pub fn is_host_ipc() -> bool {
    fs::read_link("/proc/self/ns/ipc").is_ok_and(|ns| ns == Path::new(HOST_IPC))
}

/// Whether udev runs on the host and lvmd can see what it says.
pub fn has_udev() -> bool {
    Path::new("/run/udev/control").exists()
}

pub fn has_rules() -> bool {
    RULES_FOLDERS.iter().any(|folder| Path::new(folder).join(RULES).exists())
}

pub fn udev() -> Udev {
    if is_host_ipc() && has_udev() && has_rules() { Udev::Answers } else { Udev::Silent }
}

/// Writes `lvm.conf` below the state folder and gives the folder that LVM is to be told of.
pub fn write(state: &Path, udev: Udev) -> io::Result<PathBuf> {
    let folder = state.join("lvm");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("lvm.conf"), text(&folder, udev))?;
    Ok(folder)
}

fn text(folder: &Path, udev: Udev) -> String {
    let sync = match udev {
        Udev::Answers => 1,
        Udev::Silent => 0,
    };
    let folder = folder.display();
    // hints: after a transient read error LVM's hints file leaves the disk out for good.
    // monitoring: dmeventd would live and die in this container. lvmpolld: the same.
    // issue_discards stays off: what was written can be got back from the archive as long as nothing reuses it.
    // archive: one file a change, so that a mistake can be undone; bounded in number and in age.
    format!(
        "# Written by lvmd at each start.\n\
         config {{ checks = 0 }}\n\
         devices {{\n\
         \x20   dir = \"/dev\"\n\
         \x20   hints = \"none\"\n\
         \x20   use_devicesfile = 0\n\
         \x20   scan_lvs = 0\n\
         \x20   obtain_device_list_from_udev = 0\n\
         \x20   external_device_info_source = \"none\"\n\
         \x20   issue_discards = 0\n\
         }}\n\
         global {{\n\
         \x20   use_lvmpolld = 0\n\
         \x20   use_lvmlockd = 0\n\
         \x20   notify_dbus = 0\n\
         \x20   system_id_source = \"none\"\n\
         }}\n\
         activation {{\n\
         \x20   monitoring = 0\n\
         \x20   udev_sync = {sync}\n\
         \x20   udev_rules = {sync}\n\
         }}\n\
         backup {{\n\
         \x20   backup = 1\n\
         \x20   backup_dir = \"{folder}/backup\"\n\
         \x20   archive = 1\n\
         \x20   archive_dir = \"{folder}/archive\"\n\
         \x20   retain_min = 16\n\
         \x20   retain_days = 7\n\
         }}\n\
         log {{ syslog = 0 }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lvm_waits_for_udev_only_where_it_answers() {
        assert!(text(Path::new("/s"), Udev::Answers).contains("udev_sync = 1"));
        let silent = text(Path::new("/s"), Udev::Silent);
        // With only one of the two, LVM's node is not found and the LV is rolled back.
        assert!(silent.contains("udev_sync = 0") && silent.contains("udev_rules = 0"));
    }
}
