//! Which devices may be written to for the first time. Pure: what all nodes have published in, the list for
//! `NodeStorage.spec.cleared` out.
//!
//! A disk that two nodes see (a LUN, a shared enclosure) is blank for both until one of them has written to it. So a
//! device with an identity that is unique in the world waits until every node that could see it has looked again after it
//! was first listed, and only its own node lists it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crds::node_storage::identity_is_global as is_global;
use jiff::Timestamp;

/// `NodeStorage.spec.cleared` has at most so many entries.
const MOST_CLEARED: usize = 256;

/// What one NodeStorage says.
#[derive(Clone, Debug, Default)]
pub struct Published {
    pub node: String,
    /// Its agent is ready: only then is its look waited for.
    pub agent_ready: bool,
    /// Identities of all its devices.
    pub devices: BTreeSet<String>,
    /// Of these, the ones that wait to be cleared.
    pub waiting: BTreeSet<String>,
    pub cleared: Vec<String>,
    /// `spec.lookAfter`.
    pub look_after: Option<Timestamp>,
    /// Its status answers the present generation of its spec, so its last look was made after `look_after`.
    pub answered: bool,
}

/// What to write into the specs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Clear {
    /// `spec.cleared` of each node, sorted.
    pub cleared: BTreeMap<String, Vec<String>>,
    /// Nodes whose look is not new enough, and the `spec.lookAfter` that asks them for another.
    pub ask: BTreeMap<String, Timestamp>,
}

/// `first_listed` says when the operator first saw a device in a NodeStorage, by its own clock. A device that is missing
/// in it is not cleared.
pub fn clear(all: &[Published], first_listed: &BTreeMap<String, Timestamp>) -> Clear {
    let mut seen_by: BTreeMap<&str, usize> = BTreeMap::new();
    for device in all.iter().flat_map(|node| &node.devices) {
        *seen_by.entry(device).or_default() += 1;
    }
    let only_here = |device: &str| is_global(device) && seen_by.get(device) == Some(&1);

    let mut result = Clear::default();
    for node in all {
        let mut cleared: BTreeSet<String> =
            node.cleared.iter().filter(|device| node.devices.contains(*device) && only_here(device)).cloned().collect();
        let waiting = node.waiting.iter().filter(|device| only_here(device));
        for device in waiting {
            if cleared.contains(device) || cleared.len() == MOST_CLEARED {
                continue;
            }
            let Some(first) = first_listed.get(device) else { continue };
            let mut all_looked = true;
            for other in all.iter().filter(|other| other.node != node.node && other.agent_ready) {
                let asked = other.look_after.is_some_and(|after| after >= *first);
                all_looked &= asked && other.answered;
                if !asked {
                    let ask = result.ask.entry(other.node.clone()).or_insert(*first);
                    *ask = (*ask).max(*first);
                }
            }
            if all_looked {
                cleared.insert(device.clone());
            }
        }
        result.cleared.insert(node.node.clone(), cleared.into_iter().collect());
    }
    result
}

/// Between two rounds of asking: each makes every node look, and a cluster that is being built lists new devices all the
/// time. Twenty looks a second in the whole cluster, however large it is.
pub fn pause(nodes: usize) -> Duration {
    Duration::from_millis(50).saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)).max(Duration::from_secs(1))
}

/// Keeps `first_listed` in step: a device that nobody lists any more is forgotten.
pub fn note(first_listed: &mut BTreeMap<String, Timestamp>, all: &[Published], now: Timestamp) {
    let listed: BTreeSet<&String> = all.iter().flat_map(|node| &node.waiting).filter(|id| is_global(id)).collect();
    first_listed.retain(|device, _| listed.contains(device));
    for device in listed {
        first_listed.entry(device.clone()).or_insert(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LUN: &str = "wwn-0x5000000000000001";
    const OWN: &str = "nvme-eui.0000000000000002";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(name: &str, devices: &[&str]) -> Published {
        let devices: BTreeSet<String> = devices.iter().map(|id| (*id).to_owned()).collect();
        Published {
            node: name.into(),
            agent_ready: true,
            waiting: devices.clone(),
            devices,
            answered: true,
            ..Published::default()
        }
    }

    fn cleared(clear: &Clear, node: &str) -> Vec<String> {
        clear.cleared[node].clone()
    }

    fn first(devices: &[&str]) -> BTreeMap<String, Timestamp> {
        devices.iter().map(|id| ((*id).to_owned(), at(10))).collect()
    }

    #[test]
    fn on_a_cluster_of_one_a_device_is_cleared_at_once() {
        let now = clear(&[node("a", &[OWN])], &first(&[OWN]));
        assert_eq!((cleared(&now, "a"), now.ask.len()), (vec![OWN.to_owned()], 0));
    }

    #[test]
    fn the_other_nodes_are_asked_first() {
        let mut all = vec![node("a", &[OWN]), node("b", &[]), node("c", &[])];
        all[2].agent_ready = false;
        let now = clear(&all, &first(&[OWN]));
        assert_eq!((cleared(&now, "a"), now.ask), (vec![], [("b".to_owned(), at(10))].into()));

        all[1].look_after = Some(at(10));
        all[1].answered = false;
        assert_eq!(cleared(&clear(&all, &first(&[OWN])), "a"), Vec::<String>::new());
        all[1].answered = true;
        let now = clear(&all, &first(&[OWN]));
        assert_eq!((cleared(&now, "a"), now.ask.len()), (vec![OWN.to_owned()], 0));
    }

    /// A16
    #[test]
    fn a_device_that_two_nodes_see_is_cleared_for_neither() {
        let mut all = vec![node("a", &[LUN]), node("b", &[LUN])];
        for node in &mut all {
            node.look_after = Some(at(10));
        }
        let now = clear(&all, &first(&[LUN]));
        assert_eq!((cleared(&now, "a"), cleared(&now, "b")), (vec![], vec![]));

        all[0].cleared = vec![LUN.into()];
        assert_eq!(cleared(&clear(&all, &first(&[LUN])), "a"), Vec::<String>::new());
    }

    #[test]
    fn a_serial_needs_no_entry() {
        let all = [node("a", &["virtio-1"])];
        assert_eq!(cleared(&clear(&all, &first(&["virtio-1"])), "a"), Vec::<String>::new());
    }

    fn any_node() -> impl Strategy<Value = Published> {
        let device = prop::sample::select(vec![LUN, OWN, "virtio-1", "nvme-uuid.3"]).prop_map(str::to_owned);
        let devices = prop::collection::btree_set(device, 0..4);
        (devices.clone(), devices, any::<bool>(), any::<bool>(), prop::option::of(0_i64..20)).prop_map(
            |(devices, cleared, agent_ready, answered, look)| Published {
                node: String::new(),
                agent_ready,
                waiting: devices.clone(),
                devices,
                cleared: cleared.into_iter().collect(),
                look_after: look.map(at),
                answered,
            },
        )
    }

    fn any_cluster() -> impl Strategy<Value = Vec<Published>> {
        prop::collection::vec(any_node(), 1..5).prop_map(|nodes| {
            let named = |(index, node)| Published { node: format!("n{index}"), ..node };
            nodes.into_iter().enumerate().map(named).collect()
        })
    }

    proptest! {
        #[test]
        fn no_device_is_cleared_that_another_node_lists(all in any_cluster()) {
            let result = clear(&all, &first(&[LUN, OWN, "virtio-1", "nvme-uuid.3"]));
            for (node, cleared) in &result.cleared {
                for other in all.iter().filter(|other| other.node != *node) {
                    prop_assert!(cleared.iter().all(|device| !other.devices.contains(device)));
                }
            }
        }

        /// Nodes that answer what they are asked end the asking.
        #[test]
        fn asking_comes_to_an_end(mut all in any_cluster()) {
            let first = first(&[LUN, OWN, "virtio-1", "nvme-uuid.3"]);
            for _ in 0..2 {
                let result = clear(&all, &first);
                for node in &mut all {
                    node.answered = true;
                    node.cleared = result.cleared[&node.node].clone();
                    node.look_after = result.ask.get(&node.node).copied().or(node.look_after);
                }
            }
            let settled = clear(&all, &first);
            prop_assert!(settled.ask.is_empty());
            for node in &all {
                prop_assert_eq!(&settled.cleared[&node.node], &node.cleared);
            }
        }
    }
}
