//! The ledger as of now, with what this process has given away and the copies do not show yet.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    entries::Promise,
    ledger::{Entry, Ledger, Place, Refusal},
    world::World,
};

/// A write that was not answered may still have been done; long before this its object has come by, or never will.
const UNANSWERED: Duration = Duration::from_secs(120);

/// For how long a node's word that there is no room is believed against its own figures.
const DOUBTED: Duration = Duration::from_secs(60);

/// Cloned freely; all clones are one.
#[derive(Clone)]
pub struct Books {
    world: World,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    given: HashMap<String, Given>,
    doubts: HashMap<Place, Doubt>,
    arrivals: Arrivals,
}

/// Room that was given to a volume.
struct Given {
    entry: Entry,
    since: Instant,
}

/// A group in which the node could not make a volume that fits by its figures.
struct Doubt {
    /// What certainly does not fit.
    bytes: u64,
    since: Instant,
}

/// In which order the promises came.
#[derive(Default)]
struct Arrivals {
    next: u64,
    /// By volume. A claim for which another node is chosen comes anew.
    seen: HashMap<String, (String, u64)>,
}

impl Arrivals {
    fn sort(&mut self, mut promises: Vec<Promise>) -> Vec<Entry> {
        promises.sort_by(|a, b| {
            let key = |promise: &Promise| promise.created.as_ref().map(|time| time.0);
            (key(a), &a.entry.volume).cmp(&(key(b), &b.entry.volume))
        });
        let there: HashSet<&str> = promises.iter().map(|promise| promise.entry.volume.as_str()).collect();
        self.seen.retain(|volume, _| there.contains(volume.as_str()));
        for Promise { entry, .. } in &promises {
            let known = self.seen.get(&entry.volume).is_some_and(|(node, _)| *node == entry.place.node);
            if !known {
                self.seen.insert(entry.volume.clone(), (entry.place.node.clone(), self.next));
                self.next += 1;
            }
        }
        promises.sort_by_key(|promise| self.seen.get(&promise.entry.volume).map(|(_, number)| *number));
        promises.into_iter().map(|promise| promise.entry).collect()
    }
}

impl Books {
    pub fn new(world: World) -> Self {
        Self { world, notes: Arc::default() }
    }

    pub fn ledger(&self) -> Ledger {
        self.with(|notes| self.count(notes))
    }

    /// Gives `volume` room at the first of `places` that has it, and says what it takes there.
    pub fn give(&self, places: &[Place], volume: &str, bytes: u64) -> Result<(Place, u64), Vec<(Place, Refusal)>> {
        self.with(|notes| {
            // It asks anew: what was given to an earlier attempt is free again, unless an object stands for it.
            notes.given.remove(volume);
            let ledger = self.count(notes);
            let mut refusals = Vec::new();
            for place in places {
                match ledger.ask(place, volume, bytes) {
                    Ok(bytes) => {
                        let entry = Entry { place: place.clone(), volume: volume.to_owned(), bytes };
                        notes.given.insert(volume.to_owned(), Given { entry, since: Instant::now() });
                        return Ok((place.clone(), bytes));
                    }
                    Err(refusal) => refusals.push((place.clone(), refusal)),
                }
            }
            Err(refusals)
        })
    }

    /// Nothing will be made with what `volume` was given.
    pub fn take_back(&self, volume: &str) {
        self.with(|notes| notes.given.remove(volume));
    }

    /// The node had no room for `bytes`.
    pub fn doubt(&self, place: Place, bytes: u64) {
        self.with(|notes| notes.doubts.insert(place, Doubt { bytes, since: Instant::now() }));
    }

    /// When the figures change without an object's change.
    pub fn next_change(&self) -> Option<Instant> {
        self.with(|notes| notes.doubts.values().map(|doubt| doubt.since + DOUBTED).min())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Notes) -> T) -> T {
        // A panic while it was locked left notes of whole entries.
        work(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, notes: &mut Notes) -> Ledger {
        let now = Instant::now();
        let shown = |given: &Given| {
            self.world.volume(&given.entry.volume).is_some_and(|volume| {
                let entry = super::entries::volume(&volume);
                entry.place == given.entry.place && entry.bytes >= given.entry.bytes
            })
        };
        notes.given.retain(|_, given| now.duration_since(given.since) < UNANSWERED && !shown(given));
        notes.doubts.retain(|_, doubt| now.duration_since(doubt.since) < DOUBTED);
        let groups = self.world.groups().into_iter().map(|(place, mut group)| {
            if let Some(doubt) = notes.doubts.get(&place) {
                group.max_volume_size = group.max_volume_size.min(doubt.bytes.saturating_sub(1));
                group.max_volume_size -= group.max_volume_size % group.extent.max(1);
            }
            (place, group)
        });
        let given = notes.given.values().map(|given| given.entry.clone());
        let volumes = self.world.entries().into_iter().chain(given);
        let promises = notes.arrivals.sort(self.world.promises());
        Ledger::new(groups, volumes, promises)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(volume: &str, node: &str) -> Promise {
        let place = Place { node: node.into(), class: "fast".into() };
        Promise { entry: Entry { place, volume: volume.into(), bytes: 1 }, created: None }
    }

    fn order(arrivals: &mut Arrivals, promises: &[(&str, &str)]) -> String {
        let promises = promises.iter().map(|(volume, node)| promise(volume, node)).collect();
        arrivals.sort(promises).into_iter().map(|entry| entry.volume).collect()
    }

    #[test]
    fn promises_keep_the_order_in_which_they_came() {
        let mut arrivals = Arrivals::default();
        assert_eq!(order(&mut arrivals, &[("c", "n1"), ("b", "n1")]), "bc");
        assert_eq!(order(&mut arrivals, &[("a", "n1"), ("b", "n1"), ("c", "n1")]), "bca");
        // Rescheduled: it comes anew.
        assert_eq!(order(&mut arrivals, &[("a", "n1"), ("b", "n2"), ("c", "n1")]), "cab");
        // Gone and back.
        assert_eq!(order(&mut arrivals, &[("a", "n1"), ("b", "n2")]), "ab");
        assert_eq!(order(&mut arrivals, &[("a", "n1"), ("b", "n2"), ("c", "n1")]), "abc");
        assert_eq!(arrivals.seen.len(), 3);
    }
}
