//! Keeps the clock of a remote store, as the last reply showed it, for decisions that depend on the date.
//!
//! If a store has several servers, each has its own clock. The fallback uses the clock that is furthest ahead, so its
//! time never goes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use base::time::Timestamp;

/// The difference between the clocks before the first reply. No real difference is so small.
const UNKNOWN: i64 = i64::MIN;

/// A remote store's clock. Before the first reply it is assumed to agree with this process's clock.
#[derive(Debug)]
pub struct StoreClock {
    /// The microseconds by which the store's clock is ahead of this process's clock, or [`UNKNOWN`].
    ahead: AtomicI64,
    /// The clock of the whole store, if this is the clock of one of several servers.
    whole: Option<Arc<StoreClock>>,
}

impl Default for StoreClock {
    fn default() -> StoreClock {
        StoreClock { ahead: AtomicI64::new(UNKNOWN), whole: None }
    }
}

impl StoreClock {
    /// Makes the clock of one of several servers. `whole` is the clock of the whole store.
    pub fn of_part(whole: Arc<StoreClock>) -> StoreClock {
        StoreClock { whole: Some(whole), ..StoreClock::default() }
    }

    /// Notes that the store's clock showed `theirs` during a call, between `started` and `ended` on this process's
    /// clock. Keeps the known difference of the clocks if it agrees with this call. Returns the estimated time of this
    /// process's clock at `theirs`.
    pub fn observe(&self, theirs: Timestamp, started: Timestamp, ended: Timestamp) -> Timestamp {
        let (least, most) = (difference(theirs, ended), difference(theirs, started));
        let ahead = self.ahead().min(most).max(least);
        self.ahead.store(ahead, Ordering::Relaxed);
        if let Some(whole) = &self.whole
            && whole.ahead.load(Ordering::Relaxed) < ahead
        {
            whole.ahead.fetch_max(ahead, Ordering::Relaxed);
        }
        Timestamp(theirs.0.saturating_add_signed(-ahead))
    }

    /// Converts a time of this process's clock to the store's clock.
    pub fn at(&self, ours: Timestamp) -> Timestamp {
        Timestamp(ours.0.saturating_add_signed(self.ahead()))
    }

    fn ahead(&self) -> i64 {
        match self.ahead.load(Ordering::Relaxed) {
            UNKNOWN => 0,
            ahead => ahead,
        }
    }
}

/// Returns by how many microseconds `theirs` is later than `ours`.
fn difference(theirs: Timestamp, ours: Timestamp) -> i64 {
    let difference = i64::try_from(theirs.0.abs_diff(ours.0)).unwrap_or(i64::MAX);
    if theirs < ours { -difference } else { difference }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_continues_from_the_last_reply() {
        let clock = StoreClock::default();
        assert_eq!(clock.at(Timestamp(100)), Timestamp(100));
        clock.observe(Timestamp(7_000), Timestamp(1_000), Timestamp(1_000));
        assert_eq!(clock.at(Timestamp(1_500)), Timestamp(7_500));
        clock.observe(Timestamp(500), Timestamp(2_000), Timestamp(2_000));
        assert_eq!((clock.at(Timestamp(3_000)), clock.at(Timestamp(1_000))), (Timestamp(1_500), Timestamp(0)));
    }

    #[test]
    fn the_clock_of_several_servers_never_steps_back_to_that_of_another_one() {
        let whole = Arc::new(StoreClock::default());
        let parts = [(); 2].map(|()| StoreClock::of_part(Arc::clone(&whole)));
        let show = |part: usize, theirs: u64, ours: u64| {
            parts[part].observe(Timestamp(theirs), Timestamp(ours), Timestamp(ours));
            (parts[part].at(Timestamp(ours)), whole.at(Timestamp(ours)))
        };
        assert_eq!(show(0, 13_000, 1_000), (Timestamp(13_000), Timestamp(13_000)));
        assert_eq!(show(1, 1_500, 1_100), (Timestamp(1_500), Timestamp(13_100)));
        assert_eq!(show(0, 13_200, 1_200), (Timestamp(13_200), Timestamp(13_200)));
    }

    #[test]
    fn the_clock_of_several_servers_is_behind_ours_if_all_of_them_are() {
        let whole = Arc::new(StoreClock::default());
        let parts = [(); 2].map(|()| StoreClock::of_part(Arc::clone(&whole)));
        assert_eq!(whole.at(Timestamp(9_000)), Timestamp(9_000));
        let show = |part: usize, theirs: u64, ours: u64| {
            parts[part].observe(Timestamp(theirs), Timestamp(ours), Timestamp(ours));
            whole.at(Timestamp(ours))
        };
        assert_eq!(show(0, 1_000, 9_000), Timestamp(1_000));
        assert_eq!(show(1, 1_500, 9_100), Timestamp(1_500));
        assert_eq!(show(0, 1_200, 9_200), Timestamp(1_600));
    }

    #[test]
    fn a_late_reply_does_not_set_the_clock_back() {
        let (clock, moment) = (StoreClock::default(), Timestamp(1_000_000));
        clock.observe(Timestamp(9_000_010), moment, Timestamp(1_000_020));
        let ahead = clock.at(moment).since(moment).0;
        assert!((7_999_990..=8_000_010).contains(&ahead), "{ahead}");
        // First the server decides at once, and the reply takes a second. Then the call takes a second to arrive.
        for theirs in [9_000_010, 9_999_980] {
            let decided = clock.observe(Timestamp(theirs), moment, Timestamp(2_000_000));
            assert_eq!((clock.at(moment).since(moment).0, decided), (ahead, Timestamp(theirs - ahead)));
        }
        // If the store's clock was set, its new time is used.
        clock.observe(Timestamp(500), moment, Timestamp(1_000_020));
        assert_eq!(clock.at(moment), Timestamp(500));
    }
}
