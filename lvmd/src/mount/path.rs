//! Which paths lvmd mounts at, whatever a caller says, and how it gets there.
//!
//! A path is taken apart into names, each of which is checked; it is then opened name by name below kubelet's root by
//! the kernel, which follows no symbolic link and does not leave that folder. So a pod that can write somewhere below
//! kubelet's root can not redirect a mount.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, open, openat2},
    io::Errno,
};

/// The folder in which kubelet keeps the staging folders of this driver.
const STAGING: &str = crds::names::DRIVER;

/// What a path is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Stage,
    StageBlock,
    Publish,
    PublishBlock,
}

/// A path below kubelet's root that a volume may be mounted at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    root: PathBuf,
    /// Below the root.
    folder: PathBuf,
    name: String,
    purpose: Purpose,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path:?} is not a path that kubelet gives to a CSI driver below {root:?}")]
pub struct BadTarget {
    path: String,
    root: PathBuf,
}

impl Target {
    pub fn parse(root: &Path, path: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget { path: path.to_owned(), root: root.to_owned() };
        let below = path.strip_prefix(root.to_str().ok_or_else(bad)?).and_then(|rest| rest.strip_prefix('/'));
        let names = below.ok_or_else(bad)?.split('/').collect::<Vec<_>>();
        if !names.iter().all(|name| is_plain(name)) {
            return Err(bad());
        }
        let purpose = match names.as_slice() {
            ["plugins", "kubernetes.io", "csi", driver, _, "globalmount"] if *driver == STAGING => Purpose::Stage,
            ["plugins", "kubernetes.io", "csi", "volumeDevices", "staging", _] => Purpose::StageBlock,
            ["plugins", "kubernetes.io", "csi", "volumeDevices", "publish", _, _] => Purpose::PublishBlock,
            ["pods", _, "volumeDevices", "kubernetes.io~csi", _] => Purpose::PublishBlock,
            ["pods", _, "volumes", "kubernetes.io~csi", _, "mount"] => Purpose::Publish,
            _ => return Err(bad()),
        };
        let (name, folder) = names.split_last().ok_or_else(bad)?;
        Ok(Self { root: root.to_owned(), folder: folder.iter().collect(), name: (*name).to_owned(), purpose })
    }

    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub fn path(&self) -> PathBuf {
        self.root.join(&self.folder).join(&self.name)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the folder that the target is in. `make`: makes those folders on the way that are missing.
    pub fn open_folder(&self, missing: Missing) -> io::Result<OwnedFd> {
        let root = open(&self.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        match (beneath(&root, &self.folder), missing) {
            (Err(Errno::NOENT), Missing::Make) => {}
            (other, _) => return Ok(other?),
        }
        let mut folder = root;
        for name in &self.folder {
            match mkdirat(&folder, name, Mode::from_raw_mode(0o750)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(err) => return Err(err.into()),
            }
            folder = beneath(&folder, Path::new(name))?;
        }
        Ok(folder)
    }

    /// Opens the target itself: what is mounted there, if anything is.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let folder = self.open_folder(Missing::Fail)?;
        Ok(openat2(
            &folder,
            self.name.as_str(),
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
            RESOLVE,
        )?)
    }
}

/// What to do about folders that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Make,
    Fail,
}

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

fn beneath(folder: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    openat2(folder, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
}

/// Whether a folder exists at all: the answer is for messages.
pub fn exists(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty()).is_ok()
}

/// Names that kubelet makes: UIDs, hashes, names of PersistentVolumes, and its own folders'.
fn is_plain(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    const ROOT: &str = "/var/lib/kubelet";

    fn purpose(path: &str) -> Option<Purpose> {
        let target = Target::parse(Path::new(ROOT), path).ok()?;
        assert_eq!(target.path(), Path::new(path));
        Some(target.purpose())
    }

    #[test]
    fn the_paths_of_kubelet_are_taken() {
        let hash = "4fb4e3c1ddf6e0ac0ee2bfe8e7bc0a0ae5d5b1fbd34ab8d59ddc8d1fdd1a9b4c";
        for (path, is) in [
            (format!("plugins/kubernetes.io/csi/csi.stowage.dev/{hash}/globalmount"), Purpose::Stage),
            ("plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1".to_owned(), Purpose::StageBlock),
            ("plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/0f8e-1".to_owned(), Purpose::PublishBlock),
            ("pods/0f8e-1/volumeDevices/kubernetes.io~csi/pvc-1".to_owned(), Purpose::PublishBlock),
            ("pods/0f8e-1/volumes/kubernetes.io~csi/pvc-1/mount".to_owned(), Purpose::Publish),
        ] {
            assert_eq!(purpose(&format!("{ROOT}/{path}")), Some(is), "{path}");
        }
    }

    #[test]
    fn no_other_path_is_taken() {
        for path in [
            "/",
            "/etc",
            "/var/lib/kubelet",
            "/var/lib/kubelet/",
            "/var/lib/kubeletx/pods/u/volumes/kubernetes.io~csi/p/mount",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/p",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/p/mount/",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi//mount",
            "/var/lib/kubelet/pods/../volumes/kubernetes.io~csi/p/mount",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/p/mount",
            "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/a b/mount",
            "/var/lib/kubelet/plugins/kubernetes.io/csi/other.driver/x/globalmount",
            "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/x/p",
            "pods/u/volumes/kubernetes.io~csi/p/mount",
        ] {
            assert_eq!(purpose(path), None, "{path}");
        }
    }

    #[test]
    fn a_symbolic_link_on_the_way_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let pods = root.path().join("pods/u/volumes");
        std::fs::create_dir_all(&pods).unwrap();
        std::fs::create_dir_all(elsewhere.path().join("p")).unwrap();
        symlink(elsewhere.path(), pods.join("kubernetes.io~csi")).unwrap();
        let path = format!("{}/pods/u/volumes/kubernetes.io~csi/p/mount", root.path().display());
        let target = Target::parse(root.path(), &path).unwrap();
        assert!(target.open_folder(Missing::Fail).is_err());
        assert!(target.open_folder(Missing::Make).is_err());
        assert_eq!(std::fs::read_dir(elsewhere.path().join("p")).unwrap().count(), 0);
    }

    #[test]
    fn missing_folders_are_made_where_that_is_wanted() {
        let root = tempfile::tempdir().unwrap();
        let path = format!("{}/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u", root.path().display());
        let target = Target::parse(root.path(), &path).unwrap();
        assert!(target.open_folder(Missing::Fail).is_err());
        assert!(target.open_folder(Missing::Make).is_ok());
        assert!(target.path().parent().unwrap().is_dir());
        assert!(target.open().is_err());
    }

    proptest! {
        #[test]
        fn what_is_taken_stays_below_the_root(path in "(/var/lib/kubelet)?(/(pods|u|\\.\\.|\\.|volumes|kubernetes.io~csi|mount|plugins|csi|[a-z]{0,3})){0,7}") {
            if let Ok(target) = Target::parse(Path::new(ROOT), &path) {
                prop_assert!(target.path().starts_with(ROOT));
                prop_assert!(target.path().components().all(|part| part != std::path::Component::ParentDir));
            }
        }
    }
}
