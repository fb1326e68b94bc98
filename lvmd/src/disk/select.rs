//! Whether a term of a DeviceClass describes a device.

use crds::{
    device_class::{DeviceTerm, DeviceType},
    quantity::{self, BadQuantity},
};

use crate::{disk::Disk, name::Bytes};

/// A term whose sizes were read.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    raw: DeviceTerm,
    min: Option<Bytes>,
    max: Option<Bytes>,
}

impl TryFrom<DeviceTerm> for Term {
    type Error = BadQuantity;

    fn try_from(raw: DeviceTerm) -> Result<Self, BadQuantity> {
        let size = |text: &Option<String>| text.as_deref().map(quantity::parse).transpose().map(|size| size.map(Bytes));
        Ok(Self { min: size(&raw.min_size)?, max: size(&raw.max_size)?, raw })
    }
}

impl Term {
    /// All fields that are given match; of a list, one entry does. A term that gives nothing describes nothing (A10):
    /// the API server refuses it, and should one come through all the same it must not mean every device.
    pub fn describes(&self, disk: &Disk) -> bool {
        self.takes(&disk.kind) && self.fits(disk)
    }

    /// As [`Term::describes`], but a term that lists no types means all of them: an exclusion that names a model means
    /// its partitions too.
    pub fn rules_out(&self, disk: &Disk) -> bool {
        (self.raw.types.is_none() || self.takes(&disk.kind)) && self.fits(disk)
    }

    fn fits(&self, disk: &Disk) -> bool {
        let raw = &self.raw;
        let said = |patterns: &Option<Vec<String>>, value: Option<&str>| {
            patterns.as_ref().is_none_or(|all| value.is_some_and(|value| all.iter().any(|one| glob(one, value))))
        };
        let path = raw
            .paths
            .as_ref()
            .is_none_or(|all| all.iter().any(|one| disk.links.iter().any(|link| glob(one, &link.to_string_lossy()))));
        !self.is_empty()
            && path
            && said(&raw.ids, Some(&disk.id))
            && said(&raw.serials, disk.serial.as_deref())
            && said(&raw.models, disk.model.as_deref())
            && said(&raw.vendors, disk.vendor.as_deref())
            && said(&raw.transports, disk.transport.as_deref())
            && raw.rotational.is_none_or(|rotational| rotational == disk.rotational)
            && self.min.is_none_or(|min| disk.size >= min)
            && self.max.is_none_or(|max| disk.size <= max)
    }

    fn takes(&self, kind: &str) -> bool {
        let usual = [DeviceType::Disk, DeviceType::Mpath];
        let types = self.raw.types.as_deref().unwrap_or(&usual);
        device_type(kind).is_some_and(|kind| types.contains(&kind))
    }

    /// The term as the user wrote it.
    pub fn raw(&self) -> &DeviceTerm {
        &self.raw
    }

    fn is_empty(&self) -> bool {
        self.raw == DeviceTerm::default()
    }
}

/// The type of a device in the words of the API; `None` for those that are never taken (CD-ROMs, LVs, plain
/// device-mapper devices).
pub fn device_type(kind: &str) -> Option<DeviceType> {
    match kind {
        "disk" => Some(DeviceType::Disk),
        "mpath" => Some(DeviceType::Mpath),
        "part" => Some(DeviceType::Part),
        "crypt" => Some(DeviceType::Crypt),
        "loop" => Some(DeviceType::Loop),
        "md" | "linear" => Some(DeviceType::Raid),
        raid if raid.strip_prefix("raid").is_some_and(|level| level.bytes().all(|b| b.is_ascii_digit())) => {
            Some(DeviceType::Raid)
        }
        _ => None,
    }
}

/// `*` stands for any characters, `?` for one; everything else for itself.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` stood, and how much of the text it has swallowed.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(one) if *one == b'?' || *one == text[t] => {
                p += 1;
                t += 1;
            }
            Some(_) | None => match star {
                Some((at, swallowed)) => {
                    star = Some((at, swallowed + 1));
                    p = at + 1;
                    t = swallowed + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|one| *one == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Content, tests::disk};

    fn term(raw: DeviceTerm) -> Term {
        Term::try_from(raw).unwrap()
    }

    fn some(text: &str) -> Option<Vec<String>> {
        Some(vec![text.to_owned()])
    }

    #[test]
    fn an_empty_term_describes_nothing() {
        assert!(!term(DeviceTerm::default()).describes(&disk("a", Content::Blank)));
    }

    #[test]
    fn all_fields_must_match() {
        let mut a = disk("a", Content::Blank);
        a.model = Some("FAST 1".to_owned());
        let size = |min: &str, max: &str| DeviceTerm {
            min_size: Some(min.to_owned()),
            max_size: Some(max.to_owned()),
            models: some("FAST*"),
            ..DeviceTerm::default()
        };
        assert!(term(size("10Gi", "10Gi")).describes(&a));
        assert!(!term(size("10Gi", "10.1Gi")).describes(&disk("a", Content::Blank)));
        assert!(!term(size("11Gi", "12Gi")).describes(&a));
        assert!(!term(size("1Gi", "9Gi")).describes(&a));
        assert!(Term::try_from(size("1 Gi", "2Gi")).is_err());
    }

    #[test]
    fn only_disks_are_meant_unless_a_type_is_listed() {
        let mut part = disk("a", Content::Blank);
        part.kind = "part".to_owned();
        let mut raw = DeviceTerm { ids: some("*"), ..DeviceTerm::default() };
        assert!(!term(raw.clone()).describes(&part));
        raw.types = Some(vec![DeviceType::Part]);
        assert!(term(raw.clone()).describes(&part));
        assert!(!term(raw).describes(&disk("a", Content::Blank)));
    }

    #[test]
    fn any_stable_path_may_be_named() {
        let a = disk("virtio-a", Content::Blank);
        let by = |path: &str| term(DeviceTerm { paths: some(path), ..DeviceTerm::default() }).describes(&a);
        assert!(by("/dev/disk/by-id/virtio-*"));
        assert!(!by("/dev/disk/by-id/scsi-*"));
        assert!(!by("/dev/virtio-a"));
    }

    #[test]
    fn types_are_those_of_the_api() {
        assert_eq!(device_type("raid10"), Some(DeviceType::Raid));
        for never in ["rom", "lvm", "dm", "raidz", ""] {
            assert_eq!(device_type(never), None, "{never}");
        }
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, text) in [("*", ""), ("*", "abc"), ("a*c", "abbc"), ("a*b*c", "axxbxc"), ("a?c", "abc"), ("", "")]
        {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("a*c", "abd"), ("?", ""), ("a**b", "a"), ("", "a")] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_text_with_pieces_starred_out_still_matches(a in "[a-z*?]{0,8}", b in "[a-z]{0,8}", c in "[a-z]{0,8}") {
            let text = format!("{a}{b}{c}");
            let pattern = format!("{}*{}", a, c);
            prop_assert!(glob(&pattern, &text));
        }
    }
}
