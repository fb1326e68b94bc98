//! What is to be done for one LogicalVolume, and what its status says afterwards. Pure.

use crds::{
    condition::{self, kind, reason},
    device_class::FilesystemType,
    logical_volume::{FilesystemRef, LogicalVolume, LogicalVolumeStatus, State, VolumeGroupRef},
    names::VOLUME_FINALIZER,
    node_storage::{NodeStorage, VolumeGroupStatus},
    quantity,
    storage_cluster::ExecutionPolicy,
};
use jiff::Timestamp;
use kube::ResourceExt;
use lvmd::proto::{CreateVolumeRequest, DeleteVolumeRequest, GrowVolumeRequest, VolumeId};
use tonic::Code;

use crate::hands::HandsError;

#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// It is not ours to touch, or there is nothing behind it any more.
    Nothing,
    /// The LV is there as it is asked for.
    Settled,
    Create(CreateVolumeRequest),
    Grow(GrowVolumeRequest),
    Delete(DeleteVolumeRequest),
    /// It can not be tried now; the reason to say.
    Wait(Obstacle),
}

/// Why lvmd is not even asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    Paused,
    /// The node's first look has not been published.
    NoLook,
    ClassNotHere(String),
    NoGroup(String),
}

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Create,
    Grow,
    Delete,
}

/// What is to be done for `volume` on `node`.
pub fn next(volume: &LogicalVolume, node: &NodeStorage) -> Next {
    let id = VolumeId {
        name: volume.name_any(),
        cluster_id: node.spec.cluster_id.clone(),
        class: volume.spec.device_class.clone(),
    };
    let status = volume.status.as_ref();
    let lv_uuid = status.and_then(|status| status.lv_uuid.clone());
    let paused = node.spec.rails.execution_policy == ExecutionPolicy::Pause;
    if volume.metadata.deletion_timestamp.is_some() {
        if !volume.finalizers().iter().any(|finalizer| finalizer == VOLUME_FINALIZER) {
            return Next::Nothing;
        }
        if volume.spec.discard {
            if paused {
                return Next::Wait(Obstacle::Paused);
            }
            let vg_uuid = status.and_then(|status| status.volume_group.as_ref()).map(|group| group.uuid.clone());
            return Next::Delete(DeleteVolumeRequest {
                volume: Some(id),
                // Both or none: one alone would be half a proof.
                vg_uuid: lv_uuid.as_ref().and(vg_uuid).unwrap_or_default(),
                lv_uuid: lv_uuid.unwrap_or_default(),
            });
        }
        if lv_uuid.is_none() {
            // There may be an LV of which nothing was reported: it is neither made nor removed.
            return Next::Settled;
        }
    }
    if volume.spec.discard && lv_uuid.is_none() {
        // The deletion that follows would remove what is made now.
        return Next::Nothing;
    }
    let asked = u64::try_from(volume.spec.size).unwrap_or(0);
    let has = status.and_then(|status| status.size).map_or(0, |size| u64::try_from(size).unwrap_or(0));
    if lv_uuid.is_some() && has >= asked {
        return Next::Settled;
    }
    if paused {
        return Next::Wait(Obstacle::Paused);
    }
    let group = match group(volume, node) {
        Ok(group) => group,
        Err(obstacle) => return Next::Wait(obstacle),
    };
    let reserve = u64::try_from(group.reserve).unwrap_or(0);
    match lv_uuid {
        Some(lv_uuid) => Next::Grow(GrowVolumeRequest { volume: Some(id), lv_uuid, size: asked, reserve }),
        None => Next::Create(CreateVolumeRequest {
            volume: Some(id),
            size: asked,
            reserve,
            access: volume.spec.access.as_str().to_owned(),
            claim: volume.spec.claim.as_ref().map(|c| format!("{}/{}", c.namespace, c.name)).unwrap_or_default(),
            adopt_lv_uuid: volume.spec.adopt.as_ref().map(|adopt| adopt.lv_uuid.clone()).unwrap_or_default(),
        }),
    }
}

/// The reserve of a group that was not published is not known, so nothing is made in it.
fn group<'a>(volume: &LogicalVolume, node: &'a NodeStorage) -> Result<&'a VolumeGroupStatus, Obstacle> {
    let class = &volume.spec.device_class;
    let has_lv = volume.status.as_ref().is_some_and(|status| status.lv_uuid.is_some());
    if !has_lv && !node.spec.classes.iter().any(|assigned| assigned.name == *class) {
        return Err(Obstacle::ClassNotHere(class.clone()));
    }
    let status = node.status.as_ref().filter(|status| status.agent.is_some()).ok_or(Obstacle::NoLook)?;
    status.volume_groups.iter().find(|group| group.class == *class).ok_or_else(|| Obstacle::NoGroup(class.clone()))
}

/// The status of a volume that is as it is asked for, or is kept as it is.
pub fn settled(volume: &LogicalVolume, now: Timestamp) -> LogicalVolumeStatus {
    let mut status = volume.status.clone().unwrap_or_default();
    if status.lv_uuid.is_some() {
        status.state = Some(State::Ready);
        let size = quantity::for_people(status.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0));
        let group = status.volume_group.as_ref().map(|group| group.name.clone()).unwrap_or_default();
        let message = format!("the LV is there, {size} in volume group {group}");
        say(&mut status, volume, Standing::Good, reason::VOLUME_READY, message, now);
    } else {
        status.observed_generation = volume.metadata.generation;
    }
    if volume.metadata.deletion_timestamp.is_some() && !volume.spec.discard {
        let message = "the object is being deleted, and nobody has said that its data may go: the LV and this object \
                       stay. To remove both, with the data, set spec.discard to true";
        let condition = condition::new(
            kind::DELETION_BLOCKED,
            "True",
            reason::DELETE_WITHOUT_DISCARD,
            message,
            volume.metadata.generation,
        );
        condition::set(&mut status.conditions, condition, now);
    }
    status
}

/// The status after lvmd made, found or grew the LV.
pub fn made(volume: &LogicalVolume, lv: &lvmd::proto::Volume, now: Timestamp) -> LogicalVolumeStatus {
    let mut after = volume.clone();
    let status = after.status.get_or_insert_default();
    status.volume_group = Some(VolumeGroupRef { name: lv.vg_name.clone(), uuid: lv.vg_uuid.clone() });
    status.lv_uuid = Some(lv.lv_uuid.clone());
    status.size = Some(i64::try_from(lv.size).unwrap_or(i64::MAX));
    if let Some(type_) = FilesystemType::parse(&lv.fs_type) {
        status.filesystem = Some(FilesystemRef { type_, uuid: lv.fs_uuid.clone() });
    }
    settled(&after, now)
}

/// The status after lvmd refused, or did not answer. It is tried again in every case; the reason says whether that
/// can help by itself.
pub fn failed(volume: &LogicalVolume, attempt: Attempt, error: &HandsError, now: Timestamp) -> LogicalVolumeStatus {
    let mut status = volume.status.clone().unwrap_or_default();
    let (failed, message) = match attempt {
        Attempt::Create => (reason::CREATE_FAILED, "the LV was not made"),
        Attempt::Grow => (reason::EXPAND_FAILED, "the LV was not grown"),
        Attempt::Delete => (reason::DELETE_FAILED, "the LV was not removed"),
    };
    let (standing, reason) = match error.code() {
        // lvmd or LVM is slow or away: nothing was decided.
        Code::Unavailable | Code::Aborted | Code::Cancelled => (Standing::Working, reason::WORKING),
        Code::DeadlineExceeded => (Standing::Working, reason::LVM_SLOW),
        Code::ResourceExhausted => (Standing::Bad, reason::NO_SPACE),
        Code::FailedPrecondition if attempt == Attempt::Create => (Standing::Bad, reason::NO_GROUP),
        Code::FailedPrecondition
        | Code::NotFound
        | Code::AlreadyExists
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::Internal
        | Code::Ok
        | Code::Unknown
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => (Standing::Bad, failed),
    };
    status.state = Some(match (attempt, standing) {
        (Attempt::Create, Standing::Bad) => State::Failed,
        (Attempt::Create, Standing::Working | Standing::Good) => State::Pending,
        (Attempt::Grow, _) => State::Growing,
        (Attempt::Delete, _) => State::Deleting,
    });
    let message = format!("{message}, it is tried again by itself: {}", runtime::chain(error));
    say(&mut status, volume, standing, reason, message, now);
    status
}

/// The status of a volume that can not be tried now.
pub fn waiting(volume: &LogicalVolume, obstacle: &Obstacle, now: Timestamp) -> LogicalVolumeStatus {
    let mut status = volume.status.clone().unwrap_or_default();
    let (standing, reason, message) = match obstacle {
        Obstacle::Paused => (
            Standing::Working,
            reason::PAUSED,
            "executionPolicy is Pause in the StorageCluster: volumes are not made, grown or removed".to_owned(),
        ),
        Obstacle::NoLook => {
            (Standing::Working, reason::AGENT_STARTING, "the node has not been looked at yet".to_owned())
        }
        Obstacle::ClassNotHere(class) => (
            Standing::Bad,
            reason::NO_GROUP,
            format!("DeviceClass {class} is not assigned to this node: its nodeSelector says where it is"),
        ),
        Obstacle::NoGroup(class) => (
            Standing::Bad,
            reason::NO_GROUP,
            format!("DeviceClass {class} has no volume group on this node: see the conditions of the NodeStorage"),
        ),
    };
    status.state = Some(if volume.metadata.deletion_timestamp.is_some() && volume.spec.discard {
        State::Deleting
    } else if status.lv_uuid.is_some() {
        State::Growing
    } else if standing == Standing::Bad {
        State::Failed
    } else {
        State::Pending
    });
    say(&mut status, volume, standing, reason, message, now);
    status
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Good,
    Working,
    Bad,
}

fn say(
    status: &mut LogicalVolumeStatus,
    volume: &LogicalVolume,
    standing: Standing,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let generation = volume.metadata.generation;
    status.observed_generation = generation;
    for (kind, is) in [
        (kind::READY, standing == Standing::Good),
        (kind::PROGRESSING, standing == Standing::Working),
        (kind::DEGRADED, standing == Standing::Bad),
    ] {
        let condition = condition::new(kind, condition::status(is), reason, message.clone(), generation);
        condition::set(&mut status.conditions, condition, now);
    }
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
