//! Does acts of leases on the states of their buckets, without I/O.

use super::batch::unpack;
use super::errors::unexpected_reply;
use super::work::{Decision, StoredBucket, Work, Writes};
use crate::error::Fault;
use crate::lease_acts::{ActResult, ActResults, BucketAct};
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::bucket_key::BucketKey;

/// The acts of a call, and the keys of their buckets in the order in which the rows are locked.
#[derive(Debug)]
pub(super) struct ActBatch<'a> {
    acts: &'a [BucketAct],
    keys: Vec<BucketKey>,
}

/// A bucket between two acts.
#[derive(Debug)]
struct Bucket {
    state: Option<State>,
    /// The moment until which to keep the state. `None` if no state has to be stored.
    kept_until: Option<Timestamp>,
}

impl<'a> ActBatch<'a> {
    pub(super) fn new(acts: &'a [BucketAct]) -> ActBatch<'a> {
        let mut keys: Vec<BucketKey> = acts.iter().map(|act| act.key).collect();
        keys.sort_unstable();
        keys.dedup();
        ActBatch { acts, keys }
    }
}

impl Work for ActBatch<'_> {
    type Reply = ActResults;

    fn keys(&self) -> &[BucketKey] {
        &self.keys
    }

    /// Does the acts one after the other.
    fn decide(&self, rows: &[StoredBucket], now: Timestamp) -> Result<Decision<ActResults>, Fault> {
        if !rows.iter().map(|row| &row.key).eq(&self.keys) {
            return Err(unexpected_reply("the lock of the buckets"));
        }
        // An invalid state is empty.
        let state = |row: &StoredBucket| row.packed.as_ref().map(|packed| unpack(packed).unwrap_or_default());
        let mut buckets: Vec<Bucket> = rows.iter().map(|row| Bucket { state: state(row), kept_until: None }).collect();
        let (mut healed, mut writes) = (0, Writes::default());
        let mut done = |BucketAct { key, limit, act, .. }: &BucketAct| {
            let bucket = self.keys.binary_search(key).ok().and_then(|index| buckets.get_mut(index))?;
            let state = bucket.state.as_deref();
            let is_healed = limit.correction(state, now).is_some();
            let (entry, reply) = act.apply(limit, state, now)?;
            if let Some(entry) = entry {
                healed += u64::from(is_healed);
                *bucket = Bucket { state: Some(entry.state), kept_until: Some(entry.kept_until) };
            }
            Some(ActResult::Done(reply))
        };
        let results = self.acts.iter().map(|act| done(act).unwrap_or(ActResult::OtherLimit)).collect();
        for (key, Bucket { state, kept_until }) in self.keys.iter().zip(buckets) {
            match (state, kept_until) {
                (None, _) => writes.remove(key),
                (Some(state), Some(until)) => writes.write(key, &state, until),
                (Some(_), None) => {}
            }
        }
        Ok(Decision { reply: ActResults { now, healed, results }, writes })
    }

    fn refuse(&self, _rows: &[StoredBucket], _now: Timestamp) -> Option<ActResults> {
        None
    }

    /// A word that is heard again is answered with what another transaction has written.
    fn shows_what_others_wrote(&self) -> bool {
        true
    }
}
