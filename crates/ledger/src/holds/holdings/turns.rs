//! Orders the buckets of an owner by the times of their next reports.

use std::collections::{BTreeMap, BTreeSet};

use crate::bucket_key::BucketKey;
use base::time::Timestamp;

/// The time of the next report about a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Turn {
    /// The bucket waits for a report in the next call. The number is the bucket's place in `waiting`.
    Waiting(u64),
    Due(Timestamp),
    /// Nothing is held, and the store knows all. Only the sums are kept, until this time.
    Kept(Timestamp),
}

/// The turns of all buckets. Each bucket also has its own [`Turn`], with which its place here is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Turns {
    /// The buckets about which the next call has a report, ordered by how long they have waited, the longest first.
    waiting: BTreeMap<u64, BucketKey>,
    last_place: u64,
    /// The moments at which reports are to be repeated.
    due: BTreeSet<(Timestamp, BucketKey)>,
    /// The moments until which sums are kept.
    kept: BTreeSet<(Timestamp, BucketKey)>,
}

impl Turns {
    /// Adds a bucket without a turn to the buckets that wait. Returns its turn.
    pub(super) fn wait(&mut self, key: BucketKey) -> Turn {
        self.last_place += 1;
        self.waiting.insert(self.last_place, key);
        Turn::Waiting(self.last_place)
    }

    /// Makes a bucket without a turn due at `moment`. Returns its turn.
    pub(super) fn due_at(&mut self, moment: Timestamp, key: BucketKey) -> Turn {
        self.due.insert((moment, key));
        Turn::Due(moment)
    }

    /// Keeps the sums of a bucket without a turn until `end`. Returns its turn.
    pub(super) fn keep_until(&mut self, end: Timestamp, key: BucketKey) -> Turn {
        self.kept.insert((end, key));
        Turn::Kept(end)
    }

    /// Removes the turn of a bucket.
    pub(super) fn leave(&mut self, key: BucketKey, turn: Turn) {
        match turn {
            Turn::Waiting(place) => {
                self.waiting.remove(&place);
            }
            Turn::Due(moment) => {
                self.due.remove(&(moment, key));
            }
            Turn::Kept(end) => {
                self.kept.remove(&(end, key));
            }
        }
    }

    /// Returns whether buckets wait for a report.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the bucket whose report is next: the one that has waited the longest, or else the first one whose report is due
    /// at `soon` or earlier.
    pub(super) fn next_report(&self, soon: Timestamp) -> Option<BucketKey> {
        self.waiting.first_key_value().map(|(_, key)| *key).or_else(|| self.next_due(soon))
    }

    /// Returns the first bucket whose report is due at `now` or earlier.
    pub(super) fn next_due(&self, now: Timestamp) -> Option<BucketKey> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, key)| *key)
    }

    /// Returns the first bucket whose sums need not be kept at `now` any more.
    pub(super) fn next_forgotten(&self, now: Timestamp) -> Option<BucketKey> {
        self.kept.first().filter(|(end, _)| *end <= now).map(|(_, key)| *key)
    }

    /// Returns the bucket whose sums were kept the longest, if the sums of more than `most` buckets are kept.
    pub(super) fn kept_beyond(&self, most: usize) -> Option<BucketKey> {
        self.kept.first().filter(|_| self.kept.len() > most).map(|(_, key)| *key)
    }

    /// Returns the first moment at which a report is due, or sums need not be kept any more.
    pub(super) fn next_moment(&self) -> Option<Timestamp> {
        let first = |moments: &BTreeSet<(Timestamp, BucketKey)>| moments.first().map(|(moment, _)| *moment);
        first(&self.due).into_iter().chain(first(&self.kept)).min()
    }
}
