//! The first bytes of a filesystem: its type, its UUID, its size. Read without a program, since it is asked for at
//! each stage.

use crds::device_class::FilesystemType;

use crate::name::{Bytes, FsUuid};

/// Enough of a device's head for both.
pub const HEAD: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub kind: FilesystemType,
    pub uuid: FsUuid,
    /// What the filesystem takes of its device.
    pub size: Bytes,
}

/// The filesystem at the `head` of a device, if it is one that is made here.
pub fn parse(head: &[u8]) -> Option<Superblock> {
    xfs(head).or_else(|| ext4(head))
}

/// struct xfs_dsb (fs/xfs/libxfs/xfs_format.h), big-endian: magic 0, block size 4, data blocks 8, UUID 32.
fn xfs(head: &[u8]) -> Option<Superblock> {
    if !head.starts_with(b"XFSB") {
        return None;
    }
    let block = u32::from_be_bytes(head.get(4..8)?.try_into().ok()?);
    let blocks = u64::from_be_bytes(head.get(8..16)?.try_into().ok()?);
    let size = Bytes(blocks.checked_mul(block.into())?);
    Some(Superblock { kind: FilesystemType::Xfs, uuid: uuid(head.get(32..48)?)?, size })
}

/// struct ext4_super_block (fs/ext4/ext4.h), little-endian, 1024 bytes behind the head: blocks 0x4, logarithm of the
/// block size 0x18, magic 0x38, UUID 0x68, and with the feature 64bit the high half of the blocks at 0x150.
fn ext4(head: &[u8]) -> Option<Superblock> {
    let block = head.get(1024..2048)?;
    let word = |at: usize| Some(u32::from_le_bytes(block.get(at..at + 4)?.try_into().ok()?));
    if block.get(0x38..0x3a)? != [0x53, 0xef] {
        return None;
    }
    // Whether blocks_hi counts: INCOMPAT_64BIT.
    let high = if word(0x60)? & 0x80 == 0 { 0 } else { word(0x150)? };
    let blocks = u64::from(high) << 32 | u64::from(word(0x4)?);
    let size = Bytes(blocks.checked_mul(1024_u64.checked_shl(word(0x18)?)?)?);
    Some(Superblock { kind: FilesystemType::Ext4, uuid: uuid(block.get(0x68..0x78)?)?, size })
}

fn uuid(raw: &[u8]) -> Option<FsUuid> {
    let hex = raw.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    FsUuid::try_from(parts.join("-")).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "0f8e2f0c-7a5b-4c6d-9e0f-112233445566";

    /// Heads of a 300 MiB xfs and a 32 MiB ext4 that mkfs made with this UUID.
    #[test]
    fn real_filesystems_are_known() {
        let xfs = parse(include_bytes!("../../tests/fixtures/superblock/xfs.bin")).unwrap();
        assert_eq!((xfs.kind, xfs.uuid.as_str(), xfs.size), (FilesystemType::Xfs, UUID, Bytes(300 << 20)));
        let ext4 = parse(include_bytes!("../../tests/fixtures/superblock/ext4.bin")).unwrap();
        assert_eq!((ext4.kind, ext4.uuid.as_str(), ext4.size), (FilesystemType::Ext4, UUID, Bytes(32 << 20)));
    }

    #[test]
    fn a_blank_head_is_no_filesystem() {
        assert_eq!(parse(&[0; HEAD]), None);
    }

    proptest! {
        #[test]
        fn any_head_is_survived(mut head in proptest::collection::vec(any::<u8>(), 0..HEAD), xfs: bool) {
            let (at, magic): (usize, &[u8]) = if xfs { (0, b"XFSB") } else { (1080, &[0x53, 0xef]) };
            if let Some(place) = head.get_mut(at..at + magic.len()) {
                place.copy_from_slice(magic);
            }
            let _ = parse(&head);
        }
    }
}
