//! The mount table of this process, as `/proc/self/mountinfo` has it (proc(5)).

use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub number: (u32, u32),
    /// What of the filesystem is mounted: `/` unless it is a bind mount of a part.
    pub root: PathBuf,
    pub point: PathBuf,
    /// Options of this mount alone: `ro`, `noatime`, …
    pub options: String,
    /// Whether mounts below it are handed on to other mount namespaces.
    pub shared: bool,
    pub kind: String,
    pub source: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("reading /proc/self/mountinfo")]
    Read(#[from] std::io::Error),
    #[error("a line of /proc/self/mountinfo can not be understood: {0:?}")]
    Line(String),
}

/// All mounts, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub Vec<Mount>);

impl Table {
    pub fn read() -> Result<Self, TableError> {
        Self::parse(&std::fs::read("/proc/self/mountinfo")?)
    }

    pub fn parse(text: &[u8]) -> Result<Self, TableError> {
        text.split(|b| *b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| mount(line).ok_or_else(|| TableError::Line(String::from_utf8_lossy(line).into_owned())))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// What is mounted at `point`: of several mounts on top of each other, the one that is seen.
    pub fn at(&self, point: &Path) -> Option<&Mount> {
        self.0.iter().rev().find(|mount| mount.point == point)
    }

    /// The mount that `path` lies on.
    pub fn under(&self, path: &Path) -> Option<&Mount> {
        let around = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        around.max_by_key(|mount| mount.point.components().count())
    }

    /// Every place at which the filesystem on device `number` is mounted.
    pub fn of(&self, number: (u32, u32)) -> impl Iterator<Item = &Mount> {
        self.0.iter().filter(move |mount| mount.number == number)
    }
}

impl Mount {
    pub fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: any number of fields before
/// the lone hyphen.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let number = std::str::from_utf8(fields.nth(2)?).ok()?;
    let root = path(fields.next()?);
    let point = path(fields.next()?);
    let options = String::from_utf8_lossy(fields.next()?).into_owned();
    // All of them, up to the hyphen: what follows is counted from there.
    let tags = fields.by_ref().take_while(|field| *field != b"-").collect::<Vec<_>>();
    let shared = tags.iter().any(|tag| tag.starts_with(b"shared:"));
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    // A source may be empty (`mount -t tmpfs "" /mnt`): the field is then an empty string.
    let source = path(fields.next()?);
    Some(Mount { number: device_number(number)?, root, point, options, shared, kind, source })
}

/// `8:16` as two numbers.
pub fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The kernel writes space, tab, newline and backslash as three octal digits (`mangle` in fs/seq_file.c).
fn path(raw: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_recorded_table_is_read() {
        let table = Table::parse(include_bytes!("../../tests/fixtures/mountinfo/node.txt")).unwrap();
        let root = table.at(Path::new("/")).unwrap();
        assert_eq!((root.number, root.kind.as_str()), ((254, 0), "ext4"));
        assert!(!root.is_read_only() && !root.shared);
        let kubelet = table.under(Path::new("/var/lib/kubelet/pods")).unwrap();
        assert!(kubelet.shared && kubelet.point == Path::new("/var/lib/kubelet"));
        let odd = table.at(Path::new("/mnt/a b\\c\td")).unwrap();
        assert_eq!((odd.kind.as_str(), odd.source.as_path()), ("tmpfs", Path::new("a b")));
        assert_eq!(table.of((254, 0)).count(), 2);
    }

    #[test]
    fn the_last_mount_of_a_place_is_the_one_that_is_seen() {
        let table = Table::parse(b"1 0 8:1 / /a rw - ext4 /dev/sda1 rw\n2 1 8:2 / /a ro shared:1 - xfs /dev/sdb rw\n");
        assert_eq!(table.unwrap().at(Path::new("/a")).unwrap().number, (8, 2));
    }

    #[test]
    fn a_line_that_is_not_understood_fails_the_table() {
        assert!(Table::parse(b"1 0 8:1 / /a rw ext4\n").is_err());
        assert!(Table::parse(b"nonsense\n").is_err());
    }

    fn escape(raw: &[u8]) -> Vec<u8> {
        raw.iter()
            .flat_map(|b| match b {
                b' ' | b'\t' | b'\n' | b'\\' => format!("\\{b:03o}").into_bytes(),
                b => vec![*b],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn every_path_comes_back(raw in proptest::collection::vec(1_u8.., 1..40)) {
            let escaped = path(&escape(&raw));
            prop_assert_eq!(escaped.as_os_str().as_bytes(), raw.as_slice());
        }

        #[test]
        fn any_table_is_survived(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Table::parse(&raw);
        }
    }
}
