//! Remembers when charges to buckets were undone. The reply to an earlier call shows too low a level.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use base::time::{Micros, Timestamp};
use ledger::bucket_key::BucketKey;

/// How long the time of an undo is remembered. No call is under way for longer.
const REMEMBERED: Micros = Micros(3_000_000);
/// The smallest number of entries at which old entries are removed.
const MANY: usize = 1_024;

/// Remembers when charges to buckets were undone. All workers share it.
#[derive(Debug, Default)]
pub(crate) struct UndoneCharges {
    /// Whether any charge was ever undone. If false, no lock is needed.
    any: AtomicBool,
    last: Mutex<LastUndone>,
}

#[derive(Debug, Default)]
struct LastUndone {
    by_bucket: HashMap<BucketKey, Timestamp>,
    /// The number of entries after the last removal.
    left: usize,
}

impl UndoneCharges {
    pub(super) fn add(&self, key: BucketKey, now: Timestamp) {
        self.any.store(true, Ordering::Release);
        let mut last = self.last.lock();
        if last.by_bucket.len() >= MANY.max(2 * last.left) {
            last.by_bucket.retain(|_, undone| now.since(*undone) <= REMEMBERED);
            last.left = last.by_bucket.len();
        }
        last.by_bucket.insert(key, now);
    }

    /// Whether a charge to this bucket was undone after a call was sent. `sent` is the time of that call.
    pub(super) fn contain(&self, key: &BucketKey, sent: Timestamp) -> bool {
        self.any.load(Ordering::Acquire) && self.last.lock().by_bucket.get(key).is_some_and(|undone| *undone >= sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_shows_is_outdated_if_a_charge_was_undone_since() {
        let charges = UndoneCharges::default();
        let (one, other) = (BucketKey([1; 16]), BucketKey([2; 16]));
        assert!(!charges.contain(&one, Timestamp(1)));
        charges.add(one, Timestamp(10));
        assert!(charges.contain(&one, Timestamp(10)) && !charges.contain(&one, Timestamp(11)));
        assert!(!charges.contain(&other, Timestamp(1)));
    }

    #[test]
    fn what_was_undone_long_ago_is_forgotten() {
        let charges = UndoneCharges::default();
        for number in 0..10_000_u32 {
            let key = BucketKey(std::array::from_fn(|at| number.to_le_bytes()[at % 4]));
            charges.add(key, Timestamp(u64::from(number) * 10_000));
        }
        assert!(charges.last.lock().by_bucket.len() <= MANY);
    }

    #[test]
    fn they_are_looked_through_seldom_however_many_are_remembered() {
        let charges = UndoneCharges::default();
        let mut looked = 0;
        for number in 0..200_000_u32 {
            let key = BucketKey(std::array::from_fn(|at| number.to_le_bytes()[at % 4]));
            let left = charges.last.lock().left;
            // One charge is undone every 100 µs, so 30 000 are remembered at any time.
            charges.add(key, Timestamp(u64::from(number) * 100));
            looked += usize::from(charges.last.lock().left != left);
        }
        assert!((1..30).contains(&looked), "{looked}");
        let most = charges.last.lock().by_bucket.len();
        assert!((30_000..=60_002).contains(&most), "{most}");
    }
}
