//! Defines a change that an operator makes to the states of buckets.

use base::time::Timestamp;
use ledger::algorithm::Entry;
use ledger::bucket_key::BucketKey;

/// Computes the new entry of a bucket from its state at a moment. `None` leaves the bucket as it is. Called again if the bucket has
/// changed before the entry could be written.
pub type BucketChange<'c> = dyn Fn(&BucketKey, Option<&[u64]>, Timestamp) -> Option<Entry> + 'c;
