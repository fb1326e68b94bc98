//! CreateVolume: a LogicalVolume where there is room, and the wait for its node.

use std::{cmp::Reverse, fmt, sync::Arc, time::Duration};

use crds::{
    device_class::FilesystemType,
    logical_volume::{Access, LogicalVolume, LogicalVolumeSpec},
    names,
    quantity::for_people,
    storage_cluster::ExecutionPolicy,
};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{
    Context,
    api::ApiError,
    delete::{DiscardError, discard},
    entries,
    ledger::{Place, Refusal},
    request::{self, Nodes, Wish, WishError},
    standing::{Progress, Standing, compare, progress},
};
use crate::csi::{CreateVolumeRequest, Topology, Volume};

const ROUNDS: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error(transparent)]
    Wish(#[from] WishError),
    #[error("another call is at work on volume {0}")]
    Busy(String),
    #[error("executionPolicy is Pause in the StorageCluster: volumes are not made, grown or removed")]
    Paused,
    #[error("there is no DeviceClass {0}: the StorageClass names it, make it or correct the StorageClass")]
    NoClass(String),
    #[error("DeviceClass {0} is being deleted")]
    ClassLeaving(String),
    #[error("{} is less than {} can be made on, {}", for_people(*asked), fs.as_str(), for_people(fs.smallest()))]
    TooSmall { fs: FilesystemType, asked: u64 },
    #[error("volumes there are multiples of an extent, {}, and at most {} are allowed", for_people(*size), for_people(*limit))]
    Extents { size: u64, limit: u64 },
    #[error("there is no room for {}: {refusals}", for_people(*asked))]
    Full { asked: u64, refusals: Refusals },
    #[error("volume {name} is there already, {what}")]
    Differs { name: String, what: String },
    #[error("volume {name} is there already, on node {node}, and may hold data")]
    InUse { name: String, node: String },
    #[error("volume {0} was deleted by hand and waits for a person, see its conditions")]
    DeletedByHand(String),
    #[error("volume {0} vanished while it was made")]
    Vanished(String),
    #[error("node {node} has not made volume {name} and tries again: {message}")]
    Failed { node: String, name: String, message: String },
    #[error("node {node} could not make volume {name}: {message}")]
    NoRoomThere { node: String, name: String, message: String },
    #[error("node {node} has not made volume {name} within {limit:?}{}", said(message))]
    Slow { node: String, name: String, limit: Duration, message: String },
    #[error("the scheduler could not be told what is free")]
    Untold(#[source] ApiError),
    #[error("NodeStorage {0} does not say the cluster's id yet")]
    NoCluster(String),
    #[error(transparent)]
    Discard(#[from] DiscardError),
    #[error(transparent)]
    Api(#[from] ApiError),
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

/// By node, why it had no room.
#[derive(Debug)]
pub struct Refusals(Vec<(String, String)>);

impl fmt::Display for Refusals {
    /// The first three: with Immediate binding there is one for every node.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        if self.0.is_empty() {
            return f.write_str("no node has this class");
        }
        for (n, (node, why)) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}node {node} {why}", if n == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// `ResourceExhausted` sends the claim to another node, and says that nothing is at work here any more. `Aborted`,
/// `DeadlineExceeded` and `Unavailable` say that something may be, so the provisioner asks until it hears otherwise. All
/// others are final for this attempt (external-provisioner, checkError).
impl From<CreateError> for Status {
    fn from(error: CreateError) -> Self {
        let code = match &error {
            CreateError::Wish(error) => error.code(),
            CreateError::Paused | CreateError::Untold(_) | CreateError::NoCluster(_) => Code::Unavailable,
            CreateError::NoClass(_) | CreateError::ClassLeaving(_) => Code::FailedPrecondition,
            CreateError::TooSmall { .. } | CreateError::Extents { .. } => Code::OutOfRange,
            CreateError::Full { .. } | CreateError::NoRoomThere { .. } => Code::ResourceExhausted,
            CreateError::Differs { .. } | CreateError::InUse { .. } => Code::AlreadyExists,
            CreateError::Busy(_)
            | CreateError::DeletedByHand(_)
            | CreateError::Vanished(_)
            | CreateError::Failed { .. } => Code::Aborted,
            CreateError::Slow { .. } => Code::DeadlineExceeded,
            CreateError::Discard(error) => error.code(),
            CreateError::Api(error) => error.code(),
        };
        Self::new(code, runtime::chain(&error))
    }
}

pub async fn create(context: &Context, request: &CreateVolumeRequest) -> Result<Volume, CreateError> {
    let wish = request::read(request)?;
    let _held = context.in_flight.hold(&wish.name).ok_or_else(|| CreateError::Busy(wish.name.clone()))?;
    let deadline = Instant::now() + context.limit;
    let volume = find_or_make(context, &wish, deadline).await?;
    let made = ready(context, &volume, deadline).await?;
    let node = &volume.spec.node_name;
    tracing::info!(volume = wish.name, node, class = wish.class, size = made, "created");
    answer(context, &wish, node, made)
}

/// The LogicalVolume that is to become ready.
async fn find_or_make(context: &Context, wish: &Wish, deadline: Instant) -> Result<Arc<LogicalVolume>, CreateError> {
    // Each round begins with another state of the object; more of them means that somebody else is at work on it.
    for _ in 0..ROUNDS {
        if context.world.policy() == ExecutionPolicy::Pause {
            return Err(CreateError::Paused);
        }
        let there = match context.world.volume(&wish.name) {
            Some(there) => there,
            None => match make(context, wish).await? {
                Made::New(made) => return Ok(made),
                Made::IsThere => match context.volumes.read(&wish.name).await? {
                    Some(there) => Arc::new(there),
                    None => continue,
                },
            },
        };
        match compare(&there, wish) {
            Standing::Fits => return Ok(there),
            Standing::DeletedByHand => return Err(CreateError::DeletedByHand(wish.name.clone())),
            Standing::Differs(what) => return Err(CreateError::Differs { name: wish.name.clone(), what }),
            Standing::Leaving => discard(context, &there, deadline).await?,
            Standing::Elsewhere => {
                unused(context, &there).await?;
                tracing::info!(
                    volume = wish.name, node = there.spec.node_name, asked = ?wish.topology,
                    "the claim went to another node: discarding its volume here"
                );
                discard(context, &there, deadline).await?;
            }
        }
    }
    Err(CreateError::Vanished(wish.name.clone()))
}

/// Nobody can have written to a volume for which no PersistentVolume was ever made; one that carries a filesystem, or has
/// a PersistentVolume, is nobody's to discard but a person's.
async fn unused(context: &Context, volume: &LogicalVolume) -> Result<(), CreateError> {
    let name = volume.name_any();
    let formatted = volume.status.as_ref().is_some_and(|status| status.filesystem.is_some());
    if formatted || context.claims.volume_exists(&name).await? {
        return Err(CreateError::InUse { name, node: volume.spec.node_name.clone() });
    }
    Ok(())
}

enum Made {
    New(Arc<LogicalVolume>),
    /// Earlier than the copies show.
    IsThere,
}

async fn make(context: &Context, wish: &Wish) -> Result<Made, CreateError> {
    let class = context.world.class(&wish.class).ok_or_else(|| CreateError::NoClass(wish.class.clone()))?;
    if class.metadata.deletion_timestamp.is_some() {
        return Err(CreateError::ClassLeaving(wish.class.clone()));
    }
    let asked = wish.size.required;
    let fs = wish.filesystem.unwrap_or(class.spec.filesystem.type_);
    if wish.access == Access::Filesystem && asked < fs.smallest() {
        return Err(CreateError::TooSmall { fs, asked });
    }
    let places = places(context, wish);
    let (place, size) = match context.books.give(&places, &wish.name, asked) {
        Ok(given) => given,
        Err(refusals) => {
            // Before the answer: the pod that is scheduled again must not choose by old figures.
            let nodes: Vec<_> = refusals.iter().map(|(place, _)| place.node.as_str()).collect();
            context.capacity.write_now(&nodes).await.map_err(CreateError::Untold)?;
            let why = |(place, refusal): (Place, Refusal)| {
                let why = match refusal {
                    Refusal::NoGroup => entries::why_not(context.world.storage(&place.node).as_deref(), &place.class),
                    Refusal::Full { free } => format!("has {} free", for_people(free)),
                    Refusal::TooLarge { largest } => format!("has no volumes above {}", for_people(largest)),
                };
                (place.node, why)
            };
            return Err(CreateError::Full { asked, refusals: Refusals(refusals.into_iter().map(why).collect()) });
        }
    };
    if let Some(limit) = wish.size.limit.filter(|limit| size > *limit) {
        context.books.take_back(&wish.name);
        return Err(CreateError::Extents { size, limit });
    }
    let spec = LogicalVolumeSpec {
        node_name: place.node.clone(),
        device_class: wish.class.clone(),
        size: i64::try_from(size).unwrap_or(i64::MAX),
        access: wish.access,
        claim: wish.claim.clone(),
        adopt: None,
        discard: false,
    };
    match context.volumes.create(&wish.name, spec).await {
        Ok(volume) => {
            tracing::info!(
                volume = wish.name,
                node = place.node,
                class = place.class,
                size,
                "asked the node for a volume"
            );
            Ok(Made::New(Arc::new(volume)))
        }
        Err(error) => {
            // What was not answered may have been done: then the room stays given until the object comes by.
            if error.changed_nothing() {
                context.books.take_back(&wish.name);
            }
            if error.is_conflict() { Ok(Made::IsThere) } else { Err(error.into()) }
        }
    }
}

/// Where the volume may be. With `--strict-topology` the provisioner names one node, the one that the scheduler chose;
/// where it names more, nobody has chosen, and the emptiest comes first (D11).
fn places(context: &Context, wish: &Wish) -> Vec<Place> {
    let ledger = context.books.ledger();
    let place = |node: String| Place { node, class: wish.class.clone() };
    let nodes: Vec<String> = match &wish.topology {
        Nodes::Any => {
            let of_class = ledger.figures().filter(|(place, _)| place.class == wish.class);
            of_class.map(|(place, _)| place.node.clone()).collect()
        }
        Nodes::Of(values) => {
            let storages = context.world.storages();
            // A value that no NodeStorage has is shown as it is: there is no room on a node that is gone.
            let name = |value: &String| {
                let named = storages.iter().find(|s| names::topology_value(&s.spec.node_name) == *value);
                named.map_or_else(|| value.clone(), |storage| storage.spec.node_name.clone())
            };
            values.iter().map(name).collect()
        }
    };
    let mut places: Vec<_> = nodes.into_iter().map(place).collect();
    places.sort_by_cached_key(|place| Reverse(ledger.figures_of(place).map(|figures| figures.free)));
    places
}

/// Waits for the node, and returns the bytes that it made.
async fn ready(context: &Context, volume: &LogicalVolume, deadline: Instant) -> Result<u64, CreateError> {
    let name = volume.name_any();
    let node = || volume.spec.node_name.clone();
    let mut changes = context.world.changes();
    let mut seen = false;
    let mut last = String::new();
    loop {
        changes.mark_unchanged();
        match context.world.volume(&name).filter(|now| now.uid() == volume.uid()) {
            // It was made a moment ago, and has not come by yet.
            None if !seen => {}
            None => return Err(CreateError::Vanished(name)),
            Some(now) if now.spec.discard || now.metadata.deletion_timestamp.is_some() => {
                return Err(CreateError::Vanished(name));
            }
            Some(now) => {
                seen = true;
                match progress(&now) {
                    Progress::Done(size) => return Ok(size),
                    Progress::Working(message) => last = message,
                    Progress::Failed(message) => return Err(CreateError::Failed { node: node(), name, message }),
                    Progress::NoSpace(message) => {
                        let place = Place { node: node(), class: now.spec.device_class.clone() };
                        context.books.doubt(place, entries::volume(&now).bytes);
                        return Err(give_up(context, &now, message, deadline).await);
                    }
                    Progress::NoGroup(message) => return Err(give_up(context, &now, message, deadline).await),
                }
                if context.world.storage(&now.spec.node_name).is_some_and(|storage| entries::is_lost(&storage)) {
                    return Err(give_up(context, &now, "the node is gone".to_owned(), deadline).await);
                }
            }
        }
        if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
            return Err(CreateError::Slow { node: node(), name, limit: context.limit, message: last });
        }
    }
}

/// The node can not make it. The claim is sent elsewhere only when nothing is left here: the provisioner forgets what it
/// was told is not at work.
async fn give_up(context: &Context, volume: &LogicalVolume, message: String, deadline: Instant) -> CreateError {
    let node = volume.spec.node_name.clone();
    tracing::warn!(volume = volume.name_any(), node, message, "the node has no room after all: discarding");
    let undone = async {
        unused(context, volume).await?;
        discard(context, volume, deadline).await?;
        context.capacity.write_now(&[node.as_str()]).await.map_err(CreateError::Untold)
    };
    match undone.await {
        Ok(()) => CreateError::NoRoomThere { node, name: volume.name_any(), message },
        Err(error) => error,
    }
}

fn answer(context: &Context, wish: &Wish, node: &str, size: u64) -> Result<Volume, CreateError> {
    let storage = context.world.storage(node).filter(|storage| !storage.spec.cluster_id.is_empty());
    let storage = storage.ok_or_else(|| CreateError::NoCluster(node.to_owned()))?;
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut volume_context = std::collections::HashMap::from([
        pair(names::context::DEVICE_CLASS, &wish.class),
        pair(names::context::CLUSTER_ID, &storage.spec.cluster_id),
    ]);
    if wish.access == Access::Filesystem && wish.filesystem.is_none() {
        let class = context.world.class(&wish.class).ok_or_else(|| CreateError::NoClass(wish.class.clone()))?;
        let fs = class.spec.filesystem.type_.as_str();
        volume_context.insert(names::context::FS_TYPE.to_owned(), fs.to_owned());
    }
    Ok(Volume {
        capacity_bytes: i64::try_from(size).unwrap_or(i64::MAX),
        volume_id: wish.name.clone(),
        volume_context,
        content_source: None,
        accessible_topology: vec![Topology {
            segments: [(names::TOPOLOGY_NODE.to_owned(), names::topology_value(node))].into(),
        }],
    })
}
