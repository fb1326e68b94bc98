//! What the operator sees of the cluster: one watched copy per kind, trimmed to what is read of it. Nothing is deleted on
//! the word of these copies alone.

use std::{fmt::Debug, hash::Hash, sync::Arc};

use crds::{
    device_class::DeviceClass, logical_volume::LogicalVolume, names, node_storage::NodeStorage,
    storage_cluster::StorageCluster,
};
use futures::{Stream, StreamExt};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Node, Pod},
    storage::v1::{CSIDriver, StorageClass},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::ObjectMeta,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use runtime::chain;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Copies of everything that is watched. Cloning is cheap.
#[derive(Clone)]
pub struct World {
    pub clusters: Store<StorageCluster>,
    pub classes: Store<DeviceClass>,
    pub storages: Store<NodeStorage>,
    pub volumes: Store<LogicalVolume>,
    pub nodes: Store<PartialObjectMeta<Node>>,
    /// The node agents' pods.
    pub agents: Store<Pod>,
    pub storage_classes: Store<StorageClass>,
    pub daemon_sets: Store<DaemonSet>,
    pub deployments: Store<Deployment>,
    pub csi_drivers: Store<PartialObjectMeta<CSIDriver>>,
    pub policies: Store<PartialObjectMeta<ValidatingAdmissionPolicy>>,
    pub bindings: Store<PartialObjectMeta<ValidatingAdmissionPolicyBinding>>,
    told: Arc<watch::Sender<()>>,
}

impl World {
    /// The copies, and the stream that keeps them in step while it is polled. It ends never.
    pub fn watch(client: &Client, namespace: &str) -> (Self, impl Stream<Item = ()> + Send + use<>) {
        let told = Arc::new(watch::channel(()).0);
        let every = watcher::Config::default;
        let agents = every().labels(&format!("{}={}", names::label::COMPONENT, crate::objects::node::COMPONENT));
        let in_namespace = |name: &str| every().fields(&format!("metadata.name={name}"));

        let (clusters, a) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (classes, b) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (storages, c) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (volumes, d) = follow(Api::all(client.clone()), every(), &told, |volume: &mut LogicalVolume| {
            if let Some(status) = &mut volume.status {
                status.conditions.clear();
            }
        });
        let (nodes, e) = follow(Api::all(client.clone()), every(), &told, |node: &mut PartialObjectMeta<Node>| {
            node.annotations_mut().clear();
        });
        let (agents, f) = follow(Api::namespaced(client.clone(), namespace), agents, &told, trim_pod);
        let (storage_classes, g) = follow_untrimmed(Api::all(client.clone()), every(), &told);
        let daemon_set = in_namespace(names::NODE_DAEMON_SET);
        let (daemon_sets, h) = follow(Api::namespaced(client.clone(), namespace), daemon_set, &told, |_| {});
        let deployment = in_namespace(names::CONTROLLER_DEPLOYMENT);
        let (deployments, i) = follow(Api::namespaced(client.clone(), namespace), deployment, &told, |_| {});
        let (csi_drivers, j) = follow(Api::all(client.clone()), in_namespace(names::DRIVER), &told, |_| {});
        let (policies, k) = follow(Api::all(client.clone()), every(), &told, |_| {});
        let (bindings, l) = follow(Api::all(client.clone()), every(), &told, |_| {});

        let world = Self {
            clusters,
            classes,
            storages,
            volumes,
            nodes,
            agents,
            storage_classes,
            daemon_sets,
            deployments,
            csi_drivers,
            policies,
            bindings,
            told,
        };
        (world, futures::stream::select_all([a, b, c, d, e, f, g, h, i, j, k, l]))
    }

    /// Waits until every copy is complete: before, what is missing in it may be there all the same.
    pub async fn complete(&self) -> Result<(), reflector::store::WriterDropped> {
        self.clusters.wait_until_ready().await?;
        self.classes.wait_until_ready().await?;
        self.storages.wait_until_ready().await?;
        self.volumes.wait_until_ready().await?;
        self.nodes.wait_until_ready().await?;
        self.agents.wait_until_ready().await?;
        self.storage_classes.wait_until_ready().await?;
        self.daemon_sets.wait_until_ready().await?;
        self.deployments.wait_until_ready().await?;
        self.csi_drivers.wait_until_ready().await?;
        self.policies.wait_until_ready().await?;
        self.bindings.wait_until_ready().await
    }

    /// Tells of changes from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.told.subscribe()
    }

    /// Says that something changed that is not watched.
    pub fn poke(&self) {
        self.told.send_replace(());
    }

    pub fn cluster(&self) -> Option<Arc<StorageCluster>> {
        self.clusters.get(&ObjectRef::new(names::STORAGE_CLUSTER))
    }

    /// By name, so that what is made of them does not change with the order of a hash map.
    pub fn sorted_classes(&self) -> Vec<Arc<DeviceClass>> {
        let mut classes = self.classes.state();
        classes.sort_by_key(|class| class.name_any());
        classes
    }

    /// The metadata of what is there under the kind and name of an object that the operator applies.
    pub fn metadata(&self, kind: &str, name: &str) -> Option<ObjectMeta> {
        match kind {
            "DaemonSet" => meta(&self.daemon_sets, name),
            "Deployment" => meta(&self.deployments, name),
            "CSIDriver" => meta(&self.csi_drivers, name),
            "ValidatingAdmissionPolicy" => meta(&self.policies, name),
            "ValidatingAdmissionPolicyBinding" => meta(&self.bindings, name),
            "StorageClass" => meta(&self.storage_classes, name),
            _ => None,
        }
    }
}

fn meta<K>(store: &Store<K>, name: &str) -> Option<ObjectMeta>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.find(|object| object.meta().name.as_deref() == Some(name)).map(|object| object.meta().clone())
}

type Followed = futures::stream::BoxStream<'static, ()>;

fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    told: &Arc<watch::Sender<()>>,
    trim: impl Fn(&mut K) + Send + 'static,
) -> (Store<K>, Followed)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    followed(
        watcher(api, config).modify(move |object| {
            object.managed_fields_mut().clear();
            trim(object);
        }),
        told,
    )
}

/// With the managed fields, which say who made it.
fn follow_untrimmed<K>(api: Api<K>, config: watcher::Config, told: &Arc<watch::Sender<()>>) -> (Store<K>, Followed)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    followed(watcher(api, config), told)
}

fn followed<K>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>> + Send + 'static,
    told: &Arc<watch::Sender<()>>,
) -> (Store<K>, Followed)
where
    K: Resource + Clone + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    let (store, writer) = reflector::store();
    let told = told.clone();
    let seen = events.default_backoff().reflect(writer).filter_map(move |event| {
        match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
            Ok(watcher::Event::InitDone | watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {
                told.send_replace(());
            }
            Err(error) => {
                tracing::warn!(error = chain(&error), kind = %K::kind(&K::DynamicType::default()), "watching")
            }
        }
        std::future::ready(Some(()))
    });
    (store, seen.boxed())
}

/// Of an agent's pod only this is read: its node, and whether it is Ready.
fn trim_pod(pod: &mut Pod) {
    if let Some(spec) = &mut pod.spec {
        *spec = k8s_openapi::api::core::v1::PodSpec { node_name: spec.node_name.take(), ..Default::default() };
    }
    if let Some(status) = &mut pod.status {
        let conditions = status.conditions.take();
        *status = k8s_openapi::api::core::v1::PodStatus { conditions, ..Default::default() };
    }
}
