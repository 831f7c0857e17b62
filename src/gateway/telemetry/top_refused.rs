//! Keeps the buckets with the most refusals of the last 30 to 60 seconds, in bounded memory.
//!
//! Each thread has its own tables, one for each half minute. A table has [`TABLE_SIZE`] buckets and is filled by the
//! algorithm "space-saving" (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data
//! streams, 2005). If a table is full, a new bucket replaces the bucket with the lowest count and inherits this count.
//! The inherited count is the maximum error of the new bucket's count.
//!
//! No thread ever waits. While a table is read, refusals are skipped, and only their number is kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use base::time::{Micros, Timestamp};
use decision::speaking_limit::awaits_home;
use ledger::bucket_key::BucketKey;
use ledger::charge::{LimitId, Plan, Settlement};
use ledger::outcome::Verdict;
use stores::Worker;

const TABLE_SIZE: usize = 64;
const WINDOW: Micros = Micros(30_000_000);

/// Counts for each bucket how many requests were refused because the bucket had too few tokens. Each thread has its own tables.
#[derive(Debug)]
pub(crate) struct TopRefused {
    /// The tables, by worker.
    windows: Box<[Mutex<Windows>]>,
    skipped: AtomicU64,
}

/// A limit, with the number of the configuration that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitVersion {
    pub configuration: u32,
    pub limit: LimitId,
}

/// A bucket, with its number of refusals, which is at least `at_least` and at most `at_most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedBucket {
    pub key: BucketKey,
    pub limit_version: LimitVersion,
    /// When the bucket's last ban ends, by the clock of this process. A time in the past if no ban has refused a
    /// request.
    pub ban_ends: Timestamp,
    pub at_least: u64,
    pub at_most: u64,
}

/// The buckets with the most refusals. `span` is the time during which these refusals were counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Top {
    pub span: Micros,
    pub buckets: Vec<RefusedBucket>,
}

impl TopRefused {
    pub(crate) fn new(workers: usize) -> TopRefused {
        TopRefused { windows: (0..workers).map(|_| Mutex::default()).collect(), skipped: AtomicU64::new(0) }
    }

    /// Counts a refusal for each bucket of the plan that had too few tokens for the request, or that is banned.
    pub(crate) fn count(
        &self,
        worker: Worker,
        at: Timestamp,
        configuration: u32,
        plan: &Plan,
        settlement: &Settlement,
    ) {
        let Some(windows) = self.windows.get(worker.0) else { return };
        let Some(mut windows) = windows.try_lock() else {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let table = windows.at(at);
        for (charge, outcome) in plan.enforced.iter().zip(&settlement.enforced) {
            let ban_ends = match outcome.verdict {
                // Home has refused nothing.
                Verdict::Deny if awaits_home(charge, outcome) => continue,
                Verdict::Deny => Timestamp(0),
                Verdict::Banned => at.plus(outcome.retry_after),
                Verdict::Allow | Verdict::Held | Verdict::Never | Verdict::Unasked => continue,
            };
            table.count(charge.key, LimitVersion { configuration, limit: charge.limit }, ban_ends);
        }
    }

    /// Returns the number of refusals that were not counted because a table was being read.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Returns the `max` buckets with the most refusals, in descending order. Refusals under other configurations are
    /// left out.
    pub(crate) fn top(&self, max: usize, now: Timestamp, configuration: u32) -> Top {
        let window = now.0 / WINDOW.0;
        let mut sums: HashMap<BucketKey, RefusedBucket> = HashMap::new();
        for windows in &self.windows {
            let counted = windows.lock().since(window.saturating_sub(1));
            for one in counted.into_iter().filter(|one| one.limit_version.configuration == configuration) {
                let none = RefusedBucket { at_least: 0, at_most: 0, ..one };
                let sum = sums.entry(one.key).or_insert(none);
                sum.ban_ends = sum.ban_ends.max(one.ban_ends);
                sum.at_least += one.at_least;
                sum.at_most += one.at_most;
            }
        }
        let mut buckets: Vec<_> = sums.into_values().collect();
        buckets.sort_unstable_by(|one, other| {
            (other.at_least, other.at_most, one.key).cmp(&(one.at_least, one.at_most, other.key))
        });
        buckets.truncate(max);
        Top { span: Micros(WINDOW.0 + now.0 % WINDOW.0), buckets }
    }
}

/// The tables of the current and the previous half minute. Even half minutes have index 0, odd half minutes index 1.
#[derive(Debug, Default)]
struct Windows([Table; 2]);

#[allow(clippy::indexing_slicing, reason = "there are two, and a table's index are fewer than its columns are long")]
impl Windows {
    /// Returns the table for a moment's half minute. A table that counts a later half minute is returned unchanged.
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
        let bucket = |table: &Table, index: usize| RefusedBucket {
            key: table.keys[index],
            limit_version: table.limit_version[index],
            ban_ends: table.ban_ends[index],
            at_least: table.counts[index] - table.over[index],
            at_most: table.counts[index],
        };
        let tables = self.0.iter().filter(|table| table.window >= window);
        tables.flat_map(|table| (0..table.length).map(move |index| bucket(table, index))).collect()
    }
}

/// The counts of one half minute. Stored in columns, so that a search reads little memory.
#[derive(Debug)]
struct Table {
    window: u64,
    /// The number of entries in use.
    length: usize,
    /// The lowest count of all entries.
    fewest: u64,
    /// Entries before this index have a higher count than `fewest`.
    from: usize,
    /// The first bytes of each key. Keys are hashes, so two keys rarely have the same first bytes.
    marks: [u32; TABLE_SIZE],
    counts: [u64; TABLE_SIZE],
    /// The part of each count that was inherited. This is the maximum error of the count.
    over: [u64; TABLE_SIZE],
    keys: [BucketKey; TABLE_SIZE],
    limit_version: [LimitVersion; TABLE_SIZE],
    ban_ends: [Timestamp; TABLE_SIZE],
}

impl Default for Table {
    fn default() -> Table {
        Table {
            window: 0,
            length: 0,
            fewest: 0,
            from: 0,
            marks: [0; TABLE_SIZE],
            counts: [0; TABLE_SIZE],
            over: [0; TABLE_SIZE],
            keys: [BucketKey([0; 16]); TABLE_SIZE],
            limit_version: [LimitVersion { configuration: 0, limit: LimitId(0) }; TABLE_SIZE],
            ban_ends: [Timestamp(0); TABLE_SIZE],
        }
    }
}

#[allow(clippy::indexing_slicing, reason = "a index is below TABLE_SIZE, which is how long the columns are")]
impl Table {
    fn count(&mut self, key: BucketKey, limit_version: LimitVersion, ban_ends: Timestamp) {
        let index = match self.find(key) {
            Some(index) => index,
            None => self.insert(key),
        };
        self.counts[index] += 1;
        self.limit_version[index] = limit_version;
        self.ban_ends[index] = ban_ends;
    }

    fn find(&self, key: BucketKey) -> Option<usize> {
        let mark = key.spread();
        // Compares all marks without a branch, so that one instruction compares many marks.
        let same = self.marks.iter().fold(0, |same, known| same + u32::from(*known == mark));
        if same == 0 {
            return None;
        }
        (0..self.length).find(|index| self.marks[*index] == mark && self.keys[*index] == key)
    }

    /// Adds a bucket that is not in the table yet, and returns its index.
    fn insert(&mut self, key: BucketKey) -> usize {
        let index = if self.length < TABLE_SIZE {
            self.counts[self.length] = 0;
            self.length += 1;
            self.length - 1
        } else {
            self.find_fewest()
        };
        self.over[index] = self.counts[index];
        self.marks[index] = key.spread();
        self.keys[index] = key;
        index
    }

    /// Returns the index of an entry with the lowest count.
    fn find_fewest(&mut self) -> usize {
        let has = |index: &usize| self.counts[*index] == self.fewest;
        let found = (self.from..TABLE_SIZE).find(has);
        self.from = found.unwrap_or_else(|| {
            self.fewest = self.counts.iter().copied().min().unwrap_or_default();
            (0..TABLE_SIZE).find(|index| self.counts[*index] == self.fewest).unwrap_or(0)
        });
        self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    use ledger::bucket_key::LimitTag;
    use ledger::charge::{Charge, ChargePurpose};
    use ledger::cost::Cost;
    use ledger::outcome::Outcome;
    use smallvec::{SmallVec, smallvec};

    const SECOND: u64 = 1_000_000;

    fn key(number: u64) -> BucketKey {
        // The bits are spread as in a hash.
        let [one, other] = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number].map(u64::to_le_bytes);
        BucketKey(std::array::from_fn(|at| if at < 8 { one[at] } else { other[at - 8] }))
    }

    /// Returns a plan with these buckets, and the outcome of each.
    fn plan(buckets: &[(u64, Verdict)]) -> (Plan, Settlement) {
        let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
        let algorithm = Algorithm::TokenBucket(TokenBucket::new(rate, 1).unwrap());
        let charge = |(bucket, _): &(u64, Verdict)| Charge {
            key: key(*bucket),
            algorithm,
            cost: Cost::ONE,
            limit: LimitId(7),
            variant: 0,
            tag: LimitTag::default(),
            purpose: ChargePurpose::Spend,
        };
        let enforced: SmallVec<[Outcome; 2]> =
            buckets.iter().map(|(_, verdict)| Outcome { verdict: *verdict, ..Outcome::UNASKED }).collect();
        let plan = Plan { enforced: buckets.iter().map(charge).collect(), shadow: smallvec![] };
        (plan, Settlement::refused(enforced))
    }

    fn refuse(refused: &TopRefused, worker: usize, second: u64, bucket: u64) {
        let (plan, settlement) = plan(&[(bucket, Verdict::Deny)]);
        refused.count(Worker(worker), Timestamp(second * SECOND), 1, &plan, &settlement);
    }

    fn reported(refused: &TopRefused, second: u64) -> Vec<(BucketKey, u64, u64)> {
        let top = refused.top(3, Timestamp(second * SECOND), 1);
        top.buckets.iter().map(|bucket| (bucket.key, bucket.at_least, bucket.at_most)).collect()
    }

    #[test]
    fn threads_are_added_up_and_the_most_come_first() {
        let refused = TopRefused::new(2);
        for (worker, bucket, times) in [(0, 1, 3), (0, 2, 5), (1, 1, 4), (1, 3, 1), (0, 4, 1)] {
            (0..times).for_each(|_| refuse(&refused, worker, 60, bucket));
        }
        assert_eq!(reported(&refused, 60)[..2], [(key(1), 7, 7), (key(2), 5, 5)]);
        assert_eq!(refused.top(9, Timestamp(60 * SECOND), 1).buckets.len(), 4);
    }

    #[test]
    fn only_buckets_that_could_not_pay_are_counted() {
        let refused = TopRefused::new(1);
        let (plan, settlement) = plan(&[(1, Verdict::Allow), (2, Verdict::Deny), (3, Verdict::Unasked)]);
        refused.count(Worker(0), Timestamp(SECOND), 1, &plan, &settlement);
        assert_eq!(reported(&refused, 1), [(key(2), 1, 1)]);
        assert_eq!(refused.top(1, Timestamp(SECOND), 1).buckets[0].limit_version.limit, LimitId(7));
        // Another configuration may have another limit with this id.
        assert_eq!(refused.top(1, Timestamp(SECOND), 2).buckets, []);
    }

    #[test]
    fn a_banned_bucket_is_counted_with_the_end_of_its_ban() {
        let refused = TopRefused::new(2);
        let (plan, mut settlement) = plan(&[(1, Verdict::Banned)]);
        settlement.enforced[0].retry_after = Micros(90 * SECOND);
        refused.count(Worker(0), Timestamp(60 * SECOND), 1, &plan, &settlement);
        refuse(&refused, 1, 61, 1);
        refuse(&refused, 1, 61, 2);
        let top = refused.top(3, Timestamp(61 * SECOND), 1);
        let ends: Vec<_> = top.buckets.iter().map(|bucket| (bucket.key, bucket.ban_ends.0 / SECOND)).collect();
        assert_eq!(ends, [(key(1), 150), (key(2), 0)]);
    }

    #[test]
    fn refusals_older_than_a_minute_are_forgotten() {
        let refused = TopRefused::new(1);
        refuse(&refused, 0, 60, 1);
        refuse(&refused, 0, 95, 2);
        assert_eq!(reported(&refused, 100).len(), 2);
        assert_eq!(refused.top(1, Timestamp(100 * SECOND), 1).span, Micros(40 * SECOND));
        // This refusal is counted late, because the decision about the request took long.
        refuse(&refused, 0, 70, 1);
        assert_eq!(reported(&refused, 119).len(), 2);
        assert_eq!(reported(&refused, 120), [(key(2), 1, 1)]);
        assert_eq!(reported(&refused, 150), []);
        refuse(&refused, 0, 150, 3);
        assert_eq!(reported(&refused, 150), [(key(3), 1, 1)]);
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
        let top = reported(&refused, 60);
        assert_eq!([top[0].0, top[1].0], [key(1), key(2)]);
        for ((_, at_least, at_most), truth) in top.iter().zip([50_000, 33_334]) {
            // The possible error is at most the total of refusals divided by the number of entries.
            assert!(*at_least <= truth && truth <= *at_most && at_most - at_least <= 1_083_334 / 64, "{top:?}");
        }
        assert_eq!(refused.windows[0].lock().since(0).len(), TABLE_SIZE);
        // The size does not depend on the counted buckets.
        assert!(size_of::<Windows>() < 7_000, "{}", size_of::<Windows>());
    }

    #[test]
    fn a_reader_blocks_no_thread_and_skipped_refusals_are_counted() {
        let refused = TopRefused::new(1);
        let reading = refused.windows[0].lock();
        refuse(&refused, 0, 60, 1);
        drop(reading);
        refuse(&refused, 0, 60, 1);
        assert_eq!((reported(&refused, 60), refused.skipped()), (vec![(key(1), 1, 1)], 1));
    }
}
