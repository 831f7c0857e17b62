//! Keeps how much one owner holds of each bucket, how much of this the store knows, and the reports for the next call.
//!
//! The code does no I/O and is the same for every transport: time is an argument, and the caller passes on the store's
//! answers. A bucket is kept from the first ask until the store has acknowledged that nothing of the bucket is held. If costs
//! of the bucket were settled, their sums are kept for eleven minutes more.

mod held_bucket;

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::report::{EARLY, Owner, REPORT_EVERY, Report, SettledSums};
use super::slots::{SlotId, SlotTerms, Slots};
use crate::bucket_key::BucketKey;
use crate::cost::Cost;
use base::time::{Micros, Timestamp};
use held_bucket::{HeldBucket, ReportCount, Turn};

/// The largest number of reports in a call. A call has more reports only if it asks something of more buckets than
/// this. Then it has one report for each of these buckets.
pub const MOST_REPORTS: usize = 256;

/// How long an owner keeps the sums of a bucket after its last report. A store keeps the owner's entry for a shorter time, so
/// an owner that begins again at 0 never meets its own old sum.
const SUMS_KEPT: Micros = Micros(660_000_000);

/// A call of an owner to the store, which says how much the owner holds of several buckets, and asks for more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub owner: Owner,
    pub sequence: u64,
    /// One report for each bucket. Buckets of which the call asks something come first, in the order of the asks.
    pub reports: Vec<BucketReport>,
}

/// What a call says about one bucket, and how much the call asks of this bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BucketReport {
    pub bucket: BucketKey,
    pub held: Cost,
    /// The costs that the owner has settled of this bucket.
    pub settled: SettledSums,
    /// The amount that all requests of the call together ask for, in addition to `held`.
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
    /// The report was newer than the owner's last report about the bucket, and was accepted. These slots were granted in the same
    /// call.
    Accepted { granted: &'g [SlotTerms] },
    /// The report was not newer than the owner's last report about the bucket, so the store has ignored it.
    Old,
}

/// How much one owner holds of each bucket, and what the owner has to say about these buckets in the next call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holdings {
    owner: Owner,
    /// The sequence of the last call.
    sequence: u64,
    buckets: BTreeMap<BucketKey, HeldBucket>,
    slots: Slots,
    /// The buckets about which the next call has a report, ordered by how long they have waited, the longest first.
    waiting: BTreeMap<u64, BucketKey>,
    last_place: u64,
    /// The moments at which the reports about buckets that are not in `waiting` are to be repeated.
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

    /// Makes the next call, with a report about each bucket in `asks`, and about other buckets that wait for a report, up
    /// to [`MOST_REPORTS`]. A call is sent only once: to repeat its reports, make a new call.
    pub fn call(&mut self, asks: &[(BucketKey, Cost)], now: Timestamp) -> Call {
        let soon = if asks.is_empty() { now.plus(EARLY) } else { now };
        self.call_with(asks, MOST_REPORTS, soon, now)
    }

    /// Makes the next call as [`Holdings::call`] does. Reports about buckets that are not in `asks` are added only up to
    /// `most` reports: those that wait, and those that are due at `soon` or earlier. A call without requests takes those of the
    /// next [`EARLY`], so that the reports about many buckets leave in a few calls.
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

    /// Records the store's answer to a report of a call, and returns the slots that were granted. `None` if the answer does not
    /// count, because the report was old, or because the call or a later report about this bucket has been answered before. Then
    /// all requests that asked for this bucket in the call fail, as if the store had not answered.
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
                // The store has accepted a report of another call, so the amount that the store counts is unknown here.
                bucket.acknowledged = None;
                None
            }
            ReportAnswer::Accepted { .. } if call.sequence <= bucket.newest => return None,
            ReportAnswer::Accepted { granted } => {
                bucket.newest = call.sequence;
                // A copy of the call may have been answered before, with "old". Then the requests that asked have
                // already failed.
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

    /// Records that a call will not be answered. The call's reports are repeated in the next call. The amounts that
    /// this call and earlier calls without an answer asked for are joined to one amount, so that the list of amounts
    /// stays short.
    pub fn lost(&mut self, call: &Call) {
        for report in &call.reports {
            if let Some(bucket) = self.buckets.get_mut(&report.bucket) {
                bucket.join_asked(call.sequence);
            }
            self.wait(report.bucket);
        }
    }

    /// Records that a call is proved not to have run, and will not run later. The amounts that the call asked for are
    /// no longer reported as held. The call's reports are repeated in the next call, except for reports about buckets
    /// of which nothing is held and that no other call has reported.
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

    /// Records that the connection to the store is new. The reports about all buckets are repeated in the next calls.
    pub fn reconnected(&mut self) {
        let is_active = |bucket: &HeldBucket| !bucket.is_known_to_be_idle();
        let keys: Vec<BucketKey> =
            self.buckets.iter().filter(|(_, bucket)| is_active(bucket)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.wait(key));
    }

    /// Holds a slot that the store has not granted. Used when a request is let pass although the store has failed.
    pub fn hold(&mut self, bucket: BucketKey, terms: SlotTerms, now: Timestamp) -> SlotId {
        let held = self.track(bucket);
        held.held = held.held.plus(terms.amount);
        self.slots.add(bucket, terms, now)
    }

    /// Ends a slot. Does nothing if the slot has ended before.
    pub fn end(&mut self, slot: SlotId) {
        if let Some((bucket, amount)) = self.slots.end(slot) {
            self.lower(bucket, amount);
        }
    }

    /// Ends a slot, and counts what its request has spent in place of the amount of the slot. Does nothing if the slot has
    /// ended before.
    pub fn settle(&mut self, slot: SlotId, spent: Cost) {
        if let Some((bucket, amount)) = self.slots.end(slot) {
            // A bucket of which only slots without an amount are left may be forgotten already.
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

    /// Forgets a bucket of which nothing is held or asked, if no call has reported anything else. Otherwise the buckets
    /// of all requests that pass while the store is down would be kept until the store answers.
    fn forget_if_unreported(&mut self, key: BucketKey) {
        let is_unreported = |bucket: &HeldBucket| bucket.reported == ReportCount::None && bucket.is_idle();
        if let Some(turn) = self.buckets.get(&key).filter(|bucket| is_unreported(bucket)).map(|bucket| bucket.turn) {
            self.leave(key, turn);
            self.buckets.remove(&key);
        }
    }

    /// Ends the slots that have been held for their longest time. Makes the next call repeat the reports that are due.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some((bucket, amount)) = self.slots.end_overdue(now) {
            self.lower(bucket, amount);
        }
        while self.due.first().is_some_and(|(due, _)| *due <= now)
            && let Some((due, key)) = self.due.pop_first()
        {
            // A bucket whose sums were kept for long enough is forgotten: the store has dropped the owner's entry.
            match self.buckets.get(&key).is_some_and(HeldBucket::is_known_to_be_idle) {
                true => drop(self.buckets.remove(&key)),
                false => {
                    self.due.insert((due, key));
                    self.wait(key);
                }
            }
        }
    }

    /// Returns the time at which [`Holdings::advance`] must be called next, or `None` if nothing will be due.
    pub fn next_moment(&self) -> Option<Timestamp> {
        let due = self.due.first().map(|(due, _)| *due);
        self.slots.next_end().into_iter().chain(due).min()
    }

    /// Returns whether buckets wait for a report, so that a call should be sent as soon as no other call is under way.
    pub fn has_reports(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether the store knows what is held of every bucket, as far as the last answers show.
    pub fn is_reported(&self) -> bool {
        self.buckets.values().all(|bucket| bucket.asked.is_empty() && bucket.is_known())
    }

    /// Returns the amount that this owner's slots hold of a bucket.
    pub fn held(&self, bucket: &BucketKey) -> Cost {
        self.buckets.get(bucket).map_or(Cost::default(), |bucket| bucket.held)
    }

    /// Returns the amount that was asked of a bucket in calls that have not been answered.
    pub fn unanswered(&self, bucket: &BucketKey) -> Cost {
        self.buckets.get(bucket).map_or(Cost::default(), HeldBucket::unanswered)
    }

    /// Returns whether an answer to the call with this sequence would still count for the bucket.
    #[cfg(test)]
    pub(super) fn waits_for(&self, bucket: &BucketKey, sequence: u64) -> bool {
        let asked = self.buckets.get(bucket).map(|bucket| &bucket.asked);
        asked.is_some_and(|asked| asked.iter().any(|(call, _)| *call == sequence))
    }

    /// Returns the amount in the next report about a bucket. Returns `None` if the owner does not keep the bucket.
    #[cfg(test)]
    pub(super) fn said(&self, bucket: &BucketKey) -> Option<Cost> {
        self.buckets.get(bucket).map(HeldBucket::said)
    }

    #[cfg(test)]
    pub(super) fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Removes and returns the bucket whose report is next: one that waits for a report, or else one whose report is due
    /// at `soon` or earlier.
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

    /// Makes a bucket wait for a report in the next call, if the store does not know what is held or settled of the
    /// bucket. Forgets the bucket if the store knows that nothing is held, at once or after `SUMS_KEPT`.
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
