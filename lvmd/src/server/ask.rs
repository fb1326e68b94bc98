//! What a caller says, checked: nothing goes further as it came.

use crds::device_class::FilesystemType;
use tonic::Status;

use crate::{
    mount::{options::Options, path::Target, stage::Stage},
    name::{BadName, Bytes, ClassName, ClusterId, LvmUuid, VolumeKey, VolumeName},
    plan::{
        volumes::{Access, Format, NewVolume},
        wanted::{KnownGroup, Wanted},
    },
    proto,
    volume::Made,
};

fn bad(err: BadName) -> Status {
    Status::invalid_argument(err.to_string())
}

pub fn wanted(json: &[u8], known: Vec<proto::KnownGroup>) -> Result<Wanted, Status> {
    let mut wanted = Wanted::parse(json).map_err(|err| Status::invalid_argument(runtime::chain(&err)))?;
    let group = |known: proto::KnownGroup| KnownGroup { class: known.class, uuid: known.vg_uuid, name: known.vg_name };
    wanted.known = known.into_iter().map(group).collect();
    Ok(wanted)
}

pub fn name(volume: Option<proto::VolumeId>) -> Result<VolumeName, Status> {
    VolumeName::try_from(volume.unwrap_or_default().name).map_err(bad)
}

pub fn key(volume: Option<proto::VolumeId>) -> Result<VolumeKey, Status> {
    let volume = volume.unwrap_or_default();
    Ok(VolumeKey {
        name: VolumeName::try_from(volume.name).map_err(bad)?,
        cluster: ClusterId::try_from(volume.cluster_id).map_err(bad)?,
        class: ClassName::try_from(volume.class).map_err(bad)?,
    })
}

/// Empty is none.
pub fn uuid(text: &str) -> Result<Option<LvmUuid>, Status> {
    if text.is_empty() { Ok(None) } else { LvmUuid::try_from(text).map(Some).map_err(bad) }
}

pub fn size(bytes: u64) -> Result<Bytes, Status> {
    if (1..=i64::MAX.unsigned_abs()).contains(&bytes) {
        Ok(Bytes(bytes))
    } else {
        Err(Status::invalid_argument(format!("{bytes} bytes are no size of a volume")))
    }
}

pub fn new_volume(request: proto::CreateVolumeRequest) -> Result<NewVolume, Status> {
    if !["Filesystem", "Block"].contains(&request.access.as_str()) {
        return Err(Status::invalid_argument(format!("{:?} is neither Filesystem nor Block", request.access)));
    }
    Ok(NewVolume {
        key: key(request.volume)?,
        size: size(request.size)?,
        reserve: Bytes(request.reserve),
        access: request.access,
        claim: Some(request.claim).filter(|claim| !claim.is_empty()),
        adopt: uuid(&request.adopt_lv_uuid)?,
    })
}

pub fn stage(request: proto::StageRequest, target: Target) -> Result<Stage, Status> {
    let access = if request.block {
        Access::Block
    } else {
        let kind = FilesystemType::parse(&request.fs_type);
        Access::Filesystem(kind.ok_or_else(|| {
            Status::invalid_argument(format!(
                "{:?} is no filesystem that is made here: use xfs or ext4",
                request.fs_type
            ))
        })?)
    };
    let read_only = request.read_only.then_some("ro");
    let options = Options::parse(request.mount_options.iter().map(String::as_str).chain(read_only));
    let options = options.map_err(|err| Status::invalid_argument(err.to_string()))?;
    Ok(Stage { key: key(request.volume)?, target, access, options })
}

impl From<Made> for proto::Volume {
    fn from(made: Made) -> Self {
        let (fs_type, fs_uuid) = match Format::of(&made.lv) {
            Format::Made(kind, uuid) => (kind.as_str().to_owned(), uuid.to_string()),
            Format::None | Format::Making(..) | Format::Odd(_) => Default::default(),
        };
        Self {
            vg_name: made.group.name.to_string(),
            vg_uuid: made.group.uuid.to_string(),
            lv_uuid: made.lv.uuid.to_string(),
            size: made.lv.size.0,
            fs_type,
            fs_uuid,
            used: made.lv.tags.contains(crds::names::tag::USED),
        }
    }
}
