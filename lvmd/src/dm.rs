//! Which LVs are active, from sysfs: no program is started to find the device of an LV.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
};

use crate::{
    lvm::report::Lv,
    mount::table::device_number,
    name::{Bytes, LvmUuid},
};

/// The device of an active LV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// `dm-7`.
    pub kernel: String,
    pub number: (u32, u32),
    /// Of the group.
    pub group: LvmUuid,
    pub lv: LvmUuid,
    /// device-mapper's name of it: group and LV, hyphens doubled.
    pub name: String,
}

impl Active {
    pub fn node(&self) -> PathBuf {
        Path::new("/dev").join(&self.kernel)
    }

    /// The LV's name, out of device-mapper's.
    pub fn lv_name(&self) -> Option<String> {
        let bytes = self.name.as_bytes();
        // A lone hyphen parts group and LV; those of the names themselves are doubled.
        let mut at = 0;
        while at < bytes.len() {
            match (bytes[at], bytes.get(at + 1)) {
                (b'-', Some(b'-')) => at += 2,
                (b'-', _) => return self.name.get(at + 1..).map(|lv| lv.replace("--", "-")),
                _ => at += 1,
            }
        }
        None
    }
}

/// All active LVs.
pub fn all() -> io::Result<Vec<Active>> {
    let folder = match fs::read_dir("/sys/class/block") {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = folder.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
    Ok(names.filter(|name| name.starts_with("dm-")).filter_map(|name| active(&name)).collect())
}

/// The device of this LV, if it is active.
pub fn of(lv: &LvmUuid) -> io::Result<Option<Active>> {
    Ok(all()?.into_iter().find(|active| active.lv == *lv))
}

/// The LV behind a device number.
pub fn behind(number: (u32, u32)) -> Option<Active> {
    let link = fs::read_link(format!("/sys/dev/block/{}:{}", number.0, number.1)).ok()?;
    active(link.file_name()?.to_str()?)
}

fn active(kernel: &str) -> Option<Active> {
    let folder = Path::new("/sys/class/block").join(kernel);
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
    let (group, lv) = uuids(&text("dm/uuid")?)?;
    let number = device_number(&text("dev")?)?;
    Some(Active { kernel: kernel.to_owned(), number, group, lv, name: text("dm/name")? })
}

/// `LVM-` and twice 32 characters; LVs that LVM keeps for itself have a suffix.
fn uuids(text: &str) -> Option<(LvmUuid, LvmUuid)> {
    let both = text.strip_prefix("LVM-").filter(|both| both.len() == 64 && both.is_ascii())?;
    let (group, lv) = both.split_at(32);
    Some((LvmUuid::from_compact(group).ok()?, LvmUuid::from_compact(lv).ok()?))
}

/// Whether an active LV is mounted or held. The kernel refuses the exclusive open of such a device; a program that has
/// it open without claiming it is refused by LVM, which asks device-mapper's own count.
pub fn is_held(active: &Active) -> io::Result<bool> {
    match open(active.node(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(err) => Err(err.into()),
    }
}

/// Who holds an active LV: devices made of it. Mounts are found in the mount table.
pub fn holders(active: &Active) -> Vec<String> {
    let folder = Path::new("/sys/class/block").join(&active.kernel).join("holders");
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect()
}

/// Bytes of the device of an active LV, as the kernel has them.
pub fn size(active: &Active) -> Option<u64> {
    let sectors = fs::read_to_string(Path::new("/sys/class/block").join(&active.kernel).join("size")).ok()?;
    sectors.trim().parse::<u64>().ok()?.checked_mul(512)
}

/// Whether the kernel has an active LV otherwise than LVM's metadata does: suspended, or of another size.
pub fn is_stale(active: &Active, size: Bytes) -> bool {
    stale(&Path::new("/sys/class/block").join(&active.kernel), size)
}

fn stale(folder: &Path, wanted: Bytes) -> bool {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    // What can not be read is no news.
    let other = number("size").and_then(|sectors| sectors.checked_mul(512)).is_some_and(|now| now != wanted.0);
    number("dm/suspended") == Some(1) || other
}

impl From<&Active> for Lv {
    /// Enough of an LV to name it in a command.
    fn from(active: &Active) -> Self {
        Self {
            name: active.lv_name().unwrap_or_default(),
            uuid: active.lv.clone(),
            size: Bytes(size(active).unwrap_or(0)),
            tags: std::collections::BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_mappers_uuid_names_group_and_lv() {
        let (group, lv) = uuids("LVM-5msPheD07hwdog0mch9kH09fagxrEOKsgNERcD2eWY1RnQymdd7aaQIsROjPqiXw").unwrap();
        assert_eq!(group.as_str(), "5msPhe-D07h-wdog-0mch-9kH0-9fag-xrEOKs");
        assert_eq!(lv.as_str(), "gNERcD-2eWY-1RnQ-ymdd-7aaQ-IsRO-jPqiXw");
        for other in
            ["LVM-short", "CRYPT-LUKS2-x", "LVM-5msPheD07hwdog0mch9kH09fagxrEOKsgNERcD2eWY1RnQymdd7aaQIsROjPqiXw-tpool"]
        {
            assert_eq!(uuids(other), None, "{other}");
        }
    }

    #[test]
    fn what_an_interrupted_lvextend_left_is_told_from_what_is_as_it_should_be() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("dm")).unwrap();
        let kernel = |sectors: &str, suspended: &str| {
            fs::write(folder.path().join("size"), sectors).unwrap();
            fs::write(folder.path().join("dm/suspended"), suspended).unwrap();
            stale(folder.path(), Bytes(8 << 20))
        };
        assert!(!kernel("16384\n", "0\n"));
        assert!(kernel("8192\n", "0\n"));
        assert!(kernel("16384\n", "1\n"));
        assert!(!stale(Path::new("/nowhere"), Bytes(8 << 20)));
    }

    #[test]
    fn the_lvs_name_stands_behind_the_lone_hyphen() {
        let uuid = LvmUuid::try_from("5msPhe-D07h-wdog-0mch-9kH0-9fag-xrEOKs").unwrap();
        let named = |name: &str| {
            let active = Active {
                kernel: "dm-0".to_owned(),
                number: (252, 0),
                group: uuid.clone(),
                lv: uuid.clone(),
                name: name.to_owned(),
            };
            active.lv_name()
        };
        assert_eq!(named("stowage--fast-pvc--1--2").as_deref(), Some("pvc-1-2"));
        assert_eq!(named("vg-root").as_deref(), Some("root"));
        assert_eq!(named("odd"), None);
    }
}
