//! Finds the purses that requests pay from, also those that another process has filled: each is reported once in a while.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::PurseBucket;
use base::time::Timestamp;

/// How many purses are remembered. One that takes the place of another makes the other one be reported again.
const PLACES: usize = 4096;

/// The most purses that are reported at once.
const MOST_TOLD: usize = 4096;

/// The purses that requests have paid from lately.
#[derive(Debug)]
pub(super) struct UsedPurses {
    /// A purse and the time in which it was reported, as one number.
    places: Box<[AtomicU64]>,
    told: Mutex<Vec<PurseBucket>>,
}

impl UsedPurses {
    pub(super) fn new() -> UsedPurses {
        UsedPurses { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), told: Mutex::default() }
    }

    /// Notes that a request has used a purse. Returns whether the purse is reported, which it is once in its `return_after`.
    pub(super) fn add(&self, bucket: PurseBucket, now: Timestamp) -> bool {
        let turn = now.0 / bucket.purse.return_after().0.max(1);
        let [first, second] = *bucket.key.0.as_chunks::<8>().0 else { return false };
        let [own, place] = [first, second].map(u64::from_le_bytes);
        let places = u64::try_from(self.places.len()).unwrap_or(u64::MAX).max(1);
        let Some(place) = usize::try_from(place % places).ok().and_then(|place| self.places.get(place)) else {
            return false;
        };
        let mark = own ^ turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if place.load(Ordering::Relaxed) == mark {
            return false;
        }
        place.store(mark, Ordering::Relaxed);
        let mut told = self.told.lock();
        let has_room = told.len() < MOST_TOLD;
        if has_room {
            told.push(bucket);
        }
        has_room
    }

    /// Reports purses that no request has used in this process.
    pub(super) fn report(&self, purses: &[PurseBucket]) {
        self.told.lock().extend_from_slice(purses);
    }

    /// Returns the purses that were reported, each time once.
    pub(super) fn take(&self) -> Vec<PurseBucket> {
        std::mem::take(&mut *self.told.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::test_purse;
    use super::*;

    #[test]
    fn a_purse_is_told_once_in_its_time_however_often_it_is_used() {
        let used = UsedPurses::new();
        let (one, two) = (test_purse(1), test_purse(2));
        assert_eq!(
            [one, one, two, one, two].map(|purse| used.add(purse, Timestamp(7))),
            [true, false, true, false, false]
        );
        let keys = |told: Vec<PurseBucket>| told.iter().map(|purse| purse.key.0[0]).collect::<Vec<_>>();
        assert_eq!(keys(used.take()), [1, 2]);
        assert!(used.add(one, Timestamp(8)));
        assert_eq!(keys(used.take()), [1]);
        assert!(used.take().is_empty());
    }
}
