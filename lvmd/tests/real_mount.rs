//! Real filesystems on loop devices, mounted for real below a folder that stands for kubelet's. Needs root, and no
//! device-mapper. Everything is unmounted and removed by Drop.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use crds::device_class::FilesystemType;
use lvmd::{
    mount::{
        attach::{self, AttachError, Shape},
        filesystem::{self, FilesystemError},
        options::Options,
        path::{Missing, Target},
        stats::{Asked, Stats, StatsError},
        table::Table,
    },
    name::Bytes,
    run::{Argv, HostLock, Run, System},
};
use rustix::fs::{Mode, OFlags, open};

struct Bench {
    folder: tempfile::TempDir,
    run: System,
    device: PathBuf,
}

impl Bench {
    async fn new(name: &str, mib: u64) -> Self {
        let folder = tempfile::Builder::new().prefix(&format!("stowage-test-{name}-")).tempdir().unwrap();
        let run = System::new(folder.path().to_owned(), HostLock::open(folder.path()).unwrap());
        let file = folder.path().join("disk");
        fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        let argv = Argv::new("/usr/sbin/losetup").args(["--find", "--show"]).arg(&file);
        let device = PathBuf::from(run.run(argv).await.unwrap().stdout);
        Self { folder, run, device }
    }

    /// With an ext4 on it.
    async fn formatted(name: &str) -> Self {
        let bench = Self::new(name, 40).await;
        let uuid = filesystem::new_uuid().unwrap();
        filesystem::make(FilesystemType::Ext4, &uuid, &bench.device, &bench.run).await.unwrap();
        let (found, size) = filesystem::read(&bench.device).unwrap();
        assert_eq!(found.map(|found| (found.kind, found.uuid)), Some((FilesystemType::Ext4, uuid)));
        assert_eq!(size, Bytes(40 << 20));
        bench
    }

    fn target(&self, path: &str) -> Target {
        Target::parse(self.folder.path(), self.folder.path().join(path).to_str().unwrap()).unwrap()
    }

    fn staging(&self) -> Target {
        self.target("plugins/kubernetes.io/csi/csi.stowage.dev/0a1b/globalmount")
    }

    fn publishing(&self) -> Target {
        self.target("pods/u-1/volumes/kubernetes.io~csi/pvc-1/mount")
    }

    fn stage(&self, options: &[&str]) -> Result<(), AttachError> {
        self.stage_as("ext4", options)
    }

    fn stage_as(&self, kind: &str, options: &[&str]) -> Result<(), AttachError> {
        let options = Options::parse(options.iter().copied()).unwrap();
        let mount = attach::filesystem(kind, &self.device, &options)?;
        attach::attach(&mount, &self.staging(), Shape::Folder)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for target in [self.publishing(), self.staging()] {
            let _ = attach::detach(&target);
        }
        #[expect(clippy::disallowed_methods, reason = "Drop can not wait for the runtime")]
        let _ = std::process::Command::new("/usr/sbin/losetup").arg("--detach").arg(&self.device).status();
    }
}

fn mounted(path: &Path) -> Option<String> {
    Table::read().unwrap().at(path).map(|mount| mount.options.clone())
}

#[tokio::test]
async fn a_filesystem_is_staged_published_and_taken_away() {
    let bench = Bench::formatted("life").await;
    bench.stage(&["noatime", "nosuid"]).unwrap();
    let options = mounted(&bench.staging().path()).unwrap();
    assert!(options.contains("noatime") && options.contains("nosuid"), "{options}");
    fs::write(bench.staging().path().join("word"), "kept").unwrap();

    let from = bench.staging().open().unwrap();
    attach::attach(&attach::clone(&from).unwrap(), &bench.publishing(), Shape::Folder).unwrap();
    attach::make_read_only(&bench.publishing()).unwrap();
    drop(from);
    let published = mounted(&bench.publishing().path()).unwrap();
    for option in ["ro", "noatime", "nosuid"] {
        assert!(published.split(',').any(|one| one == option), "{published}");
    }
    assert_eq!(fs::read_to_string(bench.publishing().path().join("word")).unwrap(), "kept");
    assert!(fs::write(bench.publishing().path().join("other"), "").is_err());
    // Only that one mount is read-only.
    fs::write(bench.staging().path().join("other"), "").unwrap();

    let stats = Asked::default().stats(bench.publishing()).await.unwrap();
    assert!(matches!(stats, Stats::Filesystem { total, inodes, .. } if total > 30 << 20 && inodes > 0), "{stats:?}");

    // H2: twice is as good as once.
    for _ in 0..2 {
        attach::detach(&bench.publishing()).unwrap();
        attach::remove(&bench.publishing()).unwrap();
    }
    assert!(!bench.publishing().path().exists());
    attach::detach(&bench.staging()).unwrap();
    assert_eq!(mounted(&bench.staging().path()), None);
    let gone = Asked::default().stats(bench.publishing()).await.unwrap_err();
    assert!(matches!(gone, StatsError::NotFound(_)), "{gone}");
}

/// H4.
#[tokio::test]
async fn a_wrong_option_says_what_was_wrong() {
    let bench = Bench::formatted("option").await;
    let err = bench.stage(&["noatime", "colour=blue"]).unwrap_err();
    assert!(matches!(&err, AttachError::Option { option, .. } if option == "colour=blue"), "{err}");
    assert!(err.to_string().contains("colour"), "{err}");
    assert_eq!(mounted(&bench.staging().path()), None);
    bench.stage(&["discard", "errors=remount-ro"]).unwrap();
}

/// G1, G3: the device has grown, the filesystem follows while it is mounted. (ext4 does so in a virtual machine: it
/// asks for CAP_SYS_RESOURCE, which root does not have everywhere.)
#[tokio::test]
async fn a_filesystem_grows_while_it_is_mounted() {
    let bench = Bench::new("grow", 300).await;
    let uuid = filesystem::new_uuid().unwrap();
    filesystem::make(FilesystemType::Xfs, &uuid, &bench.device, &bench.run).await.unwrap();
    bench.stage_as("xfs", &[]).unwrap();
    fs::File::options().write(true).open(bench.folder.path().join("disk")).unwrap().set_len(600 << 20).unwrap();
    bench.run.run(Argv::new("/usr/sbin/losetup").arg("--set-capacity").arg(&bench.device)).await.unwrap();
    for _ in 0..2 {
        let point = bench.staging().path();
        filesystem::grow(FilesystemType::Xfs, &bench.device, &point, &bench.run).await.unwrap();
    }
    let stats = Asked::default().stats(bench.staging()).await.unwrap();
    assert!(matches!(stats, Stats::Filesystem { total, .. } if total > 500 << 20), "{stats:?}");
    attach::detach(&bench.staging()).unwrap();
    let (found, size) = filesystem::read(&bench.device).unwrap();
    assert!(!filesystem::is_smaller(&found.unwrap(), size));
}

/// DESIGN 5.6: nothing is formatted that is not blank, and what is mounted is not wiped.
#[tokio::test]
async fn what_is_there_is_not_formatted_or_wiped() {
    let bench = Bench::formatted("once").await;
    let before = fs::read(&bench.device).unwrap();
    let uuid = filesystem::new_uuid().unwrap();
    for kind in [FilesystemType::Xfs, FilesystemType::Ext4] {
        let refused = filesystem::make(kind, &uuid, &bench.device, &bench.run).await.unwrap_err();
        assert!(matches!(refused, FilesystemError::NotBlank { .. }), "{refused}");
    }
    assert!(fs::read(&bench.device).unwrap() == before);
    bench.stage(&[]).unwrap();
    let refused = filesystem::wipe_ends(&bench.device).unwrap_err();
    assert!(matches!(refused, FilesystemError::Wipe { .. }), "{refused}");
    attach::detach(&bench.staging()).unwrap();
    filesystem::wipe_ends(&bench.device).unwrap();
    assert_eq!(filesystem::read(&bench.device).unwrap().0, None);
}

#[tokio::test]
async fn a_dirty_ext4_is_repaired_and_a_broken_one_is_not_guessed_at() {
    let bench = Bench::formatted("fsck").await;
    filesystem::check(FilesystemType::Ext4, &bench.device, &bench.run).await.unwrap();
    // The block group descriptors and the root's inode table are lost: nothing e2fsck may choose about by itself.
    let file = fs::File::options().write(true).open(&bench.device).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 16 << 10], 2048).unwrap();
    file.sync_all().unwrap();
    let broken = filesystem::check(FilesystemType::Ext4, &bench.device, &bench.run).await;
    if let Err(err) = broken {
        assert!(matches!(err, FilesystemError::Broken { .. }), "{err}");
    }
}

#[tokio::test]
async fn a_device_is_published_as_a_file_that_is_the_device() {
    let bench = Bench::new("block", 40).await;
    let target = bench.target("plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u-1");
    let from = open(&bench.device, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).unwrap();
    attach::attach(&attach::clone(&from).unwrap(), &target, Shape::File).unwrap();
    assert_eq!(Asked::default().stats(target.clone()).await.unwrap(), Stats::Block { size: 40 << 20 });
    drop(from);
    attach::detach(&target).unwrap();
    attach::remove(&target).unwrap();
    assert!(target.open_folder(Missing::Fail).is_ok() && !target.path().exists());
}
