//! Volumes of which a half is missing: an LV whose object has vanished is given one again, as long as something still
//! stands for it; what was never used and nobody asks for any more is discarded. Everything else waits for a person.
//!
//! Only live reads decide. While no NodeStorage lists an orphan and every volume is made, nothing is read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use crds::{
    logical_volume::{Access, Adopt, Claim, LogicalVolume, LogicalVolumeSpec},
    node_storage::{NodeStorage, Orphan},
    storage_cluster::ExecutionPolicy,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::{
    Context,
    api::ApiError,
    claims::{claim_of, is_pinned_to},
    delete::{DeleteError, DiscardError, discard},
    entries, lost,
    standing::Progress,
};

/// The provisioner may be away for minutes and come back to a claim: nothing is discarded that was not found unwanted
/// twice, this long apart.
const APART: Duration = Duration::from_secs(600);

/// What comes within this time is looked at together.
const BURST: Duration = Duration::from_secs(1);

/// An LV without an object, on a node that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub node: String,
    pub orphan: Orphan,
}

/// The orphans of all nodes, by name. One that was given up is its node's to remove; and of two LVs with one name
/// nobody can say which is meant.
pub fn found(storages: &[Arc<NodeStorage>]) -> BTreeMap<String, Found> {
    let mut found: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    for storage in storages.iter().filter(|s| !entries::is_lost(s) && s.was_looked_at()) {
        let all = storage.status.as_ref().map_or(&[][..], |status| &status.orphans);
        for orphan in all {
            let given_up = storage.spec.released.iter().any(|r| r.lv_uuid == orphan.lv_uuid || r.name == orphan.name);
            if !given_up {
                let one = Found { node: storage.spec.node_name.clone(), orphan: orphan.clone() };
                found.entry(orphan.name.clone()).or_default().push(one);
            }
        }
    }
    found
        .into_iter()
        .filter_map(|(name, mut all)| all.pop().filter(|_| all.is_empty()).map(|one| (name, one)))
        .collect()
}

/// The object that is made for an LV that lost its own.
fn anew(found: &Found, volume: Option<&PersistentVolume>) -> LogicalVolumeSpec {
    let spec = volume.and_then(|volume| volume.spec.as_ref());
    let block = spec.is_some_and(|spec| spec.volume_mode.as_deref() == Some("Block"));
    LogicalVolumeSpec {
        node_name: found.node.clone(),
        device_class: found.orphan.class.clone(),
        size: found.orphan.size.max(1),
        access: if block { Access::Block } else { Access::Filesystem },
        claim: claim(&found.orphan)
            .map(|(namespace, name)| Claim { namespace: namespace.to_owned(), name: name.to_owned() }),
        adopt: Some(Adopt { lv_uuid: found.orphan.lv_uuid.clone() }),
        discard: false,
    }
}

fn claim(orphan: &Orphan) -> Option<(&str, &str)> {
    orphan.claim.as_deref().and_then(|claim| claim.split_once('/'))
}

/// A volume that has no LV that anybody was told of: CreateVolume has never answered for it, so no PersistentVolume was
/// ever made, and a node removes an LV of it only if it was never used.
fn is_unmade(volume: &LogicalVolume, now: Timestamp) -> bool {
    let made = volume.status.as_ref().is_some_and(|status| status.lv_uuid.is_some());
    let apart = SignedDuration::try_from(APART).unwrap_or(SignedDuration::MAX);
    let old = volume.metadata.creation_timestamp.as_ref().is_some_and(|created| now.duration_since(created.0) > apart);
    !made && old && volume.metadata.deletion_timestamp.is_none() && volume.spec.adopt.is_none()
}

/// For how long something was found unwanted, without a break.
#[derive(Default)]
struct Unwanted(HashMap<String, Instant>);

impl Unwanted {
    /// Whether `key` was found unwanted before, and long enough ago.
    fn again(&mut self, key: &str, now: Instant) -> bool {
        now.duration_since(*self.0.entry(key.to_owned()).or_insert(now)) >= APART
    }
}

/// Ends never.
pub async fn look_after(context: &Context, clock: fn() -> Timestamp) {
    let mut changes = context.world.changes();
    let mut unwanted = Unwanted::default();
    let mut known: BTreeSet<(String, String)> = BTreeSet::new();
    let mut next = Instant::now();
    loop {
        changes.mark_unchanged();
        let storages = context.world.storages();
        for storage in storages.iter().filter(|storage| !lost::done(storage).is_empty()) {
            if let Err(error) = context.lost.tidy(&storage.spec.node_name).await {
                tracing::warn!(error = runtime::chain(&error), "the list of volumes given up stays as it is");
            }
        }
        release_stranded(context).await;
        let orphans = found(&storages);
        let key = |found: &Found| (found.node.clone(), found.orphan.lv_uuid.clone());
        let these: BTreeSet<_> = orphans.values().map(key).collect();
        let now = Instant::now();
        if !these.is_subset(&known) || now >= next {
            if let Err(error) = round(context, orphans, &mut unwanted, clock()).await {
                tracing::warn!(error = runtime::chain(&error), "orphans are looked at again later");
            }
            next = Instant::now() + APART;
        }
        known = these;
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return std::future::pending().await;
                }
                tokio::time::sleep(BURST).await;
            }
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Volumes that a person discarded by hand, as retained ones are, whose node will never answer.
async fn release_stranded(context: &Context) {
    for volume in context.world.volumes() {
        let leaving = volume.spec.discard && volume.metadata.deletion_timestamp.is_some();
        let storage = context.world.storage(&volume.spec.node_name).filter(|_| leaving);
        if !storage.is_some_and(|storage| storage.has_given_up(&volume)) {
            continue;
        }
        let name = volume.name_any();
        // Where a call is at work, it does the same.
        let Some(_held) = context.in_flight.hold(&name) else { continue };
        if let Err(error) = discard(context, &volume, Instant::now() + context.limit).await {
            tracing::warn!(volume = name, error = runtime::chain(&error), "a discarded volume of a lost node stays");
        }
    }
}

async fn round(
    context: &Context,
    orphans: BTreeMap<String, Found>,
    unwanted: &mut Unwanted,
    now: Timestamp,
) -> Result<(), ApiError> {
    if context.world.policy() == ExecutionPolicy::Pause {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    let unmade: Vec<_> = context.world.volumes().into_iter().filter(|volume| is_unmade(volume, now)).collect();
    if orphans.is_empty() && unmade.is_empty() {
        unwanted.0.clear();
        return Ok(());
    }
    let persistent = context.claims.persistent_volumes().await?;
    for (name, found) in orphans {
        // One bad object never stops the others.
        match orphan(context, &name, &found, persistent.get(&name), unwanted).await {
            Ok(true) => {
                seen.insert(found.orphan.lv_uuid);
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(volume = name, error = runtime::chain(&error), "an orphan stays as it is"),
        }
    }
    for volume in unmade {
        let name = volume.name_any();
        // A call that waits for it wants it.
        let Some(_held) = context.in_flight.hold(&name) else { continue };
        let wanted = persistent.contains_key(&name) || context.claims.claim_exists(&name, claim_of(&volume)).await?;
        if wanted {
            continue;
        }
        let uid = volume.uid().unwrap_or_default();
        if unwanted.again(&uid, Instant::now()) {
            tracing::info!(volume = name, "never made, and nobody asks for it any more: discarding");
            if let Err(error) = discard(context, &volume, Instant::now() + context.limit).await {
                tracing::warn!(volume = name, error = runtime::chain(&error), "a volume stays that nobody asks for");
            }
        }
        seen.insert(uid);
    }
    unwanted.0.retain(|key, _| seen.contains(key));
    Ok(())
}

/// Whether nobody wants it.
async fn orphan(
    context: &Context,
    name: &str,
    found: &Found,
    persistent: Option<&PersistentVolume>,
    unwanted: &mut Unwanted,
) -> Result<bool, DeleteError> {
    let Some(_held) = context.in_flight.hold(name) else { return Ok(false) };
    if context.volumes.read(name).await?.is_some() {
        return Ok(false);
    }
    if let Some(volume) = persistent {
        if is_pinned_to(volume, &found.node) {
            adopt(context, name, found, Some(volume)).await?;
        } else {
            tracing::warn!(
                volume = name,
                node = found.node,
                "an orphan has a PersistentVolume that is not pinned to its node"
            );
        }
        return Ok(false);
    }
    if found.orphan.used || context.claims.claim_exists(name, claim(&found.orphan)).await? {
        // It may hold data: listed in the NodeStorage, until a person makes an object with `adopt`, or discards it so.
        return Ok(false);
    }
    if unwanted.again(&found.orphan.lv_uuid, Instant::now()) {
        tracing::info!(volume = name, node = found.node, "never used, and nobody asks for it any more: discarding");
        let deadline = Instant::now() + context.limit;
        if let Some(volume) = adopt_to_discard(context, name, deadline).await? {
            discard(context, &volume, deadline).await?;
        }
    }
    Ok(true)
}

async fn adopt(
    context: &Context,
    name: &str,
    found: &Found,
    persistent: Option<&PersistentVolume>,
) -> Result<LogicalVolume, ApiError> {
    let volume = context.volumes.create(name, anew(found, persistent)).await?;
    context.metrics.adopted.inc();
    let note = format!("LogicalVolume {name} had vanished and was made anew for the LV on node {}", found.node);
    tracing::info!(volume = name, node = found.node, lv_uuid = found.orphan.lv_uuid, "made the object of an LV anew");
    if let Some(persistent) = persistent {
        context.events.warning(&persistent.object_ref(&()), "LogicalVolumeMadeAnew", note).await;
    }
    Ok(volume)
}

/// An LV without an object that is to go gets an object first, and is removed by the same rules as all others: by its
/// UUID and its tags. `None`: no node lists such an LV. The caller holds the volume.
pub async fn adopt_to_discard(
    context: &Context,
    name: &str,
    deadline: Instant,
) -> Result<Option<LogicalVolume>, DeleteError> {
    let Some(found) = found(&context.world.storages()).remove(name) else { return Ok(None) };
    let volume = adopt(context, name, &found, None).await?;
    known(context, &volume, deadline).await.map(Some)
}

/// Waits until the node has found the LV of an adopted volume: before, nothing says which LV it is.
pub async fn known(context: &Context, volume: &LogicalVolume, deadline: Instant) -> Result<LogicalVolume, DeleteError> {
    let name = volume.name_any();
    let mut changes = context.world.changes();
    loop {
        changes.mark_unchanged();
        let node = || volume.spec.node_name.clone();
        if let Some(now) = context.world.volume(&name).filter(|now| now.uid() == volume.uid()) {
            if now.status.as_ref().is_some_and(|status| status.lv_uuid.is_some()) {
                return Ok((*now).clone());
            }
            match super::standing::progress(&now) {
                Progress::Failed(message) | Progress::NoGroup(message) | Progress::NoSpace(message) => {
                    return Err(DiscardError::Refused { node: node(), name, message }.into());
                }
                Progress::Done(_) | Progress::Working(_) => {}
            }
        }
        if tokio::time::timeout_at(deadline, changes.changed()).await.is_err() {
            return Err(DiscardError::Slow { node: node(), name, limit: context.limit }.into());
        }
    }
}
