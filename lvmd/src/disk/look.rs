//! What is on a device. Reads, and never writes.
//!
//! Blank means all of: it opens exclusively, it has the size that was listed, its first and last MiB are zero, and
//! wipefs finds no signature. Anything that can not be answered is `Unknown`.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    disk::{
        Claim, Content, Disk,
        label::{LABEL_AREA, pv_uuid},
    },
    mount::filesystem::parse_signatures,
    name::{Bytes, LvmUuid},
    run::{Argv, Run},
};
use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

/// A healthy disk answers in milliseconds, one that spins up in about ten seconds; one that has not answered by then
/// is not written to in this round.
const LIMIT: Duration = Duration::from_secs(20);

const TABLES: [&str; 7] = ["gpt", "dos", "mac", "sun", "bsd", "sgi", "PMBR"];

/// Looks at devices, and remembers which of them have not answered yet: a dead disk holds one thread, however often
/// it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Eyes(Arc<Mutex<BTreeSet<PathBuf>>>);

impl Eyes {
    /// Fills in what is on `disk`, as far as `depth` says.
    pub async fn look(&self, disk: &mut Disk, depth: Depth, run: &Arc<impl Run>) {
        let (node, size, held, run) = (disk.node.clone(), disk.size, !disk.above.is_empty(), run.clone());
        disk.content = match depth {
            Depth::None => return,
            Depth::Label => self.ask(&disk.node, async move { label_on(&node, held).await }).await,
            Depth::All => self.ask(&disk.node, async move { look_at(&node, size, held, &run).await }).await,
        };
    }

    /// Whether nobody uses a device: it can be opened exclusively.
    pub async fn is_free(&self, disk: &Disk) -> bool {
        let node = disk.node.clone();
        let free = async move {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            let opened = tokio::task::spawn_blocking(move || open(node, flags, Mode::empty()).is_ok()).await;
            if opened.unwrap_or(false) { Content::Blank } else { Content::Claimed(Claim::InUse) }
        };
        self.ask(&disk.node, free).await == Content::Blank
    }

    async fn ask(&self, node: &Path, question: impl Future<Output = Content> + Send + 'static) -> Content {
        let node = node.to_owned();
        let busy = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy().insert(node.clone()) {
            return Content::Unknown("it has not answered an earlier read yet".to_owned());
        }
        let eyes = self.clone();
        let asked = tokio::spawn(async move {
            let content = question.await;
            eyes.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
            content
        });
        match tokio::time::timeout(LIMIT, asked).await {
            Ok(Ok(content)) => content,
            Ok(Err(err)) => Content::Unknown(format!("looking at it failed: {err}")),
            Err(_) => Content::Unknown(format!("it did not answer within {} s", LIMIT.as_secs())),
        }
    }
}

/// How much of a device is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// It is not opened.
    None,
    /// LVM's label alone, which every group of this node is found by. Nothing is opened exclusively.
    Label,
    All,
}

async fn label_on(node: &Path, held: bool) -> Content {
    let path = node.to_owned();
    match tokio::task::spawn_blocking(move || label(&path, held)).await {
        Ok(Ok(Some(uuid))) => Content::Claimed(Claim::PhysicalVolume(uuid)),
        Ok(Ok(None)) => Content::Claimed(Claim::NotLookedAt),
        Ok(Err(why)) => Content::Unknown(why),
        Err(err) => Content::Unknown(format!("looking at it failed: {err}")),
    }
}

async fn look_at(node: &Path, size: Bytes, held: bool, run: &Arc<impl Run>) -> Content {
    let path = node.to_owned();
    let read = tokio::task::spawn_blocking(move || ends(&path, size, held)).await;
    let zero = match read {
        Ok(Ok(Ends::Zero)) => true,
        Ok(Ok(Ends::Data)) => false,
        Ok(Ok(Ends::Label(uuid))) => return Content::Claimed(Claim::PhysicalVolume(uuid)),
        Ok(Ok(Ends::Busy)) => return Content::Claimed(Claim::InUse),
        Ok(Err(why)) => return Content::Unknown(why),
        Err(err) => return Content::Unknown(format!("looking at it failed: {err}")),
    };
    // Not `blkid --probe`: it ends with 2 for a blank disk and for a missing one alike.
    let argv = Argv::new("/usr/sbin/wipefs").arg("--no-act").arg("--json").arg(node);
    match run.run(argv).await {
        Ok(answer) => signatures(&answer.stdout, zero),
        Err(err) => Content::Unknown(runtime::chain(&err)),
    }
}

/// What the first and the last MiB are.
enum Ends {
    Zero,
    Data,
    Label(LvmUuid),
    Busy,
}

/// LVM's label on a device of which nothing else is made.
fn label(node: &Path, held: bool) -> Result<Option<LvmUuid>, String> {
    // Without O_EXCL: the PVs of a group with active LVs are held by them, and their label is wanted all the same.
    let mut shared =
        File::from(open(node, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map_err(not_opened)?);
    let mut head = vec![0; LABEL_AREA];
    shared.read_exact(&mut head).map_err(failed)?;
    // What another device is made of (a path of a multipath device, a mirror's half) shows the label of the whole.
    Ok(pv_uuid(&head).filter(|_| !held))
}

fn failed(err: io::Error) -> String {
    format!("it can not be read: {err}")
}

fn ends(node: &Path, size: Bytes, held: bool) -> Result<Ends, String> {
    if let Some(uuid) = label(node, held)? {
        return Ok(Ends::Label(uuid));
    }
    // The kernel refuses O_EXCL on a block device that is mounted or held by another.
    let mut disk = match open(node, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(disk) => File::from(disk),
        Err(Errno::BUSY) => return Ok(Ends::Busy),
        Err(err) => return Err(not_opened(err)),
    };
    let now = disk.seek(SeekFrom::End(0)).map_err(failed)?;
    if now != size.0 {
        return Err(format!("its size is {now} bytes now and was {} bytes when it was listed", size.0));
    }
    let mut part = vec![0; usize::try_from(Bytes::MIB.0.min(now)).unwrap_or(0)];
    for from in [0, now - part.len() as u64] {
        disk.seek(SeekFrom::Start(from)).map_err(failed)?;
        disk.read_exact(&mut part).map_err(failed)?;
        if part.iter().any(|byte| *byte != 0) {
            return Ok(Ends::Data);
        }
    }
    Ok(Ends::Zero)
}

fn not_opened(err: Errno) -> String {
    format!("it can not be opened: {}", io::Error::from(err))
}

fn signatures(answer: &str, zero: bool) -> Content {
    let found = match parse_signatures(answer) {
        Ok(found) => found,
        Err(err) => return Content::Unknown(format!("the answer of wipefs can not be understood: {err}")),
    };
    // A filesystem says more than the table that may stand beside it.
    let table = |kind: &str| TABLES.contains(&kind);
    match found.iter().find(|one| !table(&one.kind)).or_else(|| found.first()) {
        Some(one) if table(&one.kind) => Content::Claimed(Claim::Partitions(one.kind.clone())),
        Some(one) => Content::Claimed(Claim::Signature(one.kind.clone())),
        None if zero => Content::Blank,
        None => Content::Claimed(Claim::NotZero),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wipefs_found_is_named() {
        let ext4 = r#"{"signatures": [{"device":"loop0","offset":"0x438","type":"ext4","uuid":"u","label":null}]}"#;
        assert_eq!(signatures(ext4, false), Content::Claimed(Claim::Signature("ext4".to_owned())));
        let gpt =
            r#"{"signatures": [{"device":"d","type":"gpt"},{"device":"d","type":"gpt"},{"device":"d","type":"PMBR"}]}"#;
        assert_eq!(signatures(gpt, false), Content::Claimed(Claim::Partitions("gpt".to_owned())));
        let both = r#"{"signatures": [{"type":"dos"},{"type":"zfs_member"}]}"#;
        assert_eq!(signatures(both, false), Content::Claimed(Claim::Signature("zfs_member".to_owned())));
    }

    #[test]
    fn blank_is_no_signature_and_zeros() {
        for none in [r#"{"signatures": []}"#, "", "\n"] {
            assert_eq!(signatures(none, true), Content::Blank);
            assert_eq!(signatures(none, false), Content::Claimed(Claim::NotZero));
        }
    }

    #[test]
    fn an_answer_that_is_not_understood_is_unknown() {
        assert!(matches!(signatures("wipefs: error", true), Content::Unknown(_)));
        assert!(matches!(signatures("{}", true), Content::Unknown(_)));
    }
}
