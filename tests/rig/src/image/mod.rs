//! The images: Stowage's own, the upstream sidecars', and the two that every node needs. None comes from a registry.

pub mod oci;

use std::{
    fs,
    path::{Path, PathBuf},
};

use oci::{Blobs, Image, Layer, LayerWriter};

use crate::{
    cache::{self, Inputs},
    error::{Context, Error, Result},
    guest_image::{GuestImage, debian_tree, make_folder},
    parts::Parts,
    run::Run,
};

const SUITE: &str = "bookworm";
/// Stowage's programs, by the crates' names.
const PROGRAMS: [&str; 3] = ["lvmd", "driver", "operator"];
pub const REPOSITORY: &str = "stowage.dev/stowage";
/// The tag that `config/default` names.
pub const TAG: &str = "dev";
/// Holds Stowage's first layer on every node, so that a changed program is all that must be sent there.
const BASE_NAME: &str = "rig.local/stowage-base:1";
pub const PAUSE: &str = "rig.local/pause:1";
pub const BUSYBOX: &str = "rig.local/busybox:1";
/// The sidecars, with the tag that the module's version gives them.
const SIDECARS: [(&str, &str); 2] = [
    ("csi-provisioner", "github.com/kubernetes-csi/external-provisioner"),
    ("csi-resizer", "github.com/kubernetes-csi/external-resizer"),
];
/// Upstream's images run as this user, `nonroot`.
const NONROOT: &str = "65532";

/// Stowage's image as it is now: two archives of it.
#[derive(Clone, Debug)]
pub struct StowageImage {
    /// Complete: `target/image/stowage.tar`.
    pub archive: PathBuf,
    /// Without the first layer, which the rig's nodes have.
    pub(crate) update: PathBuf,
    pub names: Vec<String>,
}

impl StowageImage {
    /// Makes the image from `target/image/bin`, where `make image` puts them. Seconds, once the first layer is there.
    pub fn ensure() -> Result<Self> {
        Self::of(&cache::project().join("target/image/bin"))
    }

    /// Makes the image from programs in another folder.
    pub fn of(programs: &Path) -> Result<Self> {
        let project = cache::project();
        let folder = project.join("target/image");
        make_folder(&folder)?;
        let base = base_layer()?;
        // A folder for each call: tests run side by side, and each asks for the image.
        let scratch = tempfile::tempdir_in(&folder).context(|| format!("making a folder in {}", folder.display()))?;
        let mut layer = LayerWriter::new(&scratch.path().join("programs.tar"))?;
        for parent in ["usr", "usr/local", "usr/local/bin"] {
            layer.folder(parent, 0o755)?;
        }
        for program in PROGRAMS {
            let path = programs.join(program);
            let bytes = fs::read(&path).context(|| format!("reading {} (make image)", path.display()))?;
            layer.file(&format!("usr/local/bin/{program}"), 0o755, &bytes)?;
        }
        let names = vec![format!("{REPOSITORY}:{TAG}"), format!("{REPOSITORY}:{}", env!("CARGO_PKG_VERSION"))];
        let image = Image { names: names.clone(), layers: vec![base, layer.finish()?], ..Image::default() };
        let inputs = image.layers.iter().map(|layer| &layer.digest).chain(&names);
        let inputs = inputs.fold(Inputs::default(), |inputs, text| inputs.text(text));
        let made = cache::entry("stowage", &inputs, |folder| {
            image.write(&folder.join("stowage.tar"), Blobs::All)?;
            image.write(&folder.join("update.tar"), Blobs::Without(1))
        })?;
        let (archive, beside) = (folder.join("stowage.tar"), scratch.path().join("stowage.tar"));
        // A second name for the same file, where the two folders are on one file system.
        fs::hard_link(made.join("stowage.tar"), &beside)
            .or_else(|_| fs::copy(made.join("stowage.tar"), &beside).map(drop))
            .and_then(|()| fs::rename(&beside, &archive))
            .context(|| format!("making {}", archive.display()))?;
        Ok(Self { archive, update: made.join("update.tar"), names })
    }
}

/// The Debian packages that Stowage needs, as one layer.
fn base_layer() -> Result<Layer> {
    let image = cache::project().join("image");
    let read = |name: &str| {
        let path = image.join(name);
        fs::read_to_string(&path).context(|| format!("reading {}", path.display()))
    };
    let (packages, left_out) = (read("packages.txt")?, read("left-out.txt")?);
    let lines = |text: &str| -> Vec<String> {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let (packages, left_out) = (lines(&packages).join(","), lines(&left_out));
    let inputs = Inputs::default().text(SUITE).text(&packages).text(&left_out.join("\n"));
    let folder = cache::entry("image", &inputs, |folder| {
        let tree = folder.join("tree.tar");
        debian_tree(SUITE, &packages, &tree)?;
        let mut layer = LayerWriter::new(&folder.join("layer.tar"))?;
        let left_out: Vec<&str> = left_out.iter().map(String::as_str).chain(["etc/passwd", "etc/group"]).collect();
        layer.files_of(&tree, &left_out)?;
        // Maintainer scripts would have made these.
        layer.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532::/:/bin/false\n")?;
        layer.file("etc/group", 0o644, b"root:x:0:\ndisk:x:6:\nnonroot:x:65532:\n")?;
        for (path, mode) in [("tmp", 0o1777), ("run", 0o755), ("proc", 0o755), ("sys", 0o755), ("dev", 0o755)] {
            layer.folder(path, mode)?;
        }
        fs::remove_file(&tree).context(|| "removing the tree".to_owned())?;
        note(folder, "layer", layer.finish()?)
    })?;
    noted(&folder, "layer")
}

/// The archives that every node of the rig has from the start.
pub(crate) struct NodeImages {
    pub archives: Vec<PathBuf>,
    pub key: String,
}

pub(crate) fn node_images(parts: &Parts, guest: &GuestImage) -> Result<NodeImages> {
    let sidecars = sidecar_names()?;
    let base = base_layer()?;
    let inputs = Inputs::default()
        .text(&parts.folder().display().to_string())
        .text(&sidecars.join(" "))
        .text(&base.digest)
        .text(&guest.key());
    let folder = cache::entry("archives", &inputs, |folder| {
        let write = |name: &str, image: Image| image.write(&folder.join(format!("{name}.tar")), Blobs::All);
        for ((program, _), name) in SIDECARS.into_iter().zip(&sidecars) {
            let bytes = fs::read(parts.program(program)).context(|| format!("reading {program}"))?;
            let mut layer = LayerWriter::new(&folder.join("layer"))?;
            layer.folder("tmp", 0o1777)?;
            layer.file(program, 0o755, &bytes)?;
            let entrypoint = vec![format!("/{program}")];
            let layers = vec![layer.finish()?];
            write(program, Image { names: vec![name.clone()], layers, entrypoint, user: NONROOT.to_owned() })?;
        }
        let mut layer = LayerWriter::new(&folder.join("layer"))?;
        layer.file("pause", 0o755, &fs::read(guest.pause()).context(|| "reading pause".to_owned())?)?;
        let (names, layers) = (vec![PAUSE.to_owned()], vec![layer.finish()?]);
        write("pause", Image { names, layers, entrypoint: vec!["/pause".to_owned()], user: String::new() })?;
        let (names, layers) = (vec![BUSYBOX.to_owned()], vec![busybox_layer(guest, &folder.join("layer"))?]);
        write("busybox", Image { names, layers, ..Image::default() })?;
        fs::remove_file(folder.join("layer")).context(|| "removing a layer".to_owned())?;
        write("base", Image { names: vec![BASE_NAME.to_owned()], layers: vec![base.clone()], ..Image::default() })
    })?;
    let archives = ["pause", "busybox", "csi-provisioner", "csi-resizer", "base"];
    let archives = archives.iter().map(|name| folder.join(format!("{name}.tar"))).collect();
    Ok(NodeImages { archives, key: folder.file_name().unwrap_or_default().to_string_lossy().into_owned() })
}

fn busybox_layer(guest: &GuestImage, file: &Path) -> Result<Layer> {
    let busybox = guest.busybox();
    let mut layer = LayerWriter::new(file)?;
    layer.folder("bin", 0o755)?;
    layer.folder("tmp", 0o1777)?;
    layer.folder("etc", 0o755)?;
    layer.file("etc/passwd", 0o644, b"root:x:0:0::/:/bin/sh\n")?;
    layer.file("bin/busybox", 0o755, &fs::read(&busybox).context(|| "reading busybox".to_owned())?)?;
    let applets = Run::new(&busybox).arg("--list").check()?;
    for applet in applets.lines().filter(|name| *name != "busybox") {
        layer.link(&format!("bin/{applet}"), "busybox")?;
    }
    layer.finish()
}

/// `registry.k8s.io/sig-storage/…`, the names that manifests for any cluster use.
pub fn sidecar_names() -> Result<Vec<String>> {
    let path = cache::project().join("tests/go.mod");
    let text = fs::read_to_string(&path).context(|| format!("reading {}", path.display()))?;
    let version = |module: &str| {
        let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(module)?.split_once(' '));
        lines.find_map(|(_, rest)| Some(rest.split(' ').next()?.to_owned()))
    };
    let name = |(program, module): (&str, &str)| match version(module) {
        Some(version) => Ok(format!("registry.k8s.io/sig-storage/{program}:{version}")),
        None => Err(Error::unexpected("go.mod", format!("it requires no {module}"))),
    };
    SIDECARS.into_iter().map(name).collect()
}

fn note(folder: &Path, name: &str, mut layer: Layer) -> Result<()> {
    // The folder is about to be renamed.
    layer.file = layer.file.file_name().map(PathBuf::from).unwrap_or_default();
    let text = serde_json::to_string(&layer).map_err(|err| Error::unexpected("a layer", err))?;
    crate::guest_image::write(&folder.join(format!("{name}.json")), &text)
}

fn noted(folder: &Path, name: &str) -> Result<Layer> {
    let path = folder.join(format!("{name}.json"));
    let text = fs::read_to_string(&path).context(|| format!("reading {}", path.display()))?;
    let mut layer: Layer =
        serde_json::from_str(&text).map_err(|err| Error::unexpected(path.display().to_string(), err))?;
    layer.file = folder.join(layer.file);
    Ok(layer)
}
