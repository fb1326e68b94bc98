//! LVM's label on a device, read without LVM and without udev: which devices an LVM command is to be told of must be
//! known before the first one is started, and udev's word may be old or, in a container, absent.

use crate::name::LvmUuid;

/// LVM looks for its label in the first four sectors of 512 bytes (`LABEL_SCAN_SECTORS` in lib/label/label.h).
pub const LABEL_AREA: usize = 4 * SECTOR;

const SECTOR: usize = 512;

/// The UUID of the PV whose label is at the `head` of a device.
pub fn pv_uuid(head: &[u8]) -> Option<LvmUuid> {
    // struct label_header: id "LABELONE", sector (u64), crc (u32), offset (u32), type "LVM2 001".
    head.chunks_exact(SECTOR).take(LABEL_AREA / SECTOR).find_map(|sector| {
        if !sector.starts_with(b"LABELONE") || sector.get(24..32) != Some(b"LVM2 001") {
            return None;
        }
        let offset = usize::try_from(u32::from_le_bytes(sector.get(20..24)?.try_into().ok()?)).ok()?;
        let uuid = sector.get(offset..offset.checked_add(32)?)?;
        LvmUuid::from_compact(std::str::from_utf8(uuid).ok()?).ok()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_label_of_a_real_pv_is_read() {
        let head = include_bytes!("../../tests/fixtures/label/pv-head.bin");
        let uuid = pv_uuid(head).unwrap();
        assert_eq!(uuid.as_str(), include_str!("../../tests/fixtures/label/pv-uuid.txt").trim());
    }

    #[test]
    fn a_blank_head_has_no_label() {
        assert_eq!(pv_uuid(&[0; LABEL_AREA]), None);
        assert_eq!(pv_uuid(b""), None);
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_survived(mut head in proptest::collection::vec(any::<u8>(), 0..4096), at in 0_usize..4) {
            if let Some(place) = head.get_mut(at * SECTOR..at * SECTOR + 32) {
                place[..8].copy_from_slice(b"LABELONE");
                place[24..].copy_from_slice(b"LVM2 001");
            }
            let _ = pv_uuid(&head);
        }
    }
}
