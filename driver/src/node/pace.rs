//! How long to wait before trying again what failed.

use std::time::Duration;

/// Doubles with each failure in a row, up to a longest.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Pace {
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// How long to wait after one more failure.
    pub fn failed(&mut self) -> Duration {
        let wait = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// In a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_to_its_longest_and_begins_anew_after_a_success() {
        let mut pace = Pace::new(Duration::from_secs(2), Duration::from_secs(10));
        let waits: Vec<_> = (0..5).map(|_| pace.failed().as_secs()).collect();
        assert_eq!(waits, [2, 4, 8, 10, 10]);
        pace.succeeded();
        assert_eq!(pace.failed().as_secs(), 2);
        pace.failures = u32::MAX;
        assert_eq!(pace.failed().as_secs(), 10);
    }
}
