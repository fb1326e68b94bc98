//! Mount options as people write them (mount(8)), sorted by who understands them.

use rustix::mount::MountAttrFlags;

/// Options of the mount itself, and those that are for the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub mount: MountAttrFlags,
    /// Name, and value where there is one.
    pub filesystem: Vec<(String, Option<String>)>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the mount option {0:?} can not be given for a volume: remove it from the StorageClass")]
pub struct BadOption(String);

/// What mount(8) does itself, not the kernel, or what would change what is mounted where.
const REFUSED: [&str; 12] = [
    "bind",
    "rbind",
    "remount",
    "move",
    "loop",
    "shared",
    "private",
    "slave",
    "unbindable",
    "rshared",
    "rprivate",
    "rslave",
];

impl Options {
    /// Each entry may itself be a list. Quotes keep commas together, as in `context="a:b:c:s0:c1,c2"`.
    pub fn parse<'a>(all: impl IntoIterator<Item = &'a str>) -> Result<Self, BadOption> {
        let mut options = Self { mount: MountAttrFlags::MOUNT_ATTR_RELATIME, filesystem: Vec::new() };
        for one in all.into_iter().flat_map(split) {
            options.add(&one)?;
        }
        Ok(options)
    }

    pub fn is_read_only(&self) -> bool {
        self.mount.contains(MountAttrFlags::MOUNT_ATTR_RDONLY)
    }

    fn add(&mut self, one: &str) -> Result<(), BadOption> {
        match one {
            "" | "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "relatime" => {}
            "ro" => self.mount.insert(MountAttrFlags::MOUNT_ATTR_RDONLY),
            "rw" => self.mount.remove(MountAttrFlags::MOUNT_ATTR_RDONLY),
            "nosuid" => self.mount.insert(MountAttrFlags::MOUNT_ATTR_NOSUID),
            "suid" => self.mount.remove(MountAttrFlags::MOUNT_ATTR_NOSUID),
            "nodev" => self.mount.insert(MountAttrFlags::MOUNT_ATTR_NODEV),
            "dev" => self.mount.remove(MountAttrFlags::MOUNT_ATTR_NODEV),
            "noexec" => self.mount.insert(MountAttrFlags::MOUNT_ATTR_NOEXEC),
            "exec" => self.mount.remove(MountAttrFlags::MOUNT_ATTR_NOEXEC),
            "nodiratime" => self.mount.insert(MountAttrFlags::MOUNT_ATTR_NODIRATIME),
            "nosymfollow" => self.mount.insert(MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
            "noatime" => self.access_times(MountAttrFlags::MOUNT_ATTR_NOATIME),
            "strictatime" => self.access_times(MountAttrFlags::MOUNT_ATTR_STRICTATIME),
            other if REFUSED.contains(&other) || other.contains('\0') => return Err(BadOption(other.to_owned())),
            other => self.filesystem.push(match other.split_once('=') {
                Some((key, value)) => (key.to_owned(), Some(value.trim_matches('"').to_owned())),
                None => (other.to_owned(), None),
            }),
        }
        Ok(())
    }

    fn access_times(&mut self, how: MountAttrFlags) {
        self.mount.remove(MountAttrFlags::MOUNT_ATTR__ATIME);
        self.mount.insert(how);
    }
}

fn split(list: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut quoted = false;
    for c in list.chars() {
        quoted ^= c == '"';
        match (c, all.last_mut()) {
            (',', _) if !quoted => all.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_to_whom_they_are_for() {
        let options = Options::parse(["noatime,nosuid", "discard", "logbsize=256k", "defaults"]).unwrap();
        assert_eq!(options.mount, MountAttrFlags::MOUNT_ATTR_NOATIME | MountAttrFlags::MOUNT_ATTR_NOSUID);
        let filesystem = options.filesystem;
        assert_eq!(filesystem, [("discard".to_owned(), None), ("logbsize".to_owned(), Some("256k".to_owned()))]);
    }

    #[test]
    fn the_last_word_wins() {
        assert!(!Options::parse(["ro", "rw"]).unwrap().is_read_only());
        assert!(Options::parse(["rw,ro"]).unwrap().is_read_only());
    }

    #[test]
    fn a_comma_in_quotes_parts_nothing() {
        let options = Options::parse([r#"context="system_u:object_r:container_file_t:s0:c1,c2""#]).unwrap();
        let context = "system_u:object_r:container_file_t:s0:c1,c2".to_owned();
        assert_eq!(options.filesystem, [("context".to_owned(), Some(context))]);
    }

    #[test]
    fn what_would_mount_something_else_is_refused() {
        for option in ["bind", "remount", "loop", "shared"] {
            assert!(Options::parse([option]).is_err(), "{option}");
        }
    }
}
