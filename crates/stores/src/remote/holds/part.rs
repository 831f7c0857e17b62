//! Keeps the slots that the requests of one worker hold in one part of a store. Reports them to the store in calls, and
//! gives granted slots to the requests.
//!
//! The protocol is that of [`ledger::holds`]. This file adds locks and a timer to the protocol. It makes the
//! reservations of requests from the answer to their call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::PartSignals;
use crate::events::Event;
use crate::remote::transport::{Reply, ReportResult};
use crate::reservation::{Reservation, SlotKeeper, granted_asks};
use base::time::{Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::holds::{
    Call, EARLY, Ending, Holdings, Owner, ReportAnswer, ReservationOwner, SettledCost, SlotId, SlotTerms,
};

/// How long reports wait after a call without an answer, unless a request is sent with them. Without this pause, a
/// server that answers with errors would be called all the time.
const PAUSE: Micros = Micros(100_000);

/// The slots that the requests of one worker hold of the buckets in one part of a store.
#[derive(Debug)]
pub(crate) struct PartHolds {
    reported: Mutex<ReportedHoldings>,
    /// Whether a request of this worker has ever asked for slots of this part or held slots of it.
    is_used: AtomicBool,
    signals: Arc<PartSignals>,
}

/// What is held, and how it is reported to the store.
#[derive(Debug)]
struct ReportedHoldings {
    holdings: Holdings,
    /// Before this time, no call is made that only sends reports.
    paused_until: Timestamp,
    /// The connection on which the last reports were sent.
    connection: ConnectionNumber,
}

/// Identifies a connection. A connection that is made again gets a new number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionNumber(pub u64);

/// The result of one request of a call: the slots that the request holds, or the reason why the store's answer does
/// not count.
pub(crate) type HoldResult = Result<Reservation, OldReport>;

/// The error of a request whose report about a bucket was too old. The store has ignored the report, or has answered a
/// later report first. The request has no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldReport;

impl PartHolds {
    pub(super) fn new(owner: Owner, most_sums: usize, signals: &Arc<PartSignals>) -> PartHolds {
        let (paused_until, connection) = (Timestamp(0), ConnectionNumber::default());
        let reported =
            ReportedHoldings { holdings: Holdings::with_most_sums(owner, most_sums), paused_until, connection };
        PartHolds { reported: Mutex::new(reported), is_used: AtomicBool::new(false), signals: Arc::clone(signals) }
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn use_now(&self) {
        self.is_used.store(true, Ordering::Relaxed);
        self.signals.is_used.store(true, Ordering::Relaxed);
    }

    /// Returns whether a call without an answer asks for slots of the same bucket as this plan.
    pub(crate) fn is_asked_already(&self, plan: &Plan) -> bool {
        let reported = self.reported.lock();
        plan.asks().any(|(_, charge, _)| reported.holdings.unanswered(&charge.key) > Cost::default())
    }

    /// Makes the reports of a call that has these plans, and at most `most` reports about other buckets. `None` if the
    /// call needs no reports. `has_asks` says whether one of the plans may ask for slots. If the last reports were sent
    /// on another connection than `connection`, all reports are sent again, because the server may not know them.
    pub(crate) fn begin(
        &self,
        plans: &[&Plan],
        has_asks: bool,
        most: usize,
        connection: Option<ConnectionNumber>,
        now: Timestamp,
    ) -> Option<Call> {
        if !has_asks && !self.is_used() {
            return None;
        }
        let asks = plans.iter().flat_map(|plan| plan.asks().map(|(_, charge, terms)| (charge.key, terms)));
        let asks: SmallVec<[(BucketKey, SlotTerms); 4]> = asks.collect();
        if asks.is_empty() && !self.is_used() {
            return None;
        }
        self.use_now();
        let mut reported = self.reported.lock();
        reported.connect(connection);
        reported.holdings.advance(now);
        let has_reports = most > 0 && reported.holdings.has_reports() && now >= reported.paused_until;
        let soon = if plans.is_empty() { now.plus(EARLY) } else { now };
        (has_reports || !asks.is_empty()).then(|| reported.holdings.call_with(&asks, most, soon, now))
    }

    /// Notes that a call has no answer. `did_run` is false if it is proved that the call did not run.
    pub(crate) fn failed(&self, call: &Call, did_run: bool, now: Timestamp) {
        let mut reported = self.reported.lock();
        reported.paused_until = now.plus(PAUSE);
        if did_run { reported.holdings.lost(call) } else { reported.holdings.did_not_run(call) }
    }

    /// Notes the answer to a call with these plans. Returns the result of each plan.
    pub(crate) fn answered(
        self: &Arc<Self>,
        call: &Call,
        plans: &[&Plan],
        Reply { settlements, reports, .. }: &Reply,
        now: Timestamp,
    ) -> Vec<HoldResult> {
        let mut granted: Vec<(BucketKey, usize, SlotTerms)> = Vec::new();
        for (index, (plan, settlement)) in plans.iter().zip(settlements).enumerate() {
            let slots = settlement.iter().flat_map(|settlement| granted_asks(plan, settlement));
            granted.extend(slots.map(|(charge, terms)| (charge.key, index, terms)));
        }
        // The sort is stable, so the slots of one bucket stay in the order of the plans.
        granted.sort_by_key(|(key, ..)| *key);
        let (mut slots, mut old) = (Vec::<(usize, BucketKey, SlotId)>::new(), SmallVec::<[BucketKey; 2]>::new());
        let mut reported = self.reported.lock();
        let mut is_outside = false;
        for (report, result) in call.reports.iter().zip(reports) {
            let first = granted.partition_point(|(key, ..)| *key < report.bucket);
            let own = granted.iter().skip(first).take_while(|(key, ..)| *key == report.bucket);
            let terms: SmallVec<[SlotTerms; 8]> = own.clone().map(|(.., terms)| *terms).collect();
            let answer = match result {
                ReportResult::Accepted => ReportAnswer::Accepted { granted: &terms },
                // Only timed holds settle with a report of their own.
                ReportResult::Old | ReportResult::SettledBefore => ReportAnswer::Old,
                ReportResult::OutsidePeriod => ReportAnswer::OutsidePeriod,
            };
            match reported.holdings.answered(call, report, answer, now) {
                Some(taken) => slots.extend(own.zip(taken).map(|((key, plan, _), slot)| (*plan, *key, slot))),
                // The requests that asked for this bucket are sent again.
                None if *result == ReportResult::OutsidePeriod => is_outside = true,
                None => old.push(report.bucket),
            }
        }
        if !old.is_empty() || is_outside {
            // A bucket with too many owners ignores reports. Without this pause, a worker would send such a report
            // again all the time.
            reported.paused_until = now.plus(PAUSE);
        }
        drop(reported);
        slots.sort_by_key(|(plan, ..)| *plan);
        let mut slots = slots.into_iter().peekable();
        let held = |(index, plan): (usize, &&Plan)| {
            let own: SmallVec<[(BucketKey, SlotId); 2]> =
                std::iter::from_fn(|| slots.next_if(|(plan, ..)| *plan == index))
                    .map(|(_, key, slot)| (key, slot))
                    .collect();
            let reservation = if own.is_empty() { Reservation::default() } else { self.reserve(own) };
            // A request that fails gives back the slots that it was granted of other buckets.
            let failed = !old.is_empty() && plan.asks().any(|(_, charge, _)| old.contains(&charge.key));
            if failed { Err(OldReport) } else { Ok(reservation) }
        };
        let held = plans.iter().enumerate().map(held).collect();
        self.signals.changed.notify_waiters();
        held
    }

    /// Holds a slot without the store's grant, because the store gave no answer and the request was admitted.
    pub(super) fn hold(self: &Arc<Self>, key: BucketKey, terms: SlotTerms, now: Timestamp) -> Reservation {
        self.use_now();
        let slot = self.reported.lock().holdings.hold(key, terms, now);
        self.signals.changed.notify_waiters();
        self.reserve([(key, slot)])
    }

    fn reserve(self: &Arc<Self>, slots: impl IntoIterator<Item = (BucketKey, SlotId)>) -> Reservation {
        Reservation::of(Arc::<PartHolds>::clone(self), slots)
    }

    /// Ends all slots, because the process ends.
    pub(super) fn end_all(&self) {
        if self.is_used() {
            self.reported.lock().holdings.end_all();
            self.signals.changed.notify_waiters();
        }
    }

    /// Returns whether the store knows what is held of this part.
    pub(super) fn is_reported(&self) -> bool {
        !self.is_used() || self.reported.lock().holdings.is_reported()
    }

    /// Returns how much the requests of this worker hold of a bucket.
    pub(super) fn held(&self, key: &BucketKey, now: Timestamp) -> Cost {
        if !self.is_used() {
            return Cost::default();
        }
        let mut reported = self.reported.lock();
        // Slots whose longest time has passed are ended here, because no call ends them while the server is down.
        reported.holdings.advance(now);
        reported.holdings.held(key)
    }

    /// Returns the costs of a bucket that the requests of this worker have settled and the store has not accepted. Each
    /// cost is returned only once.
    pub(super) fn count_settled(&self, key: &BucketKey) -> Cost {
        if self.is_used() { self.reported.lock().holdings.count_settled(key) } else { Cost::default() }
    }

    /// Returns how long it takes until a call must be made to send reports. 0 if it must be made now. `None` if no
    /// reports will be needed.
    pub(super) fn next_reports(&self, connection: Option<ConnectionNumber>, now: Timestamp) -> Option<Micros> {
        if !self.is_used() {
            return None;
        }
        let mut reported = self.reported.lock();
        reported.connect(connection);
        reported.holdings.advance(now);
        if reported.holdings.has_reports() {
            return Some(reported.paused_until.since(now));
        }
        reported.holdings.next_moment().map(|moment| moment.since(now))
    }
}

impl ReportedHoldings {
    fn connect(&mut self, connection: Option<ConnectionNumber>) {
        if let Some(connection) = connection.filter(|connection| *connection != self.connection) {
            self.connection = connection;
            self.paused_until = Timestamp(0);
            self.holdings.reconnected();
        }
    }
}

impl ReservationOwner for PartHolds {
    fn end(&self, bucket: &BucketKey, slot: SlotId, ending: Ending) {
        let mut reported = self.reported.lock();
        let cost = match ending {
            Ending::Released => {
                reported.holdings.end(slot);
                SettledCost::Kept
            }
            Ending::Settled(cost) => reported.holdings.settle(slot, cost),
            Ending::Reset(cost) => reported.holdings.reset(slot, cost),
        };
        drop(reported);
        if let Ending::Reset(_) = ending {
            self.signals.fallback.forget(bucket);
        }
        if cost == SettledCost::Lost {
            self.signals.events.send(Event::CostLost);
        }
        self.signals.changed.notify_waiters();
    }
}

impl SlotKeeper for PartHolds {}
