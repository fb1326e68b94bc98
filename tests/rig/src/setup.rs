//! What the rig needs of the machine: programs, by the Debian package that has each, root, devices and space.

use std::path::Path;

use crate::{
    cache,
    error::{Context, Error, Result},
    progress::say,
    run::Run,
};

/// Programs, the package that has each, and what it is for.
const PROGRAMS: [(&str, &str, &str); 22] = [
    ("qemu-system-x86_64", "qemu-system-x86", "running nodes"),
    ("qemu-img", "qemu-utils", "the nodes' disks"),
    ("mmdebstrap", "mmdebstrap", "the guest and the image"),
    ("mkfs.erofs", "erofs-utils", "the guest's root"),
    ("cpio", "cpio", "the guest's initramfs"),
    ("modprobe", "kmod", "the guest's modules"),
    ("depmod", "kmod", "the guest's modules"),
    ("xz", "xz-utils", "the guest's kernel"),
    ("zstd", "zstd", "the guest's kernel"),
    ("lz4", "lz4", "the guest's kernel"),
    ("gzip", "gzip", "the guest's kernel"),
    ("tar", "tar", "the guest and the image"),
    ("ip", "iproute2", "networks"),
    ("nsenter", "util-linux", "networks"),
    ("sysctl", "procps", "networks"),
    ("openssl", "openssl", "certificates"),
    ("socat", "socat", "reaching the API server"),
    ("mkfs.ext4", "e2fsprogs", "the nodes' disks"),
    ("lvm", "lvm2", "the tests of LVM on this machine"),
    ("thin_check", "thin-provisioning-tools", "the tests of LVM on this machine"),
    ("mkfs.xfs", "xfsprogs", "the tests of LVM on this machine"),
    ("mkfs.btrfs", "btrfs-progs", "the tests of LVM on this machine"),
];

/// Without it mmdebstrap trusts no Debian mirror; Ubuntu does not bring it.
const KEYRING: (&str, &str) = ("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring");

/// Not from apt: their versions are set by `rust-toolchain.toml` and `go.mod`.
const TOOLCHAINS: [(&str, &str); 2] =
    [("cargo", "Rust: https://rustup.rs"), ("go", "Go 1.26 or newer: https://go.dev/dl")];

/// Caches, the images of disks and the build itself, in GiB.
const SPACE_GIB: u64 = 12;

pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    PROGRAMS.iter().find(|(name, ..)| *name == program).map(|(_, package, _)| *package)
}

/// What is to be done about programs that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingPrograms {
    Name,
    Install,
}

/// Says everything that is missing at once, each with what to do about it.
pub fn check(programs: MissingPrograms) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    let mut wrong = Vec::new();
    if !root {
        wrong.push("this must run as root: it makes network namespaces, file systems and images".to_owned());
    }
    let mut packages: Vec<&str> =
        PROGRAMS.iter().filter(|(program, ..)| !is_installed(program)).map(|(_, package, _)| *package).collect();
    if !Path::new(KEYRING.0).exists() {
        packages.push(KEYRING.1);
    }
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() && programs == MissingPrograms::Install && root {
        say(format!("installing {}", packages.join(" ")));
        install(&packages)?;
        packages.clear();
    }
    for (program, package, purpose) in PROGRAMS {
        if packages.contains(&package) && !is_installed(program) {
            wrong.push(format!("`{program}` is missing, for {purpose}: package {package}"));
        }
    }
    if !packages.is_empty() {
        wrong.push(format!(
            "to install what is missing: apt-get install --no-install-recommends {}",
            packages.join(" ")
        ));
    }
    for (program, source) in TOOLCHAINS {
        if !is_installed(program) {
            wrong.push(format!("`{program}` is missing. {source}"));
        }
    }
    if !Path::new("/dev/net/tun").exists() {
        wrong.push("/dev/net/tun is missing: the nodes have no network without it (modprobe tun)".to_owned());
    }
    let folder = cache::folder();
    std::fs::create_dir_all(&folder).context(|| format!("making {}", folder.display()))?;
    let space = rustix::fs::statvfs(&folder).context(|| format!("looking at {}", folder.display()))?;
    let free = (space.f_bavail * space.f_frsize) >> 30;
    if free < SPACE_GIB {
        wrong.push(format!("{free} GiB are free at {}, {SPACE_GIB} are needed", folder.display()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::NotReady(wrong)) }
}

fn install(packages: &[&str]) -> Result<()> {
    let apt = || Run::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet").arg("--yes");
    apt().arg("update").check()?;
    apt().arg("install").arg("--no-install-recommends").args(packages.iter().copied()).check()?;
    Ok(())
}

fn is_installed(program: &str) -> bool {
    // `lvm`, `modprobe` and the like are not in the PATH of every root.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into(), "/usr/local/go/bin".into()])
        .any(|folder| folder.join(program).exists())
}
