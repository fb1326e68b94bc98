//! The disk that every node keeps its state on, with all images already in it.
//!
//! A node writes to an overlay of its own, so that the images are stored and imported once, and take no memory in a
//! guest. Stowage's programs come as a second step: they change often, and the rest hardly ever.

use std::path::{Path, PathBuf};

use crate::{
    cache::{self, Inputs},
    disk::GIB,
    error::{Context, Result},
    guest_image::{GuestImage, sparse_file},
    image::{self, StowageImage},
    parts::Parts,
    run::Run,
};

const SIZE: u64 = 8 * GIB;
const IMPORT: &str = include_str!("import.sh");
const CONFIG: &str = include_str!("containerd.toml");

/// The disk without, or with Stowage's image.
pub(super) fn ensure(parts: &Parts, guest: &GuestImage, stowage: Option<&StowageImage>) -> Result<PathBuf> {
    let images = image::node_images(parts, guest)?;
    let inputs = Inputs::default().text(&images.key).text(IMPORT).text(CONFIG);
    let folder = cache::entry("state", &inputs, |folder| {
        let disk = folder.join("state.raw");
        sparse_file(&disk, SIZE)?;
        Run::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=1,nodiscard"]).arg(&disk).check()?;
        import(&disk, parts, &images.archives)
    })?;
    let disk = folder.join("state.raw");
    let Some(stowage) = stowage else { return Ok(disk) };
    let inputs = inputs.file(&stowage.update)?;
    let folder = cache::entry("state-stowage", &inputs, |folder| {
        let own = folder.join("state.raw");
        Run::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(&disk).arg(&own).check()?;
        import(&own, parts, std::slice::from_ref(&stowage.update))
    })?;
    Ok(folder.join("state.raw"))
}

fn import(disk: &Path, parts: &Parts, archives: &[PathBuf]) -> Result<()> {
    Run::tied("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", IMPORT, "rig-import"])
        .arg(disk)
        .arg(parts.folder())
        .args(archives)
        .input(CONFIG)
        .check()
        .context(|| "importing images".to_owned())?;
    Ok(())
}
