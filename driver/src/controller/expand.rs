//! ControllerExpandVolume: the ledger is asked first, then the node.

use std::time::Duration;

use crds::{
    logical_volume::{Access, LogicalVolume},
    quantity::for_people,
    storage_cluster::ExecutionPolicy,
};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{
    Context,
    api::ApiError,
    entries,
    ledger::{Place, Refusal},
    request::{self, WishError, is_object_name},
    standing::{Progress, bytes, progress},
};
use crate::csi::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, volume_capability::AccessType};

#[derive(Debug, thiserror::Error)]
pub enum ExpandError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error(transparent)]
    Size(#[from] WishError),
    #[error("there is no volume {0}")]
    NotFound(String),
    #[error("another call is at work on volume {0}")]
    Busy(String),
    #[error("executionPolicy is Pause in the StorageCluster: volumes are not made, grown or removed")]
    Paused,
    #[error("volume {0} is being deleted")]
    Leaving(String),
    #[error("volume {0} is not made yet")]
    NotMade(String),
    #[error("node {node} is gone")]
    Lost { node: String },
    #[error("volumes there are multiples of an extent, {}, and at most {} are allowed", for_people(*size), for_people(*limit))]
    Extents { size: u64, limit: u64 },
    #[error("the group of DeviceClass {class} on node {node} does not take changes now, see its NodeStorage")]
    NoGroup { node: String, class: String },
    #[error("{} are asked for: node {node} has {} for this volume", for_people(*asked), for_people(*free))]
    Full { node: String, asked: u64, free: u64 },
    #[error("node {node} has not grown volume {name} and tries again: {message}")]
    Failed { node: String, name: String, message: String },
    #[error("node {node} could not grow volume {name}: {message}")]
    NoRoomThere { node: String, name: String, message: String },
    #[error("node {node} has not grown volume {name} within {limit:?}")]
    Slow { node: String, name: String, limit: Duration },
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// To the resizer `OutOfRange` means "not feasible": it says so on the claim, takes a smaller size, and asks again slowly.
/// `ResourceExhausted` would be asked again at full pace for ever (external-resizer, IsInfeasibleError).
impl From<ExpandError> for Status {
    fn from(error: ExpandError) -> Self {
        let code = match &error {
            ExpandError::Missing(_) => Code::InvalidArgument,
            ExpandError::Size(error) => error.code(),
            ExpandError::NotFound(_) => Code::NotFound,
            ExpandError::Busy(_) | ExpandError::NotMade(_) | ExpandError::Failed { .. } => Code::Aborted,
            ExpandError::Paused | ExpandError::Lost { .. } | ExpandError::NoGroup { .. } => Code::Unavailable,
            ExpandError::Leaving(_) => Code::FailedPrecondition,
            ExpandError::Extents { .. } | ExpandError::Full { .. } | ExpandError::NoRoomThere { .. } => {
                Code::OutOfRange
            }
            ExpandError::Slow { .. } => Code::DeadlineExceeded,
            ExpandError::Api(error) => error.code(),
        };
        Self::new(code, runtime::chain(&error))
    }
}

pub async fn expand(
    context: &Context,
    request: &ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, ExpandError> {
    let name = &request.volume_id;
    if name.is_empty() {
        return Err(ExpandError::Missing("volume_id"));
    }
    let range = request.capacity_range.as_ref().ok_or(ExpandError::Missing("capacity_range"))?;
    let asked = request::size(Some(range))?;
    if !is_object_name(name) {
        return Err(ExpandError::NotFound(name.clone()));
    }
    let _held = context.in_flight.hold(name).ok_or_else(|| ExpandError::Busy(name.clone()))?;
    if context.world.policy() == ExecutionPolicy::Pause {
        return Err(ExpandError::Paused);
    }
    // What it has decides what is written, and the copy may be older.
    let volume = context.volumes.read(name).await?.ok_or_else(|| ExpandError::NotFound(name.clone()))?;
    if volume.spec.discard || volume.metadata.deletion_timestamp.is_some() {
        return Err(ExpandError::Leaving(name.clone()));
    }
    let has = volume.status.as_ref().and_then(|status| status.size).map(bytes);
    let has = has.ok_or_else(|| ExpandError::NotMade(name.clone()))?;
    let deadline = Instant::now() + context.limit;
    let wanted = want(context, &volume, asked, has)?;
    // Also smaller than before, where an earlier wish could not be fulfilled (a claim's size may fall back).
    if bytes(volume.spec.size) != wanted {
        if let Err(error) = context.volumes.set_size(&volume, i64::try_from(wanted).unwrap_or(i64::MAX)).await {
            if error.changed_nothing() {
                context.books.take_back(name);
            }
            return Err(error.into());
        }
        tracing::info!(
            volume = name,
            node = volume.spec.node_name,
            from = has,
            to = wanted,
            "asked the node to grow a volume"
        );
    }
    let size = if wanted <= has { has } else { grown(context, &volume, wanted, deadline).await? };
    tracing::info!(volume = name, node = volume.spec.node_name, size, "grown");
    let block = match request.volume_capability.as_ref().and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Block(_)) => true,
        Some(AccessType::Mount(_)) => false,
        None => volume.spec.access == Access::Block,
    };
    Ok(ControllerExpandVolumeResponse {
        capacity_bytes: i64::try_from(size).unwrap_or(i64::MAX),
        // The filesystem grows on its node; a block device has no more to do.
        node_expansion_required: !block,
    })
}

/// The size that the LV is to have, if there is room for it.
fn want(context: &Context, volume: &LogicalVolume, asked: request::Size, has: u64) -> Result<u64, ExpandError> {
    if asked.required <= has {
        // An earlier, larger wish is off.
        context.books.take_back(&volume.name_any());
        return Ok(has);
    }
    let (node, class) = (volume.spec.node_name.clone(), volume.spec.device_class.clone());
    if context.world.storage(&node).is_none_or(|storage| entries::is_lost(&storage)) {
        return Err(ExpandError::Lost { node });
    }
    let place = Place { node: node.clone(), class: class.clone() };
    let (_, size) =
        context.books.give(&[place], &volume.name_any(), asked.required).map_err(|refusals| {
            match refusals.first() {
                None | Some((_, Refusal::NoGroup)) => ExpandError::NoGroup { node, class },
                Some((_, Refusal::Full { free } | Refusal::TooLarge { largest: free })) => {
                    ExpandError::Full { node, asked: asked.required, free: *free }
                }
            }
        })?;
    match asked.limit.filter(|limit| size > *limit) {
        None => Ok(size),
        Some(limit) => {
            context.books.take_back(&volume.name_any());
            Err(ExpandError::Extents { size, limit })
        }
    }
}

/// Waits for the node, and returns the bytes that the LV has.
async fn grown(context: &Context, volume: &LogicalVolume, wanted: u64, deadline: Instant) -> Result<u64, ExpandError> {
    let name = volume.name_any();
    let node = || volume.spec.node_name.clone();
    let mut changes = context.world.changes();
    loop {
        changes.mark_unchanged();
        // Until the new size has come by, what the copy says is about the old one.
        let now = context.world.volume(&name).filter(|now| now.uid() == volume.uid());
        if let Some(now) = now.filter(|now| bytes(now.spec.size) == wanted) {
            match progress(&now) {
                Progress::Done(size) => return Ok(size),
                Progress::Working(_) => {}
                Progress::Failed(message) => return Err(ExpandError::Failed { node: node(), name, message }),
                Progress::NoGroup(_) => {
                    return Err(ExpandError::NoGroup { node: node(), class: now.spec.device_class.clone() });
                }
                Progress::NoSpace(message) => {
                    // Otherwise it would go on trying, and hold the room that it did not get.
                    let has = now.status.as_ref().and_then(|status| status.size).unwrap_or(volume.spec.size);
                    context.volumes.set_size(&now, has).await?;
                    context.books.take_back(&name);
                    return Err(ExpandError::NoRoomThere { node: node(), name, message });
                }
            }
        }
        if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
            return Err(ExpandError::Slow { node: node(), name, limit: context.limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_is_not_feasible_and_what_may_still_run_is_asked_again() {
        let text = String::new;
        for (error, code) in [
            (ExpandError::Missing("volume_id"), Code::InvalidArgument),
            (ExpandError::NotFound(text()), Code::NotFound),
            (ExpandError::Busy(text()), Code::Aborted),
            (ExpandError::Paused, Code::Unavailable),
            (ExpandError::Lost { node: text() }, Code::Unavailable),
            (ExpandError::NoGroup { node: text(), class: text() }, Code::Unavailable),
            (ExpandError::Full { node: text(), asked: 2, free: 1 }, Code::OutOfRange),
            (ExpandError::NoRoomThere { node: text(), name: text(), message: text() }, Code::OutOfRange),
            (ExpandError::Failed { node: text(), name: text(), message: text() }, Code::Aborted),
            (ExpandError::Slow { node: text(), name: text(), limit: Duration::ZERO }, Code::DeadlineExceeded),
            (ExpandError::Leaving(text()), Code::FailedPrecondition),
        ] {
            let said = error.to_string();
            assert_eq!(Status::from(error).code(), code, "{said}");
        }
    }
}
