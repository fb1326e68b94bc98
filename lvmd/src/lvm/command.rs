//! The LVM commands that change something. Each is one process, may be repeated, and names the devices of one group.
//!
//! None of those that write to a device for the first time has `--yes` or `--force`: without an answer on stdin LVM
//! itself then refuses a device with a signature, which is a second lock after lvmd's own look.

use std::path::Path;

use crds::names::tag;

use crate::{
    lvm::report::{Group, Lv},
    name::{Bytes, ClassName, ClusterId, LvName, LvmUuid, Tag, VgName},
    run::Argv,
};

/// LVM keeps all of a group's metadata in a ring of this size on each PV; the default of 1 MiB does not hold 1,000 LVs
/// with their tags comfortably. On a device where it would be a noticeable part, the default stays.
const METADATA_SIZE: Bytes = Bytes(16 << 20);
const METADATA_FROM: Bytes = Bytes(1 << 30);

/// Space of a device that LVM keeps for itself: the metadata and, in front of the first extent, the alignment.
pub fn overhead(device: Bytes) -> Bytes {
    let metadata = if device >= METADATA_FROM { METADATA_SIZE } else { Bytes::MIB };
    Bytes(metadata.0 + (2 << 20))
}

/// Makes PVs and the group in one command: vgcreate itself makes a PV of a device that is none.
///
/// That is atomic enough: a group exists once its metadata is committed on the first PV, and what a power cut leaves
/// before that moment are PVs in no group, which `Begun` remembers and the next plan takes up.
pub fn create_group(
    name: &VgName,
    cluster: &ClusterId,
    class: &ClassName,
    extent: Bytes,
    devices: &[(&Path, Bytes)],
) -> Argv {
    Argv::lvm("vgcreate", devices.iter().map(|(node, _)| *node))
        .args(metadata(devices))
        .arg("--setautoactivation=n")
        .arg(format!("--physicalextentsize={}b", extent.0))
        .arg("--addtag")
        .arg(format!("{}={cluster}", tag::CLUSTER))
        .arg("--addtag")
        .arg(format!("{}={class}", tag::CLASS))
        .arg(name.as_str())
        .args(devices.iter().map(|(node, _)| *node))
}

pub fn extend_group(group: &Group, with: &Path, size: Bytes) -> Argv {
    Argv::lvm("vgextend", group.nodes().chain([with]))
        .args(metadata(&[(with, size)]))
        .arg(group.name.as_str())
        .arg(with)
}

fn metadata(devices: &[(&Path, Bytes)]) -> Option<String> {
    let large = devices.iter().all(|(_, size)| *size >= METADATA_FROM);
    large.then(|| format!("--metadatasize={}b", METADATA_SIZE.0))
}

/// Inactive and unwiped: that is a change of metadata alone, the cheapest there is. The first stage, which has to
/// activate the LV anyway, wipes what an earlier owner of these extents left at their ends before it lets anybody in.
pub fn create_volume<'a>(group: &Group, name: &LvName, extents: u64, tags: impl IntoIterator<Item = &'a Tag>) -> Argv {
    Argv::lvm("lvcreate", group.nodes())
        .args(["--activate=n", "--zero=n", "--wipesignatures=n", "--type=linear"])
        .arg(format!("--extents={extents}"))
        .arg("--name")
        .arg(name.as_str())
        .args(tags.into_iter().flat_map(|tag| ["--addtag", tag.as_str()]))
        .arg(group.name.as_str())
}

/// To this many extents in all.
pub fn extend_volume(group: &Group, lv: &Lv, extents: u64) -> Argv {
    Argv::lvm("lvextend", group.nodes()).arg(format!("--extents={extents}")).arg(path(group, lv))
}

/// Removes the LV with this UUID and these tags, whatever has its name by now. `--yes` only answers the question
/// whether an active LV is meant; that nobody has it open was checked, and LVM refuses it once more.
pub fn remove_volume<'a>(group: &Group, lv: &LvmUuid, tags: impl IntoIterator<Item = &'a Tag>) -> Argv {
    let tags = tags.into_iter().map(|tag| format!(" && lv_tags={{\"{tag}\"}}")).collect::<String>();
    Argv::lvm("lvremove", group.nodes())
        .arg("--yes")
        .arg("--select")
        .arg(format!("lv_uuid=\"{lv}\"{tags}"))
        .arg(group.name.as_str())
}

/// `ay` would ask the host's own lists of volumes to activate; the LV is named, so it is meant.
pub fn activate(group: &Group, lv: &Lv) -> Argv {
    Argv::lvm("lvchange", group.nodes()).arg("--activate=y").arg(path(group, lv))
}

/// Gives the kernel what the metadata says of an active LV, and lets a suspended one go on.
pub fn refresh(group: &Group, lv: &Lv) -> Argv {
    Argv::lvm("lvchange", group.nodes()).arg("--refresh").arg(path(group, lv))
}

pub fn deactivate(group: &Group, lv: &Lv) -> Argv {
    Argv::lvm("lvchange", group.nodes()).arg("--activate=n").arg(path(group, lv))
}

/// Changes tags in one commit: a reader sees all of them or none.
pub fn change_tags<'a>(
    group: &Group,
    lv: &Lv,
    remove: impl IntoIterator<Item = &'a Tag>,
    add: impl IntoIterator<Item = &'a Tag>,
) -> Argv {
    Argv::lvm("lvchange", group.nodes())
        .args(remove.into_iter().flat_map(|tag| ["--deltag", tag.as_str()]))
        .args(add.into_iter().flat_map(|tag| ["--addtag", tag.as_str()]))
        .arg(path(group, lv))
}

fn path(group: &Group, lv: &Lv) -> String {
    format!("{}/{}", group.name, lv.name)
}
