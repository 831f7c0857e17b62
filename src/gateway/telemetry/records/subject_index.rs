//! Remembers which subjects the buckets of recorded limits belong to, so that an operator can list buckets by subject. A bucket's
//! key is a hash, from which no subject can be read.

use std::collections::HashMap;

use parking_lot::Mutex;

use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::bucket_key::BucketKey;
use stores::Worker;

/// The most buckets that are remembered, over all workers.
const MOST: usize = 100_000;
/// How long a bucket is remembered after it is full again, as long as a window is stored.
const KEPT: Micros = Micros(3_600_000_000);
/// The longest value that is remembered, in bytes. It bounds the memory, because clients may choose values.
const LONGEST: usize = 256;
/// How long the store is not told again of a bucket that is still charged. Shorter than [`KEPT`], so that it stays listed.
const TOLD_AGAIN: Micros = Micros(KEPT.0 / 2);
/// The shortest time between two searches for buckets that are full again.
const SWEEP_INTERVAL: Micros = Micros(10_000_000);

/// The subject of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct IndexedSubject {
    /// The attribute that names the subject, and its value.
    pub attribute: Box<str>,
    pub value: Box<[u8]>,
    /// The limit with the numbers of the last request.
    pub algorithm: Algorithm,
    /// The name of the policy and of the limit.
    pub limit: (Box<str>, Box<str>),
    /// Whether several subjects were charged to the bucket. Such a bucket is not named after one of them.
    pub is_shared: bool,
    /// When the bucket was last charged, and until when it is listed.
    pub charged: Timestamp,
    pub until: Timestamp,
    /// When the last request arrived that learned from the store which thresholds the bucket has reached. Zero without such a request.
    told: Timestamp,
    telling: Telling,
}

/// Whether the store, and so the other gateways, know the subject of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    /// It waits to be sent.
    Waits,
    /// It was sent at this time.
    Told(Timestamp),
}

impl IndexedSubject {
    /// Adds what another worker knows of the same bucket.
    fn join(&mut self, other: &IndexedSubject) {
        self.is_shared |= other.is_shared || self.value != other.value;
        self.until = self.until.max(other.until);
        if other.charged > self.charged {
            (self.algorithm, self.limit, self.charged) = (other.algorithm, other.limit.clone(), other.charged);
        }
    }
}

/// A charge of a bucket, from which its subject is remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedCharge<'c> {
    pub key: BucketKey,
    pub subject: (&'c str, &'c [u8]),
    pub algorithm: Algorithm,
    pub limit: (&'c str, &'c str),
    /// The time until the bucket is full. `None` if it is not known.
    pub reset_after: Option<Micros>,
    /// When the request arrived, if the store has told it which thresholds the bucket has reached.
    pub told: Option<Timestamp>,
    /// The present time of the process.
    pub now: Timestamp,
}

/// The subjects of the buckets that this process has charged or refused lately: one table for each worker.
#[derive(Debug)]
pub(crate) struct SubjectIndex {
    tables: Box<[Mutex<Table>]>,
    most: usize,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<BucketKey, IndexedSubject>,
    /// The buckets whose subjects wait to be sent to the store. Each is there once; some are no longer among the entries.
    waiting: Vec<BucketKey>,
    swept: Timestamp,
}

impl SubjectIndex {
    pub(super) fn new(workers: usize) -> SubjectIndex {
        SubjectIndex { tables: (0..workers).map(|_| Mutex::default()).collect(), most: MOST / workers.max(1) }
    }

    /// Remembers the subject of a bucket. If there is no room, the bucket is not listed.
    pub(crate) fn note(&self, Worker(worker): Worker, charge: IndexedCharge<'_>) {
        let IndexedCharge { key, subject: (attribute, value), algorithm, limit, reset_after, told, now } = charge;
        let (policy, name) = limit;
        let Some(table) = self.tables.get(worker) else { return };
        let mut table = table.lock();
        let Table { entries, waiting, .. } = &mut *table;
        let until = reset_after.map(|reset_after| now.plus(reset_after).plus(KEPT));
        if let Some(known) = entries.get_mut(&key) {
            let mut is_new = matches!(known.telling, Telling::Told(at) if now.since(at) >= TOLD_AGAIN);
            is_new |= !known.is_shared && *known.value != *value;
            known.is_shared |= *known.value != *value;
            if *known.attribute != *attribute {
                known.attribute = attribute.into();
            }
            // Rules of one meter share a bucket.
            if (&*known.limit.0, &*known.limit.1) != (policy, name) {
                known.limit = (policy.into(), name.into());
                is_new = true;
            }
            (known.algorithm, known.charged, known.until) = (algorithm, now, until.unwrap_or(known.until));
            known.told = told.map_or(known.told, |told| told.max(known.told));
            if is_new && known.telling != Telling::Waits {
                known.telling = Telling::Waits;
                waiting.push(key);
            }
            return;
        }
        let Some(until) = until.filter(|_| value.len() <= LONGEST) else { return };
        if table.entries.len() >= self.most && now.since(table.swept) >= SWEEP_INTERVAL {
            table.swept = now;
            table.entries.retain(|_, known| known.until > now);
            let Table { entries, waiting, .. } = &mut *table;
            waiting.retain(|key| entries.contains_key(key));
        }
        if table.entries.len() < self.most {
            let limit = (policy.into(), name.into());
            table.entries.insert(
                key,
                IndexedSubject {
                    attribute: attribute.into(),
                    value: value.into(),
                    algorithm,
                    limit,
                    is_shared: false,
                    charged: now,
                    until,
                    told: told.unwrap_or_default(),
                    telling: Telling::Waits,
                },
            );
            table.waiting.push(key);
        }
    }

    /// Returns up to `most` subjects that the store does not know yet, with their buckets. They count as told at `now`.
    pub(crate) fn take_untold(&self, most: usize, now: Timestamp) -> Vec<(BucketKey, IndexedSubject)> {
        let mut untold: Vec<(BucketKey, IndexedSubject)> = Vec::new();
        for table in &self.tables {
            let mut table = table.lock();
            let left = most.saturating_sub(untold.len()).min(table.waiting.len());
            let Table { entries, waiting, .. } = &mut *table;
            untold.extend(waiting.drain(..left).filter_map(|key| {
                let known = entries.get_mut(&key)?;
                known.telling = Telling::Told(now);
                Some((key, known.clone()))
            }));
        }
        untold
    }

    /// Lets subjects wait again that could not be sent.
    pub(crate) fn put_back(&self, untold: impl IntoIterator<Item = BucketKey>) {
        for key in untold {
            for table in &self.tables {
                let mut table = table.lock();
                let Table { entries, waiting, .. } = &mut *table;
                if let Some(known) = entries.get_mut(&key).filter(|known| known.telling != Telling::Waits) {
                    known.telling = Telling::Waits;
                    waiting.push(key);
                }
            }
        }
    }

    /// Returns the remembered buckets of these limits that have not been full for long, also those of several subjects. `is` chooses by
    /// policy and name.
    pub(crate) fn of_limits(
        &self,
        is: impl Fn(&str, &str) -> bool,
        now: Timestamp,
    ) -> HashMap<BucketKey, IndexedSubject> {
        let mut found = HashMap::new();
        for table in &self.tables {
            let table = table.lock();
            let chosen =
                table.entries.iter().filter(|(_, known)| known.until > now && is(&known.limit.0, &known.limit.1));
            for (key, known) in chosen {
                found
                    .entry(*key)
                    .and_modify(|other: &mut IndexedSubject| other.join(known))
                    .or_insert_with(|| known.clone());
            }
        }
        found
    }

    /// Returns whether the bucket has told its thresholds to a request that arrived at this worker after `settled`. The call of such
    /// a request has brought to the store what the worker had settled by then.
    pub(crate) fn has_told_since(&self, Worker(worker): Worker, key: &BucketKey, settled: Timestamp) -> bool {
        let Some(table) = self.tables.get(worker) else { return false };
        table.lock().entries.get(key).is_some_and(|known| known.told > settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};

    fn charge(bucket: u8, value: &'static str, now: u64) -> IndexedCharge<'static> {
        let window = Window::Epoch(Micros(60_000_000));
        IndexedCharge {
            key: BucketKey([bucket; 16]),
            subject: ("key:id", value.as_bytes()),
            algorithm: Algorithm::FixedWindow(FixedWindow::new(5, window).unwrap()),
            limit: ("plan", "free"),
            reset_after: Some(Micros(60_000_000)),
            told: None,
            now: Timestamp(now),
        }
    }

    fn subject(index: &SubjectIndex, bucket: u8) -> Option<IndexedSubject> {
        index.of_limits(|_, _| true, Timestamp(0)).remove(&BucketKey([bucket; 16]))
    }

    #[test]
    fn buckets_are_listed_by_limit_as_long_as_they_live() {
        let index = SubjectIndex::new(2);
        index.note(Worker(0), charge(1, "ann", 0));
        index.note(Worker(1), charge(1, "ann", 0));
        index.note(Worker(1), charge(2, "bob", 0));
        let count =
            |name, now| index.of_limits(|policy, limit| (policy, limit) == ("plan", name), Timestamp(now)).len();
        assert_eq!((count("free", 0), count("pro", 0)), (2, 0));
        assert_eq!(&*subject(&index, 2).unwrap().value, b"bob");
        assert_eq!((count("free", 3_659_999_999), count("free", 3_660_000_000)), (2, 0));
    }

    #[test]
    fn a_bucket_of_several_subjects_is_named_after_none_of_them() {
        let index = SubjectIndex::new(2);
        let named = |bucket| subject(&index, bucket).is_some_and(|known| !known.is_shared);
        index.note(Worker(0), charge(1, "ann", 0));
        index.note(Worker(0), charge(2, "ann", 0));
        assert!(named(1) && named(2));
        index.note(Worker(0), charge(1, "bob", 0));
        index.note(Worker(1), charge(2, "bob", 0));
        assert!(!named(1) && !named(2));
        assert!(index.of_limits(|_, _| true, Timestamp(0)).values().all(|known| known.is_shared));
    }

    #[test]
    fn a_store_is_told_once_of_a_bucket_and_again_if_something_changes_or_time_has_passed() {
        let index = SubjectIndex::new(2);
        let told = |most, now: u64| {
            let mut untold: Vec<u8> =
                index.take_untold(most, Timestamp(now)).iter().map(|(BucketKey([bucket, ..]), _)| *bucket).collect();
            untold.sort_unstable();
            untold
        };
        (1..=3).for_each(|bucket| index.note(Worker(0), charge(bucket, "ann", 0)));
        index.note(Worker(1), charge(4, "ann", 0));
        assert_eq!((told(2, 0).len(), told(9, 0).len(), told(9, 0).len()), (2, 2, 0));
        index.note(Worker(0), charge(1, "ann", 1));
        assert!(told(9, 1).is_empty());
        index.note(Worker(0), charge(1, "bob", 2));
        index.note(Worker(0), charge(1, "ann", 3));
        index.note(Worker(0), IndexedCharge { limit: ("plan", "pro"), ..charge(2, "ann", 3) });
        assert_eq!((told(9, 3), told(9, 3)), (vec![1, 2], vec![]));
        index.note(Worker(0), charge(3, "ann", TOLD_AGAIN.0));
        assert_eq!(told(9, TOLD_AGAIN.0), vec![3]);
        index.put_back([BucketKey([3; 16]), BucketKey([3; 16]), BucketKey([9; 16])]);
        assert_eq!((told(9, TOLD_AGAIN.0), told(9, TOLD_AGAIN.0)), (vec![3], vec![]));
    }

    #[test]
    fn a_bucket_follows_its_last_rule_and_is_kept_while_it_is_not_asked() {
        let index = SubjectIndex::new(1);
        index.note(Worker(0), charge(1, "ann", 0));
        let unasked = IndexedCharge { limit: ("plan", "pro"), reset_after: None, ..charge(1, "ann", 3_000_000_000) };
        index.note(Worker(0), unasked);
        index.note(Worker(0), IndexedCharge { key: BucketKey([2; 16]), ..unasked });
        let count = |name, now| index.of_limits(|_, limit| limit == name, Timestamp(now)).len();
        assert_eq!((count("free", 0), count("pro", 3_600_000_000)), (0, 1));
    }

    #[test]
    fn only_a_later_request_of_the_same_worker_that_the_store_has_answered_was_told() {
        let index = SubjectIndex::new(2);
        let told = |at| IndexedCharge { told: Some(Timestamp(at)), ..charge(1, "ann", 20) };
        let has_told = |worker| index.has_told_since(Worker(worker), &BucketKey([1; 16]), Timestamp(10));
        for one in [charge(1, "ann", 20), told(9), told(10), charge(1, "ann", 30)] {
            index.note(Worker(0), one);
            assert!(!has_told(0), "{one:?}");
        }
        index.note(Worker(1), told(11));
        assert_eq!([0, 1, 9].map(has_told), [false, true, false]);
        for one in [told(11), told(5), charge(1, "ann", 30)] {
            index.note(Worker(0), one);
            assert!(has_told(0), "{one:?}");
        }
    }

    #[test]
    fn a_long_value_is_not_remembered() {
        let index = SubjectIndex::new(1);
        let long: &'static str = Box::leak("x".repeat(LONGEST + 1).into_boxed_str());
        index.note(Worker(0), charge(1, long, 0));
        assert!(subject(&index, 1).is_none());
    }

    #[test]
    fn an_index_is_bounded_and_forgets_what_has_ended() {
        let index = SubjectIndex { most: 1, ..SubjectIndex::new(1) };
        index.note(Worker(0), charge(1, "ann", 0));
        index.note(Worker(0), charge(2, "bob", 20_000_000));
        assert!(subject(&index, 2).is_none());
        index.note(Worker(0), charge(2, "bob", 7_200_000_000));
        assert!(subject(&index, 1).is_none() && subject(&index, 2).is_some());
    }
}
