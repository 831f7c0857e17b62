//! Defines what a transaction does with the rows of its buckets, without I/O.

use super::batch::pack;
use crate::error::Fault;
use base::time::Timestamp;
use ledger::bucket_key::BucketKey;

/// Decides what becomes of some buckets, whose rows are locked.
pub(super) trait Work {
    type Reply;

    /// Returns the keys of the buckets, in the order in which their rows are locked. No key is there twice.
    fn keys(&self) -> &[BucketKey];

    /// Decides at `now`. `rows` are the locked rows of the buckets.
    ///
    /// # Errors
    ///
    /// When the rows do not belong to the buckets.
    fn decide(&self, rows: &[StoredBucket], now: Timestamp) -> Result<Decision<Self::Reply>, Fault>;

    /// Decides for a server that has no room to write. `None` if that is impossible.
    fn refuse(&self, rows: &[StoredBucket], now: Timestamp) -> Option<Self::Reply>;

    /// Whether the reply must wait until the rows are durable although nothing is written, because another transaction may just have
    /// written what the reply says.
    fn shows_what_others_wrote(&self) -> bool;
}

/// A row of the table, as it was when the transaction locked it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredBucket {
    pub key: BucketKey,
    /// The state of the bucket in its packed form. `None` for a full bucket.
    pub packed: Option<Vec<u8>>,
}

/// What was decided, and the rows to write. The rows are stored before the reply is used.
#[derive(Debug)]
pub(super) struct Decision<R> {
    pub reply: R,
    pub writes: Writes,
}

/// The rows that a transaction changes, as one list for each column.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Writes {
    pub keys: Vec<Vec<u8>>,
    pub states: Vec<Vec<u8>>,
    pub until: Vec<i64>,
    /// The keys of rows that were inserted only to be locked.
    pub unused: Vec<Vec<u8>>,
}

impl Writes {
    /// Adds a row to write.
    pub(super) fn write(&mut self, key: &BucketKey, state: &[u64], kept_until: Timestamp) {
        self.keys.push(key.0.to_vec());
        self.states.push(pack(state));
        self.until.push(i64::try_from(kept_until.0).unwrap_or(i64::MAX));
    }

    /// Adds a row to remove, which has no state.
    pub(super) fn remove(&mut self, key: &BucketKey) {
        self.unused.push(key.0.to_vec());
    }
}
