//! Keeps what Stowage runs as: the objects of the StorageCluster, the StorageClasses of the DeviceClasses, their finalizers
//! and statuses. One pass looks at everything and writes what differs; what failed is tried again at the next.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crds::{
    condition::{self, kind},
    device_class::DeviceClass,
    logical_volume::LogicalVolume,
    names::{self, OPERATOR_FINALIZER},
    node_storage::NodeStorage,
    storage_cluster::StorageCluster,
};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::ObjectReference,
        storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Context,
    apply::{Done, Keeper, gone, only, params, why},
    events::reason,
    objects::{self, Owned, storage_class},
    summary,
};

/// After a failure; a change ends the wait as well.
const AGAIN: Duration = Duration::from_secs(5);
const AT_REST: Duration = Duration::from_secs(300);

pub async fn run(context: Arc<Context>) {
    let mut changes = context.world.changes();
    let keeper = Keeper::default();
    loop {
        context.metrics.cluster_passes.inc();
        let began = Instant::now();
        let failed = Pass { context: &context, keeper: &keeper, failed: Vec::new() }.run().await;
        tracing::debug!(took = ?began.elapsed(), "looked at the StorageCluster and its objects");
        for failure in &failed {
            context.metrics.failures.inc();
            tracing::warn!("{failure}");
        }
        crate::next(&mut changes, if failed.is_empty() { AT_REST } else { AGAIN }).await;
    }
}

struct Pass<'a> {
    context: &'a Context,
    keeper: &'a Keeper,
    /// What was tried, and why it failed: one failure stops nothing else.
    failed: Vec<String>,
}

impl Pass<'_> {
    async fn run(mut self) -> Vec<String> {
        let cluster = self.context.world.cluster();
        let wanted = cluster.as_ref().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
        if let Some(cluster) = wanted {
            self.hold(&**cluster).await;
            self.apply_objects(cluster).await;
        }
        let taken = self.storage_classes(wanted.is_some()).await;
        let still_failing = self.failed.clone();
        if let Some(cluster) = &cluster {
            self.cluster_status(cluster, &still_failing, &taken.defaults).await;
        }
        self.classes(&taken.taken).await;
        if let Some(cluster) = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_some()) {
            self.tear_down(&cluster).await;
        }
        self.failed
    }

    fn note<T>(&mut self, what: &str, answer: Result<T, kube::Error>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.push(format!("{what}: {}", why(&error)));
                None
            }
        }
    }

    async fn apply_objects(&mut self, cluster: &StorageCluster) {
        for owned in objects::all(&self.context.release, &cluster.spec) {
            // What holds the node agents within their bounds comes first, and they do not run without it.
            if !self.keep(&owned, cluster).await {
                return;
            }
        }
    }

    /// Whether the object is as it is wanted.
    async fn keep(&mut self, owned: &Owned, cluster: &StorageCluster) -> bool {
        let there = self.context.world.metadata(&owned.resource.kind, &owned.name);
        let kept = self.keeper.keep(&self.context.client, owned, there.as_ref()).await;
        let Some(done) = self.note(&format!("applying {}", owned.title()), kept) else { return false };
        let word = match done {
            Done::Nothing => return true,
            Done::Created => "created",
            Done::Changed => "changed",
        };
        self.context.metrics.writes.inc();
        let about = cluster.object_ref(&());
        self.context.events.normal(&about, reason::APPLIED, &owned.title(), format!("{word} {}", owned.title())).await;
        true
    }

    /// Makes, replaces and prunes StorageClasses. Without a StorageCluster none is wanted.
    async fn storage_classes(&mut self, wanted: bool) -> storage_class::Plan {
        let world = &self.context.world;
        let classes = world.sorted_classes();
        let alive: Vec<&DeviceClass> = classes
            .iter()
            .filter(|class| wanted && class.metadata.deletion_timestamp.is_none())
            .map(AsRef::as_ref)
            .collect();
        let there = world.storage_classes.state();
        let there: Vec<&StorageClass> = there.iter().map(AsRef::as_ref).collect();
        let plan = storage_class::plan(&alive, &there);
        let api = Api::<StorageClass>::all(self.context.client.clone());
        let cluster = world.cluster();
        let about = cluster.as_ref().map(|cluster| cluster.object_ref(&()));

        for (name, why) in plan
            .replace
            .iter()
            .map(|class| (class.name_any(), "a field changed that can not be changed"))
            .chain(plan.prune.iter().map(|name| (name.clone(), "no DeviceClass asks for it")))
        {
            let uid = there.iter().find(|class| class.name_any() == name).and_then(|class| class.metadata.uid.clone());
            let deleted = gone(api.delete(&name, &only(uid, None)).await);
            if self.note(&format!("deleting StorageClass {name}"), deleted).is_some() {
                self.context.metrics.writes.inc();
                let word = if plan.prune.contains(&name) { reason::PRUNED } else { reason::REPLACED };
                if let Some(about) = &about {
                    let note = format!("deleted StorageClass {name}: {why}");
                    self.context.events.normal(about, word, &name, note).await;
                }
            }
        }
        if let Some(cluster) = cluster {
            for class in plan.apply.iter().chain(&plan.replace) {
                self.keep(&Owned::storage_class(class), &cluster).await;
            }
        }
        plan
    }

    async fn cluster_status(&mut self, cluster: &StorageCluster, failed: &[String], defaults: &[String]) {
        let world = &self.context.world;
        let (storages, volumes) = (world.storages.state(), world.volumes.state());
        let (agents, controllers) = (world.daemon_sets.state(), world.deployments.state());
        let seen = summary::cluster::Seen {
            storages: &storages.iter().map(AsRef::as_ref).collect::<Vec<&NodeStorage>>(),
            volumes: &volumes.iter().map(AsRef::as_ref).collect::<Vec<&LogicalVolume>>(),
            agents: agents.first().map(AsRef::as_ref),
            controller: controllers.first().map(AsRef::as_ref),
            failed,
            defaults,
        };
        let status = summary::cluster::status(cluster, &seen, env!("CARGO_PKG_VERSION"), (self.context.clock)());
        if cluster.status.as_ref() == Some(&status) {
            return;
        }
        let before = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        self.tell_changes(&cluster.object_ref(&()), before, &status.conditions).await;
        self.write_status(cluster, &status).await;
    }

    /// Finalizers and statuses of the DeviceClasses.
    async fn classes(&mut self, taken: &BTreeMap<String, Vec<String>>) {
        let world = &self.context.world;
        let (storages, volumes) = (world.storages.state(), world.volumes.state());
        let storages: Vec<&NodeStorage> = storages.iter().map(AsRef::as_ref).collect();
        let volumes: Vec<&LogicalVolume> = volumes.iter().map(AsRef::as_ref).collect();
        for class in world.sorted_classes() {
            let name = class.name_any();
            let mut problems = self.context.problems().get(&name).cloned().unwrap_or_default();
            problems.taken = taken.get(&name).cloned().unwrap_or_default();
            let status = summary::class::status(&class, &storages, &volumes, &problems, (self.context.clock)());
            if class.status.as_ref() != Some(&status) {
                let before = class.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                self.tell_changes(&class.object_ref(&()), before, &status.conditions).await;
                self.write_status(&*class, &status).await;
            }
            if class.metadata.deletion_timestamp.is_none() {
                self.hold(&*class).await;
            } else if class.finalizers().iter().any(|finalizer| finalizer == OPERATOR_FINALIZER)
                && self.no_volume_left(Some(&name)).await
                && self.no_storage_class_left(&name)
            {
                self.let_go(&*class).await;
            }
        }
    }

    /// Asks the API server: that none is in the copy is no proof.
    async fn no_volume_left(&mut self, class: Option<&str>) -> bool {
        let mut params = ListParams::default().limit(1);
        if let Some(class) = class {
            params = params.fields(&format!("spec.deviceClass={class}"));
        }
        let listed = Api::<LogicalVolume>::all(self.context.client.clone()).list_metadata(&params).await;
        self.note("listing LogicalVolumes", listed).is_some_and(|list| list.items.is_empty())
    }

    fn no_storage_class_left(&self, class: &str) -> bool {
        let of_class = |there: &StorageClass| {
            storage_class::is_ours(there)
                && there.labels().get(names::label::DEVICE_CLASS).is_some_and(|label| label == class)
        };
        self.context.world.storage_classes.find(of_class).is_none()
    }

    /// StorageClasses are pruned by now. Everything that volumes need stays while there is one.
    async fn tear_down(&mut self, cluster: &StorageCluster) {
        let client = &self.context.client;
        let namespace = &self.context.release.namespace;
        let capacities = Api::<CSIStorageCapacity>::namespaced(client.clone(), namespace);
        let made_by_driver =
            ListParams::default().labels(&format!("{}={}", names::label::MANAGED_BY, names::label::OWNED_BY_DRIVER));
        let swept = capacities.delete_collection(&DeleteParams::default(), &made_by_driver).await;
        if self.note("deleting CSIStorageCapacities", swept).is_none() || !self.no_volume_left(None).await {
            return;
        }
        let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
        let daemon_sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
        let drivers = Api::<CSIDriver>::all(client.clone());
        let background = DeleteParams::background();
        let mut done = true;
        for (what, answer) in [
            ("Deployment", gone(deployments.delete(names::CONTROLLER_DEPLOYMENT, &background).await)),
            ("DaemonSet", gone(daemon_sets.delete(names::NODE_DAEMON_SET, &background).await)),
            ("CSIDriver", gone(drivers.delete(names::DRIVER, &background).await)),
        ] {
            done &= self.note(&format!("deleting the {what}"), answer).is_some();
        }
        // The controller made new ones until it was stopped.
        let swept = capacities.delete_collection(&DeleteParams::default(), &made_by_driver).await;
        done &= self.note("deleting CSIStorageCapacities", swept).is_some();
        let storages = Api::<NodeStorage>::all(client.clone());
        for storage in self.context.world.storages.state() {
            let deleted = gone(storages.delete(&storage.name_any(), &only(storage.uid(), None)).await);
            done &= self.note(&format!("deleting NodeStorage {}", storage.name_any()), deleted).is_some();
        }
        if !done {
            return;
        }
        // The last: until here they protect the rest.
        for policy in objects::policy::all(namespace).iter().rev() {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &policy.resource);
            let deleted = gone(api.delete(&policy.name, &background).await);
            done &= self.note(&format!("deleting {}", policy.title()), deleted).is_some();
        }
        if done {
            let note = "everything that the operator made is deleted; volume groups stay on the disks";
            self.context.events.normal(&cluster.object_ref(&()), reason::REMOVED, "TearDown", note).await;
            self.let_go(cluster).await;
        }
    }

    /// Puts the operator's finalizer on an object.
    async fn hold<K>(&mut self, object: &K)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let mut finalizers = object.finalizers().to_vec();
        if !finalizers.iter().any(|finalizer| finalizer == OPERATOR_FINALIZER) {
            finalizers.push(OPERATOR_FINALIZER.to_owned());
            self.put_finalizers(object, finalizers).await;
        }
    }

    /// Takes the operator's finalizer off an object.
    async fn let_go<K>(&mut self, object: &K)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != OPERATOR_FINALIZER);
        self.put_finalizers(object, finalizers).await;
    }

    /// With the version that was read, so that another's finalizer is not lost.
    async fn put_finalizers<K>(&mut self, object: &K, finalizers: Vec<String>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let patch = json!({
            "metadata": { "resourceVersion": object.resource_version(), "finalizers": finalizers },
        });
        let api = Api::<K>::all(self.context.client.clone());
        let params = PatchParams { field_manager: Some(names::manager::OPERATOR.to_owned()), ..PatchParams::default() };
        let answer = api.patch_metadata(&object.name_any(), &params, &Patch::Merge(&patch)).await;
        let what = format!("the finalizer of {} {}", K::kind(&()), object.name_any());
        // A conflict is no failure: the next pass sees the newer object.
        if self.note(&what, gone(answer)).is_some() {
            self.context.metrics.writes.inc();
        }
    }

    async fn write_status<K, S>(&mut self, object: &K, status: &S)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
        S: Serialize,
    {
        let resource = ApiResource::erase::<K>(&());
        let said = json!({ "apiVersion": resource.api_version, "kind": resource.kind, "status": status });
        let api = Api::<K>::all(self.context.client.clone());
        let answer = api.patch_status(&object.name_any(), &params(), &Patch::Apply(&said)).await;
        if self.note(&format!("the status of {} {}", resource.kind, object.name_any()), gone(answer)).is_some() {
            self.context.metrics.writes.inc();
        }
    }

    /// An Event for what a person should know: something is wrong, or is right again, or waits for them.
    async fn tell_changes(&self, about: &ObjectReference, before: &[Condition], after: &[Condition]) {
        for kind in [kind::DEGRADED, kind::DELETION_BLOCKED] {
            let Some(new) = condition::find(after, kind) else { continue };
            let old = condition::find(before, kind);
            let same = old.is_some_and(|old| old.status == new.status && old.reason == new.reason);
            if same || old.is_none() && new.status != "True" {
                continue;
            }
            if new.status == "True" {
                self.context.events.warning(about, &new.reason, kind, new.message.clone()).await;
            } else {
                self.context
                    .events
                    .normal(about, &new.reason, kind, format!("no longer {kind}: {}", new.message))
                    .await;
            }
        }
    }
}
