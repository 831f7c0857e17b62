//! Keeps a list in a store in parts, so that a new entry changes only a small value. A store keeps a part as it keeps a bucket, under a key
//! that no bucket has, so that the list needs no command, table or permission of its own.

use std::collections::HashMap;

use super::error::Fault;
use super::inspector::Inspector;
use base::time::Timestamp;
use ledger::algorithm::{Entry, State};
use ledger::bucket_key::BucketKey;

/// The number of parts of a list.
const PARTS: u8 = 64;
/// The number of parts that are read or changed in one call.
const BATCH: usize = 8;

impl Inspector {
    /// Adds entries to a list, each to the part that its bucket chooses. `key` returns the key of a part, and `joined` a part with entries
    /// added, or `None` if nothing changes.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request. Some entries may be added then.
    pub(crate) async fn add_to_parts<E>(
        &mut self,
        entries: &[E],
        bucket: impl Fn(&E) -> BucketKey,
        key: impl Fn(u8) -> BucketKey,
        joined: impl Fn(Option<&[u64]>, &[&E], Timestamp) -> Option<Entry>,
    ) -> Result<(), Fault> {
        let mut parts: HashMap<BucketKey, Vec<&E>> = HashMap::new();
        for entry in entries {
            let [first, ..] = bucket(entry).0;
            parts.entry(key(first % PARTS)).or_default().push(entry);
        }
        let mut keys: Vec<BucketKey> = parts.keys().copied().collect();
        // Several gateways lock rows in the same order.
        keys.sort_unstable();
        let add = |key: &BucketKey, state: Option<&[u64]>, now| joined(state, parts.get(key)?, now);
        for batch in keys.chunks(BATCH) {
            self.change(batch, &add).await?;
        }
        Ok(())
    }

    /// Returns the parts of a list that are stored, each with the store's time at which it was read.
    ///
    /// # Errors
    /// When the store gives no answer, or refuses the request.
    pub(crate) async fn parts(&mut self, key: impl Fn(u8) -> BucketKey) -> Result<Vec<(State, Timestamp)>, Fault> {
        let keys: Vec<BucketKey> = (0..PARTS).map(key).collect();
        let mut parts = Vec::new();
        for batch in keys.chunks(BATCH) {
            let (now, states) = self.states(batch).await?;
            parts.extend(states.into_iter().flatten().map(|state| (state, now)));
        }
        Ok(parts)
    }
}
