//! Takes and settles for timed holds in memory.
//!
//! A timed hold is an owner in the state of its buckets, as in a shared store. So what it holds is written to the file, and
//! handed over to the next process.

use std::sync::Arc;

use smallvec::SmallVec;

use super::local_holds::{PROCESS, with_held};
use super::queue_id::{QueueId, SpentClass};
use super::{Memory, class};
use crate::error::StoreError;
use crate::reply::{Source, TakeReply};
use crate::reservation::{Reservation, granted_asks};
use crate::timed_settlement::TimedSettlement;
use ledger::algorithm::{Entry, State};
use ledger::charge::{Charge, ChargePurpose, Plan, settle};
use ledger::holds::{BucketReport, Call, TimedHold};

impl Memory {
    /// Decides a plan as [`Memory::take`] does, for a timed hold.
    ///
    /// # Errors
    /// If the buckets have been handed over to another process, or if a bucket has too many timed holds.
    pub(crate) fn take_timed(self: &Arc<Self>, plan: &Plan, hold: TimedHold) -> Result<TakeReply, StoreError> {
        let call = hold.take(plan);
        let mut locked = self.lock(plan);
        let mut holds = self.lock_holds(plan);
        if holds.iter().any(|(_, held)| held.is_handing_over) {
            return Err(StoreError::Closed);
        }
        let time = self.time();
        holds.iter_mut().for_each(|(_, held)| held.end_overdue(time.now));
        let charged = self.charge_uncharged(plan, &mut locked, &mut holds);
        let (indices, states) = {
            let (indices, kept) = self.states(plan, &locked);
            let with_hold = |(charge, kept): (&Charge, &Option<&[u64]>)| {
                let now = time.of(&charge.algorithm);
                let report = call.reports.iter().find(|report| report.bucket == charge.key);
                let present = match charge.algorithm.is_held() {
                    true => with_held(*kept, self.held(&holds, &charge.key), &charge.algorithm, now),
                    false => None,
                };
                let present = present.or_else(|| kept.map(State::from_slice));
                match report {
                    Some(report) if charge.algorithm.is_held() => {
                        let entry = charge.algorithm.accept(present.as_deref(), call.report(report), now);
                        entry.map(|entry| Some(entry.state)).ok_or(StoreError::OldReport)
                    }
                    _ => Ok(present),
                }
            };
            let states: Result<SmallVec<[Option<State>; 2]>, StoreError> =
                plan.charges().zip(&kept).map(with_hold).collect();
            (indices, states?)
        };
        let (settlement, entries) = settle(plan, &states, time);
        let held: SmallVec<[Option<Entry>; 2]> = entries.iter().cloned().collect();
        let mut evicted = self.store(plan, &settlement, &indices, entries, &mut locked, time);
        let granted: SmallVec<[_; 2]> = granted_asks(plan, &settlement).map(|(charge, _)| charge.key).collect();
        // What this process holds is in its own table, so it is taken out of the kept state. The timed hold stays in it.
        for ((charge, index), entry) in plan.charges().zip(&indices).zip(held) {
            let is_held = charge.purpose == ChargePurpose::Spend && charge.algorithm.is_held();
            let Some(entry) = entry.filter(|_| is_held && granted.contains(&charge.key)) else { continue };
            let now = time.of(&charge.algorithm);
            let own = charge.algorithm.without_owner(Some(&entry.state), PROCESS, now);
            if let (Some(entry), Some((_, shard))) = (own, locked.get_mut(*index)) {
                let queue = QueueId::new(charge.tag, SpentClass::Drained);
                let put = shard.put(charge.key, queue, entry.kept_until, entry.state);
                shard.hold(&charge.key, time.now.plus(call.life));
                evicted += self.make_room(shard, put, time.now);
            }
        }
        let evicted = evicted + charged;
        let reservation = Reservation::default();
        Ok(TakeReply { now: time.date, settlement, evicted, source: Source::Store, reservation })
    }

    /// Settles for a timed hold. Returns the result at each bucket.
    ///
    /// # Errors
    /// Of a bucket, if it does not accept the report.
    pub(crate) fn settle_timed(&self, call: &Call) -> Vec<Result<TimedSettlement, StoreError>> {
        call.reports.iter().map(|report| self.settle_bucket(call, report)).collect()
    }

    fn settle_bucket(&self, call: &Call, report: &BucketReport) -> Result<TimedSettlement, StoreError> {
        let number = self.shard_of(&report.bucket);
        let shard = &mut self.shard(number).lock();
        if self.holds.get(number).is_some_and(|holds| holds.0.lock().is_handing_over) {
            return Err(StoreError::Closed);
        }
        let time = self.time();
        let (limit, now) = (&report.limit, time.of(&report.limit));
        let kept = shard.kept(&report.bucket).map(|(queue, _, state)| (queue.limit(), state.clone()));
        let Some((tag, kept)) = kept else { return Ok(TimedSettlement::Ended) };
        match limit.accept(Some(&kept), call.report(report), now) {
            Some(entry) => {
                let remaining = limit.ceiling().less(limit.spent(Some(&entry.state), now));
                let queue = QueueId::new(tag, class(limit, &entry, remaining, report.settled.to, now));
                if !limit.holders(Some(&entry.state), now).iter().any(|holder| holder.owner.is_timed()) {
                    shard.release(&report.bucket);
                }
                self.keep(shard, report.bucket, queue, entry, time.now);
                Ok(TimedSettlement::Settled)
            }
            None if limit.has_settled(Some(&kept), call.owner, now) => Ok(TimedSettlement::SettledBefore),
            None => Ok(TimedSettlement::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Settings;
    use base::time::{Clock, Micros, Timestamp};
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::budget::Budget;
    use ledger::algorithm::concurrency::Concurrency;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::bucket_key::BucketKey;
    use ledger::cost::Cost;
    use ledger::holds::{Owner, TimedHoldCost};

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_flood_of_other_buckets_evicts_no_timed_hold() {
        let window = FixedWindow::new(10, Window::Epoch(Micros(3600 * SECOND))).unwrap();
        let limits =
            [Algorithm::Budget(Budget::of_fixed_window(window)), Algorithm::Concurrency(Concurrency::new(10).unwrap())];
        for limit in limits {
            let clock = Clock::manual(Timestamp(1_000 * 3600 * SECOND));
            let memory = Memory::new(&Settings { max_buckets: 20, ..Settings::default() }, clock.clone());
            let hold = |number: u8| {
                let mut plan = Plan::default();
                plan.enforce(Charge::new(BucketKey([number; 16]), limit, Cost::from_tokens(2)));
                let hold =
                    TimedHold { owner: Owner::of_timed_hold(u64::from(number) << 16), life: Micros(30 * SECOND) };
                assert!(memory.take_timed(&plan, hold).unwrap().settlement.is_granted());
            };
            let settle = |number: u8| {
                let cost = TimedHoldCost { bucket: BucketKey([number; 16]), limit, cost: Cost::default() };
                memory.settle_timed(&TimedHold::settle(Owner::of_timed_hold(u64::from(number) << 16), &[cost]))
            };
            let flood = || {
                for number in 0..200_u8 {
                    let mut plan = Plan::default();
                    plan.enforce(Charge::of_token_bucket(number, 1000, 999));
                    memory.take(&plan);
                }
            };
            // More is held than there are buckets.
            (200..230).for_each(hold);
            flood();
            for number in 200..215 {
                assert_eq!(settle(number), [Ok(TimedSettlement::Settled)], "{number}");
            }
            clock.set(clock.now().plus(Micros(30 * SECOND)));
            flood();
            assert!(memory.buckets() <= 21, "{} buckets are kept", memory.buckets());
            assert_eq!(settle(229), [Ok(TimedSettlement::Ended)]);
        }
    }
}
