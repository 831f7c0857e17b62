//! Keeps the clock of a remote store, as its last reply showed it: decisions that depend on the date use that clock.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::base::time::Timestamp;

/// A remote store's clock. Before the first reply it is assumed to show the same time as ours.
#[derive(Debug, Default)]
pub struct StoreClock {
    /// By how many microseconds it is ahead of ours.
    ahead: AtomicI64,
}

impl StoreClock {
    /// The store's clock showed `theirs` when ours showed about `ours`.
    pub fn observe(&self, theirs: Timestamp, ours: Timestamp) {
        let difference = i64::try_from(theirs.0.abs_diff(ours.0)).unwrap_or(i64::MAX);
        self.ahead.store(if theirs < ours { -difference } else { difference }, Ordering::Relaxed);
    }

    /// What the store's clock shows when ours shows `ours`.
    pub fn at(&self, ours: Timestamp) -> Timestamp {
        Timestamp(ours.0.saturating_add_signed(self.ahead.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_continues_from_the_last_reply() {
        let clock = StoreClock::default();
        assert_eq!(clock.at(Timestamp(100)), Timestamp(100));
        clock.observe(Timestamp(7_000), Timestamp(1_000));
        assert_eq!(clock.at(Timestamp(1_500)), Timestamp(7_500));
        clock.observe(Timestamp(500), Timestamp(2_000));
        assert_eq!((clock.at(Timestamp(3_000)), clock.at(Timestamp(1_000))), (Timestamp(1_500), Timestamp(0)));
    }
}
