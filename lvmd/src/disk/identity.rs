//! What a device is called for life: the identity it was made with, else the place it is attached to, never `sdX`.

use std::path::PathBuf;

/// What is known of a device that may name it.
#[derive(Clone, Debug, Default)]
pub struct Marks<'a> {
    pub kernel: &'a str,
    /// The identity of the whole device and the number of this partition of it.
    pub partition_of: Option<(&'a str, &'a str)>,
    /// As udev's ID_WWN or the kernel's `wwid` has it.
    pub wwn: Option<&'a str>,
    pub model: Option<&'a str>,
    pub serial: Option<&'a str>,
    pub transport: Option<&'a str>,
    pub driver: Option<&'a str>,
    /// device-mapper's UUID.
    pub dm_uuid: Option<&'a str>,
    /// The file behind a loop device.
    pub backing: Option<&'a str>,
    pub links: &'a [PathBuf],
}

/// The identity, in the words of the names below `/dev/disk/by-id` where they have any. `None`: there is nothing by
/// which this device could be told from another after a reboot.
///
/// [`crds::node_storage::identity_is_global`] tells from the result whether it is unique in the world.
pub fn identity(marks: &Marks<'_>) -> Option<String> {
    if let Some((whole, number)) = marks.partition_of {
        return Some(format!("{whole}-part{number}"));
    }
    if let Some(uuid) = marks.dm_uuid {
        return Some(plain(&format!("dm-uuid-{uuid}")));
    }
    if let Some(backing) = marks.backing {
        return Some(format!("loop-{backing}"));
    }
    marks
        .wwn
        .and_then(global)
        .or_else(|| link(marks.links, "/dev/disk/by-id/", "md-uuid-"))
        .or_else(|| serial(marks))
        .or_else(|| link(marks.links, "/dev/disk/by-path/", "").map(|path| format!("path-{path}")))
}

/// NAA (IEEE 802) numbers and NVMe's EUI-64, NGUID and UUID are unique in the world. What the kernel composes of
/// vendor, model and serial (`nvme.1b36-…`, `t10.…`) is not, and a number of zeros is nobody's.
fn global(wwn: &str) -> Option<String> {
    let wwn = wwn.trim().to_ascii_lowercase();
    let naa = wwn.strip_prefix("0x").or_else(|| wwn.strip_prefix("naa."));
    let number = naa.or_else(|| wwn.strip_prefix("eui.")).or_else(|| wwn.strip_prefix("uuid."))?;
    let digits = number.bytes().filter(|b| *b != b'-');
    let real = digits.clone().count() >= 16
        && digits.clone().all(|b| b.is_ascii_hexdigit())
        && digits.clone().any(|b| b != b'0');
    real.then(|| match naa {
        Some(naa) => format!("wwn-0x{naa}"),
        None => format!("nvme-{wwn}"),
    })
}

fn serial(marks: &Marks<'_>) -> Option<String> {
    let serial = marks.serial.map(str::trim).filter(|serial| serial.bytes().any(|b| !b"0 ".contains(&b)))?;
    let bus = match (marks.driver, marks.transport) {
        (Some("virtio_blk"), _) => return Some(plain(&format!("virtio-{serial}"))),
        (_, Some("sata" | "ata")) => "ata",
        (_, Some("nvme")) => "nvme",
        (_, Some(other)) => other,
        (_, None) => "scsi",
    };
    let model = marks.model.map(str::trim).filter(|model| !model.is_empty());
    Some(plain(&match model {
        Some(model) => format!("{bus}-{model}_{serial}"),
        None => format!("{bus}-{serial}"),
    }))
}

fn link(links: &[PathBuf], folder: &str, prefix: &str) -> Option<String> {
    links.iter().filter_map(|link| link.to_str()?.strip_prefix(folder)).find(|name| name.starts_with(prefix)).map(plain)
}

/// As udev writes names of links: what is not plain becomes `_`.
fn plain(text: &str) -> String {
    text.trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._:+-@#".contains(c) { c } else { '_' })
        .take(240)
        .collect()
}

#[cfg(test)]
mod tests {
    use crds::node_storage::identity_is_global;

    use super::*;

    fn of(marks: Marks<'_>) -> (String, bool) {
        let id = identity(&marks).unwrap();
        let global = identity_is_global(&id);
        (id, global)
    }

    fn wwn(wwn: &str) -> Marks<'_> {
        Marks { wwn: Some(wwn), serial: Some("S1"), model: Some("QEMU NVMe Ctrl"), ..Marks::default() }
    }

    #[test]
    fn a_number_that_is_unique_in_the_world_comes_first() {
        assert_eq!(of(wwn("0x5000C500a1b2c3d4")), ("wwn-0x5000c500a1b2c3d4".to_owned(), true));
        assert_eq!(of(wwn("naa.5000c500a1b2c3d4")), ("wwn-0x5000c500a1b2c3d4".to_owned(), true));
        assert_eq!(of(wwn("eui.0025385b71b0e2d7")), ("nvme-eui.0025385b71b0e2d7".to_owned(), true));
        assert!(of(wwn("uuid.0f8e2f0c-7a5b-4c6d-9e0f-112233445566")).1);
        let multipath = Marks { dm_uuid: Some("mpath-3600a0b80000f1c2d"), ..Marks::default() };
        assert_eq!(of(multipath), ("dm-uuid-mpath-3600a0b80000f1c2d".to_owned(), true));
    }

    #[test]
    fn a_composed_or_empty_number_is_not_unique() {
        for composed in ["nvme.1b36-5331-51454d55-00000001", "t10.ATA QEMU HARDDISK", "0x0000000000000000", "0x12", ""]
        {
            assert_eq!(of(Marks { transport: Some("nvme"), ..wwn(composed) }).0, "nvme-QEMU_NVMe_Ctrl_S1");
        }
    }

    #[test]
    fn a_serial_number_stands_behind_the_bus() {
        let virtio = Marks { serial: Some("disk 1"), driver: Some("virtio_blk"), ..Marks::default() };
        assert_eq!(of(virtio), ("virtio-disk_1".to_owned(), false));
        let sata =
            Marks { serial: Some("QM1"), model: Some("QEMU HARDDISK"), transport: Some("sata"), ..Marks::default() };
        assert_eq!(of(sata), ("ata-QEMU_HARDDISK_QM1".to_owned(), false));
    }

    #[test]
    fn a_partition_is_called_after_its_disk() {
        let part = Marks { partition_of: Some(("wwn-0x5000c500a1b2c3d4", "2")), ..Marks::default() };
        assert_eq!(of(part), ("wwn-0x5000c500a1b2c3d4-part2".to_owned(), true));
    }

    #[test]
    fn without_any_number_the_place_counts_and_without_a_place_nothing() {
        let links = [PathBuf::from("/dev/disk/by-path/virtio-pci-0000:00:05.0")];
        let placed = Marks { links: &links, serial: Some("0000"), ..Marks::default() };
        assert_eq!(of(placed), ("path-virtio-pci-0000:00:05.0".to_owned(), false));
        assert_eq!(identity(&Marks { kernel: "sda", ..Marks::default() }), None);
    }
}
