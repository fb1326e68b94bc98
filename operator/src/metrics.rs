//! Figures for Prometheus. Labels are fixed words.

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Default)]
pub struct Metrics {
    pub cluster_passes: Counter,
    pub node_passes: Counter,
    pub writes: Counter,
    pub failures: Counter,
    pub claims_released: Counter,
    pub nodes: Gauge,
    pub nodes_lost: Gauge,
    pub nodes_held: Gauge,
}

impl Metrics {
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self::default();
        registry.register("cluster_passes", "Looks at the StorageCluster and its objects", all.cluster_passes.clone());
        registry.register("node_passes", "Looks at all nodes", all.node_passes.clone());
        registry.register("writes", "Objects written to the API server", all.writes.clone());
        registry.register("failures", "Reads and writes that failed and will be tried again", all.failures.clone());
        registry.register("claims_released", "Claims deleted because their node was lost", all.claims_released.clone());
        registry.register("nodes", "NodeStorages", all.nodes.clone());
        registry.register("nodes_lost", "NodeStorages whose Node object is gone", all.nodes_lost.clone());
        registry.register("nodes_held", "Lost nodes that wait for a person", all.nodes_held.clone());
        all
    }
}
