//! A guest's disks: files on the host, each on the bus that a test wants it on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    error::{Context, Result},
    guest_image::sparse_file,
};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// A disk that a guest is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Its serial number, and its name in every call: at most 20 characters.
    pub id: String,
    /// In bytes.
    pub size: u64,
    pub content: Content,
    pub bus: Bus,
    /// In bytes: 512, or 4096.
    pub sector: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    Blank,
    /// A copy of this file, made larger to the disk's size.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bus {
    Virtio,
    /// A disk with a world-wide name if there is one; it turns, unless it is said to be an SSD.
    Scsi {
        wwn: Option<u64>,
        rotation: Rotation,
    },
    Nvme,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rotation {
    Ssd,
    Turning,
}

impl Disk {
    /// A blank disk on virtio with 512-byte sectors.
    pub fn blank(id: impl Into<String>, size: u64) -> Self {
        Self { id: id.into(), size, content: Content::Blank, bus: Bus::Virtio, sector: 512 }
    }

    #[must_use]
    pub fn on(mut self, bus: Bus) -> Self {
        self.bus = bus;
        self
    }

    #[must_use]
    pub fn with(mut self, content: Content) -> Self {
        self.content = content;
        self
    }

    #[must_use]
    pub fn sector(mut self, bytes: u32) -> Self {
        self.sector = bytes;
        self
    }

    /// Where the guest finds it, whatever letter the kernel gives it.
    pub fn path_in_guest(&self) -> String {
        match &self.bus {
            Bus::Virtio => format!("/dev/disk/by-id/virtio-{}", self.id),
            Bus::Scsi { wwn: Some(wwn), .. } => format!("/dev/disk/by-id/wwn-{wwn:#x}"),
            Bus::Scsi { wwn: None, .. } => format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{}", self.id),
            Bus::Nvme => format!("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{}", self.id),
        }
    }

    pub(crate) fn make_file(&self, path: &Path) -> Result<()> {
        match &self.content {
            Content::Blank => sparse_file(path, self.size),
            Content::File(source) => {
                fs::copy(source, path).context(|| format!("copying {}", source.display()))?;
                let file =
                    fs::OpenOptions::new().write(true).open(path).context(|| format!("opening {}", path.display()))?;
                file.set_len(self.size).context(|| format!("resizing {}", path.display()))
            }
        }
    }

    /// `blockdev-add`'s argument, and the value of `-blockdev`.
    pub(crate) fn backend(&self, path: &Path) -> Value {
        raw_backend(&self.node_name(), path)
    }

    pub(crate) fn node_name(&self) -> String {
        format!("disk-{}", self.id)
    }

    pub(crate) fn device_id(&self) -> String {
        format!("dev-{}", self.id)
    }

    /// Whether it sits in a PCI slot of its own.
    pub(crate) fn needs_slot(&self) -> bool {
        match self.bus {
            Bus::Virtio | Bus::Nvme => true,
            Bus::Scsi { .. } => false,
        }
    }

    /// `device_add`'s argument, and the value of `-device`. `slot` is the bus of a disk that needs one.
    pub(crate) fn device(&self, slot: &str) -> Value {
        let mut device = json!({
            "id": self.device_id(),
            "drive": self.node_name(),
            "serial": self.id,
            "logical_block_size": self.sector,
            "physical_block_size": self.sector,
        });
        let more = match &self.bus {
            Bus::Virtio => json!({ "driver": "virtio-blk-pci", "bus": slot }),
            Bus::Nvme => json!({ "driver": "nvme", "bus": slot }),
            Bus::Scsi { wwn, rotation } => {
                let rate = match rotation {
                    Rotation::Ssd => 1,
                    Rotation::Turning => 7200,
                };
                let mut more = json!({ "driver": "scsi-hd", "bus": "scsi.0", "rotation_rate": rate });
                if let Some(wwn) = wwn {
                    more["wwn"] = json!(wwn);
                }
                more
            }
        };
        if let (Value::Object(device), Value::Object(more)) = (&mut device, more) {
            device.extend(more);
        }
        device
    }
}

/// Writes reach the host's memory at once and its disk at leisure: a guest's power cut loses only what the guest had
/// not flushed, and a flush costs nothing.
pub(crate) fn raw_backend(name: &str, path: &Path) -> Value {
    json!({
        "driver": "raw",
        "node-name": name,
        "discard": "unmap",
        "cache": { "direct": false, "no-flush": true },
        "file": {
            "driver": "file",
            "filename": path,
            "discard": "unmap",
            "cache": { "direct": false, "no-flush": true },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bus_has_its_device() {
        let disk = Disk::blank("a", GIB);
        assert_eq!(disk.device("slot0")["driver"], "virtio-blk-pci");
        assert_eq!(disk.device("slot0")["bus"], "slot0");
        let nvme = disk.clone().on(Bus::Nvme).sector(4096);
        assert_eq!(
            (nvme.device("slot1")["driver"].as_str(), nvme.device("slot1")["logical_block_size"].as_u64()),
            (Some("nvme"), Some(4096))
        );
        let scsi = disk.on(Bus::Scsi { wwn: Some(0x5000_c500_1234_5678), rotation: Rotation::Turning }).device("slot0");
        assert_eq!((&scsi["bus"], &scsi["wwn"]), (&json!("scsi.0"), &json!(0x5000_c500_1234_5678_u64)));
        assert_eq!(scsi["rotation_rate"], 7200);
    }

    #[test]
    fn a_copy_is_as_large_as_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("source");
        fs::write(&source, b"data").unwrap();
        let made = folder.path().join("made");
        Disk::blank("a", 4096).with(Content::File(source)).make_file(&made).unwrap();
        let bytes = fs::read(&made).unwrap();
        assert_eq!((bytes.len(), &bytes[..4]), (4096, b"data".as_slice()));
    }
}
