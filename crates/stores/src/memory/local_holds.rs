//! Counts what requests hold of buckets in memory, such as slots. Charges the plans of requests that hold something.
//!
//! The fallback of a shared store also uses this code, with slots that are kept elsewhere ([`SlotBook`]).
//! The only owner is this process, so there are no reports, and nothing expires. What is held is never evicted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::hold_table::{HeldBucket, HoldTable, SlotBudget};
use super::queue_id::QueueId;
use super::settlements::{Settlements, UnchargedCost, keep};
use super::shard::Shard;
use super::slot_stream::HeldAmount;
use super::{LockedShards, Memory, States, class};
use crate::reply::{Source, TakeReply};
use crate::reservation::{Reservation, SlotKeeper, granted_asks};
use base::time::Timestamp;
use ledger::algorithm::budget::{self, Budget};
use ledger::algorithm::concurrency::{self, Holder};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, Plan, Settlement, settle};
use ledger::cost::Cost;
use ledger::holds::{Ending, LIFE, Owner, Report, ReservationOwner, SettledSums, SlotId, SlotTerms};
use ledger::store_time::StoreTime;

/// This process, the only owner of what is held.
pub const PROCESS: Owner = Owner(1);

/// The process that has handed over to this one, and still answers requests.
pub const PREVIOUS_PROCESS: Owner = Owner(2);

/// What is held of the buckets of one shard.
#[derive(Debug, Default)]
pub(super) struct LocalHolds(pub(super) Mutex<HoldTable>);

/// Returns the state of a bucket of which this process holds an amount. `kept` is what is spent of a budget.
pub(super) fn with_held(kept: Option<&[u64]>, held: Cost, algorithm: &Algorithm, now: Timestamp) -> Option<State> {
    let report = Report { owner: PROCESS, sequence: 1, held, settled: SettledSums::default(), life: LIFE };
    algorithm.accept(kept, report, now).map(|entry| entry.state)
}

/// Keeps slots in another place than the memory store that decides about them.
pub(crate) trait SlotBook {
    /// Returns how much the requests of this process hold of a bucket.
    fn held(&self, key: &BucketKey) -> Cost;

    /// Returns the costs of a budget that the requests of this process have settled and the store has not accepted.
    /// Each cost is returned only once.
    fn count_settled(&self, key: &BucketKey) -> Cost;

    fn hold(&self, key: BucketKey, terms: SlotTerms) -> Reservation;
}

impl ReservationOwner for Memory {
    fn end(&self, bucket: &BucketKey, slot: SlotId, ending: Ending) {
        let number = self.shard_of(bucket);
        let Some(holds) = self.holds.get(number) else { return };
        let settled = match ending {
            Ending::Released => None,
            Ending::Settled(cost) => Some(Settlements { resets: 0, cost }),
            Ending::Reset(cost) => Some(Settlements { resets: 1, cost }),
        };
        // The bucket's lock is taken before the lock on what is held, as in a decision. Another order could deadlock.
        let mut shard = settled.map(|settled| (self.shard(number).lock(), settled));
        let mut held = holds.0.lock();
        let Some(ended) = held.slots.end(slot) else { return };
        held.lower(ended);
        let budget = held.budgets.remove(&slot);
        let Some((shard, settled)) = &mut shard else { return };
        if held.is_handing_over {
            let now = self.now();
            keep(&mut held.uncharged, *bucket, *settled, now);
        } else if let Some(SlotBudget { budget, tag }) = budget {
            let evicted = self.settle_cost(shard, bucket, &budget, tag, *settled);
            self.evicted_by_settling.fetch_add(evicted, Ordering::Relaxed);
        }
    }
}

impl SlotKeeper for Memory {}

impl LocalHolds {
    pub(super) fn amounts(&self) -> Vec<HeldAmount> {
        self.0.lock().amounts()
    }

    pub(super) fn counts_elsewhere(&self) -> bool {
        !self.0.lock().elsewhere.is_empty()
    }

    pub(super) fn count_elsewhere(&self, amounts: impl Iterator<Item = HeldAmount>, now: Timestamp) {
        self.0.lock().count_elsewhere(amounts, now);
    }

    pub(super) fn hand_over(&self) {
        self.0.lock().is_handing_over = true;
    }

    pub(super) fn resume(&self) {
        self.0.lock().is_handing_over = false;
    }

    pub(super) fn mark_sent(&self, sent: &HeldAmount) {
        self.0.lock().mark_sent(sent);
    }

    pub(super) fn has_unsent_costs(&self) -> bool {
        self.0.lock().has_unsent_costs()
    }
}

/// The locks on what is held, each with the number of its shard.
pub(super) type LockedHolds<'m> = SmallVec<[(usize, MutexGuard<'m, HoldTable>); 2]>;

impl Memory {
    /// Decides a plan that holds something. Takes first the locks of the buckets, and then the locks of what is held.
    pub(super) fn take_and_hold(self: &Arc<Self>, plan: &Plan) -> TakeReply {
        let mut locked = self.lock(plan);
        let mut holds = self.lock_holds(plan);
        let time = self.time();
        holds.iter_mut().for_each(|(_, held)| held.end_overdue(time.now));
        let charged = self.charge_uncharged(plan, &mut locked, &mut holds);
        let (settlement, evicted) = self.settle_held(plan, &mut locked, time, |key| self.held(&holds, key));
        let reservation = self.hold_granted(plan, &settlement, &mut holds, time.now);
        let evicted = evicted + charged + self.evicted_by_settling.swap(0, Ordering::Relaxed);
        TakeReply { now: time.date, settlement, evicted, source: Source::Store, reservation }
    }

    /// Decides a plan as [`Memory::take`] does, but with what is held and settled in `book`. Each limit is divided into
    /// `of` equal shares, and `shares` has the charges to one of them.
    pub(crate) fn take_shares(&self, plan: &Plan, shares: &Plan, of: u64, book: &impl SlotBook) -> TakeReply {
        let mut locked = self.lock(shares);
        let time = self.time();
        // What is held is read before what is settled, so a request that ends in between counts twice rather than not
        // at all. The share of a budget is as large as the whole, so all that is charged to the share is multiplied by
        // `of`.
        let held = |charge: &Charge| {
            let is_budget = matches!(charge.algorithm, Algorithm::Budget(_));
            (charge.key, book.held(&charge.key).times(if is_budget { of } else { 1 }))
        };
        let held: SmallVec<[(BucketKey, Cost); 2]> = shares.asks().map(|(_, charge, _)| held(charge)).collect();
        let mut evicted = 0;
        for (_, charge, _) in shares.asks() {
            if let Algorithm::Budget(budget) = &charge.algorithm {
                let settled = book.count_settled(&charge.key).times(of);
                let index = self.index_of(&locked, &charge.key);
                if let Some((_, shard)) = locked.get_mut(index) {
                    let settled = Settlements { resets: 0, cost: settled };
                    evicted += self.settle_cost(shard, &charge.key, budget, charge.tag, settled);
                }
            }
        }
        let held_of =
            |key: &BucketKey| held.iter().find(|(own, _)| own == key).map_or(Cost::default(), |(_, held)| *held);
        let (settlement, more_evicted) = self.settle_held(shares, &mut locked, time, held_of);
        let mut reservation = Reservation::default();
        for (charge, terms) in granted_asks(plan, &settlement) {
            reservation.join(book.hold(charge.key, terms));
        }
        TakeReply { now: time.date, settlement, evicted: evicted + more_evicted, source: Source::Store, reservation }
    }

    /// Settles a plan. `held` returns how much of a bucket is held. Also returns the number of buckets that were
    /// evicted before they were full.
    fn settle_held(
        &self,
        plan: &Plan,
        locked: &mut LockedShards<'_>,
        time: StoreTime,
        held: impl Fn(&BucketKey) -> Cost,
    ) -> (Settlement, u64) {
        let ((settlement, entries), indices) = {
            let (indices, kept) = self.states(plan, locked);
            let held = with_all_held(plan, &kept, time, held);
            let states = held.iter().zip(&kept).map(|(held, kept)| held.as_deref().or(*kept));
            let states: States<'_> = states.collect();
            (settle(plan, &states, time), indices)
        };
        let evicted = self.store(plan, &settlement, &indices, entries, locked, time);
        (settlement, evicted)
    }

    /// Returns the result that a plan with holds would have now, without charging the plan.
    pub(super) fn peek_and_hold(&self, plan: &Plan) -> Settlement {
        let locked = self.lock(plan);
        let mut holds = self.lock_holds(plan);
        let time = self.time();
        holds.iter_mut().for_each(|(_, held)| held.end_overdue(time.now));
        let (_, kept) = self.states(plan, &locked);
        let held = with_all_held(plan, &kept, time, |key| self.held(&holds, key));
        let states = held.iter().zip(&kept).map(|(held, kept)| held.as_deref().or(*kept));
        settle(plan, &states.collect::<States<'_>>(), time).0
    }

    /// Returns the state of a bucket for an operator, with what is held of it. `kept` is the stored state.
    pub(super) fn state_with_holds(&self, key: &BucketKey, kept: Option<State>, time: StoreTime) -> Option<State> {
        let Some(holds) = self.holds.get(self.shard_of(key)) else { return kept };
        let mut held = holds.0.lock();
        held.end_overdue(time.now);
        let holder = |owner, held: &HeldBucket| Holder { owner, held: held.amount, since: held.since };
        let (own, elsewhere) = (held.buckets.get(key), held.held_elsewhere(key));
        let holders: SmallVec<[Holder; 2]> = own
            .map(|held| holder(PROCESS, held))
            .into_iter()
            .chain(elsewhere.as_ref().map(|held| holder(PREVIOUS_PROCESS, held)))
            .collect();
        match own.and_then(|own| own.budget.as_deref()) {
            _ if holders.is_empty() => kept,
            Some(budget) => {
                let limit = Algorithm::Budget(*budget);
                limit.with_holders(kept.as_deref(), &holders, time.of(&limit))
            }
            // Only another process holds some of this budget, and the budget's limit is not known here.
            None if elsewhere.is_some_and(|elsewhere| elsewhere.is_budget) => {
                Some(budget::state_of_any(kept.as_deref(), &holders, time.date))
            }
            None => Some(concurrency::state(kept.as_deref(), &holders, time.now)),
        }
    }

    /// Charges the buckets of a plan with the costs that were settled during a hand-over. Returns the number of buckets
    /// that were evicted before they were full.
    pub(super) fn charge_uncharged(
        &self,
        plan: &Plan,
        locked: &mut LockedShards<'_>,
        holds: &mut LockedHolds<'_>,
    ) -> u64 {
        let mut evicted = 0;
        for charge in plan.charges() {
            let Algorithm::Budget(budget) = &charge.algorithm else { continue };
            let number = self.shard_of(&charge.key);
            let Some((_, held)) = find_mut(holds, number).filter(|(_, held)| !held.is_handing_over) else { continue };
            let Some(UnchargedCost { settled, at, .. }) = held.uncharged.remove(&charge.key) else { continue };
            // Costs and resets of an earlier period no longer count.
            let is_over = budget.period(None, at).is_some_and(|period| period.end <= self.time().of(&charge.algorithm));
            let shard = locked.iter_mut().find(|(own, _)| *own == number);
            if let Some((_, shard)) = shard.filter(|_| !is_over) {
                evicted += self.settle_cost(shard, &charge.key, budget, charge.tag, settled);
            }
        }
        evicted
    }

    /// Charges a settled cost to the bucket of a budget, after a reset if there was one. Returns the number of buckets that
    /// were evicted before they were full.
    fn settle_cost(
        &self,
        shard: &mut MutexGuard<'_, Shard>,
        key: &BucketKey,
        budget: &Budget,
        tag: LimitTag,
        Settlements { resets, cost }: Settlements,
    ) -> u64 {
        let kept = shard.get(key).map(AsRef::as_ref);
        if cost == Cost::default() && (resets == 0 || kept.is_none()) {
            return 0;
        }
        let (time, limit) = (self.time(), Algorithm::Budget(*budget));
        let now = time.of(&limit);
        let entry = if resets > 0 { limit.reset(kept, cost, now) } else { limit.settle(kept, cost, now) };
        let Some(entry) = entry else { return 0 };
        let remaining = limit.ceiling().less(limit.spent(Some(&entry.state), now));
        let queue = QueueId::new(tag, class(&limit, &entry, remaining, cost, now));
        self.keep(shard, *key, queue, entry, time.now)
    }

    /// Returns the keys of the buckets in this shard of which something is held.
    pub(super) fn held_keys(&self, shard: usize) -> Vec<BucketKey> {
        self.holds.get(shard).map_or(Vec::new(), |held| held.amounts().into_iter().map(|held| held.key).collect())
    }

    /// Ends the slots that were held for the longest allowed time.
    pub(super) fn end_overdue_slots(&self, now: Timestamp) {
        self.holds.iter().for_each(|held| held.0.lock().end_overdue(now));
    }

    pub(super) fn lock_holds(&self, plan: &Plan) -> LockedHolds<'_> {
        let mut numbers: SmallVec<[usize; 4]> = plan.asks().map(|(_, charge, _)| self.shard_of(&charge.key)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let lock = |number: usize| Some((number, self.holds.get(number)?.0.lock()));
        numbers.into_iter().filter_map(lock).collect()
    }

    pub(super) fn held(&self, holds: &LockedHolds<'_>, key: &BucketKey) -> Cost {
        find(holds, self.shard_of(key)).map_or(Cost::default(), |(_, held)| held.of(key))
    }

    fn hold_granted(
        self: &Arc<Self>,
        plan: &Plan,
        settlement: &Settlement,
        holds: &mut LockedHolds<'_>,
        now: Timestamp,
    ) -> Reservation {
        let mut reservation = Reservation::default();
        for (charge, terms) in granted_asks(plan, settlement) {
            let number = self.shard_of(&charge.key);
            if let Some((_, held)) = find_mut(holds, number) {
                let slot = held.add(charge, terms, now);
                reservation.join(Reservation::of(Arc::<Memory>::clone(self), [(charge.key, slot)]));
            }
        }
        reservation
    }
}

/// Returns for each charge the state of its bucket with what is held. `None` for a charge that holds nothing.
fn with_all_held(
    plan: &Plan,
    kept: &States<'_>,
    time: StoreTime,
    held: impl Fn(&BucketKey) -> Cost,
) -> SmallVec<[Option<State>; 2]> {
    let state = |(charge, kept): (&Charge, &Option<&[u64]>)| {
        let is_held = charge.algorithm.is_held();
        is_held.then(|| with_held(*kept, held(&charge.key), &charge.algorithm, time.of(&charge.algorithm))).flatten()
    };
    plan.charges().zip(kept).map(state).collect()
}

fn find<'h, 'm>(holds: &'h LockedHolds<'m>, number: usize) -> Option<&'h (usize, MutexGuard<'m, HoldTable>)> {
    holds.iter().find(|(own, _)| *own == number)
}

fn find_mut<'h, 'm>(
    holds: &'h mut LockedHolds<'m>,
    number: usize,
) -> Option<&'h mut (usize, MutexGuard<'m, HoldTable>)> {
    holds.iter_mut().find(|(own, _)| *own == number)
}
