//! Keeps the timed holds that this gateway has taken, until they are settled here or have ended. Until then, it counts what they hold.
//!
//! If nobody settles in time, the store counts what a hold reserves as spent. A task then asks the store what has become of the
//! holds that have ended, and adds what was spent to the records for billing. It runs while there are holds. A process that ends
//! leaves its holds to the next one (`left_holds`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::held_slots::{HeldSlots, TimedReserves, UnsettledReserve};
use crate::gateway::state::GatewayState;
use base::interval::fixed_interval;
use base::time::{Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use ledger::holds::{Owner, TimedHoldStatus};
use stores::Worker;

/// The most holds that are kept. What others hold is not counted, and their records are lost.
const MOST: usize = 65_536;
/// The interval at which the task looks for holds that have ended.
const EVERY: Duration = Duration::from_secs(1);
/// How long after the end of a hold the store is asked, because no two clocks run alike.
const AFTER: Micros = Micros(200_000);
/// How long the store is asked again that gives no answer. It forgets a hold ten minutes after its end.
const PATIENCE: Micros = Micros(600_000_000);
/// The most holds about whose buckets the store is asked in one call.
const BATCH: usize = 64;
/// How long a process that ends waits for the answer about holds that have ended, and how often it looks.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(5);

/// The timed holds of this gateway.
#[derive(Debug, Default)]
pub(crate) struct RunningHolds(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    holds: HashMap<Owner, RunningHold>,
    /// The holds in the order in which they are looked at.
    due: BTreeSet<(Timestamp, Owner)>,
    /// Whether the task runs.
    is_watched: bool,
    /// Whether the task asks the store about holds that it has taken out.
    is_asking: bool,
}

#[derive(Debug)]
struct RunningHold {
    /// When it ends at the latest, and when it is looked at, by the clock of the process.
    end: Timestamp,
    due: Timestamp,
    /// Counts what it holds in this process, until this is dropped. Empty after its end.
    held: HeldSlots,
    /// What it reserves of recorded budgets, and has not settled here.
    reserves: Vec<UnsettledReserve>,
}

impl RunningHolds {
    /// Keeps a hold that has just been taken. Nothing is kept if `held` is empty.
    pub(crate) fn begin(self: &Arc<Self>, gateway: &Arc<GatewayState>, worker: Worker, mut held: HeldSlots) {
        let Some(TimedReserves { owner, life, reserves }) = held.take_timed() else { return };
        // The hold began before its answer came, so it ends at this time at the latest.
        let end = gateway.clock.now().plus(life);
        let mut table = self.0.lock();
        if table.holds.len() >= MOST {
            drop(table);
            reserves.iter().for_each(|reserve| reserve.record.lose());
            return;
        }
        table.insert(owner, RunningHold { end, due: end.plus(AFTER), held, reserves });
        self.watch_once(&mut table, gateway, worker);
    }

    /// Keeps what holds reserve that an earlier process has left, each with the time at which it ends. They are not counted.
    pub(super) fn resume(
        self: &Arc<Self>,
        gateway: &Arc<GatewayState>,
        left: Vec<(Owner, Timestamp, UnsettledReserve)>,
    ) {
        let mut table = self.0.lock();
        for (owner, end, reserve) in left {
            if let Some(hold) = table.holds.get_mut(&owner) {
                hold.reserves.push(reserve);
            } else if table.holds.len() < MOST {
                let held = HeldSlots::default();
                table.insert(owner, RunningHold { end, due: end.plus(AFTER), held, reserves: vec![reserve] });
            } else {
                reserve.record.lose();
            }
        }
        self.watch_once(&mut table, gateway, Worker(0));
    }

    /// Takes out what all holds reserve, each with the time at which it ends. They are counted no more.
    pub(super) async fn take_all(&self) -> Vec<(Owner, Timestamp, UnsettledReserve)> {
        let answered = async {
            while self.0.lock().is_asking {
                tokio::time::sleep(POLL).await;
            }
        };
        // What is asked about later than this is counted as lost.
        let _ = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
        let mut table = self.0.lock();
        table.due.clear();
        let holds = std::mem::take(&mut table.holds);
        drop(table);
        let reserves = |(owner, RunningHold { end, reserves, .. }): (Owner, RunningHold)| {
            reserves.into_iter().map(move |reserve| (owner, end, reserve))
        };
        holds.into_iter().flat_map(reserves).collect()
    }

    /// Starts the task, if it does not run.
    fn watch_once(self: &Arc<Self>, table: &mut Table, gateway: &Arc<GatewayState>, worker: Worker) {
        if !table.holds.is_empty() && !std::mem::replace(&mut table.is_watched, true) {
            tokio::spawn(Arc::clone(self).watch(Arc::clone(gateway), worker));
        }
    }

    /// Notes that a hold has settled what it reserved of a bucket, here or elsewhere.
    pub(super) fn settle_bucket(&self, owner: Owner, bucket: &BucketKey) {
        if let Some(hold) = self.0.lock().holds.get_mut(&owner) {
            hold.reserves.retain(|reserve| reserve.bucket != *bucket);
        }
    }

    /// Forgets a hold that holds nothing any more.
    pub(super) fn end(&self, owner: Owner) {
        let ended = self.0.lock().remove(owner);
        drop(ended);
    }

    /// Looks for holds that have ended, until there are no holds.
    async fn watch(self: Arc<Self>, gateway: Arc<GatewayState>, worker: Worker) {
        loop {
            tokio::time::sleep(fixed_interval("hold_ends", EVERY)).await;
            // After a handover of buckets in memory, only the next process knows what has become of the holds.
            while gateway.store.is_shared() || !gateway.lifecycle.is_handed_over() {
                let due = self.take_due(gateway.clock.now());
                if due.is_empty() {
                    break;
                }
                self.conclude(&gateway, worker, due).await;
                self.0.lock().is_asking = false;
            }
            let mut table = self.0.lock();
            if table.holds.is_empty() {
                table.is_watched = false;
                return;
            }
        }
    }

    /// Takes holds that have ended. What they held is counted no more.
    fn take_due(&self, now: Timestamp) -> Vec<(Owner, RunningHold)> {
        let mut table = self.0.lock();
        let table = &mut *table;
        let due: Vec<Owner> =
            table.due.iter().take(BATCH).take_while(|(at, _)| *at <= now).map(|(_, owner)| *owner).collect();
        table.is_asking = !due.is_empty();
        due.into_iter().filter_map(|owner| Some((owner, table.remove(owner)?))).collect()
    }

    /// Asks the store what has become of these holds, and records what was spent.
    async fn conclude(&self, gateway: &GatewayState, worker: Worker, due: Vec<(Owner, RunningHold)>) {
        let ended = |(owner, RunningHold { end, held, reserves, .. }): (Owner, RunningHold)| {
            drop(held);
            (owner, end, reserves)
        };
        let due: Vec<(Owner, Timestamp, Vec<UnsettledReserve>)> = due.into_iter().map(ended).collect();
        let mut keys: Vec<BucketKey> =
            due.iter().flat_map(|(.., reserves)| reserves.iter().map(|reserve| reserve.bucket)).collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return;
        }
        let read = gateway.store.read(worker, &keys).await.ok();
        let now = gateway.clock.now();
        for (owner, end, reserves) in due {
            let mut left = Vec::new();
            for reserve in reserves {
                let UnsettledReserve { bucket, algorithm, reserved, record } = &reserve;
                let Some((at, states)) = &read else {
                    left.push(reserve);
                    continue;
                };
                let state = keys.binary_search(bucket).ok().and_then(|index| states.get(index)?.as_deref());
                match algorithm.timed_hold(state, owner, at.of(algorithm)) {
                    TimedHoldStatus::Ended(at) => record.settle_at(*reserved, at),
                    TimedHoldStatus::Runs => left.push(reserve),
                    // The gateway that has settled has recorded it.
                    TimedHoldStatus::Settled => {}
                    // A bucket that is gone, as after a reset, has forgotten what was spent too.
                    TimedHoldStatus::Unknown if state.is_none() => {}
                    TimedHoldStatus::Unknown => record.lose(),
                }
            }
            if left.is_empty() {
                continue;
            }
            if now.since(end) > PATIENCE {
                left.iter().for_each(|reserve| reserve.record.lose());
            } else {
                // The next round is a second later.
                let hold = RunningHold { end, due: now.plus(AFTER), held: HeldSlots::default(), reserves: left };
                self.0.lock().insert(owner, hold);
            }
        }
    }
}

impl Table {
    fn insert(&mut self, owner: Owner, hold: RunningHold) {
        self.due.insert((hold.due, owner));
        self.holds.insert(owner, hold);
    }

    fn remove(&mut self, owner: Owner) -> Option<RunningHold> {
        let hold = self.holds.remove(&owner)?;
        self.due.remove(&(hold.due, owner));
        Some(hold)
    }
}
