//! Decides many plans from the states of their buckets, without I/O.

use crate::error::Fault;
use crate::remote::transport::{BucketAfterCall, Reply, ReportResult, is_short};
use crate::reservation::granted_asks;
use base::time::{Micros, Timestamp};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, Settlement, refuse, settle};
use ledger::holds::{self, BucketReport};

use super::errors::unexpected_reply;
use super::work::{Decision, StoredBucket, Work, Writes};

/// The plans of a call, and the keys of their buckets in the order in which the rows are locked.
#[derive(Debug)]
pub(crate) struct Batch<'p> {
    plans: &'p [&'p Plan],
    reports: Option<&'p holds::Call>,
    keys: Vec<BucketKey>,
}

/// A bucket during the settlement of plans.
#[derive(Debug, Default)]
struct Bucket<'p> {
    state: Option<State>,
    /// The moment until which to keep the state. `None` if no state has to be stored.
    kept_until: Option<Timestamp>,
    /// The last enforced charge that spent from the bucket.
    last: Option<Last<'p>>,
}

#[derive(Clone, Copy, Debug)]
struct Last<'p> {
    short: bool,
    reset_after: Micros,
    algorithm: &'p Algorithm,
}

impl<'p> Batch<'p> {
    pub(super) fn new(plans: &'p [&'p Plan], reports: Option<&'p holds::Call>) -> Batch<'p> {
        let charged = plans.iter().flat_map(|plan| plan.charges().map(|charge| charge.key));
        let reported = reports.iter().flat_map(|call| call.reports.iter().map(|report| report.bucket));
        let mut keys: Vec<BucketKey> = charged.chain(reported).collect();
        keys.sort_unstable();
        keys.dedup();
        Batch { plans, reports, keys }
    }

    /// Writes the reports into the states. Returns the result of each report.
    fn accept(&self, buckets: &mut [Bucket<'_>], now: Timestamp) -> Vec<ReportResult> {
        let mut accept = |call: &holds::Call, report: &BucketReport| {
            let bucket = self.index(&report.bucket).and_then(|index| buckets.get_mut(index));
            let Some(bucket) = bucket else { return ReportResult::Old };
            match report.limit.accept(bucket.state.as_deref(), call.report(report), now) {
                Some(entry) => {
                    bucket.state = Some(entry.state);
                    bucket.kept_until = Some(entry.kept_until);
                    ReportResult::Accepted
                }
                None if report.limit.has_settled(bucket.state.as_deref(), call.owner, now) => {
                    ReportResult::SettledBefore
                }
                None => ReportResult::Old,
            }
        };
        self.reports.map_or(Vec::new(), |call| call.reports.iter().map(|report| accept(call, report)).collect())
    }

    /// Undoes the reports of a timed hold about the buckets of which it was granted nothing. `found` are the states before the
    /// reports.
    fn withdraw(&self, buckets: &mut [Bucket<'_>], found: Vec<Option<State>>, settlements: &[Option<Settlement>]) {
        let settled = || self.plans.iter().zip(settlements);
        let is_granted = |key: &BucketKey| {
            let granted = |(plan, settlement): (&&Plan, &Option<Settlement>)| {
                settlement
                    .as_ref()
                    .is_some_and(|settled| granted_asks(plan, settled).any(|(charge, _)| charge.key == *key))
            };
            settled().any(granted)
        };
        for (_, charge, _) in
            self.plans.iter().flat_map(|plan| plan.asks()).filter(|(_, charge, _)| !is_granted(&charge.key))
        {
            let place = self.index(&charge.key);
            if let Some((bucket, state)) = place.and_then(|index| Some((buckets.get_mut(index)?, found.get(index)?))) {
                (bucket.state, bucket.kept_until) = (state.clone(), None);
            }
        }
    }

    fn index(&self, key: &BucketKey) -> Option<usize> {
        self.keys.binary_search(key).ok()
    }
}

impl Work for Batch<'_> {
    type Reply = Reply;

    fn keys(&self) -> &[BucketKey] {
        &self.keys
    }

    /// Decides the plans one after the other.
    fn decide(&self, rows: &[StoredBucket], now: Timestamp) -> Result<Decision<Reply>, Fault> {
        if !rows.iter().map(|row| &row.key).eq(&self.keys) {
            return Err(unexpected_reply("the lock of the buckets"));
        }
        let (mut buckets, healed) = buckets(rows);
        let timed = self.reports.filter(|call| call.owner.is_timed());
        let found: Vec<Option<State>> =
            timed.iter().flat_map(|_| buckets.iter().map(|bucket| bucket.state.clone())).collect();
        let reports = self.accept(&mut buckets, now);
        let mut settlements = Vec::with_capacity(self.plans.len());
        for &plan in self.plans {
            if self.reports.is_some_and(|call| is_overtaken(plan, call, &reports)) {
                settlements.push(None);
                continue;
            }
            let found: Vec<usize> = plan.charges().filter_map(|charge| self.index(&charge.key)).collect();
            let states: Vec<Option<&State>> =
                found.iter().map(|index| buckets.get(*index).and_then(|bucket| bucket.state.as_ref())).collect();
            let (settlement, entries) = settle(plan, &states, now);
            for (index, entry) in found.iter().zip(entries) {
                if let (Some(bucket), Some(entry)) = (buckets.get_mut(*index), entry) {
                    bucket.state = Some(entry.state);
                    bucket.kept_until = Some(entry.kept_until);
                }
            }
            for ((index, outcome), charge) in found.iter().zip(&settlement.enforced).zip(&plan.enforced) {
                if plan.checks_what_is_spent(charge) || charge.algorithm.slots().is_some() {
                    continue;
                }
                let short = is_short(charge, outcome);
                if let Some(bucket) = buckets.get_mut(*index) {
                    bucket.last = Some(Last { short, reset_after: outcome.reset_after, algorithm: &charge.algorithm });
                }
            }
            settlements.push(Some(settlement));
        }
        if timed.is_some() {
            self.withdraw(&mut buckets, found, &settlements);
        }
        let (mut writes, mut left) = (Writes::default(), Vec::new());
        for (key, Bucket { state, kept_until, last }) in self.keys.iter().zip(buckets) {
            match (&state, kept_until) {
                (None, _) => writes.remove(key),
                (Some(state), Some(until)) => writes.write(key, state, until),
                (Some(_), None) => {}
            }
            if let Some(Last { short, reset_after, algorithm }) = last {
                let ban = algorithm.running_ban(state.as_deref(), now);
                let state = state.map(|state| algorithm.excerpt(state));
                left.push(BucketAfterCall { key: *key, state, short, reset_after, ban });
            }
        }
        Ok(Decision { reply: Reply { now, healed, settlements, left, reports, out_of_memory: false }, writes })
    }

    /// Refuses the plans that the buckets cannot pay. The other plans are left undecided, and no report is accepted. `None` if no plan
    /// is refused.
    fn refuse(&self, rows: &[StoredBucket], now: Timestamp) -> Option<Reply> {
        let (mut buckets, _) = buckets(rows);
        let reports = self.accept(&mut buckets, now);
        let refused = |plan: &&Plan| {
            let bucket = |key: &BucketKey| self.index(key).and_then(|index| buckets.get(index));
            let states: Vec<Option<&State>> =
                plan.charges().map(|charge| bucket(&charge.key).and_then(|bucket| bucket.state.as_ref())).collect();
            let is_overtaken = self.reports.is_some_and(|call| is_overtaken(plan, call, &reports));
            if is_overtaken { None } else { refuse(plan, &states, now) }
        };
        let settlements: Vec<_> = self.plans.iter().map(refused).collect();
        let is_any_refused = settlements.iter().any(Option::is_some);
        is_any_refused.then(|| Reply { now, healed: 0, settlements, left: Vec::new(), reports, out_of_memory: true })
    }

    fn shows_what_others_wrote(&self) -> bool {
        false
    }
}

/// Returns the buckets of locked rows, and how many had an invalid state.
fn buckets<'p>(rows: &[StoredBucket]) -> (Vec<Bucket<'p>>, u64) {
    let mut healed = 0;
    let mut bucket = |row: &StoredBucket| {
        let state = row.packed.as_ref().map(|packed| {
            unpack(packed).unwrap_or_else(|| {
                healed += 1;
                State::new()
            })
        });
        Bucket { state, ..Bucket::default() }
    };
    let buckets = rows.iter().map(&mut bucket).collect();
    (buckets, healed)
}

/// Whether a plan asks something of a bucket whose report was not accepted.
fn is_overtaken(plan: &Plan, call: &holds::Call, results: &[ReportResult]) -> bool {
    let is_accepted = |result: &ReportResult| *result == ReportResult::Accepted;
    if results.iter().all(is_accepted) {
        return false;
    }
    let is_old =
        |key| call.reports.iter().zip(results).any(|(report, result)| report.bucket == key && !is_accepted(result));
    plan.asks().any(|(_, charge, _)| is_old(charge.key))
}

/// Packs a state into bytes: each integer takes eight bytes, little-endian, as in Redis.
pub(super) fn pack(state: &[u64]) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Unpacks a state. `None` if the bytes are not a list of integers.
pub(super) fn unpack(packed: &[u8]) -> Option<State> {
    let (reports, rest) = packed.as_chunks::<8>();
    rest.is_empty().then(|| reports.iter().map(|report| u64::from_le_bytes(*report)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plan_spends_is_reported_although_it_also_checks_the_bucket() {
        let plan = Plan::of_one_bucket_spent_and_checked();
        let plans = [&plan];
        let row = StoredBucket { key: BucketKey([1; 16]), packed: None };
        let reply = Batch::new(&plans, None).decide(&[row], Timestamp(1 << 50)).unwrap().reply;
        let left: Vec<_> = reply.left.iter().map(|bucket| (bucket.short, bucket.reset_after)).collect();
        assert_eq!(left, [(false, Micros(3_000_000))]);
    }
}
