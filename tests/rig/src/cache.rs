//! One folder for everything that takes long to make, keyed by what it is made of.
//!
//! An entry is made beside its place and renamed into it, so that one that exists is whole, however the program
//! that made it ended.

use std::{
    fmt::Write as _,
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::{
    error::{Context, Result},
    progress::say,
};

/// Older entries of a kind that are kept beside the one in use: going back to an earlier commit costs nothing.
const KEPT: usize = 2;

/// `tests/.cache`; git ignores it.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(".cache")
}

/// The folder that the whole project is in.
pub(crate) fn project() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    tests.parent().unwrap_or(Path::new(".")).to_owned()
}

/// What an entry is made of.
#[derive(Clone, Default)]
pub struct Inputs(Sha256);

impl Inputs {
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        // The length keeps "ab", "c" apart from "a", "bc".
        self.0.update(text.len().to_le_bytes());
        self.0.update(text);
        self
    }

    pub fn file(mut self, path: &Path) -> Result<Self> {
        let bytes = fs::read(path).context(|| format!("reading {}", path.display()))?;
        self.0.update(bytes.len().to_le_bytes());
        self.0.update(bytes);
        Ok(self)
    }

    /// Every file below a folder, with its name.
    pub fn tree(mut self, path: &Path) -> Result<Self> {
        let entries = fs::read_dir(path).context(|| format!("reading {}", path.display()))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            self = self.text(&path.file_name().unwrap_or_default().to_string_lossy());
            self = if path.is_dir() { self.tree(&path)? } else { self.file(&path)? };
        }
        Ok(self)
    }

    pub fn key(&self) -> String {
        hex(&self.0.clone().finalize())[..16].to_owned()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The folder of the entry, made by `build` if it is not there. Whoever comes second waits for the first.
pub fn entry(kind: &str, inputs: &Inputs, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let root = folder();
    fs::create_dir_all(&root).context(|| format!("making {}", root.display()))?;
    let place = root.join(format!("{kind}-{}", inputs.key()));
    if place.exists() {
        return Ok(place);
    }
    let _lock = lock(&root.join(format!("{kind}.lock")))?;
    if place.exists() {
        return Ok(place);
    }
    say(format!("making {kind}"));
    let began = std::time::Instant::now();
    let beside = root.join(format!("making-{kind}"));
    if beside.exists() {
        fs::remove_dir_all(&beside).context(|| format!("removing {}", beside.display()))?;
    }
    fs::create_dir_all(&beside).context(|| format!("making {}", beside.display()))?;
    build(&beside).context(|| format!("making {kind}"))?;
    fs::rename(&beside, &place).context(|| format!("making {}", place.display()))?;
    forget_old(&root, kind, &place);
    say(format!("made {kind} in {:.1} s", began.elapsed().as_secs_f64()));
    Ok(place)
}

/// Held until it is dropped, or its process ends.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).context(|| format!("opening {}", path.display()))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        say(format!("waiting for another program that holds {}", path.display()));
        flock(&file, FlockOperation::LockExclusive).context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

fn forget_old(root: &Path, kind: &str, newest: &Path) {
    let of_kind = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // `node-disk-…` is not a `node-…`.
        name.strip_prefix(kind)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|key| key.len() == 16 && !key.contains('-'))
    };
    let made = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut old: Vec<PathBuf> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path != newest && of_kind(path))
        .collect();
    old.sort_by_key(made);
    for path in old.iter().rev().skip(KEPT) {
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_tells_inputs_apart() {
        let key = |texts: &[&str]| texts.iter().fold(Inputs::default(), |inputs, text| inputs.text(text)).key();
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&[]).len(), 16);
    }

    #[test]
    fn a_name_in_a_tree_counts() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "x").unwrap();
        let before = Inputs::default().tree(folder.path()).unwrap().key();
        fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        assert_ne!(Inputs::default().tree(folder.path()).unwrap().key(), before);
    }
}
