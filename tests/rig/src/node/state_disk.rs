//! The disk that every node keeps its state on, with all images but Stowage's programs already in it.
//!
//! A node writes to an overlay of its own, so that the images are stored and imported once, and take no memory in a
//! guest.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    cache::{self, Inputs},
    disk::GIB,
    error::{Context, Result},
    guest_image::{GuestImage, NodePrograms, copy, sparse_file},
    image,
    node::containerd_only,
    parts::Parts,
    progress::say,
    qemu::{Format, Machine},
    run::Run,
    scope::Scope,
};

const SIZE: u64 = 8 * GIB;

pub(super) fn ensure(parts: &Parts, guest: &GuestImage, programs: &NodePrograms) -> Result<PathBuf> {
    let images = image::node_images(parts, guest)?;
    let inputs = Inputs::default()
        .text(&images.key)
        .text(&guest.key())
        .text(&programs.disk().display().to_string())
        .text(include_str!("start.sh"));
    let folder = cache::entry("state", &inputs, |folder| {
        let disk = folder.join("state.raw");
        sparse_file(&disk, SIZE)?;
        Run::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=1,nodiscard"]).arg(&disk).check()?;
        // The archives are read by the guest from a disk of its own: nothing is copied through its memory.
        let shared = folder.join("archives.erofs");
        let tree = folder.join("tree");
        crate::guest_image::make_folder(&tree)?;
        for archive in &images.archives {
            copy(archive, &tree.join(archive.file_name().unwrap_or_default()))?;
        }
        Run::new("mkfs.erofs").args(["--quiet", "-T0"]).arg(&shared).arg(&tree).check()?;
        fs::remove_dir_all(&tree).context(|| "removing the tree".to_owned())?;

        let scope = Arc::new(Scope::create("state-disk")?);
        let mut machine = Machine::new("state-disk", 768, guest);
        machine.read_only = vec![("rignode".to_owned(), programs.disk()), ("rigarchives".to_owned(), shared.clone())];
        machine.state = Some((disk, Format::Raw));
        let importer = containerd_only(&scope, machine)?;
        importer.sh("mkdir /mnt/archives && mount -t erofs -o ro /dev/disk/by-id/virtio-rigarchives /mnt/archives")?;
        importer.sh(
            "for try in $(seq 1200); do [ -S /run/containerd/containerd.sock ] && exit; sleep 0.05; done; exit 1",
        )?;
        for archive in &images.archives {
            let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let import = format!("/opt/rig/bin/ctr -n k8s.io images import --local /mnt/archives/{name}");
            importer.sh_within(&import, Duration::from_secs(300))?;
            say(format!("  imported {name}"));
        }
        importer.sh(
            "read -r process < /run/containerd.pid; kill $process; while [ -e /proc/$process ]; do sleep 0.05; done
            umount /var/lib/containerd /var/lib/kubelet /var/lib/stowage /var/lib/rig; sync",
        )?;
        importer.power_cut()?;
        fs::remove_file(&shared).context(|| "removing the archives".to_owned())
    })?;
    Ok(folder.join("state.raw"))
}
