//! Keeps what the requests of one connection hold of buckets, says it in calls, and hands out the slots that were
//! granted.
//!
//! The protocol is that of [`ledger::holds`]. Here are its locks, its timer, and the way from a call's answer to
//! the reservations of its requests. A connection whose requests hold nothing does nothing here but read one flag
//! for each call.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use super::transport::Reply;
use crate::memory::granted_asks;
use crate::reservation::{Reservation, SlotKeeper};
use base::time;
use base::time::{Clock, Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::holds::{Call, Ending, Holdings, Owner, ReservationOwner, SlotId, SlotTerms, WordAnswer};

/// How long words wait after a call without an answer, unless a request is sent with them: a server that answers
/// with errors is not called without a pause.
const PAUSE: Micros = Micros(100_000);

/// What the requests of one connection hold. Each is an owner of its own, for as long as this process runs.
#[derive(Debug)]
pub(crate) struct ConnectionHolds {
    said: Mutex<Said>,
    /// Notified when there may be words for a call, or when the moment for them may have changed.
    changed: Notify,
    /// Whether anything was ever asked or held.
    is_used: AtomicBool,
}

#[derive(Debug)]
struct Said {
    holdings: Holdings,
    /// Until then no call leaves only because of words.
    quiet_until: Timestamp,
}

/// What became of one request of a call, as far as it holds anything.
pub(crate) type Held = Result<Reservation, OldWord>;

/// The store has ignored a word of the call, or has answered a later one first. Whoever asked in the call has no
/// decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldWord;

impl ConnectionHolds {
    pub(crate) fn new() -> Arc<ConnectionHolds> {
        // The only randomness of the standard library that two machines cannot have in common; 0 is nobody.
        let owner = Owner(RandomState::new().hash_one(0).max(1));
        let said = Said { holdings: Holdings::new(owner), quiet_until: Timestamp(0) };
        Arc::new(ConnectionHolds { said: Mutex::new(said), changed: Notify::new(), is_used: AtomicBool::new(false) })
    }

    fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Returns whether a bucket of which this plan asks something was asked in a call that has no answer yet.
    pub(crate) fn is_asked_already(&self, plan: &Plan) -> bool {
        let said = self.said.lock();
        plan.asks().any(|(_, charge, _)| said.holdings.unanswered(&charge.key) > Cost::default())
    }

    /// Makes the words of the next call, which has these plans. `None` if nothing has to be said. `has_asks` is
    /// whether one of the plans holds.
    pub(crate) fn begin(&self, plans: &[&Plan], has_asks: bool, now: Timestamp) -> Option<Call> {
        if !has_asks && !self.is_used() {
            return None;
        }
        self.is_used.store(true, Ordering::Relaxed);
        let asks = plans.iter().flat_map(|plan| plan.asks().map(|(_, charge, terms)| (charge.key, terms.amount)));
        let asks: SmallVec<[(BucketKey, Cost); 8]> = asks.collect();
        let mut said = self.said.lock();
        said.holdings.advance(now);
        let has_words = said.holdings.has_words() && now >= said.quiet_until;
        (has_words || !asks.is_empty()).then(|| said.holdings.call(&asks, now))
    }

    /// Notes that a call has no answer. `did_run` is false if it is proved that it did not run.
    pub(crate) fn failed(&self, call: &Call, did_run: bool, now: Timestamp) {
        let mut said = self.said.lock();
        said.quiet_until = now.plus(PAUSE);
        if did_run { said.holdings.lost(call) } else { said.holdings.did_not_run(call) }
    }

    /// Notes the answer to a call with these plans. Returns what became of each plan.
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
        // Stable: those of one bucket stay in the order of the plans.
        granted.sort_by_key(|(key, ..)| *key);
        let (mut slots, mut old) = (Vec::<(usize, SlotId)>::new(), SmallVec::<[BucketKey; 2]>::new());
        let mut said = self.said.lock();
        for (word, accepted) in call.words.iter().zip(accepted) {
            let first = granted.partition_point(|(key, ..)| *key < word.bucket);
            let own = granted.iter().skip(first).take_while(|(key, ..)| *key == word.bucket);
            let terms: SmallVec<[SlotTerms; 8]> = own.clone().map(|(.., terms)| *terms).collect();
            let answer = if *accepted { WordAnswer::Accepted { granted: &terms } } else { WordAnswer::Old };
            match said.holdings.answered(call, word, answer, now) {
                Some(taken) => slots.extend(own.map(|(_, plan, _)| *plan).zip(taken)),
                None => old.push(word.bucket),
            }
        }
        drop(said);
        slots.sort_by_key(|(plan, _)| *plan);
        let mut slots = slots.into_iter().peekable();
        let held = |(index, plan): (usize, &&Plan)| {
            let own: SmallVec<[SlotId; 2]> =
                std::iter::from_fn(|| slots.next_if(|(plan, _)| *plan == index)).map(|(_, slot)| slot).collect();
            let reservation = if own.is_empty() { Reservation::default() } else { self.reserve(own) };
            // One that fails gives back what it was granted of other buckets.
            let failed = !old.is_empty() && plan.asks().any(|(_, charge, _)| old.contains(&charge.key));
            if failed { Err(OldWord) } else { Ok(reservation) }
        };
        let held = plans.iter().enumerate().map(held).collect();
        self.changed.notify_one();
        held
    }

    /// Holds what a plan asks for without the store's grant, because the request was let pass when the store gave
    /// no answer.
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

    /// Notes that the connection is new: all is said again, on this server.
    pub(crate) fn reconnected(&self) {
        if self.is_used() {
            let mut said = self.said.lock();
            said.quiet_until = Timestamp(0);
            said.holdings.reconnected();
        }
    }

    /// Waits until there are words for a call of their own.
    pub(crate) async fn words(&self, clock: &Clock) {
        loop {
            let next = if self.is_used() { self.next_words(clock.now()) } else { None };
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

    /// How long until a call has to leave because of words; 0 if now. `None` if nothing is held.
    fn next_words(&self, now: Timestamp) -> Option<Micros> {
        let mut said = self.said.lock();
        said.holdings.advance(now);
        if said.holdings.has_words() {
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
