//! How full a mounted volume is. No program is started, and a dead disk holds up nobody but whoever asks for it.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Seek, SeekFrom},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatvfs, open};

use crate::mount::path::Target;

/// kubelet waits two minutes for an answer; a healthy filesystem needs microseconds.
const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stats {
    Filesystem { total: u64, available: u64, used: u64, inodes: u64, free_inodes: u64 },
    Block { size: u64 },
}

#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    #[error("{0} is not there")]
    NotFound(PathBuf),
    #[error("{0} did not answer")]
    Hangs(PathBuf),
    #[error("asking {path} how full it is")]
    Read { path: PathBuf, source: io::Error },
}

/// Paths that have not answered yet: each holds one thread, however often it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Asked {
    pub async fn stats(&self, target: Target) -> Result<Stats, StatsError> {
        let path = target.path();
        if !self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone()) {
            return Err(StatsError::Hangs(path));
        }
        let asked = self.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let answer = read(&target);
            asked.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&target.path());
            answer
        });
        match tokio::time::timeout(LIMIT, answer).await {
            Ok(Ok(Ok(stats))) => Ok(stats),
            Ok(Ok(Err(err))) if err.kind() == io::ErrorKind::NotFound => Err(StatsError::NotFound(path)),
            Ok(Ok(Err(source))) => Err(StatsError::Read { path, source }),
            Ok(Err(panic)) => Err(StatsError::Read { path, source: io::Error::other(panic) }),
            Err(_) => Err(StatsError::Hangs(path)),
        }
    }
}

fn read(target: &Target) -> io::Result<Stats> {
    let place = target.open()?;
    if FileType::from_raw_mode(fstat(&place)?.st_mode).is_block_device() {
        return Ok(Stats::Block { size: size(&place)? });
    }
    let all = fstatvfs(&place)?;
    Ok(Stats::Filesystem {
        total: all.f_blocks.saturating_mul(all.f_frsize),
        available: all.f_bavail.saturating_mul(all.f_frsize),
        used: all.f_blocks.saturating_sub(all.f_bfree).saturating_mul(all.f_frsize),
        inodes: all.f_files,
        free_inodes: all.f_ffree,
    })
}

/// Opens the device behind a file that was opened for its path only.
fn size(place: &OwnedFd) -> io::Result<u64> {
    use std::os::fd::AsRawFd;

    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    File::from(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?).seek(SeekFrom::End(0))
}
