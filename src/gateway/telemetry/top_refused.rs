//! Knows the buckets that refused most in the last half minute to a minute, in bounded memory.
//!
//! Each thread counts in a table of its own, of [`KEPT`] buckets for each half minute, by "space-saving" (Metwally, Agrawal,
//! El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005): a bucket that is not in a full
//! table takes the place of the one with the fewest, and its count, which may be too high by as much. So every bucket with
//! more than a [`KEPT`]th of a thread's refusals is there, whatever the others are.
//!
//! Only refusals are counted, and no thread ever waits: while somebody reads a table, what comes is skipped, and the skipped
//! are counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::base::time::{Micros, Timestamp};
use crate::limit::charge::{LimitId, Plan, Settlement};
use crate::limit::key::BucketKey;
use crate::limit::outcome::Verdict;
use crate::store::Worker;

const KEPT: usize = 64;
const WINDOW: Micros = Micros(30_000_000);

/// Refusals of all threads.
#[derive(Debug)]
pub struct TopRefused {
    /// By lane.
    windows: Box<[Mutex<Windows>]>,
    skipped: AtomicU64,
}

/// A limit, as long as the configuration with this number is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    pub configuration: u32,
    pub limit: LimitId,
}

/// A bucket, and how often it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedBucket {
    pub key: BucketKey,
    pub whose: Whose,
    pub at_least: u64,
    pub at_most: u64,
}

/// Those that refused most, and over how long.
#[derive(Debug, PartialEq, Eq)]
pub struct Top {
    pub span: Micros,
    pub buckets: Vec<RefusedBucket>,
}

impl TopRefused {
    pub fn new(lanes: usize) -> TopRefused {
        TopRefused { windows: (0..lanes).map(|_| Mutex::default()).collect(), skipped: AtomicU64::new(0) }
    }

    /// Counts each bucket of a refused plan that could not pay.
    pub fn count(&self, lane: Worker, at: Timestamp, configuration: u32, plan: &Plan, settlement: &Settlement) {
        let Some(windows) = self.windows.get(lane.0) else { return };
        let Some(mut windows) = windows.try_lock() else {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let table = windows.at(at);
        for (charge, outcome) in plan.enforced.iter().zip(&settlement.enforced) {
            if outcome.verdict == Verdict::Deny {
                table.count(charge.key, Whose { configuration, limit: charge.limit });
            }
        }
    }

    /// Refusals that were not counted because somebody was reading.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// At most so many, those with the most first. What was counted under another configuration than this is left out:
    /// its limits may have other names by now.
    pub fn top(&self, most: usize, now: Timestamp, configuration: u32) -> Top {
        let window = now.0 / WINDOW.0;
        let mut sums: HashMap<BucketKey, RefusedBucket> = HashMap::new();
        for windows in &self.windows {
            let counted = windows.lock().since(window.saturating_sub(1));
            for one in counted.into_iter().filter(|one| one.whose.configuration == configuration) {
                let none = RefusedBucket { at_least: 0, at_most: 0, ..one };
                let sum = sums.entry(one.key).or_insert(none);
                sum.at_least += one.at_least;
                sum.at_most += one.at_most;
            }
        }
        let mut buckets: Vec<_> = sums.into_values().collect();
        buckets.sort_unstable_by(|one, other| {
            (other.at_least, other.at_most, one.key).cmp(&(one.at_least, one.at_most, other.key))
        });
        buckets.truncate(most);
        Top { span: Micros(WINDOW.0 + now.0 % WINDOW.0), buckets }
    }
}

/// The half minute that is, and the one before, in the places of even and odd ones.
#[derive(Debug, Default)]
struct Windows([Table; 2]);

#[allow(clippy::indexing_slicing, reason = "there are two, and a table's places are fewer than its columns are long")]
impl Windows {
    /// The table of a moment; of a later one, where that has begun.
    fn at(&mut self, moment: Timestamp) -> &mut Table {
        let window = moment.0 / WINDOW.0;
        let table = &mut self.0[usize::from(window % 2 == 1)];
        if table.window < window {
            table.window = window;
            (table.length, table.fewest, table.from) = (0, 0, 0);
        }
        table
    }

    fn since(&self, window: u64) -> Vec<RefusedBucket> {
        let bucket = |table: &Table, place: usize| RefusedBucket {
            key: table.keys[place],
            whose: table.whose[place],
            at_least: table.counts[place] - table.over[place],
            at_most: table.counts[place],
        };
        let tables = self.0.iter().filter(|table| table.window >= window);
        tables.flat_map(|table| (0..table.length).map(move |place| bucket(table, place))).collect()
    }
}

/// In columns, so that looking for a bucket, or for the fewest, reads little memory in one go.
#[derive(Debug)]
struct Table {
    window: u64,
    /// How many places are taken.
    length: usize,
    /// No count is below it, and those before this place are above it: whoever has it has the fewest.
    fewest: u64,
    from: usize,
    /// The first bytes of each key: keys are hashes, so two rarely share them.
    marks: [u32; KEPT],
    counts: [u64; KEPT],
    /// How much of the count is another's.
    over: [u64; KEPT],
    keys: [BucketKey; KEPT],
    whose: [Whose; KEPT],
}

impl Default for Table {
    fn default() -> Table {
        Table {
            window: 0,
            length: 0,
            fewest: 0,
            from: 0,
            marks: [0; KEPT],
            counts: [0; KEPT],
            over: [0; KEPT],
            keys: [BucketKey([0; 16]); KEPT],
            whose: [Whose { configuration: 0, limit: LimitId(0) }; KEPT],
        }
    }
}

#[allow(clippy::indexing_slicing, reason = "a place is below KEPT, which is how long the columns are")]
impl Table {
    fn count(&mut self, key: BucketKey, whose: Whose) {
        let place = match self.find(key) {
            Some(place) => place,
            None => self.make_room(key),
        };
        self.counts[place] += 1;
        self.whose[place] = whose;
    }

    fn find(&self, key: BucketKey) -> Option<usize> {
        let mark = key.spread();
        // All of them, without a branch: so many are compared in one instruction.
        let same = self.marks.iter().fold(0, |same, known| same + u32::from(*known == mark));
        if same == 0 {
            return None;
        }
        (0..self.length).find(|place| self.marks[*place] == mark && self.keys[*place] == key)
    }

    /// The place of a bucket that has none yet.
    fn make_room(&mut self, key: BucketKey) -> usize {
        let place = if self.length < KEPT {
            self.counts[self.length] = 0;
            self.length += 1;
            self.length - 1
        } else {
            self.find_fewest()
        };
        self.over[place] = self.counts[place];
        self.marks[place] = key.spread();
        self.keys[place] = key;
        place
    }

    /// Counts only grow, so each place is looked at once for each count that is the fewest.
    fn find_fewest(&mut self) -> usize {
        let has = |place: &usize| self.counts[*place] == self.fewest;
        let found = (self.from..KEPT).find(has);
        self.from = found.unwrap_or_else(|| {
            self.fewest = self.counts.iter().copied().min().unwrap_or_default();
            (0..KEPT).find(|place| self.counts[*place] == self.fewest).unwrap_or(0)
        });
        self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::algorithm::Algorithm;
    use crate::limit::algorithm::token_bucket::{Rate, TokenBucket};
    use crate::limit::charge::Charge;
    use crate::limit::cost::Cost;
    use crate::limit::outcome::Outcome;
    use smallvec::{SmallVec, smallvec};

    const SECOND: u64 = 1_000_000;

    fn key(number: u64) -> BucketKey {
        // Spread as hashes are.
        let [one, other] = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number].map(u64::to_le_bytes);
        BucketKey(std::array::from_fn(|at| if at < 8 { one[at] } else { other[at - 8] }))
    }

    /// A plan of these buckets, and what came of each.
    fn plan(buckets: &[(u64, Verdict)]) -> (Plan, Settlement) {
        let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
        let algorithm = Algorithm::TokenBucket(TokenBucket::new(rate, 1).unwrap());
        let charge = |(bucket, _): &(u64, Verdict)| Charge {
            key: key(*bucket),
            algorithm,
            cost: Cost::ONE,
            limit: LimitId(7),
            variant: 0,
        };
        let enforced: SmallVec<[Outcome; 2]> =
            buckets.iter().map(|(_, verdict)| Outcome { verdict: *verdict, ..Outcome::UNASKED }).collect();
        let plan = Plan { enforced: buckets.iter().map(charge).collect(), shadow: smallvec![] };
        (plan, Settlement { verdict: Verdict::Deny, enforced, shadow: smallvec![] })
    }

    fn refuse(refused: &TopRefused, lane: usize, second: u64, bucket: u64) {
        let (plan, settlement) = plan(&[(bucket, Verdict::Deny)]);
        refused.count(Worker(lane), Timestamp(second * SECOND), 1, &plan, &settlement);
    }

    fn told(refused: &TopRefused, second: u64) -> Vec<(BucketKey, u64, u64)> {
        let top = refused.top(3, Timestamp(second * SECOND), 1);
        top.buckets.iter().map(|bucket| (bucket.key, bucket.at_least, bucket.at_most)).collect()
    }

    #[test]
    fn threads_are_added_up_and_the_most_stand_first() {
        let refused = TopRefused::new(2);
        for (lane, bucket, times) in [(0, 1, 3), (0, 2, 5), (1, 1, 4), (1, 3, 1), (0, 4, 1)] {
            (0..times).for_each(|_| refuse(&refused, lane, 60, bucket));
        }
        assert_eq!(told(&refused, 60)[..2], [(key(1), 7, 7), (key(2), 5, 5)]);
        assert_eq!(refused.top(9, Timestamp(60 * SECOND), 1).buckets.len(), 4);
    }

    #[test]
    fn of_a_plan_only_those_count_that_could_not_pay() {
        let refused = TopRefused::new(1);
        let (plan, settlement) = plan(&[(1, Verdict::Allow), (2, Verdict::Deny), (3, Verdict::Unasked)]);
        refused.count(Worker(0), Timestamp(SECOND), 1, &plan, &settlement);
        assert_eq!(told(&refused, 1), [(key(2), 1, 1)]);
        assert_eq!(refused.top(1, Timestamp(SECOND), 1).buckets[0].whose.limit, LimitId(7));
        // Another configuration may have another limit in that place.
        assert_eq!(refused.top(1, Timestamp(SECOND), 2).buckets, []);
    }

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let refused = TopRefused::new(1);
        refuse(&refused, 0, 60, 1);
        refuse(&refused, 0, 95, 2);
        assert_eq!(told(&refused, 100).len(), 2);
        assert_eq!(refused.top(1, Timestamp(100 * SECOND), 1).span, Micros(40 * SECOND));
        // One that was under way for long.
        refuse(&refused, 0, 70, 1);
        assert_eq!(told(&refused, 119).len(), 2);
        assert_eq!(told(&refused, 120), [(key(2), 1, 1)]);
        assert_eq!(told(&refused, 150), []);
        refuse(&refused, 0, 150, 3);
        assert_eq!(told(&refused, 150), [(key(3), 1, 1)]);
    }

    #[test]
    fn a_million_other_buckets_neither_hide_the_busy_ones_nor_take_memory() {
        let refused = TopRefused::new(1);
        for number in 0..1_000_000 {
            refuse(&refused, 0, 60, 1_000 + number);
            if number % 20 == 0 {
                refuse(&refused, 0, 60, 1);
            }
            if number % 30 == 0 {
                refuse(&refused, 0, 60, 2);
            }
        }
        let top = told(&refused, 60);
        assert_eq!([top[0].0, top[1].0], [key(1), key(2)]);
        for ((_, at_least, at_most), truth) in top.iter().zip([50_000, 33_334]) {
            // One that is seldom out is overstated by as much as the rest comes to for each place.
            assert!(*at_least <= truth && truth <= *at_most && at_most - at_least <= 1_083_334 / 64, "{top:?}");
        }
        assert_eq!(refused.windows[0].lock().since(0).len(), KEPT);
        // Whatever is counted, it is this large.
        assert!(size_of::<Windows>() < 7_000, "{}", size_of::<Windows>());
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_skipped_is_counted() {
        let refused = TopRefused::new(1);
        let reading = refused.windows[0].lock();
        refuse(&refused, 0, 60, 1);
        drop(reading);
        refuse(&refused, 0, 60, 1);
        assert_eq!((told(&refused, 60), refused.skipped()), (vec![(key(1), 1, 1)], 1));
    }
}
