//! The statuses of StorageCluster and DeviceClass: totals and conditions, never a list that grows with the cluster. Pure.

pub mod class;
pub mod cluster;
pub mod term;

use crds::{
    condition::{self, kind},
    node_storage::NodeStorage,
    storage_cluster::NodeTotals,
};
use kube::ResourceExt;

/// A message names so many nodes.
const NAMED: usize = 5;

pub fn is_lost(storage: &NodeStorage) -> bool {
    has(storage, kind::NODE_LOST)
}

fn has(storage: &NodeStorage, kind: &str) -> bool {
    storage.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, kind))
}

fn totals<'a>(all: impl Iterator<Item = &'a NodeStorage>, ready: impl Fn(&NodeStorage) -> bool) -> NodeTotals {
    let mut totals = NodeTotals::default();
    for storage in all {
        if is_lost(storage) {
            totals.lost += 1;
        } else {
            totals.wanted += 1;
            totals.ready += i64::from(ready(storage));
        }
    }
    totals.summary = format!("{}/{}", totals.ready, totals.wanted);
    totals
}

/// `n1, n2 and 3 more`, sorted.
fn names<'a>(nodes: impl IntoIterator<Item = &'a NodeStorage>) -> String {
    let mut all: Vec<String> = nodes.into_iter().map(ResourceExt::name_any).collect();
    all.sort();
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    let listed = all.join(", ");
    if more == 0 { listed } else { format!("{listed} and {more} more") }
}

fn size(bytes: i64) -> String {
    crds::quantity::for_people(u64::try_from(bytes).unwrap_or(0))
}
