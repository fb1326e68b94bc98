//! DeleteVolume, and how any volume is discarded.

use std::{sync::Arc, time::Duration};

use crds::{
    condition::{self, kind},
    logical_volume::LogicalVolume,
    storage_cluster::ExecutionPolicy,
};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{
    Context,
    api::ApiError,
    entries,
    lost::{Holder, ReleaseError},
    orphans,
    request::is_object_name,
    standing::{Progress, progress},
};

#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    #[error("volume_id is missing")]
    NoId,
    #[error("another call is at work on volume {0}")]
    Busy(String),
    #[error(transparent)]
    Discard(#[from] DiscardError),
    #[error(transparent)]
    Api(#[from] ApiError),
}

#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    #[error("executionPolicy is Pause in the StorageCluster: volumes are not made, grown or removed")]
    Paused,
    #[error("node {node} is gone, and it is not decided yet whether its volumes are given up: {message}")]
    Undecided { node: String, message: String },
    #[error(transparent)]
    Release(#[from] ReleaseError),
    #[error("node {node} has not removed volume {name} and tries again: {message}")]
    Refused { node: String, name: String, message: String },
    #[error("node {node} has not removed volume {name} within {limit:?}")]
    Slow { node: String, name: String, limit: Duration },
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl DiscardError {
    /// All of them say "call again": a volume that is to go goes in the end, or a person is told why not.
    pub fn code(&self) -> Code {
        match self {
            Self::Paused | Self::Undecided { .. } | Self::Release(ReleaseError::ListFull { .. }) => Code::Unavailable,
            Self::Refused { .. } => Code::Aborted,
            Self::Slow { .. } => Code::DeadlineExceeded,
            Self::Api(error) | Self::Release(ReleaseError::Api(error)) => error.code(),
        }
    }
}

impl From<DeleteError> for Status {
    fn from(error: DeleteError) -> Self {
        let code = match &error {
            DeleteError::NoId => Code::InvalidArgument,
            DeleteError::Busy(_) => Code::Aborted,
            DeleteError::Discard(error) => error.code(),
            DeleteError::Api(error) => error.code(),
        };
        Self::new(code, runtime::chain(&error))
    }
}

/// Nothing about the request but its id is read: what is to go must not stay because of what is wrong with it (E7).
pub async fn delete(context: &Context, name: &str) -> Result<(), DeleteError> {
    if name.is_empty() {
        return Err(DeleteError::NoId);
    }
    if !is_object_name(name) {
        // No volume of ours was ever called so.
        return Ok(());
    }
    let _held = context.in_flight.hold(name).ok_or_else(|| DeleteError::Busy(name.to_owned()))?;
    let deadline = Instant::now() + context.limit;
    let volume = match context.world.volume(name) {
        Some(volume) => volume,
        None => match context.volumes.read(name).await? {
            Some(volume) => Arc::new(volume),
            // Its object has vanished; an LV that is left of it goes with the rest.
            None => match orphans::adopt_to_discard(context, name, deadline).await? {
                Some(volume) => Arc::new(volume),
                None => return Ok(()),
            },
        },
    };
    let is_known = |volume: &LogicalVolume| volume.status.as_ref().is_some_and(|status| status.lv_uuid.is_some());
    let adopted = volume.spec.adopt.is_some() && !is_known(&volume) && volume.metadata.deletion_timestamp.is_none();
    let here = context.world.storage(&volume.spec.node_name).is_some_and(|storage| !entries::is_lost(&storage));
    let volume = if adopted && here { Arc::new(orphans::known(context, &volume, deadline).await?) } else { volume };
    discard(context, &volume, deadline).await?;
    tracing::info!(volume = name, node = volume.spec.node_name, "deleted");
    Ok(())
}

/// Removes `volume` with its data, and returns when it is gone.
pub async fn discard(context: &Context, volume: &LogicalVolume, deadline: Instant) -> Result<(), DiscardError> {
    if context.world.policy() == ExecutionPolicy::Pause {
        return Err(DiscardError::Paused);
    }
    match context.lost.holder(volume).await? {
        Holder::Here => context.volumes.discard(volume).await?,
        Holder::Gone(storage) => context.lost.release(volume, storage.as_deref()).await?,
        Holder::Undecided(message) => {
            return Err(DiscardError::Undecided { node: volume.spec.node_name.clone(), message });
        }
    }
    gone(context, volume, deadline).await?;
    context.books.take_back(&volume.name_any());
    Ok(())
}

/// Waits until the object is gone; the node says why when it is not.
async fn gone(context: &Context, volume: &LogicalVolume, deadline: Instant) -> Result<(), DiscardError> {
    let name = volume.name_any();
    let node = || volume.spec.node_name.clone();
    let mut changes = context.world.changes();
    loop {
        changes.mark_unchanged();
        match context.world.volume(&name).filter(|now| now.uid() == volume.uid()) {
            // The copy may be older than the object.
            None => match context.volumes.read(&name).await? {
                Some(now) if now.uid() == volume.uid() => {}
                Some(_) | None => return Ok(()),
            },
            Some(now) if now.metadata.deletion_timestamp.is_some() => match progress(&now) {
                Progress::Failed(message) | Progress::NoGroup(message) => {
                    return Err(DiscardError::Refused { node: node(), name, message });
                }
                Progress::Done(_) | Progress::Working(_) | Progress::NoSpace(_) => {}
            },
            Some(_) => {}
        }
        if let Some(lost) = context.world.storage(&volume.spec.node_name)
            && entries::is_lost(&lost)
            && !lost.has_given_up(volume)
        {
            let conditions = lost.status.as_ref().map_or(&[][..], |status| &status.conditions);
            let message = condition::find(conditions, kind::NODE_LOST).map(|c| c.message.clone()).unwrap_or_default();
            return Err(DiscardError::Undecided { node: node(), message });
        }
        if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
            return Err(DiscardError::Slow { node: node(), name, limit: context.limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deletion_that_is_not_done_is_asked_for_again() {
        let text = String::new;
        for (error, code) in [
            (DeleteError::NoId, Code::InvalidArgument),
            (DeleteError::Busy("a".into()), Code::Aborted),
            (DiscardError::Paused.into(), Code::Unavailable),
            (DiscardError::Undecided { node: text(), message: text() }.into(), Code::Unavailable),
            (DiscardError::Release(ReleaseError::ListFull { node: text() }).into(), Code::Unavailable),
            (DiscardError::Refused { node: text(), name: text(), message: text() }.into(), Code::Aborted),
            (DiscardError::Slow { node: text(), name: text(), limit: Duration::ZERO }.into(), Code::DeadlineExceeded),
            (ApiError::Slow { verb: "reading", name: text() }.into(), Code::Unavailable),
        ] {
            let said = error.to_string();
            assert_eq!(Status::from(error).code(), code, "{said}");
        }
    }
}
