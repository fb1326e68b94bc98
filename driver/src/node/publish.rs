//! Writes the node's part of its NodeStorage's status, when it differs from what is there, and the Events that go
//! with it.

use crds::{
    names::manager,
    node_storage::{NodeStorage, NodeStorageStatus},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use super::{
    news::{self, Level, News},
    status,
};

#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    #[error("the NodeStorage is gone")]
    Gone,
    #[error("writing the status of NodeStorage {node}")]
    Write { node: String, source: kube::Error },
}

pub struct Publisher {
    nodes: Api<NodeStorage>,
    recorder: Recorder,
    said: Option<Said>,
    /// Steps that the next status is to list.
    steps: Vec<Step>,
}

/// What was written last.
struct Said {
    uid: Option<String>,
    resource_version: Option<String>,
    status: NodeStorageStatus,
}

struct Step {
    step: String,
    error: Option<String>,
    at: Timestamp,
}

impl Publisher {
    pub fn new(client: Client, node_name: &str) -> Self {
        let reporter = Reporter { controller: manager::NODE.to_owned(), instance: Some(node_name.to_owned()) };
        Self {
            nodes: Api::all(client.clone()),
            recorder: Recorder::new(client, reporter),
            said: None,
            steps: Vec::new(),
        }
    }

    /// Writes what `make` makes of the status that is there. `node` may be older than the last write.
    pub async fn publish(
        &mut self,
        node: &NodeStorage,
        make: impl FnOnce(&NodeStorageStatus) -> NodeStorageStatus,
    ) -> Result<(), PublishError> {
        let there = self.there(node);
        let mut listed = there.clone();
        for Step { step, error, at } in &self.steps {
            status::note(&mut listed, std::slice::from_ref(step), error.as_deref(), *at);
        }
        let new = make(&listed);
        if new != there {
            self.write(node, &new).await?;
            for item in news::of_devices(&there, &new) {
                self.tell(node, item).await;
            }
        }
        self.steps.clear();
        Ok(())
    }

    /// Tells of steps now, and lists them in the next status.
    pub async fn note(&mut self, node: &NodeStorage, steps: &[String], error: Option<&str>, at: Timestamp) {
        for step in steps {
            self.tell(node, news::of_step(step, error)).await;
            self.steps.push(Step { step: step.clone(), error: error.map(str::to_owned), at });
        }
    }

    /// This node's part of the status that is there.
    pub fn there(&self, node: &NodeStorage) -> NodeStorageStatus {
        let seen = || node.status.as_ref().map(status::ours).unwrap_or_default();
        match &self.said {
            Some(said) if said.uid == node.uid() && !is_newer(node.resource_version(), &said.resource_version) => {
                said.status.clone()
            }
            Some(_) | None => seen(),
        }
    }

    async fn write(&mut self, node: &NodeStorage, status: &NodeStorageStatus) -> Result<(), PublishError> {
        let name = node.name_any();
        // The UID makes the write a conflict when the object was made anew meanwhile.
        let said = serde_json::json!({
            "apiVersion": NodeStorage::api_version(&()),
            "kind": NodeStorage::kind(&()),
            "metadata": { "uid": node.uid() },
            "status": status,
        });
        let params = PatchParams::apply(manager::NODE).force();
        let written = match self.nodes.patch_status(&name, &params, &Patch::Apply(&said)).await {
            Ok(written) => written,
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Err(PublishError::Gone),
            Err(source) => return Err(PublishError::Write { node: name, source }),
        };
        self.said =
            Some(Said { uid: written.uid(), resource_version: written.resource_version(), status: status.clone() });
        Ok(())
    }

    /// An Event that can not be written is lost: the status says the same.
    async fn tell(&self, node: &NodeStorage, News { level, reason, subject, note }: News) {
        let event = Event {
            type_: match level {
                Level::Normal => EventType::Normal,
                Level::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(note),
            // The recorder tells events apart by this, not by the note.
            action: subject,
            secondary: None,
        };
        let regarding: ObjectReference = node.object_ref(&());
        if let Err(error) = self.recorder.publish(&event, &regarding).await {
            tracing::debug!(error = runtime::chain(&error), reason, "an Event was not written");
        }
    }
}

/// Whether what was seen is newer than what was written. Resource versions are decimal numbers that grow (KEP-5504).
fn is_newer(seen: Option<String>, written: &Option<String>) -> bool {
    let number = |version: &Option<String>| version.as_deref().and_then(|text| text.parse::<u128>().ok());
    match (number(&seen), number(written)) {
        (Some(seen), Some(written)) => seen > written,
        (Some(_) | None, Some(_) | None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_the_watch_brings_late_is_not_newer_than_the_last_write() {
        let version = |text: &str| Some(text.to_owned());
        assert!(is_newer(version("10"), &version("9")));
        assert!(!is_newer(version("9"), &version("9")));
        assert!(!is_newer(version("9"), &version("10")));
        assert!(!is_newer(None, &version("10")));
    }
}
