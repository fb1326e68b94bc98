//! One call at a time per volume, as the CSI specification lets a driver ask for: the second one is told ABORTED.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

/// The volumes that calls are at work on. Cloned freely; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Mutex<HashSet<String>>>);

/// One volume, held. Dropping it lets the next call in.
#[derive(Debug)]
pub struct Held {
    all: InFlight,
    name: String,
}

impl InFlight {
    /// `None` while another call holds it.
    pub fn hold(&self, name: &str) -> Option<Held> {
        let name = name.to_owned();
        // A panic while it was locked left a set as it was before or after: both are whole.
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        free.then(|| Held { all: self.clone(), name })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_call_waits_for_the_first_and_for_no_other_volume() {
        let all = InFlight::default();
        let first = all.hold("a");
        assert!(first.is_some());
        assert!(all.hold("a").is_none());
        assert!(all.hold("b").is_some());
        drop(first);
        assert!(all.hold("a").is_some());
    }
}
