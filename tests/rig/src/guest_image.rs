//! What a guest boots from: a kernel, an initramfs, a read-only root; and the second disk with a node's programs.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use crate::{
    cache::{self, Inputs},
    error::{Context, Error, Result},
    parts::Parts,
    run::Run,
};

const SUITE: &str = "bookworm";

/// The kernel is never installed, only unpacked. 6.12 comes from bookworm-security.
const PACKAGES: &str = "linux-image-6.12-cloud-amd64,lvm2,thin-provisioning-tools,xfsprogs,e2fsprogs,btrfs-progs,udev,\
    kmod,util-linux,mount,iproute2,busybox-static,coreutils,bash,dash,libc-bin,grep,sed,procps,base-files,base-passwd,\
    crun";

/// Not needed by a running guest.
const LEFT_OUT: [&str; 13] = [
    "boot",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/i18n",
    "usr/share/zoneinfo",
    "usr/share/bash-completion",
    "usr/share/bug",
    "var/lib/apt",
    "var/lib/dpkg",
    "var/cache",
    "usr/lib/x86_64-linux-gnu/gconv",
];

/// With what they need, these are all the modules there are in a guest.
const MODULES: &str = "dm-mod dm-thin-pool dm-raid raid0 raid1 raid10 raid456 dm-mirror dm-snapshot dm-cache \
    dm-cache-smq dm-writecache dm-integrity dm-crypt dm-verity dm-delay dm-flakey dm-zero dm-log-writes dm-vdo \
    dm-multipath nvme nvmet nvme-loop scsi_debug sd_mod sr_mod ahci virtio_scsi virtio_blk virtio_net virtio_pci \
    virtio_console virtio_rng brd null_blk loop nbd xfs btrfs ext4 overlay squashfs erofs virtiofs vfat isofs \
    nls_ascii nls_cp437 crc32c-intel bridge veth br_netfilter nft_compat nft_chain_nat xt_comment xt_MASQUERADE \
    xt_conntrack xt_mark xt_addrtype iptable_nat iptable_filter iptable_mangle nf_conntrack iscsi_tcp tcm_loop \
    target_core_file dummy tun qemu_fw_cfg";
/// Loaded before the root is found, and before the agent starts.
const INITRAMFS_MODULES: &str = "virtio_pci virtio_blk overlay erofs";
const AGENT_MODULES: &str = "dm-mod virtio_net virtio_console";

/// Groups and users that maintainer scripts would have made; udev names them in its rules.
const GROUPS: &str = "input:x:101:\nkvm:x:102:\nrender:x:103:\nsgx:x:104:\nmessagebus:x:105:\n";
const USERS: &str = "messagebus:x:105:105::/:/bin/false\n";

/// The files that QEMU is given.
#[derive(Clone, Debug)]
pub struct GuestImage {
    folder: PathBuf,
}

impl GuestImage {
    /// Half a minute the first time, nothing after it.
    pub fn ensure() -> Result<Self> {
        let debian = debian()?;
        let agent = build_agent()?;
        let inputs = Inputs::default()
            .text(&debian.display().to_string())
            .text(&[MODULES, INITRAMFS_MODULES, AGENT_MODULES, GROUPS, USERS, &LEFT_OUT.join(" ")].join("\n"))
            .file(&agent.join("guest"))?
            .file(&agent.join("pause"))?;
        let folder = cache::entry("guest", &inputs, |folder| assemble(&debian.join("root.tar"), &agent, folder))?;
        Ok(Self { folder })
    }

    pub fn kernel(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    pub fn initramfs(&self) -> PathBuf {
        self.folder.join("initrd")
    }

    pub fn root(&self) -> PathBuf {
        self.folder.join("root.erofs")
    }

    /// The static program that holds a pod's namespaces, for its image.
    pub(crate) fn pause(&self) -> PathBuf {
        self.folder.join("pause")
    }

    /// Debian's static busybox, for its image.
    pub(crate) fn busybox(&self) -> PathBuf {
        self.folder.join("busybox")
    }

    /// Changes whenever anything that a guest boots from does.
    pub(crate) fn key(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

fn debian() -> Result<PathBuf> {
    cache::entry("debian", &Inputs::default().text(SUITE).text(PACKAGES), |folder| {
        debian_tree(SUITE, PACKAGES, &folder.join("root.tar"))
    })
}

/// A Debian tree as a tar file, without running a maintainer script.
pub(crate) fn debian_tree(suite: &str, packages: &str, tar: &Path) -> Result<()> {
    Run::tied("mmdebstrap")
        .args(["--quiet", "--variant=extract", "--format=tar"])
        .arg("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr")
        .arg(format!("--include={packages}"))
        .arg(suite)
        .arg(tar)
        .check()?;
    Ok(())
}

/// The folder of the programs of the crate `guest`: static, so that they run where there is nothing else.
fn build_agent() -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    // A folder of its own: the project's is locked while anything else of it is built.
    let built = cache::folder().join("agent");
    Run::tied("cargo")
        .folder(cache::project())
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .args(["build", "--quiet", "--release", "--package=guest", "--target", TARGET])
        .arg("--target-dir")
        .arg(&built)
        .check()?;
    Ok(built.join(TARGET).join("release"))
}

fn assemble(tar: &Path, built: &Path, folder: &Path) -> Result<()> {
    let agent = &built.join("guest");
    let root = folder.join("tree");
    make_folders(folder, &["tree"])?;
    Run::new("tar").arg("-xf").arg(tar).arg("-C").arg(&root).check()?;
    let version = only_entry(&root.join("usr/lib/modules"))?;
    extract_kernel(&root.join("boot").join(format!("vmlinuz-{version}")), &folder.join("vmlinux"))?;

    // Modules: only those that are wanted, unpacked, in a tree of their own that takes the place of the full one.
    let modules = Path::new("usr/lib/modules").join(&version);
    Run::new("depmod").arg("-b").arg(&root).arg(&version).check()?;
    let wanted = module_files(&root, &version, MODULES)?;
    let full = folder.join("modules");
    fs::rename(root.join(&modules), &full).context(|| "moving the kernel's modules".to_owned())?;
    for file in &wanted {
        let inside = file.rsplit_once(&format!("{version}/")).map_or(file.as_str(), |(_, inside)| inside);
        let (plain, unpack) = match inside.rsplit_once('.') {
            Some((plain, "xz")) => (plain, Some("xz")),
            Some((plain, "zst")) => (plain, Some("zstd")),
            Some(_) | None => (inside, None),
        };
        let target = root.join(&modules).join(plain);
        if let Some(above) = target.parent() {
            make_folder(above)?;
        }
        match unpack {
            Some(program) => drop(Run::new(program).arg("-dqc").arg(full.join(inside)).output_file(&target).check()?),
            None => copy(&full.join(inside), &target)?,
        }
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        copy(&full.join(list), &root.join(&modules).join(list))?;
    }
    Run::new("depmod").arg("-b").arg(&root).arg(&version).check()?;

    finish_tree(&root)?;
    copy(agent, &root.join("init"))?;
    let relative = |file: &String| file.strip_prefix(&root.display().to_string()).unwrap_or(file).to_owned();
    let lines = |files: Vec<String>| files.iter().map(relative).collect::<Vec<_>>().join("\n");
    write(&root.join("etc/rig.modules"), &lines(module_files(&root, &version, AGENT_MODULES)?))?;

    initramfs(&root, &version, agent, folder)?;
    copy(&built.join("pause"), &folder.join("pause"))?;
    copy(&root.join("usr/bin/busybox"), &folder.join("busybox"))?;
    Run::new("mkfs.erofs").args(["--quiet", "-T0"]).arg(folder.join("root.erofs")).arg(&root).check()?;
    for made in ["tree", "modules", "initramfs"] {
        fs::remove_dir_all(folder.join(made)).context(|| format!("removing {made}"))?;
    }
    Ok(())
}

/// What maintainer scripts would have done, and what only takes space.
fn finish_tree(root: &Path) -> Result<()> {
    for file in LEFT_OUT {
        let path = root.join(file);
        if path.exists() {
            fs::remove_dir_all(&path).context(|| format!("removing {}", path.display()))?;
        }
    }
    for (name, more) in [("passwd", USERS), ("group", GROUPS)] {
        let master = root.join(format!("usr/share/base-passwd/{name}.master"));
        let text = fs::read_to_string(&master).context(|| format!("reading {}", master.display()))?;
        write(&root.join("etc").join(name), &(text + more))?;
    }
    make_folders(
        root,
        &["proc", "sys", "dev", "run", "tmp", "mnt", "root", "opt", "var/tmp", "var/cache", "var/lib/lvm"],
    )?;
    Run::new("ldconfig").arg("-r").arg(root).check()?;
    Ok(())
}

fn initramfs(root: &Path, version: &str, agent: &Path, folder: &Path) -> Result<()> {
    let tree = folder.join("initramfs");
    make_folders(&tree, &["proc", "sys", "dev"])?;
    copy(agent, &tree.join("init"))?;
    let mut list = String::new();
    for file in module_files(root, version, INITRAMFS_MODULES)? {
        let name = file.rsplit('/').next().unwrap_or(&file);
        copy(Path::new(&file), &tree.join(name))?;
        list += &format!("/{name}\n");
    }
    write(&tree.join("initramfs.modules"), &list)?;
    let names = Run::new("find").arg(".").folder(&tree).check()?;
    Run::new("cpio")
        .args(["-o", "-H", "newc", "--quiet", "-R", "0:0"])
        .folder(&tree)
        .input(names)
        .output_file(folder.join("initrd"))
        .check()?;
    Ok(())
}

/// The files of these modules and of what they need, each after its needs.
fn module_files(root: &Path, version: &str, names: &str) -> Result<Vec<String>> {
    let mut files: Vec<String> = Vec::new();
    for name in names.split_whitespace() {
        // Ends with an error for a module that this kernel has built in or does not know: not every kernel has all.
        let modprobe = Run::new("modprobe").arg("-d").arg(root).args(["-S", version, "--show-depends", name]);
        for line in modprobe.output()?.stdout.lines() {
            if let Some(file) = line.strip_prefix("insmod ").and_then(|rest| rest.split_whitespace().next())
                && !files.iter().any(|known| known == file)
            {
                files.push(file.to_owned());
            }
        }
    }
    Ok(files)
}

/// Takes the ELF file out of a bzImage: QEMU starts that as it is, so the guest need not unpack it.
fn extract_kernel(image: &Path, target: &Path) -> Result<()> {
    let mut bytes = Vec::new();
    let mut file = File::open(image).context(|| format!("opening {}", image.display()))?;
    file.read_to_end(&mut bytes).context(|| format!("reading {}", image.display()))?;
    let not_a_kernel = || Error::unexpected(image.display().to_string(), "not a bzImage");
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).ok_or_else(not_a_kernel)?;
        Ok::<_, Error>(u32::from_le_bytes(bytes) as usize)
    };
    // Offsets of the boot protocol: setup_sects, payload_offset, payload_length.
    let setup_sectors = match bytes.get(0x1f1).ok_or_else(not_a_kernel)? {
        0 => 4,
        sectors => usize::from(*sectors),
    };
    let begin = (setup_sectors + 1) * 512 + number(0x248)?;
    let payload = bytes.get(begin..begin + number(0x24c)?).ok_or_else(not_a_kernel)?;
    let (program, args, trailer): (_, &[&str], _) = match payload {
        // The kernel's build puts the unpacked length behind all but xz's.
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", &["-dc"], 4),
        [0x02, 0x21, 0x4c, 0x18, ..] => ("lz4", &["-dc"], 4),
        [0x1f, 0x8b, ..] => ("gzip", &["-dc"], 4),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", &["-dc", "--single-stream"], 0),
        [..] => return Err(Error::unexpected(image.display().to_string(), "packed in an unknown way")),
    };
    let packed = payload[..payload.len() - trailer].to_vec();
    // gzip complains about what follows and ends with 2; what counts is the ELF file.
    Run::new(program).args(args.iter().copied()).input(packed).output_file(target).output()?;
    let mut magic = [0; 4];
    let mut made = File::open(target).context(|| format!("opening {}", target.display()))?;
    made.read_exact(&mut magic).context(|| format!("reading {}", target.display()))?;
    if magic == *b"\x7fELF" { Ok(()) } else { Err(Error::unexpected(target.display().to_string(), "not an ELF file")) }
}

/// A second read-only disk: what a guest needs to be a Kubernetes node.
#[derive(Clone, Debug)]
pub struct NodePrograms {
    folder: PathBuf,
}

impl NodePrograms {
    pub fn ensure(parts: &Parts) -> Result<Self> {
        let scripts = [
            ("start.sh", include_str!("node/start.sh")),
            ("crun.sh", include_str!("node/crun.sh")),
            ("containerd.toml", include_str!("node/containerd.toml")),
        ];
        let programs = ["kubelet", "containerd", "ctr", "containerd-shim-runc-v2", "ptp", "host-local"];
        let mut inputs = Inputs::default().text(&parts.folder().display().to_string());
        for (name, text) in scripts {
            inputs = inputs.text(name).text(text);
        }
        let folder = cache::entry("node", &inputs.text(&programs.join(" ")), |folder| {
            let tree = folder.join("tree");
            make_folders(&tree, &["bin"])?;
            for name in programs {
                copy(&parts.program(name), &tree.join("bin").join(name))?;
            }
            for (name, text) in scripts {
                write(&tree.join(name), text)?;
                Run::new("chmod").arg("755").arg(tree.join(name)).check()?;
            }
            Run::new("mkfs.erofs").args(["--quiet", "-T0"]).arg(folder.join("node.erofs")).arg(&tree).check()?;
            fs::remove_dir_all(&tree).context(|| "removing the tree".to_owned())
        })?;
        Ok(Self { folder })
    }

    pub fn disk(&self) -> PathBuf {
        self.folder.join("node.erofs")
    }
}

pub(crate) fn make_folders(below: &Path, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| make_folder(&below.join(name)))
}

pub(crate) fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).context(|| format!("making {}", path.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(|| format!("writing {}", path.display()))
}

pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn only_entry(folder: &Path) -> Result<String> {
    let names: Vec<String> = fs::read_dir(folder)
        .context(|| format!("reading {}", folder.display()))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    match names.as_slice() {
        [only] => Ok(only.clone()),
        others => Err(Error::unexpected(folder.display().to_string(), format!("holds {others:?}"))),
    }
}

/// A file of zeros that takes no space until it is written to.
pub(crate) fn sparse_file(path: &Path, size: u64) -> Result<()> {
    let mut file = File::create(path).context(|| format!("making {}", path.display()))?;
    file.seek(SeekFrom::Start(0))
        .and_then(|_| file.flush())
        .and_then(|()| file.set_len(size))
        .context(|| format!("making {}", path.display()))
}
