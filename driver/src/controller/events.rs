//! Events: what the controller did of itself. What a call was answered with, the provisioner and the resizer write
//! on the claim.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

use super::api;

/// The API server refuses longer ones (pkg/apis/core/validation, NoteLengthLimit).
const LONGEST: usize = 1000;

#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    pub fn new(client: &Client, identity: &str) -> Self {
        let reporter = Reporter { controller: "stowage-controller".to_owned(), instance: Some(identity.to_owned()) };
        Self { recorder: Recorder::new(client.clone(), reporter) }
    }

    pub async fn normal(&self, about: &ObjectReference, reason: &str, note: String) {
        self.send(EventType::Normal, about, reason, note).await;
    }

    pub async fn warning(&self, about: &ObjectReference, reason: &str, note: String) {
        self.send(EventType::Warning, about, reason, note).await;
    }

    /// An Event that can not be written is no reason to stop.
    async fn send(&self, type_: EventType, about: &ObjectReference, reason: &str, mut note: String) {
        let end = (0..=LONGEST.min(note.len())).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
        note.truncate(end);
        let event =
            Event { type_, reason: reason.to_owned(), note: Some(note), action: reason.to_owned(), secondary: None };
        if let Err(error) = api::answer("writing an Event on", reason, self.recorder.publish(&event, about)).await {
            tracing::warn!(error = runtime::chain(&error), "an Event is lost");
        }
    }
}
