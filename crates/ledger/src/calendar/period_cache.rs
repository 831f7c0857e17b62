//! Caches the periods that were last computed for a calendar. No thread waits for another.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Periods;
use base::time::Timestamp;

/// Caches the current periods of a calendar, protected by a sequence lock: the version is odd while the periods are
/// replaced. A reader that saw two versions discards what it read.
#[derive(Default)]
pub(crate) struct PeriodCache {
    version: AtomicU64,
    /// The initial zeros are a period that contains no moment.
    begin: AtomicU64,
    end: AtomicU64,
    next_end: AtomicU64,
}

impl PeriodCache {
    /// Returns the cached periods if the first of them contains `now`. `None` while another thread replaces the
    /// periods.
    #[inline]
    pub(super) fn get(&self, now: Timestamp) -> Option<Periods> {
        let version = self.version.load(Ordering::Acquire);
        let periods = Periods {
            begin: Timestamp(self.begin.load(Ordering::Relaxed)),
            end: Timestamp(self.end.load(Ordering::Relaxed)),
            next_end: Timestamp(self.next_end.load(Ordering::Relaxed)),
        };
        // Pairs with the fence in `set`: a thread that reads the numbers of a writer also reads the writer's version.
        fence(Ordering::Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (whole && periods.contains(now)).then_some(periods)
    }

    /// Replaces the cached periods. Does nothing while another thread replaces them.
    pub(super) fn set(&self, periods: Periods) {
        let version = self.version.load(Ordering::Relaxed);
        let odd = version.wrapping_add(1);
        if !version.is_multiple_of(2)
            || self.version.compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        fence(Ordering::Release);
        self.begin.store(periods.begin.0, Ordering::Relaxed);
        self.end.store(periods.end.0, Ordering::Relaxed);
        self.next_end.store(periods.next_end.0, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}
