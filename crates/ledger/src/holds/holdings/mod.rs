//! Keeps how much one owner holds of each bucket, how much of this the store knows, and the reports for the next call.
//!
//! There is no I/O here: time is an argument, and the caller passes on the store's answers. A bucket is kept from the
//! first ask until the store has acknowledged that nothing is held. The sums of settled costs are kept for eleven
//! minutes more.

mod held_bucket;

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::report::{EARLY, Owner, REPORT_EVERY, Report, SettledSums};
use super::slots::{SlotId, SlotTerms, Slots};
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use base::time::{Micros, Timestamp};
use held_bucket::{HeldBucket, ReportCount, Turn};

/// The largest number of reports in a call, if the call does not ask something of more buckets.
pub const MOST_REPORTS: usize = 256;

/// How long an owner keeps the sums of a bucket after its last report. A store keeps them for a shorter time, so an
/// owner that begins again at 0 never meets its old sum.
const SUMS_KEPT: Micros = Micros(660_000_000);

/// A call of an owner to the store, which says how much the owner holds of several buckets, and asks for more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub owner: Owner,
    pub sequence: u64,
    /// One report for each bucket. The buckets of which the call asks something come first.
    pub reports: Vec<BucketReport>,
}

/// What a call says about one bucket, and how much it asks of this bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BucketReport {
    pub bucket: BucketKey,
    pub held: Cost,
    /// The costs that the owner has settled of this bucket.
    pub settled: SettledSums,
    /// The amount that all requests of the call ask for, in addition to `held`.
    pub asked: Cost,
}

impl Call {
    /// Returns the report that the call sends to the store about a bucket.
    pub fn report(&self, about: &BucketReport) -> Report {
        Report { owner: self.owner, sequence: self.sequence, held: about.held, settled: about.settled }
    }
}

/// The store's answer to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportAnswer<'g> {
    /// The report was accepted. These slots were granted in the same call.
    Accepted { granted: &'g [SlotTerms] },
    /// The store has ignored the report, because it was not newer than the owner's last report.
    Old,
}

/// How much one owner holds of each bucket, and what the next call has to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holdings {
    owner: Owner,
    /// The sequence of the last call.
    sequence: u64,
    buckets: BTreeMap<BucketKey, HeldBucket>,
    slots: Slots,
    /// The buckets about which the next call has a report. The bucket that has waited longest is first.
    waiting: BTreeMap<u64, BucketKey>,
    last_place: u64,
    /// The moments at which the reports about other buckets are to be repeated.
    due: BTreeSet<(Timestamp, BucketKey)>,
}

impl Holdings {
    pub fn new(owner: Owner) -> Holdings {
        Holdings {
            owner,
            sequence: 0,
            buckets: BTreeMap::new(),
            slots: Slots::default(),
            waiting: BTreeMap::new(),
            last_place: 0,
            due: BTreeSet::new(),
        }
    }

    /// Makes the next call, with a report about each bucket in `asks`, and about other buckets that wait for a report,
    /// up to [`MOST_REPORTS`]. A call is sent only once.
    pub fn call(&mut self, asks: &[(BucketKey, Cost)], now: Timestamp) -> Call {
        let soon = if asks.is_empty() { now.plus(EARLY) } else { now };
        self.call_with(asks, MOST_REPORTS, soon, now)
    }

    /// Makes the next call as [`Holdings::call`] does, with at most `most` reports about buckets that are not in
    /// `asks`: those that wait, and those that are due at `soon` or earlier.
    pub fn call_with(&mut self, asks: &[(BucketKey, Cost)], most: usize, soon: Timestamp, now: Timestamp) -> Call {
        self.advance(now);
        let sequence = self.sequence + 1;
        let mut reports: Vec<BucketReport> = Vec::with_capacity(asks.len());
        for (key, amount) in asks {
            let bucket = self.track(*key);
            if let Some((last, asked)) = bucket.asked.last_mut()
                && *last == sequence
            {
                *asked = asked.plus(*amount);
                reports.iter_mut().filter(|report| report.bucket == *key).for_each(|report| report.asked = *asked);
                continue;
            }
            let (held, settled) = (bucket.said(), bucket.settled);
            reports.push(BucketReport { bucket: *key, held, settled, asked: *amount });
            bucket.asked.push((sequence, *amount));
            bucket.count_report();
            self.say_again_at(*key, now.plus(REPORT_EVERY));
        }
        while reports.len() < most
            && let Some(key) = self.next_report(soon)
        {
            let Some(bucket) = self.buckets.get_mut(&key) else { continue };
            let (held, settled, asked) = (bucket.said(), bucket.settled, Cost::default());
            reports.push(BucketReport { bucket: key, held, settled, asked });
            bucket.count_report();
            self.say_again_at(key, now.plus(REPORT_EVERY));
        }
        self.sequence = sequence;
        Call { owner: self.owner, sequence, reports }
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
        if let ReportAnswer::Accepted { .. } = answer {
            bucket.settled.from = bucket.settled.from.max(about.settled.to);
        }
        let slots = match answer {
            ReportAnswer::Old => {
                bucket.asked.retain(|(sequence, _)| *sequence != call.sequence);
                // The store has accepted a report of another call, so it is unknown what it counts.
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
        let held = self.track(bucket);
        held.held = held.held.plus(terms.amount);
        self.slots.add(bucket, terms, now)
    }

    /// Ends a slot that has not ended before.
    pub fn end(&mut self, slot: SlotId) {
        if let Some((bucket, amount)) = self.slots.end(slot) {
            self.lower(bucket, amount);
        }
    }

    /// Ends a slot that has not ended before, and counts what its request has spent.
    pub fn settle(&mut self, slot: SlotId, spent: Cost) {
        if let Some((bucket, amount)) = self.slots.end(slot) {
            // The bucket may be forgotten already.
            let held = self.track(bucket);
            held.settled.to = held.settled.to.plus(spent);
            self.lower(bucket, amount);
        }
    }

    /// Ends all slots, because the owner's process ends.
    pub fn end_all(&mut self) {
        self.slots.clear();
        let held: Vec<BucketKey> = self.buckets.keys().copied().collect();
        for key in held {
            if let Some(bucket) = self.buckets.get_mut(&key) {
                bucket.held = Cost::default();
            }
            self.wait(key);
            self.forget_if_unreported(key);
        }
    }

    fn lower(&mut self, key: BucketKey, amount: Cost) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.held = bucket.held.less(amount);
            self.wait(key);
            self.forget_if_unreported(key);
        }
    }

    /// Forgets a bucket of which nothing is held or asked, if no call has reported anything else. This keeps the list
    /// short while the store is down.
    fn forget_if_unreported(&mut self, key: BucketKey) {
        let is_unreported = |bucket: &HeldBucket| bucket.reported == ReportCount::None && bucket.is_idle();
        if let Some(turn) = self.buckets.get(&key).filter(|bucket| is_unreported(bucket)).map(|bucket| bucket.turn) {
            self.leave(key, turn);
            self.buckets.remove(&key);
        }
    }

    /// Ends the slots that have been held for their longest time. The next call repeats the reports that are due.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some((bucket, amount)) = self.slots.end_overdue(now) {
            self.lower(bucket, amount);
        }
        while self.due.first().is_some_and(|(due, _)| *due <= now)
            && let Some((due, key)) = self.due.pop_first()
        {
            // The store has dropped the owner's entry by now.
            match self.buckets.get(&key).is_some_and(HeldBucket::is_known_to_be_idle) {
                true => drop(self.buckets.remove(&key)),
                false => {
                    self.due.insert((due, key));
                    self.wait(key);
                }
            }
        }
    }

    /// Returns the time at which [`Holdings::advance`] must be called next. `None` if nothing will be due.
    pub fn next_moment(&self) -> Option<Timestamp> {
        let due = self.due.first().map(|(due, _)| *due);
        self.slots.next_end().into_iter().chain(due).min()
    }

    /// Returns whether buckets wait for a report, so that a call should be sent soon.
    pub fn has_reports(&self) -> bool {
        !self.waiting.is_empty()
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

    #[cfg(test)]
    pub(super) fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Removes and returns the bucket whose report is next: one that waits, or one whose report is due at `soon` or
    /// earlier.
    fn next_report(&mut self, soon: Timestamp) -> Option<BucketKey> {
        if let Some((_, key)) = self.waiting.pop_first() {
            return Some(key);
        }
        let (_, key) = *self.due.first().filter(|(due, _)| *due <= soon)?;
        self.due.pop_first();
        Some(key)
    }

    fn track(&mut self, key: BucketKey) -> &mut HeldBucket {
        if !self.buckets.contains_key(&key) {
            self.last_place += 1;
            self.waiting.insert(self.last_place, key);
        }
        let (newest, turn) = (self.sequence, Turn::Waiting(self.last_place));
        self.buckets.entry(key).or_insert_with(|| HeldBucket {
            held: Cost::default(),
            asked: SmallVec::new(),
            newest,
            acknowledged: None,
            settled: SettledSums::default(),
            reported: ReportCount::None,
            turn,
        })
    }

    /// Makes a bucket wait for a report, if the store does not know what is held or settled of it. Forgets a bucket of
    /// which nothing is held, at once or after `SUMS_KEPT`.
    fn review(&mut self, key: BucketKey, now: Timestamp) {
        let Some(bucket) = self.buckets.get(&key) else { return };
        if !bucket.asked.is_empty() || bucket.is_known() && bucket.held > Cost::default() {
            return;
        }
        if !bucket.is_known() {
            return self.wait(key);
        }
        if bucket.settled.to > Cost::default() {
            return self.say_again_at(key, now.plus(SUMS_KEPT));
        }
        let turn = bucket.turn;
        self.leave(key, turn);
        self.buckets.remove(&key);
    }

    fn wait(&mut self, key: BucketKey) {
        let place = self.last_place + 1;
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        let turn = bucket.turn;
        if let Turn::Due(_) = turn {
            bucket.turn = Turn::Waiting(place);
            self.last_place = place;
            self.leave(key, turn);
            self.waiting.insert(place, key);
        }
    }

    fn say_again_at(&mut self, key: BucketKey, moment: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(&key) else { return };
        let turn = std::mem::replace(&mut bucket.turn, Turn::Due(moment));
        self.leave(key, turn);
        self.due.insert((moment, key));
    }

    fn leave(&mut self, key: BucketKey, turn: Turn) {
        match turn {
            Turn::Waiting(place) => {
                self.waiting.remove(&place);
            }
            Turn::Due(moment) => {
                self.due.remove(&(moment, key));
            }
        }
    }
}

#[cfg(test)]
mod tests;
