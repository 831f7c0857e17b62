//! Keeps the slots that the requests of one connection hold, reports them to the store in calls, and gives granted
//! slots to the requests.
//!
//! In the protocol of [`ledger::holds`], a report about one bucket is a *report*. This file adds locks and a timer to the
//! protocol, and makes the reservations of requests from the answer to their call. As long as no request of a
//! connection has held anything, each call only reads one flag here.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::transport::Reply;
use crate::reservation::{Reservation, SlotKeeper, granted_asks};
use base::time;
use base::time::{Clock, Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::holds::{Call, Ending, Holdings, Owner, ReportAnswer, ReservationOwner, SlotId, SlotTerms};

/// How long reports wait after a call without an answer, unless a request is sent with them. Without this pause, a server
/// that answers with errors would be called all the time.
const PAUSE: Micros = Micros(100_000);

/// The slots that the requests of one connection hold. Each connection is an owner of its own, until the process ends.
#[derive(Debug)]
pub(crate) struct ConnectionHolds {
    said: Mutex<Said>,
    /// Notified when there may be reports to send, or when the time to send them may have changed.
    changed: Notify,
    /// Whether a request of this connection has ever asked for slots or held slots.
    is_used: AtomicBool,
}

#[derive(Debug)]
struct Said {
    holdings: Holdings,
    /// The time before which no call is made only to send reports.
    quiet_until: Timestamp,
}

/// The result of one request of a call: the slots that it holds, or the reason why its answer does not count.
pub(crate) type Held = Result<Reservation, OldReport>;

/// The error of a request whose report about a bucket was too old: the store has ignored the report, or has answered a
/// later report first. The request then has no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldReport;

impl ConnectionHolds {
    pub(crate) fn new() -> Arc<ConnectionHolds> {
        // The owner is random, so that each connection has a different one. It is never 0, because 0 stands for no owner.
        let owner = Owner(RandomState::new().hash_one(0).max(1));
        let said = Said { holdings: Holdings::new(owner), quiet_until: Timestamp(0) };
        Arc::new(ConnectionHolds { said: Mutex::new(said), changed: Notify::new(), is_used: AtomicBool::new(false) })
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Returns whether a call that has no answer yet asks for slots of a bucket of which this plan also asks for slots.
    pub(crate) fn is_asked_already(&self, plan: &Plan) -> bool {
        let said = self.said.lock();
        plan.asks().any(|(_, charge, _)| said.holdings.unanswered(&charge.key) > Cost::default())
    }

    /// Makes the reports of the next call, which has these plans. `None` if the call needs no reports. `has_asks` says
    /// whether one of the plans asks for slots.
    pub(crate) fn begin(&self, plans: &[&Plan], has_asks: bool, now: Timestamp) -> Option<Call> {
        if !has_asks && !self.is_used() {
            return None;
        }
        self.is_used.store(true, Ordering::Relaxed);
        let asks = plans.iter().flat_map(|plan| plan.asks().map(|(_, charge, terms)| (charge.key, terms.amount)));
        let asks: SmallVec<[(BucketKey, Cost); 8]> = asks.collect();
        let mut said = self.said.lock();
        said.holdings.advance(now);
        let has_reports = said.holdings.has_reports() && now >= said.quiet_until;
        (has_reports || !asks.is_empty()).then(|| said.holdings.call(&asks, now))
    }

    /// Notes that a call has no answer. `did_run` is false if it is proved that the call did not run.
    pub(crate) fn failed(&self, call: &Call, did_run: bool, now: Timestamp) {
        let mut said = self.said.lock();
        said.quiet_until = now.plus(PAUSE);
        if did_run { said.holdings.lost(call) } else { said.holdings.did_not_run(call) }
    }

    /// Notes the answer to a call with these plans. Returns the result of each plan.
    pub(crate) fn answered(
        self: &Arc<Self>,
        call: &Call,
        plans: &[&Plan],
        Reply { settlements, accepted, .. }: &Reply,
        now: Timestamp,
    ) -> Vec<Held> {
        let mut granted: Vec<(BucketKey, usize, SlotTerms)> = Vec::new();
        for (index, (plan, settlement)) in plans.iter().zip(settlements).enumerate() {
            let slots = settlement.iter().flat_map(|settlement| granted_asks(plan, settlement));
            granted.extend(slots.map(|(charge, terms)| (charge.key, index, terms)));
        }
        // The sort is stable, so the slots of one bucket stay in the order of the plans.
        granted.sort_by_key(|(key, ..)| *key);
        let (mut slots, mut old) = (Vec::<(usize, SlotId)>::new(), SmallVec::<[BucketKey; 2]>::new());
        let mut said = self.said.lock();
        for (report, accepted) in call.reports.iter().zip(accepted) {
            let first = granted.partition_point(|(key, ..)| *key < report.bucket);
            let own = granted.iter().skip(first).take_while(|(key, ..)| *key == report.bucket);
            let terms: SmallVec<[SlotTerms; 8]> = own.clone().map(|(.., terms)| *terms).collect();
            let answer = if *accepted { ReportAnswer::Accepted { granted: &terms } } else { ReportAnswer::Old };
            match said.holdings.answered(call, report, answer, now) {
                Some(taken) => slots.extend(own.map(|(_, plan, _)| *plan).zip(taken)),
                None => old.push(report.bucket),
            }
        }
        drop(said);
        slots.sort_by_key(|(plan, _)| *plan);
        let mut slots = slots.into_iter().peekable();
        let held = |(index, plan): (usize, &&Plan)| {
            let own: SmallVec<[SlotId; 2]> =
                std::iter::from_fn(|| slots.next_if(|(plan, _)| *plan == index)).map(|(_, slot)| slot).collect();
            let reservation = if own.is_empty() { Reservation::default() } else { self.reserve(own) };
            // A request that fails gives back the slots that it was granted of other buckets.
            let failed = !old.is_empty() && plan.asks().any(|(_, charge, _)| old.contains(&charge.key));
            if failed { Err(OldReport) } else { Ok(reservation) }
        };
        let held = plans.iter().enumerate().map(held).collect();
        self.changed.notify_one();
        held
    }

    /// Holds the slots that a plan asks for without the store's grant, because the store gave no answer and the request
    /// was let pass.
    pub(crate) fn hold(self: &Arc<Self>, plan: &Plan, now: Timestamp) -> Reservation {
        self.is_used.store(true, Ordering::Relaxed);
        let mut said = self.said.lock();
        let asks = plan.asks().filter(|(_, _, terms)| terms.amount > Cost::default());
        let slots: SmallVec<[SlotId; 2]> =
            asks.map(|(_, charge, terms)| said.holdings.hold(charge.key, terms, now)).collect();
        drop(said);
        self.changed.notify_one();
        self.reserve(slots)
    }

    fn reserve(self: &Arc<Self>, slots: SmallVec<[SlotId; 2]>) -> Reservation {
        Reservation::of(Arc::<ConnectionHolds>::clone(self), slots)
    }

    /// Notes that the connection was made again. All reports are then sent again, because the server may not know them.
    pub(crate) fn reconnected(&self) {
        if self.is_used() {
            let mut said = self.said.lock();
            said.quiet_until = Timestamp(0);
            said.holdings.reconnected();
        }
    }

    /// Waits until reports have to be sent in a call without requests.
    pub(crate) async fn reports(&self, clock: &Clock) {
        loop {
            let next = if self.is_used() { self.next_reports(clock.now()) } else { None };
            match next {
                Some(Micros(0)) => return,
                Some(left) => {
                    tokio::select! {
                        biased;
                        () = self.changed.notified() => {}
                        () = time::sleep(left.into()) => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// Returns how long it takes until a call must be made to send reports. 0 if it must be made now. `None` if no reports
    /// will be needed.
    fn next_reports(&self, now: Timestamp) -> Option<Micros> {
        let mut said = self.said.lock();
        said.holdings.advance(now);
        if said.holdings.has_reports() {
            return Some(said.quiet_until.since(now));
        }
        said.holdings.next_moment().map(|moment| moment.since(now))
    }
}

impl ReservationOwner for ConnectionHolds {
    fn end(&self, slot: SlotId, _ending: Ending) {
        self.said.lock().holdings.end(slot);
        self.changed.notify_one();
    }
}

impl SlotKeeper for ConnectionHolds {}
