//! What wakes the work on the node's devices: its NodeStorage, and lvmd's word of block devices.

use std::{sync::Arc, time::Duration};

use crds::node_storage::NodeStorage;
use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use tokio::sync::{Notify, watch};

use super::pace::Pace;
use crate::hands::Hands;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Keeps `found` at the NodeStorage of this node, and at nothing while there is none. Never ends.
pub async fn node(client: Client, name: &str, found: watch::Sender<Option<Arc<NodeStorage>>>) {
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(Api::<NodeStorage>::all(client), only)
        .default_backoff()
        .modify(|node| node.managed_fields_mut().clear());
    let mut events = std::pin::pin!(events);
    // A list without the object says that it is gone, but only at the list's end.
    let mut listed = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(node)) => listed = Some(Arc::new(node)),
            Ok(Event::InitDone) => {
                if listed.is_none() {
                    tracing::info!("there is no NodeStorage for this node: nothing is done to its devices");
                }
                found.send_replace(listed.take());
            }
            Ok(Event::Apply(node)) => {
                found.send_replace(Some(Arc::new(node)));
            }
            Ok(Event::Delete(_)) => {
                found.send_replace(None);
            }
            // The watcher goes on by itself.
            Err(error) => tracing::warn!(error = runtime::chain(&error), "watching the NodeStorage"),
        }
    }
}

/// Notifies `changed` when lvmd says that a block device changed, and when it was not listening. Never ends.
pub async fn devices(hands: &Hands, changed: &Notify) {
    let mut pace = Pace::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        match hands.watch().await {
            Ok(mut events) => {
                pace.succeeded();
                // Whatever happened before is not told any more.
                changed.notify_one();
                loop {
                    match events.message().await {
                        Ok(Some(_)) => changed.notify_one(),
                        Ok(None) => break,
                        Err(status) => {
                            tracing::warn!(message = status.message(), "lvmd's word of devices ended");
                            break;
                        }
                    }
                }
            }
            Err(error) => tracing::debug!(error = runtime::chain(&error), "lvmd gives no word of devices"),
        }
        tokio::time::sleep(pace.failed()).await;
    }
}
