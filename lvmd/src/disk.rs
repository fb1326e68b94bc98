//! One block device as a look finds it, and the permission to write to it.

pub mod identity;
pub mod label;
pub mod list;
pub mod look;
pub mod select;
pub mod system;

use std::path::{Path, PathBuf};

use crate::name::{Bytes, LvmUuid};

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What it is called for life.
    pub id: String,
    /// The kernel's name, good until the device goes.
    pub kernel: String,
    /// `/dev/` and the kernel's name.
    pub node: PathBuf,
    /// Every stable path that leads to it, the best first.
    pub links: Vec<PathBuf>,
    pub number: (u32, u32),
    pub size: Bytes,
    /// As lsblk says: disk, part, mpath, crypt, raid1, loop, rom, lvm, …
    pub kind: String,
    pub model: Option<String>,
    pub vendor: Option<String>,
    pub serial: Option<String>,
    pub transport: Option<String>,
    /// Kernel drivers of it and of what it is made of, and their transports: what a deny list may name.
    pub made_of: Vec<String>,
    pub rotational: bool,
    pub read_only: bool,
    /// Whether it is a part of, or made of, another device.
    pub below: Vec<String>,
    /// Devices that are made of it, LVs apart.
    pub above: Vec<String>,
    pub partitions: usize,
    /// Why it is the system's own.
    pub system: Option<String>,
    /// Why it is the content of a volume, or may be: it lies on an LV, or is a loop device that kubelet made. Not opened
    /// either: what a pod wrote there must not be taken for a group of this node.
    pub inner: Option<String>,
    content: Content,
}

/// What was found on a device. `Unknown` is not `Blank`: a device that can not be read is never written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Blank,
    Claimed(Claim),
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A filesystem, RAID, LUKS or other signature, by its name.
    Signature(String),
    /// A partition table, by its kind.
    Partitions(String),
    /// An LVM PV, by its UUID.
    PhysicalVolume(LvmUuid),
    /// Mounted, or part of another block device.
    InUse,
    /// No signature, but something in its first or last MiB.
    NotZero,
    /// It was not looked at, since it is nothing to be taken whatever is on it.
    NotLookedAt,
}

/// A device that was seen to be blank. Only [`Disk::blank`] makes one, and the steps that write to a device for the
/// first time take nothing less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlankDisk {
    id: String,
    size: Bytes,
    path: PathBuf,
}

impl Disk {
    pub fn content(&self) -> &Content {
        &self.content
    }

    pub fn blank(&self) -> Option<BlankDisk> {
        match &self.content {
            Content::Blank => Some(BlankDisk { id: self.id.clone(), size: self.size, path: self.path().to_owned() }),
            Content::Claimed(_) | Content::Unknown(_) => None,
        }
    }

    /// The entry of a deny list that names this device or something that it is made of.
    pub fn denied<'a>(&self, deny: &'a [String]) -> Option<&'a str> {
        deny.iter().find(|entry| self.made_of.contains(entry)).map(String::as_str)
    }

    /// Why a device that lsblk calls a disk is none: a floppy drive (major number 2), a boot area of an eMMC.
    pub fn odd(&self) -> Option<&'static str> {
        let emmc = self.kernel.starts_with("mmcblk")
            && ["boot", "rpmb", "gp"].iter().any(|area| self.kernel.trim_start_matches("mmcblk").contains(area));
        match (self.number.0, emmc) {
            (2, _) => Some("a floppy drive"),
            (_, true) => Some("an area of an eMMC that its controller keeps for itself"),
            (_, false) => None,
        }
    }

    /// Counts as blank although it is a PV: it is in no group, and lvmd itself was about to put it into one, after it
    /// had seen it blank, when it was interrupted. LVM takes such a PV as it is; nothing is overwritten. `free`: it
    /// could be opened exclusively just now.
    pub fn take_up(&mut self, orphans: &[LvmUuid], free: bool) {
        if matches!(&self.content, Content::Claimed(Claim::PhysicalVolume(uuid)) if orphans.contains(uuid)) {
            self.content = if free { Content::Blank } else { Content::Claimed(Claim::InUse) };
        }
    }

    /// Its best stable path, else its node.
    pub fn path(&self) -> &Path {
        self.links.first().unwrap_or(&self.node)
    }
}

impl BlankDisk {
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn size(&self) -> Bytes {
        self.size
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A disk of 10 GiB as a test needs it.
    pub fn disk(id: &str, content: Content) -> Disk {
        Disk {
            id: id.to_owned(),
            kernel: id.to_owned(),
            node: Path::new("/dev").join(id),
            links: vec![Path::new("/dev/disk/by-id").join(id)],
            number: (8, 0),
            size: Bytes(10 << 30),
            kind: "disk".to_owned(),
            model: None,
            vendor: None,
            serial: None,
            transport: None,
            made_of: Vec::new(),
            rotational: false,
            read_only: false,
            below: Vec::new(),
            above: Vec::new(),
            partitions: 0,
            system: None,
            inner: None,
            content,
        }
    }

    #[test]
    fn only_a_blank_disk_gives_the_permission_to_write() {
        assert!(disk("a", Content::Blank).blank().is_some());
        for content in [
            Content::Unknown("it does not answer".to_owned()),
            Content::Claimed(Claim::Signature("ext4".to_owned())),
            Content::Claimed(Claim::Partitions("gpt".to_owned())),
            Content::Claimed(Claim::InUse),
            Content::Claimed(Claim::NotZero),
            Content::Claimed(Claim::NotLookedAt),
        ] {
            assert!(disk("a", content).blank().is_none());
        }
    }
}
