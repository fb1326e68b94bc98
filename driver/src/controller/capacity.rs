//! The CSIStorageCapacity objects: what the scheduler is told. Written by event, only when they change.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use crds::{names, quantity};
use futures::{StreamExt, stream};
use k8s_openapi::{
    api::storage::v1::{CSIStorageCapacity, StorageClass},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use tokio::{sync::Mutex, time::Instant};

use super::{
    api::{self, ApiError},
    books::Books,
    entries,
    ledger::{Figures, Ledger},
    metrics::Metrics,
    world::World,
};

/// What happens within this time of a change is written together with it.
const BURST: Duration = Duration::from_millis(50);

/// Between two attempts at what could not be written.
const RETRY: Duration = Duration::from_secs(2);

/// A write whose own event has not come by in this time was overtaken by another's.
const ECHO: Duration = Duration::from_secs(10);

/// Requests on their way at once: enough for a new class on many nodes, and no flood.
const AT_ONCE: usize = 16;

/// What one object is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub node: String,
    pub storage_class: String,
    pub device_class: String,
    pub figures: Figures,
}

/// Every object that is to be there, by name.
pub fn wanted<'a>(
    ledger: &Ledger,
    storage_classes: impl IntoIterator<Item = &'a StorageClass> + Clone,
) -> BTreeMap<String, Wanted> {
    let mut wanted = BTreeMap::new();
    for (place, figures) in ledger.figures() {
        let of_class = |class: &&StorageClass| entries::device_class(class) == Some(&place.class);
        for storage_class in storage_classes.clone().into_iter().filter(of_class) {
            let object = Wanted {
                node: place.node.clone(),
                storage_class: storage_class.name_any(),
                device_class: place.class.clone(),
                figures,
            };
            wanted.insert(names::capacity_name(&object.storage_class, &object.node), object);
        }
    }
    wanted
}

/// The object, whole. `capacity` is in it even where it is nothing: the scheduler's scorer reads it unchecked.
pub fn object(namespace: &str, name: &str, wanted: &Wanted) -> CSIStorageCapacity {
    let node = names::topology_value(&wanted.node);
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut labels = BTreeMap::from([
        label(names::label::MANAGED_BY, names::label::OWNED_BY_DRIVER),
        label(names::label::NODE, &node),
    ]);
    labels.insert(names::label::DEVICE_CLASS.to_owned(), wanted.device_class.clone());
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        node_topology: Some(LabelSelector {
            match_labels: Some([(names::TOPOLOGY_NODE.to_owned(), node)].into()),
            ..LabelSelector::default()
        }),
        storage_class_name: wanted.storage_class.clone(),
        capacity: Some(quantity::from_bytes(wanted.figures.free)),
        maximum_volume_size: Some(quantity::from_bytes(wanted.figures.largest)),
    }
}

/// Whether what is there says what is wanted, labels and all.
fn says(there: &CSIStorageCapacity, wanted: &CSIStorageCapacity) -> bool {
    let bytes = |quantity: &Option<_>| quantity.as_ref().and_then(|quantity| quantity::bytes(quantity).ok());
    let labels = wanted.metadata.labels.iter().flatten();
    bytes(&there.capacity) == bytes(&wanted.capacity)
        && bytes(&there.maximum_volume_size) == bytes(&wanted.maximum_volume_size)
        && there.node_topology == wanted.node_topology
        && there.storage_class_name == wanted.storage_class_name
        && labels.into_iter().all(|(key, value)| there.labels().get(key) == Some(value))
}

/// One change at the API server.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Apply(Box<CSIStorageCapacity>),
    /// A field that can't be changed differs: somebody made an object of our name.
    Replace(Box<CSIStorageCapacity>),
    Delete,
}

fn step(there: Option<&CSIStorageCapacity>, wanted: Option<CSIStorageCapacity>) -> Option<Step> {
    match (there, wanted) {
        (None, None) => None,
        (None, Some(wanted)) => Some(Step::Apply(Box::new(wanted))),
        (Some(_), None) => Some(Step::Delete),
        (Some(there), Some(wanted)) if says(there, &wanted) => None,
        (Some(there), Some(wanted)) => {
            let fixed =
                there.node_topology == wanted.node_topology && there.storage_class_name == wanted.storage_class_name;
            Some(if fixed { Step::Apply(Box::new(wanted)) } else { Step::Replace(Box::new(wanted)) })
        }
    }
}

/// What was written and has not come by in the watch yet. `None`: deleted.
struct Echo {
    object: Option<Arc<CSIStorageCapacity>>,
    since: Instant,
}

/// Which nodes' objects a round is about.
#[derive(Clone, Copy)]
enum About<'a> {
    All,
    Nodes(&'a [&'a str]),
}

impl About<'_> {
    fn includes(self, topology_value: &str) -> bool {
        match self {
            Self::All => true,
            Self::Nodes(nodes) => nodes.iter().any(|node| names::topology_value(node) == topology_value),
        }
    }
}

#[derive(Clone)]
pub struct Capacity {
    world: World,
    books: Books,
    api: Api<CSIStorageCapacity>,
    namespace: Arc<str>,
    metrics: Metrics,
    /// One round at a time: of two that write one object, the older figures could come last.
    echoes: Arc<Mutex<HashMap<String, Echo>>>,
}

impl Capacity {
    pub fn new(client: &Client, namespace: &str, world: World, books: Books, metrics: Metrics) -> Self {
        let api = Api::namespaced(client.clone(), namespace);
        Self { world, books, api, namespace: namespace.into(), metrics, echoes: Arc::default() }
    }

    /// Keeps the objects in step. Ends never.
    pub async fn run(&self) {
        let mut changes = self.world.changes();
        loop {
            // Marked before the figures are read: what comes later wakes again.
            changes.mark_unchanged();
            let retry = match self.bring(About::All).await {
                Ok(()) => None,
                Err(error) => {
                    tracing::warn!(error = runtime::chain(&error), "what is free is not told to the scheduler");
                    Some(Instant::now() + RETRY)
                }
            };
            let timer = retry.into_iter().chain(self.books.next_change()).min();
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        // The watches have ended, and with them the process.
                        return std::future::pending().await;
                    }
                    tokio::time::sleep(BURST).await;
                }
                () = at(timer) => {}
            }
        }
    }

    /// Writes what `nodes` have as of now, and returns once it is written.
    pub async fn write_now(&self, nodes: &[&str]) -> Result<(), ApiError> {
        self.bring(About::Nodes(nodes)).await
    }

    async fn bring(&self, about: About<'_>) -> Result<(), ApiError> {
        let mut echoes = self.echoes.lock().await;
        self.forget_seen(&mut echoes);
        let steps = self.plan(&echoes, about);
        let writes = stream::iter(steps).map(|(name, step)| async move { (self.take(&name, step).await, name) });
        let mut writes = std::pin::pin!(writes.buffer_unordered(AT_ONCE));
        let mut outcome = Ok(());
        while let Some((written, name)) = writes.next().await {
            match written {
                Ok(object) => {
                    self.metrics.capacity_writes.inc();
                    echoes.insert(name, Echo { object, since: Instant::now() });
                }
                // One bad object never stops the others.
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    fn forget_seen(&self, echoes: &mut HashMap<String, Echo>) {
        let now = Instant::now();
        echoes.retain(|name, echo| {
            let there = self.world.capacity(&self.namespace, name).and_then(|there| there.resource_version());
            let written = echo.object.as_ref().and_then(|object| object.resource_version());
            there != written && now.duration_since(echo.since) < ECHO
        });
    }

    fn plan(&self, echoes: &HashMap<String, Echo>, about: About<'_>) -> Vec<(String, Step)> {
        let storage_classes = self.world.storage_classes();
        let wanted = wanted(&self.books.ledger(), storage_classes.iter().map(Arc::as_ref));
        let mut there: HashMap<String, Option<Arc<CSIStorageCapacity>>> =
            self.world.capacities().into_iter().map(|object| (object.name_any(), Some(object))).collect();
        there.extend(echoes.iter().map(|(name, echo)| (name.clone(), echo.object.clone())));
        let found = |name: &str| there.get(name).and_then(Option::as_deref);

        let brought = wanted.iter().filter(|(_, wanted)| about.includes(&names::topology_value(&wanted.node)));
        let brought = brought.filter_map(|(name, wanted)| {
            step(found(name), Some(object(&self.namespace, name, wanted))).map(|step| (name.clone(), step))
        });
        let surplus = there.keys().filter(|name| !wanted.contains_key(*name)).filter_map(|name| {
            let object = found(name)?;
            let value = object.labels().get(names::label::NODE).map_or("", String::as_str);
            about.includes(value).then(|| (name.clone(), Step::Delete))
        });
        brought.chain(surplus).collect()
    }

    async fn take(&self, name: &str, step: Step) -> Result<Option<Arc<CSIStorageCapacity>>, ApiError> {
        let (wanted, replace) = match step {
            Step::Delete => (None, true),
            Step::Replace(wanted) => (Some(wanted), true),
            Step::Apply(wanted) => (Some(wanted), false),
        };
        if replace {
            let params = DeleteParams::default();
            let delete = self.api.delete(name, &params);
            match api::answer("deleting CSIStorageCapacity", name, delete).await {
                Ok(_) => tracing::info!(name, "removed a capacity object"),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let Some(wanted) = wanted else { return Ok(None) };
        let params = PatchParams::apply(names::manager::DRIVER).force();
        let patch = Patch::Apply(&*wanted);
        let apply = self.api.patch(name, &params, &patch);
        let written = api::answer("applying CSIStorageCapacity", name, apply).await?;
        tracing::debug!(name, storage_class = written.storage_class_name, capacity = ?written.capacity, "told the scheduler");
        Ok(Some(Arc::new(written)))
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::ledger::{Entry, Group, Place};

    fn place(node: &str) -> Place {
        Place { node: node.into(), class: "fast".into() }
    }

    fn storage_class(name: &str, provisioner: &str, class: &str) -> StorageClass {
        StorageClass {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            provisioner: provisioner.into(),
            parameters: Some([(names::parameter::DEVICE_CLASS.to_owned(), class.to_owned())].into()),
            ..StorageClass::default()
        }
    }

    fn ledger(free: u64) -> Ledger {
        let group = Group { size: 100 << 20, extent: 4 << 20, max_volume_size: 60 << 20, ..Group::default() };
        let taken = Entry { place: place("n1"), volume: "a".into(), bytes: (100 << 20) - free };
        Ledger::new([(place("n1"), group), (place("n2"), group)], [taken], [])
    }

    #[test]
    fn each_storage_class_of_a_class_has_an_object_on_each_node() {
        let classes = [
            storage_class("a", names::DRIVER, "fast"),
            storage_class("b", names::DRIVER, "fast"),
            storage_class("slow", names::DRIVER, "slow"),
            storage_class("other", "example.com", "fast"),
        ];
        let wanted = wanted(&ledger(0), &classes);
        let pairs: Vec<_> = wanted.values().map(|w| format!("{}@{}", w.storage_class, w.node)).collect();
        assert_eq!(pairs.len(), 4);
        for pair in ["a@n1", "b@n1", "a@n2", "b@n2"] {
            assert!(pairs.contains(&pair.to_owned()), "{pair}");
        }
    }

    /// D8; the scheduler's scorer reads `capacity` unchecked.
    #[test]
    fn both_figures_are_always_there() {
        for (free, capacity, largest) in [(0, "0", "0"), (40 << 20, "40Mi", "40Mi"), (100 << 20, "100Mi", "60Mi")] {
            let wanted = wanted(&ledger(free), &[storage_class("a", names::DRIVER, "fast")]);
            let name = names::capacity_name("a", "n1");
            let object = serde_json::to_value(object("ns", &name, &wanted[&name])).unwrap();
            assert_eq!(object["capacity"], capacity);
            assert_eq!(object["maximumVolumeSize"], largest);
            assert_eq!(object["nodeTopology"]["matchLabels"][names::TOPOLOGY_NODE], "n1");
            assert_eq!(object["storageClassName"], "a");
            assert_eq!(object["metadata"].get("ownerReferences"), None);
        }
    }

    /// I2.
    #[test]
    fn an_object_is_written_only_when_it_says_something_else() {
        let name = names::capacity_name("a", "n1");
        let classes = [storage_class("a", names::DRIVER, "fast")];
        let of = |free| object("ns", &name, &wanted(&ledger(free), &classes)[&name]);
        let (there, other) = (of(40 << 20), of(20 << 20));
        assert_eq!(step(Some(&there), Some(there.clone())), None);
        assert_eq!(step(Some(&there), Some(other.clone())), Some(Step::Apply(Box::new(other.clone()))));
        assert_eq!(step(Some(&there), None), Some(Step::Delete));
        assert_eq!(step(None, None), None);
        let mut unlabelled = there.clone();
        unlabelled.metadata.labels = None;
        assert_eq!(step(Some(&unlabelled), Some(there.clone())), Some(Step::Apply(Box::new(there.clone()))));
        let mut elsewhere = there.clone();
        elsewhere.node_topology = None;
        assert_eq!(step(Some(&elsewhere), Some(there.clone())), Some(Step::Replace(Box::new(there))));
    }

    #[test]
    fn a_round_about_one_node_leaves_the_others_alone() {
        let long = "n".repeat(70);
        let nodes = [long.as_str()];
        assert!(About::Nodes(&nodes).includes(&names::topology_value(&long)));
        assert!(!About::Nodes(&nodes).includes("n1"));
        assert!(About::All.includes("n1"));
    }
}
