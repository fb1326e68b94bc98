//! Names, tags and sizes as types whose checking constructors are the only ones, so that nothing that a caller says
//! reaches the arguments of a program, a path or a tag unchecked.

use std::fmt;

use crds::names::{fnv1a_128, tag};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{raw:?} is not {what}")]
pub struct BadName {
    what: &'static str,
    raw: String,
}

/// A type around a checked `String`.
macro_rules! checked {
    ($(#[$doc:meta])* $name:ident, $what:literal, $ok:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(raw: String) -> Result<Self, BadName> {
                let ok: fn(&str) -> bool = $ok;
                if ok(&raw) { Ok(Self(raw)) } else { Err(BadName { what: $what, raw }) }
            }
        }

        impl TryFrom<&str> for $name {
            type Error = BadName;

            fn try_from(raw: &str) -> Result<Self, BadName> {
                Self::try_from(raw.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

checked!(
    /// A volume group's name that LVM accepts.
    VgName,
    "a volume group's name that LVM accepts",
    lvm_name
);

checked!(
    /// An LV's name that LVM accepts and does not keep for itself.
    LvName,
    "a logical volume's name that LVM accepts",
    |raw| lvm_name(raw)
        && escaped(raw) <= LONGEST_LV
        && !["snapshot", "pvmove"].iter().any(|kept| raw.starts_with(kept))
        && !KEPT_PARTS.iter().any(|kept| raw.contains(kept))
);

checked!(
    /// The UUID of a group, a PV or an LV, as LVM writes it: 32 characters in seven groups.
    LvmUuid,
    "an LVM UUID",
    |raw| raw.split('-').map(str::len).eq([6, 4, 4, 4, 4, 4, 6])
        && raw.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
);

checked!(
    /// The UUID of a filesystem, in lower case.
    FsUuid,
    "a filesystem's UUID",
    |raw| raw.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && raw.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b) || b == b'-')
);

checked!(
    /// The name of a LogicalVolume.
    VolumeName,
    "a LogicalVolume's name",
    |raw| kubernetes_name(raw, 253)
);

checked!(
    /// The name of a DeviceClass.
    ClassName,
    "a DeviceClass's name of at most 63 characters",
    |raw| kubernetes_name(raw, 63)
);

checked!(
    /// The UID of the cluster's `kube-system` namespace.
    ClusterId,
    "a cluster's UID",
    |raw| (1..=64).contains(&raw.len()) && raw.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
);

checked!(
    /// One tag, in the characters that LVM allows.
    Tag,
    "a tag that LVM accepts",
    |raw| (1..=1024).contains(&raw.len())
        && !raw.starts_with('-')
        && raw.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+.-/=!:#&".contains(&b))
);

/// `pvc-<UUID>` with each of its five hyphens counted twice: the usual volume keeps its own name as LV.
const LONGEST_LV: usize = 45;

/// Parts of names that LVM keeps for its own LVs (lvm(8), "VALID NAMES").
const KEPT_PARTS: [&str; 16] = [
    "_cdata", "_cmeta", "_corig", "_cvol", "_wcorig", "_iorig", "_imeta", "_mimage", "_mlog", "_pmspare", "_rimage",
    "_rmeta", "_tdata", "_tmeta", "_vdata", "_vorigin",
];

fn lvm_name(raw: &str) -> bool {
    (1..=127).contains(&raw.len())
        && !raw.starts_with('-')
        && raw != "."
        && raw != ".."
        && raw.bytes().all(|b| b.is_ascii_alphanumeric() || b"+_.-".contains(&b))
}

/// How long a name is in device-mapper's names, where a hyphen parts group and LV and is itself doubled.
fn escaped(raw: &str) -> usize {
    raw.len() + raw.bytes().filter(|b| *b == b'-').count()
}

fn kubernetes_name(raw: &str, longest: usize) -> bool {
    (1..=longest).contains(&raw.len())
        && raw.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && raw.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
}

impl LvName {
    /// The name of the LV that is made for a volume. It depends on nothing else, so that LVM's own refusal of a name
    /// that exists is one more lock against two LVs for one volume.
    pub fn of(volume: &VolumeName) -> Self {
        Self::try_from(volume.as_str()).unwrap_or_else(|_| Self(format!("lv_{}", fnv1a_128(volume.0.as_bytes()))))
    }
}

impl VgName {
    /// Whether device-mapper, whose names have 127 characters at most, has room for the name of an LV behind it.
    /// Asked before a group is made; one that exists is taken as it is.
    pub fn has_room(&self) -> bool {
        escaped(&self.0) < 127 - LONGEST_LV
    }
}

impl LvmUuid {
    /// As device-mapper writes it, without hyphens.
    pub fn compact(&self) -> String {
        self.0.replace('-', "")
    }

    /// From the 32 characters that stand on a disk.
    pub fn from_compact(raw: &str) -> Result<Self, BadName> {
        if raw.len() != 32 || !raw.is_ascii() {
            return Err(BadName { what: "an LVM UUID", raw: raw.to_owned() });
        }
        let ends = [6, 10, 14, 18, 22, 26, 32];
        let starts = std::iter::once(0).chain(ends);
        Self::try_from(starts.zip(ends).map(|(from, to)| &raw[from..to]).collect::<Vec<_>>().join("-"))
    }
}

impl Tag {
    /// `key=value`, one of [`crds::names::tag`].
    pub fn with(key: &str, value: &str) -> Result<Self, BadName> {
        Self::try_from(format!("{key}={value}"))
    }

    pub fn used() -> Self {
        Self(tag::USED.to_owned())
    }
}

/// Which volume a call means: the LV with these two tags, in the group of the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeKey {
    pub name: VolumeName,
    pub cluster: ClusterId,
    pub class: ClassName,
}

/// A size. Never a bare `u64` next to another bare `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const MIB: Self = Self(1 << 20);

    /// How many extents of this size hold it.
    pub fn extents(self, extent: Self) -> u64 {
        self.0.div_ceil(extent.0.max(1))
    }

    /// For the API, whose numbers are signed. No device is as large as the difference.
    pub fn signed(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crds::quantity::for_people(self.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_usual_volume_gives_its_lv_its_own_name() {
        let volume = VolumeName::try_from("pvc-0f8e2f0c-7a5b-4c6d-9e0f-112233445566").unwrap();
        assert_eq!(LvName::of(&volume).as_str(), volume.as_str());
    }

    #[test]
    fn a_volume_whose_name_lvm_refuses_gets_one_that_never_changes() {
        for name in ["snapshot-1", "pvmove0", &format!("v{}", "-".repeat(60))] {
            let volume = VolumeName::try_from(name).unwrap();
            let lv = LvName::of(&volume);
            assert!(lv.as_str().starts_with("lv_"), "{lv}");
            assert_eq!(LvName::try_from(lv.as_str()), Ok(lv));
        }
    }

    #[test]
    fn what_would_be_an_option_or_another_path_is_no_name() {
        for raw in ["", "-f", "--yes", ".", "..", "a/b", "a b", "a\n", "é", "a;b", &"x".repeat(128)] {
            assert!(VgName::try_from(raw).is_err(), "{raw:?}");
            assert!(LvName::try_from(raw).is_err(), "{raw:?}");
        }
        for raw in ["", "-a", "A", "a/b", "a b", "../x", &"x".repeat(254)] {
            assert!(VolumeName::try_from(raw).is_err(), "{raw:?}");
        }
        for raw in ["", "-x=1", "a b", "a,b", "a@b", "a{b}", "a\"b"] {
            assert!(Tag::try_from(raw).is_err(), "{raw:?}");
        }
    }

    #[test]
    fn a_group_and_the_longest_lv_fit_into_a_device_mapper_name() {
        let group = "-".repeat(40);
        assert!(VgName::try_from(format!("g{group}")).unwrap().has_room());
        assert!(!VgName::try_from(format!("gg{group}")).unwrap().has_room());
    }

    #[test]
    fn an_lvm_uuid_is_the_same_on_disk_and_in_a_report() {
        let uuid = LvmUuid::try_from("5msPhe-D07h-wdog-0mch-9kH0-9fag-xrEOKs").unwrap();
        assert_eq!(LvmUuid::from_compact(&uuid.compact()), Ok(uuid));
        assert!(LvmUuid::from_compact("short").is_err());
    }

    proptest! {
        #[test]
        fn every_volume_has_an_lv_name_that_lvm_accepts(name in "[a-z0-9][a-z0-9.-]{0,252}") {
            let lv = LvName::of(&VolumeName::try_from(name).unwrap());
            prop_assert_eq!(LvName::try_from(lv.as_str()), Ok(lv));
        }
    }
}
