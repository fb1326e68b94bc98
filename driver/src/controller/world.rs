//! What the controller sees of the cluster: one watched copy per kind, trimmed to what is read of it. Nothing is deleted
//! on the word of these copies alone, and nothing is ever written back from them.

use std::{collections::HashSet, fmt::Debug, hash::Hash, sync::Arc};

use crds::{
    condition::kind,
    device_class::DeviceClass,
    logical_volume::LogicalVolume,
    names,
    node_storage::NodeStorage,
    storage_cluster::{ExecutionPolicy, StorageCluster},
};
use futures::{Stream, StreamExt, stream::BoxStream};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec},
    storage::v1::{CSIStorageCapacity, StorageClass},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    entries::{self, Promise},
    ledger::{Entry, Group, Place},
};

/// Copies of everything that is watched. Cloning is cheap.
#[derive(Clone)]
pub struct World {
    clusters: Store<StorageCluster>,
    classes: Store<DeviceClass>,
    storages: Store<NodeStorage>,
    volumes: Store<LogicalVolume>,
    storage_classes: Store<StorageClass>,
    claims: Store<PersistentVolumeClaim>,
    capacities: Store<CSIStorageCapacity>,
    changed: watch::Receiver<()>,
}

impl World {
    /// The copies, and the stream that keeps them in step while it is polled. It ends never.
    pub fn watch(client: &Client, namespace: &str) -> (Self, impl Stream<Item = ()> + Send + use<>) {
        let (told, changed) = watch::channel(());
        let told = Arc::new(told);
        let every = watcher::Config::default;
        let ours = every().labels(&format!("{}={}", names::label::MANAGED_BY, names::label::OWNED_BY_DRIVER));
        let (clusters, a) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (classes, b) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (storages, c) = follow(Api::all(client.clone()), every(), &told, trim_storage);
        let (volumes, d) = follow(Api::all(client.clone()), every(), &told, trim_volume);
        let (storage_classes, e) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (claims, f) = follow(Api::all(client.clone()), every(), &told, trim_claim);
        let (capacities, g) = follow(Api::namespaced(client.clone(), namespace), ours, &told, |_| {});
        let world = Self { clusters, classes, storages, volumes, storage_classes, claims, capacities, changed };
        (world, futures::stream::select_all([a, b, c, d, e, f, g]))
    }

    /// Waits until every copy is complete: before, what is missing in it may be there all the same.
    pub async fn complete(&self) -> Result<(), reflector::store::WriterDropped> {
        self.clusters.wait_until_ready().await?;
        self.classes.wait_until_ready().await?;
        self.storages.wait_until_ready().await?;
        self.volumes.wait_until_ready().await?;
        self.storage_classes.wait_until_ready().await?;
        self.claims.wait_until_ready().await?;
        self.capacities.wait_until_ready().await
    }

    /// Tells of changes from now on. What it tells of is in the copies already.
    pub fn changes(&self) -> watch::Receiver<()> {
        let mut changes = self.changed.clone();
        changes.mark_unchanged();
        changes
    }

    /// What may be done. Without a StorageCluster nothing new is asked for, and what is there may still go: volumes are
    /// what its deletion waits for.
    pub fn policy(&self) -> ExecutionPolicy {
        let cluster = self.clusters.get(&ObjectRef::new(names::STORAGE_CLUSTER));
        cluster.map_or(ExecutionPolicy::Enforce, |cluster| cluster.spec.execution_policy)
    }

    pub fn class(&self, name: &str) -> Option<Arc<DeviceClass>> {
        self.classes.get(&ObjectRef::new(name))
    }

    pub fn storage(&self, node: &str) -> Option<Arc<NodeStorage>> {
        self.storages.get(&ObjectRef::new(node))
    }

    pub fn storages(&self) -> Vec<Arc<NodeStorage>> {
        self.storages.state()
    }

    pub fn volume(&self, name: &str) -> Option<Arc<LogicalVolume>> {
        self.volumes.get(&ObjectRef::new(name))
    }

    pub fn volumes(&self) -> Vec<Arc<LogicalVolume>> {
        self.volumes.state()
    }

    pub fn storage_classes(&self) -> Vec<Arc<StorageClass>> {
        self.storage_classes.state()
    }

    /// Our capacity objects.
    pub fn capacities(&self) -> Vec<Arc<CSIStorageCapacity>> {
        self.capacities.state()
    }

    pub fn capacity(&self, namespace: &str, name: &str) -> Option<Arc<CSIStorageCapacity>> {
        self.capacities.get(&ObjectRef::new(name).within(namespace))
    }

    /// Every group that takes volumes.
    pub fn groups(&self) -> Vec<(Place, Group)> {
        // A class that is being deleted waits for its volumes to go.
        let stays = |class: &str| self.class(class).is_some_and(|class| class.metadata.deletion_timestamp.is_none());
        let all = self.storages.state();
        all.iter().flat_map(|storage| entries::groups(storage)).filter(|(place, _)| stays(&place.class)).collect()
    }

    /// What takes room.
    pub fn entries(&self) -> Vec<Entry> {
        let volumes = self.volumes.state();
        let there: HashSet<String> = volumes.iter().map(|volume| volume.name_any()).collect();
        let storages = self.storages.state();
        let orphans = storages.iter().flat_map(|storage| entries::orphans(storage, &there));
        volumes.iter().map(|volume| entries::volume(volume)).chain(orphans).collect()
    }

    /// In no order.
    pub fn promises(&self) -> Vec<Promise> {
        let storage_classes = self.storage_classes.state();
        let class_of = |name: &str| {
            let found = storage_classes.iter().find(|class| class.metadata.name.as_deref() == Some(name));
            found.and_then(|class| entries::device_class(class))
        };
        self.claims.state().iter().filter_map(|claim| entries::promise(claim, class_of)).collect()
    }
}

/// What a test puts into the copies, instead of an API server.
#[cfg(test)]
pub struct Copies {
    pub clusters: reflector::store::Writer<StorageCluster>,
    pub classes: reflector::store::Writer<DeviceClass>,
    pub storages: reflector::store::Writer<NodeStorage>,
    pub volumes: reflector::store::Writer<LogicalVolume>,
    pub storage_classes: reflector::store::Writer<StorageClass>,
    pub claims: reflector::store::Writer<PersistentVolumeClaim>,
    pub capacities: reflector::store::Writer<CSIStorageCapacity>,
    pub told: watch::Sender<()>,
}

#[cfg(test)]
impl World {
    pub fn of_copies() -> (Self, Copies) {
        let (told, changed) = watch::channel(());
        let (clusters, a) = reflector::store();
        let (classes, b) = reflector::store();
        let (storages, c) = reflector::store();
        let (volumes, d) = reflector::store();
        let (storage_classes, e) = reflector::store();
        let (claims, f) = reflector::store();
        let (capacities, g) = reflector::store();
        let copies = Copies {
            clusters: a,
            classes: b,
            storages: c,
            volumes: d,
            storage_classes: e,
            claims: f,
            capacities: g,
            told,
        };
        (Self { clusters, classes, storages, volumes, storage_classes, claims, capacities, changed }, copies)
    }
}

type Followed = BoxStream<'static, ()>;

fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    told: &Arc<watch::Sender<()>>,
    trim: impl Fn(&mut K) + Send + 'static,
) -> (Store<K>, Followed)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    let (store, writer) = reflector::store();
    let told = told.clone();
    let events = watcher(api, config).default_backoff().modify(move |object| {
        object.managed_fields_mut().clear();
        trim(object);
    });
    let followed = events.reflect(writer).map(move |event| match event {
        Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
        Ok(watcher::Event::InitDone | watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {
            told.send_replace(());
        }
        Err(error) => tracing::warn!(error = runtime::chain(&error), kind = %K::kind(&()), "watching"),
    });
    (store, followed.boxed())
}

/// Devices, plans and copies of classes are the largest part of it, and are not read here.
fn trim_storage(storage: &mut NodeStorage) {
    storage.spec.cleared.clear();
    storage.spec.devices.clear();
    for class in &mut storage.spec.classes {
        class.spec = Default::default();
    }
    if let Some(status) = &mut storage.status {
        status.devices.clear();
        status.plan = None;
        status.operations.clear();
        status.loss = None;
        status.conditions.retain(|c| [kind::NODE_LOST, kind::DISKS_MISSING].contains(&c.type_.as_str()));
    }
}

fn trim_volume(volume: &mut LogicalVolume) {
    volume.metadata.annotations = None;
    volume.metadata.labels = None;
    if let Some(status) = &mut volume.status {
        status.conditions.retain(|c| c.type_ == kind::READY);
    }
}

/// Every claim of the cluster comes by; only one for which a node was chosen, and which has no volume yet, keeps more
/// than its name.
fn trim_claim(claim: &mut PersistentVolumeClaim) {
    claim.status = None;
    claim.metadata.labels = None;
    claim.metadata.owner_references = None;
    claim.metadata.finalizers = None;
    if let Some(annotations) = &mut claim.metadata.annotations {
        annotations.retain(|key, _| key == names::annotation::SELECTED_NODE);
    }
    let spec = claim.spec.take().unwrap_or_default();
    let waits = spec.volume_name.as_ref().is_none_or(String::is_empty) && !claim.annotations().is_empty();
    claim.spec = waits.then(|| PersistentVolumeClaimSpec {
        storage_class_name: spec.storage_class_name,
        resources: spec.resources,
        ..PersistentVolumeClaimSpec::default()
    });
}
