//! From the initramfs to the root: load the modules that the disk needs, mount it read-only below a tmpfs, go on in it.

use std::{fs, os::unix::process::CommandExt, path::Path, process::Command, thread::sleep, time::Duration};

use rustix::{
    mount::{MountFlags, mount, mount_move},
    process::{chdir, chroot},
};

use crate::machine::{insert_modules, mount_special};

pub const MODULES: &str = "/initramfs.modules";
const ROOT_SERIAL: &str = "rigroot";

/// Never returns: a panic ends the machine, and the console says why.
pub fn run() -> ! {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount_special(kind, target, "");
    }
    insert_modules(MODULES);
    let root = root_disk();
    for folder in ["/lower", "/upper", "/root"] {
        fs::create_dir_all(folder).expect("folders in the initramfs");
    }
    mount(&root, "/lower", "erofs", MountFlags::RDONLY, None).expect("the root disk holds an erofs");
    mount_special("tmpfs", "/upper", "size=90%");
    for folder in ["/upper/files", "/upper/work"] {
        fs::create_dir_all(folder).expect("folders in a tmpfs");
    }
    let layers = c"lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work";
    mount("overlay", "/root", "overlay", MountFlags::empty(), layers).expect("an overlay");
    for moved in ["proc", "sys", "dev"] {
        mount_move(format!("/{moved}"), format!("/root/{moved}")).expect("a mount point in the root");
    }
    chdir("/root").expect("the root");
    mount_move("/root", "/").expect("the root becomes /");
    chroot(".").expect("the root becomes /");
    chdir("/").expect("the root");
    #[expect(clippy::disallowed_methods, reason = "the guest has no runner: this is its init")]
    let failed = Command::new("/init").exec();
    panic!("/init: {failed}");
}

fn root_disk() -> String {
    let serial = |disk: &Path| {
        ["serial", "device/serial"].iter().find_map(|file| fs::read_to_string(disk.join(file)).ok()).unwrap_or_default()
    };
    // The drivers find their devices in their own time.
    for _ in 0..2000 {
        let mut disks = fs::read_dir("/sys/block").expect("sysfs").flatten();
        if let Some(disk) = disks.find(|disk| serial(&disk.path()).trim() == ROOT_SERIAL) {
            return format!("/dev/{}", disk.file_name().to_string_lossy());
        }
        sleep(Duration::from_millis(5));
    }
    panic!("no disk has the serial {ROOT_SERIAL}");
}
