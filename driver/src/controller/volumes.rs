//! What the controller writes on LogicalVolumes. Each write names what it is about by UID: an object of the same name
//! that was made later is left alone.

use crds::{
    logical_volume::{LogicalVolume, LogicalVolumeSpec},
    names::{self, VOLUME_FINALIZER, label},
};
use futures::TryFutureExt;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::api::{self, ApiError};

/// How often a write is tried that names a version of the object.
const ATTEMPTS: usize = 4;

#[derive(Clone)]
pub struct Volumes {
    api: Api<LogicalVolume>,
}

impl Volumes {
    pub fn new(client: &Client) -> Self {
        Self { api: Api::all(client.clone()) }
    }

    /// As the API server has it now.
    pub async fn read(&self, name: &str) -> Result<Option<LogicalVolume>, ApiError> {
        api::answer("reading LogicalVolume", name, self.api.get_opt(name)).await
    }

    pub async fn create(&self, name: &str, spec: LogicalVolumeSpec) -> Result<LogicalVolume, ApiError> {
        let params = PostParams { field_manager: Some(names::manager::DRIVER.to_owned()), ..PostParams::default() };
        let object = object(name, spec);
        api::answer("creating LogicalVolume", name, self.api.create(&params, &object)).await
    }

    /// Says that the data may go, and deletes the object. It stays until its finalizer is gone.
    pub async fn discard(&self, volume: &LogicalVolume) -> Result<(), ApiError> {
        let name = volume.name_any();
        if !volume.spec.discard {
            let patch = json!({ "metadata": { "uid": volume.uid() }, "spec": { "discard": true } });
            match self.patch("setting discard on LogicalVolume", &name, &patch).await {
                Err(error) if error.is_not_found() => return Ok(()),
                outcome => outcome?,
            }
        }
        if volume.metadata.deletion_timestamp.is_none() {
            let preconditions = Preconditions { uid: volume.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            let delete = self.api.delete(&name, &params).map_ok(|_| ());
            match api::answer("deleting LogicalVolume", &name, delete).await {
                Err(error) if error.is_not_found() => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Lets a deleted object go without its node. The caller has made sure that the node is given up.
    pub async fn let_go(&self, volume: &LogicalVolume) -> Result<(), ApiError> {
        let name = volume.name_any();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let Some(now) = self.read(&name).await?.filter(|now| now.uid() == volume.uid()) else { return Ok(()) };
            let left: Vec<_> = now.finalizers().iter().filter(|finalizer| *finalizer != VOLUME_FINALIZER).collect();
            if left.len() == now.finalizers().len() {
                return Ok(());
            }
            // The version keeps others' finalizers whole.
            let patch = json!({ "metadata": { "resourceVersion": now.resource_version(), "finalizers": left } });
            match self.patch("removing the finalizer of LogicalVolume", &name, &patch).await {
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
                outcome => return outcome,
            }
        }
    }

    pub async fn set_size(&self, volume: &LogicalVolume, size: i64) -> Result<(), ApiError> {
        let patch = json!({ "metadata": { "uid": volume.uid() }, "spec": { "size": size } });
        self.patch("setting the size of LogicalVolume", &volume.name_any(), &patch).await
    }

    async fn patch(&self, verb: &'static str, name: &str, patch: &serde_json::Value) -> Result<(), ApiError> {
        let params = PatchParams { field_manager: Some(names::manager::DRIVER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        api::answer(verb, name, self.api.patch(name, &params, &patch).map_ok(|_| ())).await
    }
}

/// The finalizer is in it from the first moment: the LV may be there before anybody could add one.
fn object(name: &str, spec: LogicalVolumeSpec) -> LogicalVolume {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let labels = [label(label::MANAGED_BY, label::OWNED_BY_DRIVER), label(label::DEVICE_CLASS, &spec.device_class)];
    LogicalVolume {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.into()),
            finalizers: Some(vec![VOLUME_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}
