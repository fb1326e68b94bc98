//! Events: what the operator decided, on the object that it decided about.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

/// Reasons of Events. A reader may match on them.
pub mod reason {
    pub const APPLIED: &str = "Applied";
    pub const REPLACED: &str = "Replaced";
    pub const PRUNED: &str = "Pruned";
    pub const NAME_TAKEN: &str = "NameTaken";
    pub const TWO_DEFAULTS: &str = "TwoDefaultStorageClasses";
    pub const DELETION_BLOCKED: &str = "DeletionBlocked";
    pub const REMOVED: &str = "Removed";
    pub const NODE_LOST: &str = "NodeLost";
    pub const NODE_BACK: &str = "NodeBack";
    pub const LOSS_HELD: &str = "LossHeld";
    pub const DISKS_MISSING: &str = "DisksMissing";
    pub const CLAIM_RELEASED: &str = "ClaimReleased";
    pub const POD_RELEASED: &str = "PodReleased";
    pub const FORGOTTEN: &str = "Forgotten";
    pub const WORD_USED: &str = "WordUsed";
}

#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    pub fn new(client: Client, identity: String) -> Self {
        let reporter = Reporter { controller: "stowage-operator".to_owned(), instance: Some(identity) };
        Self { recorder: Recorder::new(client, reporter) }
    }

    /// `action` tells Events of one reason on one object apart: of two that agree in all three only the first is kept.
    pub async fn normal(&self, about: &ObjectReference, reason: &str, action: &str, note: impl Into<String>) {
        self.send(EventType::Normal, about, reason, action, note.into()).await;
    }

    pub async fn warning(&self, about: &ObjectReference, reason: &str, action: &str, note: impl Into<String>) {
        self.send(EventType::Warning, about, reason, action, note.into()).await;
    }

    /// An Event that can not be written is no reason to stop.
    async fn send(&self, type_: EventType, about: &ObjectReference, reason: &str, action: &str, mut note: String) {
        tracing::info!(
            kind = about.kind.as_deref().unwrap_or_default(),
            namespace = about.namespace.as_deref().unwrap_or_default(),
            name = about.name.as_deref().unwrap_or_default(),
            reason,
            "{note}"
        );
        // The API server refuses longer ones (pkg/apis/core/validation, NoteLengthLimit).
        if note.len() > 1000 {
            let end = (0..=1000).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
            note.truncate(end);
        }
        // As long as the API server takes it (pkg/apis/core/validation, ActionLengthLimit).
        let action = action.get(..128).unwrap_or(action);
        let event =
            Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(&event, about).await {
            tracing::warn!(error = runtime::chain(&error), reason, "writing an Event");
        }
    }
}
