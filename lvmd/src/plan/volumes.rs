//! What is to be done for one volume, from the group it is in: pure.

use crds::{device_class::FilesystemType, names::tag};

use crate::{
    lvm::report::{Group, Lv},
    name::{BadName, Bytes, FsUuid, LvName, LvmUuid, Tag, VolumeKey},
};

/// What a volume is to be.
#[derive(Clone, Debug)]
pub struct NewVolume {
    pub key: VolumeKey,
    pub size: Bytes,
    /// Of the group, to stay free.
    pub reserve: Bytes,
    pub access: String,
    pub claim: Option<String>,
    pub adopt: Option<LvmUuid>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum VolumeError {
    #[error("DeviceClass {class} has no volume group on this node")]
    NoGroup { class: String },
    #[error("volume group {group} can not be changed: {why}")]
    Group { group: String, why: String },
    #[error("volume group {group} has {free} free, {reserve} of it reserved, and {asked} are asked for")]
    Full { group: String, free: Bytes, reserve: Bytes, asked: Bytes },
    #[error("volume {name} is not there")]
    NotFound { name: String },
    #[error("volume {name} is there already, in DeviceClass {class}")]
    OtherClass { name: String, class: String },
    #[error("there are {count} LVs of volume {name}: nothing is done to any of them")]
    Doubled { name: String, count: usize },
    #[error("an LV {lv} is there already, and it is not volume {name}")]
    NameTaken { name: String, lv: String },
    #[error("the LV of volume {name} has UUID {found}, and {asked} is meant")]
    OtherLv { name: String, found: LvmUuid, asked: LvmUuid },
    #[error("the LV {lv} does not carry the tags of volume {name}: it is not removed")]
    OtherTags { name: String, lv: LvmUuid },
    #[error("volume {name} was used, and its UUID was not given: it is not removed")]
    Used { name: String },
    #[error("LV {lv} is that of volume {owner} already")]
    Adopted { lv: LvmUuid, owner: String },
    #[error(transparent)]
    Name(#[from] BadName),
}

/// How a volume comes to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Creation<'a> {
    Found(&'a Lv),
    Make {
        name: LvName,
        extents: u64,
        tags: Vec<Tag>,
    },
    /// Only the tags are missing.
    Adopt {
        lv: &'a Lv,
        tags: Vec<Tag>,
    },
}

/// The LV of a volume: the one with its tags.
pub fn find<'a>(group: &'a Group, key: &VolumeKey) -> Result<Option<&'a Lv>, VolumeError> {
    let own = |lv: &&Lv| lv.has_tag(tag::VOLUME, key.name.as_str()) && lv.has_tag(tag::CLUSTER, key.cluster.as_str());
    let all = group.lvs.iter().filter(own).collect::<Vec<_>>();
    match all.as_slice() {
        [] => Ok(None),
        [lv] => match lv.tag(tag::CLASS) {
            Some(class) if class != key.class.as_str() => {
                Err(VolumeError::OtherClass { name: key.name.to_string(), class: class.to_owned() })
            }
            Some(_) | None => Ok(Some(lv)),
        },
        many => Err(VolumeError::Doubled { name: key.name.to_string(), count: many.len() }),
    }
}

/// A missing PV does not stop volumes that exist, but nothing new is begun in such a group.
fn changeable(group: &Group) -> Result<(), VolumeError> {
    let why = group
        .foreign
        .clone()
        .or_else(|| (group.missing > 0).then(|| format!("{} of its devices are missing", group.missing)));
    why.map_or(Ok(()), |why| Err(VolumeError::Group { group: group.name.to_string(), why }))
}

pub fn create<'a>(group: &'a Group, new: &NewVolume) -> Result<Creation<'a>, VolumeError> {
    if let Some(lv) = find(group, &new.key)? {
        return match &new.adopt {
            Some(asked) if *asked != lv.uuid => Err(VolumeError::OtherLv {
                name: new.key.name.to_string(),
                found: lv.uuid.clone(),
                asked: asked.clone(),
            }),
            Some(_) | None => Ok(Creation::Found(lv)),
        };
    }
    changeable(group)?;
    let mut tags = tags(new)?;
    if let Some(uuid) = &new.adopt {
        let lv = group.lvs.iter().find(|lv| lv.uuid == *uuid);
        let lv = lv.ok_or_else(|| VolumeError::NotFound { name: new.key.name.to_string() })?;
        if let Some(owner) = lv.tag(tag::VOLUME) {
            return Err(VolumeError::Adopted { lv: uuid.clone(), owner: owner.to_owned() });
        }
        // What somebody else made holds data until proven otherwise: it is never formatted or wiped.
        tags.push(Tag::used());
        return Ok(Creation::Adopt { lv, tags });
    }
    let name = LvName::of(&new.key.name);
    if group.lvs.iter().any(|lv| lv.name == name.as_str()) {
        return Err(VolumeError::NameTaken { name: new.key.name.to_string(), lv: name.to_string() });
    }
    let extents = new.size.extents(group.extent).max(1);
    room(group, extents, new.reserve)?;
    Ok(Creation::Make { name, extents, tags })
}

/// How many extents the volume has to have in all; `None`: it has them.
pub fn grow(group: &Group, lv: &Lv, size: Bytes, reserve: Bytes) -> Result<Option<u64>, VolumeError> {
    let (has, wants) = (lv.size.extents(group.extent), size.extents(group.extent));
    if wants <= has {
        return Ok(None);
    }
    changeable(group)?;
    room(group, wants - has, reserve)?;
    Ok(Some(wants))
}

fn room(group: &Group, extents: u64, reserve: Bytes) -> Result<(), VolumeError> {
    let free = group.free.saturating_sub(reserve.extents(group.extent));
    if extents <= free {
        return Ok(());
    }
    let bytes = |extents: u64| Bytes(extents.saturating_mul(group.extent.0));
    Err(VolumeError::Full { group: group.name.to_string(), free: bytes(group.free), reserve, asked: bytes(extents) })
}

fn tags(new: &NewVolume) -> Result<Vec<Tag>, BadName> {
    let mut tags = own_tags(&new.key)?;
    tags.push(Tag::with(tag::CLASS, new.key.class.as_str())?);
    tags.push(Tag::with(tag::ACCESS, &new.access)?);
    tags.extend(new.claim.as_deref().map(|claim| Tag::with(tag::CLAIM, claim)).transpose()?);
    Ok(tags)
}

/// The two tags that say whose an LV is.
pub fn own_tags(key: &VolumeKey) -> Result<Vec<Tag>, BadName> {
    Ok(vec![Tag::with(tag::VOLUME, key.name.as_str())?, Tag::with(tag::CLUSTER, key.cluster.as_str())?])
}

/// The LV that may be removed; `None`: there is none any more. Two proofs: its UUID (or that nobody ever used it),
/// and its tags.
pub fn remove<'a>(group: &'a Group, key: &VolumeKey, uuid: Option<&LvmUuid>) -> Result<Option<&'a Lv>, VolumeError> {
    let own = |lv: &Lv| lv.has_tag(tag::VOLUME, key.name.as_str()) && lv.has_tag(tag::CLUSTER, key.cluster.as_str());
    match uuid {
        Some(uuid) => match group.lvs.iter().find(|lv| lv.uuid == *uuid) {
            Some(lv) if !own(lv) => Err(VolumeError::OtherTags { name: key.name.to_string(), lv: uuid.clone() }),
            found => Ok(found),
        },
        None => match find(group, key)? {
            Some(lv) if lv.tags.contains(tag::USED) => Err(VolumeError::Used { name: key.name.to_string() }),
            found => Ok(found),
        },
    }
}

/// What the tag on an LV says of the filesystem on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// Never begun.
    None,
    /// mkfs was begun and not seen to end; it was never mounted.
    Making(FilesystemType, FsUuid),
    Made(FilesystemType, FsUuid),
    /// A tag that is not understood: nothing is touched.
    Odd(String),
}

impl Format {
    pub fn of(lv: &Lv) -> Self {
        let all = lv.tags.iter().filter_map(|one| one.strip_prefix(tag::FS)?.strip_prefix('=')).collect::<Vec<_>>();
        let read = |text: &str| {
            let (kind, uuid) = text.split_once(':')?;
            Some((FilesystemType::parse(kind)?, FsUuid::try_from(uuid).ok()?))
        };
        match all.as_slice() {
            [] => Self::None,
            [one] => {
                let read = match one.strip_prefix("making:") {
                    Some(rest) => read(rest).map(|(kind, uuid)| Self::Making(kind, uuid)),
                    None => read(one).map(|(kind, uuid)| Self::Made(kind, uuid)),
                };
                read.unwrap_or_else(|| Self::Odd((*one).to_owned()))
            }
            many => Self::Odd(many.join(", ")),
        }
    }

    pub fn tag(&self) -> Result<Option<Tag>, BadName> {
        match self {
            Self::None | Self::Odd(_) => Ok(None),
            Self::Making(kind, uuid) => Tag::with(tag::FS, &format!("making:{}:{uuid}", kind.as_str())).map(Some),
            Self::Made(kind, uuid) => Tag::with(tag::FS, &format!("{}:{uuid}", kind.as_str())).map(Some),
        }
    }
}

/// What a stage has to do before it can mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Staging {
    /// Nothing was ever on it: wipe what an earlier owner of its extents left, mark it used, make the filesystem.
    FormatFirst,
    /// mkfs was interrupted, and nobody ever mounted it.
    FormatAgain(FilesystemType, FsUuid),
    /// Mount this, and nothing else.
    Mount(FilesystemType, FsUuid),
    /// It came with whatever is on it: mount that if it is what is asked for, and write down what it is.
    MountWhatIsThere,
    /// Block, for the first time: wipe and mark it used.
    BlockFirst,
    Block,
}

/// How a pod is to have a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Filesystem(FilesystemType),
    Block,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StagingError {
    #[error("volume {name} was made for {made}, and {asked} is asked for")]
    OtherAccess { name: String, made: String, asked: &'static str },
    #[error("volume {name} has {found}, and {asked} is asked for")]
    OtherFilesystem { name: String, found: &'static str, asked: &'static str },
    #[error("the tag on volume {name} that says what is on it can not be understood ({tag}): nothing is touched")]
    Odd { name: String, tag: String },
}

/// Format happens once (A1): only a volume that was never used is formatted, and one whose mkfs was not seen to end.
pub fn staging(lv: &Lv, access: Access) -> Result<Staging, StagingError> {
    let name = || lv.tag(tag::VOLUME).unwrap_or(&lv.name).to_owned();
    let asked = match access {
        Access::Filesystem(_) => "Filesystem",
        Access::Block => "Block",
    };
    if let Some(made) = lv.tag(tag::ACCESS).filter(|made| *made != asked) {
        return Err(StagingError::OtherAccess { name: name(), made: made.to_owned(), asked });
    }
    let used = lv.tags.contains(tag::USED);
    let same = |found: FilesystemType, then: Staging| match access {
        Access::Filesystem(asked) if asked == found => Ok(then),
        Access::Filesystem(asked) => {
            Err(StagingError::OtherFilesystem { name: name(), found: found.as_str(), asked: asked.as_str() })
        }
        Access::Block => Err(StagingError::OtherFilesystem { name: name(), found: found.as_str(), asked: "Block" }),
    };
    match (Format::of(lv), access) {
        (Format::None, Access::Block) if used => Ok(Staging::Block),
        (Format::None, Access::Block) => Ok(Staging::BlockFirst),
        (Format::None, Access::Filesystem(_)) if used => Ok(Staging::MountWhatIsThere),
        (Format::None, Access::Filesystem(_)) => Ok(Staging::FormatFirst),
        (Format::Making(kind, uuid), _) => same(kind, Staging::FormatAgain(kind, uuid.clone())),
        (Format::Made(kind, uuid), _) => same(kind, Staging::Mount(kind, uuid.clone())),
        (Format::Odd(tag), _) => Err(StagingError::Odd { name: name(), tag }),
    }
}
