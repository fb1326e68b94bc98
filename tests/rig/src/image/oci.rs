//! Image archives in the OCI layout: what `ctr images import`, `skopeo` and `podman load` read.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    cache::hex,
    error::{Context, Error, Result},
};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layer's tar file. Not packed: a node under emulation unpacks slower than it reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub file: PathBuf,
    /// `sha256:…`; of the packed and the unpacked layer alike, as they are the same.
    pub digest: String,
    pub size: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Each is a whole reference, with its tag.
    pub names: Vec<String>,
    pub layers: Vec<Layer>,
    pub entrypoint: Vec<String>,
    /// Empty: root.
    pub user: String,
}

/// Which layers' bytes are in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blobs {
    All,
    /// Without the first so many: whoever reads it has them already.
    Without(usize),
}

/// Writes a layer so that the same files make the same bytes: no times, no names of owners.
pub struct LayerWriter {
    tar: tar::Builder<Hashing>,
    file: PathBuf,
}

struct Hashing {
    file: BufWriter<File>,
    sha: Sha256,
    size: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sha.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl LayerWriter {
    pub fn new(file: &Path) -> Result<Self> {
        let out = File::create(file).context(|| format!("making {}", file.display()))?;
        let out = Hashing { file: BufWriter::new(out), sha: Sha256::new(), size: 0 };
        Ok(Self { tar: tar::Builder::new(out), file: file.to_owned() })
    }

    pub fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        self.add(path, tar::EntryType::Directory, mode, &mut io::empty(), 0)
    }

    pub fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.add(path, tar::EntryType::Regular, mode, &mut &*bytes, bytes.len() as u64)
    }

    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        self.tar.append_link(&mut header, path, target).context(|| format!("adding {path} to a layer"))
    }

    /// The files of another tar file, but for those whose path begins with one of `left_out`.
    pub fn files_of(&mut self, tar: &Path, left_out: &[&str]) -> Result<()> {
        let what = || format!("reading {}", tar.display());
        let mut archive = tar::Archive::new(File::open(tar).context(what)?);
        for entry in archive.entries().context(what)? {
            let mut entry = entry.context(what)?;
            let path = entry.path().context(what)?.to_string_lossy().into_owned();
            let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
            if path.is_empty() || left_out.iter().any(|start| path.starts_with(start)) {
                continue;
            }
            let mut new = entry.header().clone();
            new.set_mtime(0);
            let link = entry.link_name().context(what)?.map(|link| link.into_owned());
            let added = match link {
                Some(link) => {
                    let hard = new.entry_type() == tar::EntryType::Link;
                    let link = link.to_string_lossy().into_owned();
                    let target = if hard { link.trim_start_matches("./") } else { &link };
                    self.tar.append_link(&mut new, &path, target)
                }
                None => self.tar.append_data(&mut new, &path, &mut entry),
            };
            added.context(|| format!("adding {path} to a layer"))?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<Layer> {
        let what = || format!("writing {}", self.file.display());
        let mut out = self.tar.into_inner().context(what)?;
        out.flush().context(what)?;
        Ok(Layer { digest: digest(&out.sha.finalize()), size: out.size, file: self.file })
    }

    fn add(&mut self, path: &str, kind: tar::EntryType, mode: u32, from: &mut impl Read, size: u64) -> Result<()> {
        let mut header = header(kind, mode, size);
        self.tar.append_data(&mut header, path, from).context(|| format!("adding {path} to a layer"))
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn digest(sha: &[u8]) -> String {
    format!("sha256:{}", hex(sha))
}

impl Image {
    /// The image's documents: its manifest's descriptor, and the two blobs that are no layers.
    fn documents(&self) -> (Value, [Vec<u8>; 2]) {
        let digests: Vec<&str> = self.layers.iter().map(|layer| layer.digest.as_str()).collect();
        let mut settings = json!({ "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] });
        if !self.entrypoint.is_empty() {
            settings["Entrypoint"] = json!(self.entrypoint);
        }
        if !self.user.is_empty() {
            settings["User"] = json!(self.user);
        }
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": settings,
            "rootfs": { "type": "layers", "diff_ids": digests },
        });
        let config = config.to_string().into_bytes();
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|layer| json!({ "mediaType": LAYER, "digest": layer.digest, "size": layer.size }))
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": { "mediaType": CONFIG, "digest": digest(&Sha256::digest(&config)), "size": config.len() },
            "layers": layers,
        });
        let manifest = manifest.to_string().into_bytes();
        let descriptor = json!({
            "mediaType": MANIFEST,
            "digest": digest(&Sha256::digest(&manifest)),
            "size": manifest.len(),
            "platform": { "architecture": "amd64", "os": "linux" },
        });
        (descriptor, [config, manifest])
    }

    /// One archive that holds the image under all its names.
    pub fn write(&self, to: &Path, blobs: Blobs) -> Result<()> {
        let what = || format!("writing {}", to.display());
        let (descriptor, documents) = self.documents();
        let manifests: Vec<Value> = self
            .names
            .iter()
            .map(|name| {
                let mut named = descriptor.clone();
                let tag = name.rsplit(':').next().unwrap_or_default();
                named["annotations"] =
                    json!({ "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag });
                named
            })
            .collect();
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }).to_string();

        let mut tar = tar::Builder::new(BufWriter::new(File::create(to).context(what)?));
        let mut add = |name: &str, from: &mut dyn Read, size: u64| {
            tar.append_data(&mut header(tar::EntryType::Regular, 0o644, size), name, from).context(what)
        };
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        add("oci-layout", &mut layout.as_slice(), layout.len() as u64)?;
        add("index.json", &mut index.as_bytes(), index.len() as u64)?;
        for document in &documents {
            add(&blob(&digest(&Sha256::digest(document))), &mut document.as_slice(), document.len() as u64)?;
        }
        let known = match blobs {
            Blobs::All => 0,
            Blobs::Without(first) => first,
        };
        let mut written: Vec<&str> = Vec::new();
        for layer in self.layers.iter().skip(known).filter(|layer| {
            let new = !written.contains(&layer.digest.as_str());
            written.push(&layer.digest);
            new
        }) {
            let mut file = File::open(&layer.file).context(|| format!("opening {}", layer.file.display()))?;
            let size = file.metadata().context(what)?.len();
            if size != layer.size {
                return Err(Error::unexpected(layer.file.display().to_string(), "not of the size it was made with"));
            }
            add(&blob(&layer.digest), &mut file, size)?;
        }
        tar.into_inner().context(what)?.flush().context(what)
    }
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn files(tar: &Path) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(File::open(tar).unwrap());
        let read = |entry: io::Result<tar::Entry<'_, File>>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        };
        archive.entries().unwrap().map(read).collect()
    }

    fn layer(folder: &Path, name: &str, text: &str) -> Layer {
        let mut layer = LayerWriter::new(&folder.join(name)).unwrap();
        layer.file("bin/x", 0o755, text.as_bytes()).unwrap();
        layer.finish().unwrap()
    }

    #[test]
    fn every_blob_is_named_by_its_digest_and_reachable() {
        let folder = tempfile::tempdir().unwrap();
        let image = Image {
            names: vec!["a.test/x:1".to_owned(), "a.test/x:2".to_owned()],
            layers: vec![layer(folder.path(), "a", "1"), layer(folder.path(), "b", "2")],
            ..Image::default()
        };
        let archive = folder.path().join("archive");
        image.write(&archive, Blobs::All).unwrap();
        let files = files(&archive);
        for (name, bytes) in files.iter().filter(|(name, _)| name.starts_with("blobs/")) {
            assert_eq!(*name, blob(&digest(&Sha256::digest(bytes))));
        }
        let read = |name: &str| -> Value { serde_json::from_slice(&files[name]).unwrap() };
        let index = read("index.json");
        let names: Vec<_> = index["manifests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|named| &named["annotations"]["io.containerd.image.name"])
            .collect();
        assert_eq!(names, ["a.test/x:1", "a.test/x:2"]);
        let manifest = read(&blob(index["manifests"][0]["digest"].as_str().unwrap()));
        let config = read(&blob(manifest["config"]["digest"].as_str().unwrap()));
        assert_eq!(config["rootfs"]["diff_ids"][1], manifest["layers"][1]["digest"]);
        assert_eq!(files.len(), 6);
    }

    #[test]
    fn layers_that_the_reader_has_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let layers = vec![layer(folder.path(), "a", "1"), layer(folder.path(), "b", "2")];
        let image = Image { names: vec!["a.test/x:1".to_owned()], layers: layers.clone(), ..Image::default() };
        let archive = folder.path().join("archive");
        image.write(&archive, Blobs::Without(1)).unwrap();
        let files = files(&archive);
        assert!(!files.contains_key(&blob(&layers[0].digest)));
        assert!(files.contains_key(&blob(&layers[1].digest)));
    }

    #[test]
    fn the_same_files_make_the_same_layer() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(layer(folder.path(), "a", "1").digest, layer(folder.path(), "b", "1").digest);
    }

    #[test]
    fn files_of_another_tar_are_taken_but_for_those_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = LayerWriter::new(&folder.path().join("first")).unwrap();
        first.folder("usr", 0o755).unwrap();
        first.file("usr/keep", 0o644, b"k").unwrap();
        first.file("usr/share/doc/x", 0o644, b"d").unwrap();
        first.link("usr/link", "keep").unwrap();
        first.finish().unwrap();
        let mut second = LayerWriter::new(&folder.path().join("second")).unwrap();
        second.files_of(&folder.path().join("first"), &["usr/share/doc"]).unwrap();
        second.finish().unwrap();
        let names: Vec<String> = files(&folder.path().join("second")).into_keys().collect();
        assert_eq!(names, ["usr", "usr/keep", "usr/link"]);
    }
}
