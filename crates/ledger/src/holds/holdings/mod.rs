//! Keeps how much one owner holds of each bucket, how much of this the store knows, and the reports for the next call.
//!
//! There is no I/O here: time is an argument, and the caller passes on the store's answers. A bucket is kept from the
//! first ask until the store has acknowledged that nothing is held. The sums of settled costs are kept for eleven
//! minutes more.
//!
//! The memory for requests that have ended is bounded. The sums of at most `most_sums` buckets are kept. Beyond that,
//! the oldest sums are forgotten. If such a bucket is used again, its sums begin at 0, and a report tells the store so.
//! No cost is lost, unless the store fails over and the new server lacks this report. While the store gives no answer,
//! the costs of buckets beyond this bound are lost.

mod call;
mod held_bucket;
mod turns;

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::report::{EARLY, LIFE, Owner, REPORT_EVERY, SettledSums};
use super::slots::{SlotId, SlotTerms, Slots};
use crate::algorithm::Algorithm;
use crate::algorithm::concurrency::Concurrency;
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use base::time::{Micros, Timestamp};
pub use call::{BucketReport, Call, ReportAnswer};
pub use held_bucket::SettledCost;
use held_bucket::{HeldBucket, HeldBudget, ReportCount};
use turns::{Turn, Turns};

/// The largest number of reports in a call, if the call does not ask something of more buckets.
pub const MOST_REPORTS: usize = 256;

/// How long an owner keeps the sums of a bucket after its last report. A store keeps them for a shorter time, so an
/// owner that begins again at 0 never meets its old sum.
const SUMS_KEPT: Micros = Micros(660_000_000);

/// The largest number of buckets whose costs wait for the store, and of buckets whose sums are only kept. Each takes less
/// than 400 bytes.
pub const MOST_SUMS: usize = 65_536;

/// The largest cost of one request. A larger cost counts as this cost, which is as large as the limit of any budget.
const MOST_COST: Cost = Cost::from_thousandths(1 << 50);

/// The sum of settled costs from which an owner begins a new sum, as soon as the store has charged all of it.
const NEW_SUM: Cost = Cost::from_thousandths(1 << 51);

/// How much one owner holds of each bucket, and what the next call has to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holdings {
    owner: Owner,
    /// The sequence of the last call.
    sequence: u64,
    buckets: BTreeMap<BucketKey, HeldBucket>,
    slots: Slots,
    turns: Turns,
    /// The number of buckets with costs or resets that the store has not accepted.
    uncharged: usize,
    /// The bound of `uncharged`, and of the buckets of which only the sums are kept.
    most_sums: usize,
}

impl Holdings {
    pub fn new(owner: Owner) -> Holdings {
        Holdings::with_most_sums(owner, MOST_SUMS)
    }

    /// Makes holdings with another bound than [`MOST_SUMS`].
    pub fn with_most_sums(owner: Owner, most_sums: usize) -> Holdings {
        Holdings {
            owner,
            sequence: 0,
            buckets: BTreeMap::new(),
            slots: Slots::default(),
            turns: Turns::default(),
            uncharged: 0,
            most_sums,
        }
    }

    /// Makes the next call, with a report about each bucket in `asks`. Reports about other buckets that wait for a
    /// report are added, up to [`MOST_REPORTS`]. A call is sent only once.
    pub fn call(&mut self, asks: &[(BucketKey, SlotTerms)], now: Timestamp) -> Call {
        let soon = if asks.is_empty() { now.plus(EARLY) } else { now };
        self.call_with(asks, MOST_REPORTS, soon, now)
    }

    /// Makes the next call as [`Holdings::call`] does, with at most `most` reports about buckets that are not in
    /// `asks`: those that wait, and those that are due at `soon` or earlier.
    pub fn call_with(&mut self, asks: &[(BucketKey, SlotTerms)], most: usize, soon: Timestamp, now: Timestamp) -> Call {
        self.advance(now);
        let sequence = self.sequence + 1;
        let mut reports: Vec<BucketReport> = Vec::with_capacity(asks.len());
        for (key, SlotTerms { amount, algorithm }) in asks {
            let bucket = self.track(*key, algorithm);
            if let Some((last, asked)) = bucket.asked.last_mut()
                && *last == sequence
            {
                *asked = asked.plus(*amount);
                reports.iter_mut().filter(|report| report.bucket == *key).for_each(|report| report.asked = *asked);
                continue;
            }
            let (held, settled) = (bucket.said(), bucket.settled());
            reports.push(BucketReport { bucket: *key, limit: *algorithm, held, settled, asked: *amount });
            bucket.asked.push((sequence, *amount));
            bucket.count_report();
            self.say_again_at(*key, now.plus(REPORT_EVERY));
        }
        while reports.len() < most
            && let Some(key) = self.turns.next_report(soon)
        {
            let Some(bucket) = self.buckets.get_mut(&key) else { break };
            let limit = match &bucket.budget {
                Some(budget) => Algorithm::Budget(budget.limit),
                None => Algorithm::Concurrency(Concurrency::MOST),
            };
            let (held, settled, asked) = (bucket.said(), bucket.settled(), Cost::default());
            reports.push(BucketReport { bucket: key, limit, held, settled, asked });
            bucket.count_report();
            self.say_again_at(key, now.plus(REPORT_EVERY));
        }
        self.sequence = sequence;
        Call { owner: self.owner, sequence, life: LIFE, reports }
    }

    /// Records the store's answer to a report of a call, and returns the slots that were granted. `None` if the answer
    /// does not count: the report was old, or this or a later report about the bucket has been answered before. Then
    /// all requests that asked for this bucket in the call fail.
    pub fn answered(
        &mut self,
        call: &Call,
        about: &BucketReport,
        answer: ReportAnswer<'_>,
        now: Timestamp,
    ) -> Option<SmallVec<[SlotId; 2]>> {
        let bucket = self.buckets.get_mut(&about.bucket)?;
        let was_charged = bucket.has_charged_all();
        if let (ReportAnswer::Accepted { .. }, Some(budget)) = (answer, &mut bucket.budget)
            && call.sequence > budget.began
        {
            let (own, said) = (&mut budget.settled, about.settled);
            own.from = own.from.max(said.to);
            own.resets.accepted = own.resets.accepted.max(said.resets.count);
            budget.has_begun = true;
        }
        if bucket.has_charged_all() && !was_charged {
            self.uncharged = self.uncharged.saturating_sub(1);
        }
        let slots = match answer {
            ReportAnswer::OutsidePeriod => {
                bucket.asked.retain(|(sequence, _)| *sequence != call.sequence);
                self.wait(about.bucket);
                return None;
            }
            ReportAnswer::Old => {
                bucket.asked.retain(|(sequence, _)| *sequence != call.sequence);
                // The store has accepted a report of another call, so the owner does not know what the store counts.
                bucket.acknowledged = None;
                None
            }
            ReportAnswer::Accepted { .. } if call.sequence <= bucket.newest => return None,
            ReportAnswer::Accepted { granted } => {
                bucket.newest = call.sequence;
                // After the answer "old" to a copy of the call, the requests have already failed.
                let is_awaited = bucket.asked.iter().any(|(sequence, _)| *sequence == call.sequence);
                bucket.asked.retain(|(sequence, _)| *sequence > call.sequence);
                let sum = granted.iter().fold(about.held, |sum, terms| sum.plus(terms.amount));
                bucket.acknowledged = Some(sum);
                let is_void = !granted.is_empty() && !is_awaited;
                (!is_void).then(|| granted.iter().map(|terms| self.hold(about.bucket, *terms, now)).collect())
            }
        };
        self.review(about.bucket, now);
        slots
    }

    /// Records that a call will not be answered. Its reports are repeated in the next call.
    pub fn lost(&mut self, call: &Call) {
        for report in &call.reports {
            if let Some(bucket) = self.buckets.get_mut(&report.bucket) {
                bucket.join_asked(call.sequence);
            }
            self.wait(report.bucket);
        }
    }

    /// Records that a call is proved not to have run. The amounts that it asked for are no longer reported as held.
    /// Its other reports are repeated in the next call.
    pub fn did_not_run(&mut self, call: &Call) {
        for report in &call.reports {
            if let Some(bucket) = self.buckets.get_mut(&report.bucket) {
                bucket.asked.retain(|(sequence, _)| *sequence != call.sequence);
                bucket.reported = if bucket.reported == ReportCount::One { ReportCount::None } else { bucket.reported };
            }
            self.wait(report.bucket);
            self.forget_if_unreported(report.bucket);
        }
    }

    /// Records that the connection to the store is new. The reports about all buckets are repeated.
    pub fn reconnected(&mut self) {
        let is_active = |bucket: &HeldBucket| !bucket.is_known_to_be_idle();
        let keys: Vec<BucketKey> =
            self.buckets.iter().filter(|(_, bucket)| is_active(bucket)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.wait(key));
    }

    /// Holds a slot that the store has not granted.
    pub fn hold(&mut self, bucket: BucketKey, terms: SlotTerms, now: Timestamp) -> SlotId {
        let held = self.track(bucket, &terms.algorithm);
        held.held = held.held.plus(terms.amount);
        held.budget.iter_mut().for_each(|budget| budget.slots += 1);
        if let Turn::Kept(_) = held.turn {
            self.wait(bucket);
        }
        self.slots.add(bucket, terms, now)
    }

    /// Ends a slot that has not ended before.
    pub fn end(&mut self, slot: SlotId) {
        if let Some((bucket, amount)) = self.slots.end(slot) {
            self.lower(bucket, amount);
        }
    }

    /// Ends a slot of a budget that has not ended before, and counts what its request has spent.
    pub fn settle(&mut self, slot: SlotId, spent: Cost) -> SettledCost {
        self.settle_with(slot, 0, spent)
    }

    /// Ends a slot as [`Holdings::settle`] does, after a reset: what was spent of the bucket before is forgotten.
    pub fn reset(&mut self, slot: SlotId, spent: Cost) -> SettledCost {
        self.settle_with(slot, 1, spent)
    }

    fn settle_with(&mut self, slot: SlotId, resets: u64, spent: Cost) -> SettledCost {
        let Some((bucket, amount)) = self.slots.end(slot) else { return SettledCost::Kept };
        let mut cost = SettledCost::Kept;
        if let Some(held) = self.buckets.get_mut(&bucket).filter(|_| spent > Cost::default() || resets > 0) {
            let is_first = held.has_charged_all();
            match &mut held.budget {
                Some(_) if is_first && self.uncharged >= self.most_sums => cost = SettledCost::Lost,
                Some(budget) => {
                    if resets > 0 {
                        budget.settled.resets.count += resets;
                        budget.settled.resets.sum = budget.settled.to;
                        budget.counted = budget.counted.max(budget.settled.to);
                    }
                    // A server that names an absurd cost must not bring the sum to the largest number that a store knows.
                    budget.settled.to = budget.settled.to.plus(spent.min(MOST_COST));
                    self.uncharged += usize::from(is_first);
                }
                None => {}
            }
        }
        self.lower(bucket, amount);
        cost
    }

    /// Returns the settled costs of a bucket, except those that the store has accepted or this function has returned
    /// before. A decision without the store charges them to its share of the limit.
    pub fn count_settled(&mut self, bucket: &BucketKey) -> Cost {
        let Some(budget) = self.buckets.get_mut(bucket).and_then(|bucket| bucket.budget.as_mut()) else {
            return Cost::default();
        };
        let SettledSums { from, to, .. } = budget.settled;
        let counted = std::mem::replace(&mut budget.counted, to);
        to.less(from.max(counted))
    }

    /// Ends all slots, because the owner's process ends.
    pub fn end_all(&mut self) {
        self.slots.clear();
        let is_only_kept = |bucket: &HeldBucket| matches!(bucket.turn, Turn::Kept(_));
        let used = self.buckets.iter().filter(|(_, bucket)| !is_only_kept(bucket));
        let used: Vec<BucketKey> = used.map(|(key, _)| *key).collect();
        for key in used {
            if let Some(bucket) = self.buckets.get_mut(&key) {
                bucket.held = Cost::default();
                bucket.budget.iter_mut().for_each(|budget| budget.slots = 0);
            }
            self.wait(key);
            self.forget_if_unreported(key);
        }
    }

    fn lower(&mut self, key: BucketKey, amount: Cost) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.held = bucket.held.less(amount);
            bucket.budget.iter_mut().for_each(|budget| budget.slots = budget.slots.saturating_sub(1));
            self.wait(key);
            self.forget_if_unreported(key);
        }
    }

    /// Forgets a bucket of which nothing is held or asked, if no call has had a report about it. This keeps the list
    /// short while the store is down.
    fn forget_if_unreported(&mut self, key: BucketKey) {
        let is_unreported = |bucket: &HeldBucket| bucket.reported == ReportCount::None && bucket.is_idle();
        if self.buckets.get(&key).is_some_and(is_unreported) {
            self.forget(key);
        }
    }

    /// Ends the slots that have been held for their longest time. The next call repeats the reports that are due.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some((bucket, amount)) = self.slots.end_overdue(now) {
            self.lower(bucket, amount);
        }
        while let Some(key) = self.turns.next_due(now) {
            self.wait(key);
        }
        // The store has dropped the owner's entries.
        while let Some(key) = self.turns.next_forgotten(now) {
            self.forget(key);
        }
    }

    /// Returns the time at which [`Holdings::advance`] must be called next. `None` if nothing will be due.
    pub fn next_moment(&self) -> Option<Timestamp> {
        self.slots.next_end().into_iter().chain(self.turns.next_moment()).min()
    }

    /// Returns whether buckets wait for a report, so that a call should be sent soon.
    pub fn has_reports(&self) -> bool {
        self.turns.has_waiting()
    }

    /// Returns whether the store knows what is held of every bucket.
    pub fn is_reported(&self) -> bool {
        self.buckets.values().all(|bucket| bucket.asked.is_empty() && bucket.is_known())
    }

    /// Returns the amount that this owner's slots hold of a bucket.
    pub fn held(&self, bucket: &BucketKey) -> Cost {
        self.buckets.get(bucket).map_or(Cost::default(), |bucket| bucket.held)
    }

    /// Returns the amount that was asked of a bucket in calls without an answer.
    pub fn unanswered(&self, bucket: &BucketKey) -> Cost {
        self.buckets.get(bucket).map_or(Cost::default(), HeldBucket::unanswered)
    }

    /// Returns whether an answer to the call with this sequence would still count.
    #[cfg(test)]
    pub(super) fn waits_for(&self, bucket: &BucketKey, sequence: u64) -> bool {
        let asked = self.buckets.get(bucket).map(|bucket| &bucket.asked);
        asked.is_some_and(|asked| asked.iter().any(|(call, _)| *call == sequence))
    }

    /// Returns the amount in the next report about a bucket.
    #[cfg(test)]
    pub(super) fn said(&self, bucket: &BucketKey) -> Option<Cost> {
        self.buckets.get(bucket).map(HeldBucket::said)
    }

    /// Forgets the sums of all buckets of which only the sums are kept.
    #[cfg(test)]
    pub(super) fn forget_all_sums(&mut self) {
        while let Some(key) = self.turns.kept_beyond(0) {
            self.forget(key);
        }
    }

    #[cfg(test)]
    pub(super) fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns what is kept of a bucket, and begins to keep it if necessary. `limit` is the limit of an ask or a slot.
    fn track(&mut self, key: BucketKey, limit: &Algorithm) -> &mut HeldBucket {
        let began = self.sequence;
        let bucket = self.buckets.entry(key).or_insert_with(|| HeldBucket {
            held: Cost::default(),
            asked: SmallVec::new(),
            newest: began,
            acknowledged: None,
            budget: None,
            reported: ReportCount::None,
            turn: self.turns.wait(key),
        });
        if let Algorithm::Budget(limit) = limit {
            let (settled, counted) = (SettledSums::default(), Cost::default());
            let new = HeldBudget { limit: *limit, settled, counted, slots: 0, began, has_begun: false };
            bucket.budget.get_or_insert_with(|| Box::new(new)).limit = *limit;
        }
        bucket
    }

    /// Makes a bucket wait for a report, if the store does not know what is held or settled. Forgets a bucket of which
    /// nothing is held, at once or after `SUMS_KEPT`.
    fn review(&mut self, key: BucketKey, now: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        bucket.begin_new_sum(self.sequence);
        if !bucket.asked.is_empty() || bucket.is_known() && bucket.held > Cost::default() {
            return;
        }
        if !bucket.is_known() {
            return self.wait(key);
        }
        if !bucket.is_idle() {
            // Only slots without an amount are left.
            return self.say_again_at(key, now.plus(SUMS_KEPT));
        }
        if bucket.settled().to > Cost::default() {
            return self.keep_sums(key, now.plus(SUMS_KEPT));
        }
        self.forget(key);
    }

    fn forget(&mut self, key: BucketKey) {
        if let Some(bucket) = self.buckets.remove(&key) {
            self.turns.leave(key, bucket.turn);
        }
    }

    fn wait(&mut self, key: BucketKey) {
        if let Some(bucket) = self.buckets.get_mut(&key)
            && !matches!(bucket.turn, Turn::Waiting(_))
        {
            self.turns.leave(key, bucket.turn);
            bucket.turn = self.turns.wait(key);
        }
    }

    fn say_again_at(&mut self, key: BucketKey, moment: Timestamp) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            self.turns.leave(key, bucket.turn);
            bucket.turn = self.turns.due_at(moment, key);
        }
    }

    fn keep_sums(&mut self, key: BucketKey, end: Timestamp) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            self.turns.leave(key, bucket.turn);
            bucket.turn = self.turns.keep_until(end, key);
        }
        if let Some(oldest) = self.turns.kept_beyond(self.most_sums) {
            self.forget(oldest);
        }
    }
}

#[cfg(test)]
mod tests;
