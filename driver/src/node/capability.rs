//! What kubelet asks a volume to be, read from a CSI VolumeCapability.

use crate::csi::{
    VolumeCapability,
    volume_capability::{AccessType, access_mode::Mode},
};

/// How a volume is to be used on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub kind: Kind,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Block,
    /// `fs_type` is empty where the PersistentVolume names none.
    Filesystem {
        fs_type: String,
        mount_options: Vec<String>,
    },
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadCapability {
    #[error("volume_capability is missing")]
    Absent,
    #[error("volume_capability has no access_type: neither block nor mount")]
    NoType,
    #[error("volume_capability has no access_mode")]
    NoMode,
    #[error(
        "access mode {0} is not possible: a volume is on the disks of one node, use ReadWriteOnce or ReadWriteOncePod"
    )]
    ManyNodes(&'static str),
    #[error("volume_mount_group is not possible: kubelet changes the group itself")]
    MountGroup,
}

pub fn read(capability: Option<&VolumeCapability>) -> Result<Use, BadCapability> {
    let capability = capability.ok_or(BadCapability::Absent)?;
    let kind = match &capability.access_type {
        None => return Err(BadCapability::NoType),
        Some(AccessType::Block(_)) => Kind::Block,
        Some(AccessType::Mount(mount)) if !mount.volume_mount_group.is_empty() => {
            return Err(BadCapability::MountGroup);
        }
        Some(AccessType::Mount(mount)) => {
            Kind::Filesystem { fs_type: mount.fs_type.clone(), mount_options: mount.mount_flags.clone() }
        }
    };
    let mode = capability.access_mode.as_ref().ok_or(BadCapability::NoMode)?.mode();
    let read_only = match mode {
        Mode::Unknown => return Err(BadCapability::NoMode),
        Mode::SingleNodeWriter | Mode::SingleNodeSingleWriter | Mode::SingleNodeMultiWriter => false,
        Mode::SingleNodeReaderOnly => true,
        Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
            return Err(BadCapability::ManyNodes(mode.as_str_name()));
        }
    };
    Ok(Use { kind, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    fn asked(access_type: Option<AccessType>, mode: Mode) -> VolumeCapability {
        VolumeCapability { access_type, access_mode: Some(AccessMode { mode: mode.into() }) }
    }

    fn block() -> Option<AccessType> {
        Some(AccessType::Block(BlockVolume {}))
    }

    #[test]
    fn the_modes_of_one_node_are_taken_and_no_other() {
        for (mode, taken) in [
            (Mode::Unknown, Err(BadCapability::NoMode)),
            (Mode::SingleNodeWriter, Ok(false)),
            (Mode::SingleNodeSingleWriter, Ok(false)),
            (Mode::SingleNodeMultiWriter, Ok(false)),
            (Mode::SingleNodeReaderOnly, Ok(true)),
            (Mode::MultiNodeReaderOnly, Err(BadCapability::ManyNodes("MULTI_NODE_READER_ONLY"))),
            (Mode::MultiNodeSingleWriter, Err(BadCapability::ManyNodes("MULTI_NODE_SINGLE_WRITER"))),
            (Mode::MultiNodeMultiWriter, Err(BadCapability::ManyNodes("MULTI_NODE_MULTI_WRITER"))),
        ] {
            assert_eq!(read(Some(&asked(block(), mode))).map(|used| used.read_only), taken, "{mode:?}");
        }
    }

    #[test]
    fn a_filesystem_keeps_its_type_and_options() {
        let mount = MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["noatime".into()],
            volume_mount_group: String::new(),
        };
        let used = read(Some(&asked(Some(AccessType::Mount(mount)), Mode::SingleNodeWriter))).unwrap();
        assert_eq!(used.kind, Kind::Filesystem { fs_type: "ext4".into(), mount_options: vec!["noatime".into()] });
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(read(None), Err(BadCapability::Absent));
        assert_eq!(read(Some(&asked(None, Mode::SingleNodeWriter))), Err(BadCapability::NoType));
        let no_mode = VolumeCapability { access_type: block(), access_mode: None };
        assert_eq!(read(Some(&no_mode)), Err(BadCapability::NoMode));
        let group = MountVolume { volume_mount_group: "1000".into(), ..MountVolume::default() };
        assert_eq!(
            read(Some(&asked(Some(AccessType::Mount(group)), Mode::SingleNodeWriter))),
            Err(BadCapability::MountGroup)
        );
    }
}
