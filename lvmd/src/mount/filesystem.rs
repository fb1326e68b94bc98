//! Making, checking and growing a filesystem on a device.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crds::device_class::FilesystemType;
use rustix::fs::OFlags;

use crate::{
    mount::superblock::{self, HEAD, Superblock},
    name::{Bytes, FsUuid},
    run::{Argv, Run, RunError},
};

#[derive(Debug, thiserror::Error)]
pub enum FilesystemError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("reading {device}")]
    Read { device: String, source: io::Error },
    #[error("reading the signatures of {device}")]
    Signatures { device: String, source: serde_json::Error },
    #[error("{device} should be blank and has a signature of {found}: nothing is touched")]
    NotBlank { device: String, found: String },
    #[error("wiping {device}")]
    Wipe { device: String, source: io::Error },
    #[error("the filesystem on {device} has errors that a person must look at: {what}")]
    Broken { device: String, what: String },
    #[error("{kind} needs a volume of at least {least}, and this one has {size}")]
    TooSmall { kind: &'static str, least: Bytes, size: Bytes },
}

/// What is at the head of a device, and how large the device is.
pub fn read(device: &Path) -> Result<(Option<Superblock>, Bytes), FilesystemError> {
    let read = || {
        let mut file = File::open(device)?;
        let mut head = Vec::with_capacity(HEAD);
        io::Read::by_ref(&mut file).take(HEAD as u64).read_to_end(&mut head)?;
        Ok((superblock::parse(&head), Bytes(file.seek(SeekFrom::End(0))?)))
    };
    read().map_err(|source| FilesystemError::Read { device: device.display().to_string(), source })
}

/// Overwrites the first and the last MiB, where all signatures are, and says so to the disk. The exclusive open fails
/// if anybody has the device mounted.
pub fn wipe_ends(device: &Path) -> Result<(), FilesystemError> {
    let wipe = || {
        let flags = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
        let mut file = File::options().write(true).custom_flags(flags).open(device)?;
        let size = file.seek(SeekFrom::End(0))?;
        let zeros = vec![0; usize::try_from(Bytes::MIB.0.min(size)).unwrap_or(0)];
        for from in [0, size - zeros.len() as u64] {
            file.seek(SeekFrom::Start(from))?;
            file.write_all(&zeros)?;
        }
        file.sync_all()
    };
    wipe().map_err(|source| FilesystemError::Wipe { device: device.display().to_string(), source })
}

/// Makes the filesystem, with this UUID, on a device without any signature. mkfs.xfs refuses one that has some by
/// itself; mkfs.ext4 asks, and where there is nobody to ask it overwrites, so it is looked here.
pub async fn make(kind: FilesystemType, uuid: &FsUuid, device: &Path, run: &impl Run) -> Result<(), FilesystemError> {
    if let Some(found) = signatures(device, run).await?.into_iter().next() {
        return Err(FilesystemError::NotBlank { device: device.display().to_string(), found: found.kind });
    }
    run.run(make_argv(kind, uuid, device)).await?;
    Ok(())
}

/// A filesystem, RAID, LUKS or other signature on a device.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct Signature {
    #[serde(rename = "type")]
    pub kind: String,
    pub uuid: Option<String>,
}

/// What wipefs finds on a device.
pub async fn signatures(device: &Path, run: &impl Run) -> Result<Vec<Signature>, FilesystemError> {
    let answer = run.run(Argv::new("/usr/sbin/wipefs").arg("--no-act").arg("--json").arg(device)).await?;
    parse_signatures(&answer.stdout)
        .map_err(|source| FilesystemError::Signatures { device: device.display().to_string(), source })
}

/// Releases of util-linux differ in what they print for nothing found: an empty list, or nothing at all.
pub fn parse_signatures(answer: &str) -> Result<Vec<Signature>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Found {
        signatures: Vec<Signature>,
    }
    match answer.trim() {
        "" => Ok(Vec::new()),
        answer => serde_json::from_str::<Found>(answer).map(|found| found.signatures),
    }
}

fn make_argv(kind: FilesystemType, uuid: &FsUuid, device: &Path) -> Argv {
    match kind {
        // -K, nodiscard: a discard of all takes minutes on some disks, and nobody reads what it would drop. Who wants the
        // disk to know what is unused mounts with `discard` or runs fstrim.
        FilesystemType::Xfs => Argv::new("/usr/sbin/mkfs.xfs").args(["-q", "-K", "-m"]).arg(format!("uuid={uuid}")),
        FilesystemType::Ext4 => {
            Argv::new("/usr/sbin/mkfs.ext4").args(["-q", "-E", "nodiscard", "-U"]).arg(uuid.as_str())
        }
    }
    .arg(device)
}

/// Repairs what can be repaired without a choice. xfs needs no program: it replays its log when it is mounted.
pub async fn check(kind: FilesystemType, device: &Path, run: &impl Run) -> Result<(), FilesystemError> {
    match kind {
        FilesystemType::Xfs => Ok(()),
        FilesystemType::Ext4 => {
            match run.run(Argv::new("/usr/sbin/e2fsck").arg("-p").arg(device)).await {
                // e2fsck(8): 1 is "errors corrected"; 2 asks for a reboot, which only a mounted filesystem needs.
                Err(err) if matches!(err.code(), Some(1..=3)) => {
                    tracing::warn!(device = %device.display(), "e2fsck corrected errors");
                    Ok(())
                }
                // 4 is "errors left uncorrected". Without it nothing was found: 8, for one, is "in use" or "can not be read".
                Err(err) if err.code().is_some_and(|code| code & 4 != 0) => {
                    Err(FilesystemError::Broken { device: device.display().to_string(), what: err.to_string() })
                }
                other => other.map(drop).map_err(FilesystemError::from),
            }
        }
    }
}

/// Grows a mounted filesystem to the size of its device. Does nothing where it has that size.
pub async fn grow(kind: FilesystemType, device: &Path, point: &Path, run: &impl Run) -> Result<(), FilesystemError> {
    let argv = match kind {
        FilesystemType::Xfs => Argv::new("/usr/sbin/xfs_growfs").arg("-d").arg(point),
        FilesystemType::Ext4 => Argv::new("/usr/sbin/resize2fs").arg(device),
    };
    run.run(argv).await?;
    Ok(())
}

/// Whether growing could make a filesystem larger. It may turn out that it can not, since both leave out a last piece
/// that is too small for them: then a program was started in vain, and nothing else.
pub fn is_smaller(found: &Superblock, device: Bytes) -> bool {
    // Less than a block of the largest size that is made here.
    device.0.saturating_sub(found.size.0) >= 64 << 10
}

/// A UUID that nothing has yet.
pub fn new_uuid() -> io::Result<FsUuid> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    FsUuid::try_from(text.trim()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends as if a program had ended with this code.
    struct Ends(i32);

    impl Run for Ends {
        async fn run(&self, argv: Argv) -> Result<crate::run::Output, RunError> {
            let status = std::os::unix::process::ExitStatusExt::from_raw(self.0 << 8);
            Err(RunError::Failed { argv, status, stderr: String::new() })
        }
    }

    /// e2fsck(8), "EXIT CODE": bits, which may come together.
    #[tokio::test]
    async fn a_filesystem_has_errors_only_where_e2fsck_says_so() {
        for (code, broken) in [(4, true), (12, true), (6, true), (8, false), (16, false), (32, false)] {
            let err = check(FilesystemType::Ext4, Path::new("/dev/dm-0"), &Ends(code)).await.unwrap_err();
            assert_eq!(matches!(err, FilesystemError::Broken { .. }), broken, "{code}: {err}");
        }
        for code in [1, 2, 3] {
            check(FilesystemType::Ext4, Path::new("/dev/dm-0"), &Ends(code)).await.unwrap();
        }
    }

    #[test]
    fn no_program_is_told_to_overwrite() {
        let uuid = new_uuid().unwrap();
        for kind in [FilesystemType::Xfs, FilesystemType::Ext4] {
            let argv = make_argv(kind, &uuid, Path::new("/dev/dm-0")).to_string();
            assert!(argv.contains(uuid.as_str()), "{argv}");
            assert!(!argv.split(' ').any(|arg| ["-f", "-F", "-FF"].contains(&arg)), "{argv}");
        }
    }
}
