//! Keeps what the requests of a log hold of budgets, and settles their costs when they end.

use std::collections::{BTreeMap, HashMap};

use super::bucket::{BucketId, Buckets};
use super::logged_cost::LoggedEnd;
use base::time::Timestamp;
use ledger::algorithm::State;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::concurrency::Holder;
use ledger::cost::Cost;
use ledger::holds::Owner;

/// The owner of all reservations in a simulation.
const SIMULATION: Owner = Owner(1);

/// The requests that hold something of a budget at one time of the log.
#[derive(Debug, Default)]
pub(crate) struct BudgetsInFlight {
    held: HashMap<BucketId, Cost>,
    /// What each request holds, ordered by its end. A number distinguishes requests that end at the same time.
    ends: BTreeMap<(Timestamp, u64), Spending>,
    number: u64,
}

/// What one request holds of a budget while it runs, and how it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spending {
    pub bucket: BucketId,
    pub budget: Budget,
    pub reserved: Cost,
    pub settled: LoggedEnd,
}

impl BudgetsInFlight {
    /// Settles the costs of all requests that have ended at this time or before, in the order of their ends.
    pub(crate) fn advance(&mut self, now: Timestamp, buckets: &mut Buckets) {
        while let Some(entry) = self.ends.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((end, _), Spending { bucket, budget, reserved, settled }) = entry.remove_entry();
            if let Some(held) = self.held.get_mut(&bucket) {
                *held = held.less(reserved);
                if *held == Cost::default() {
                    self.held.remove(&bucket);
                }
            }
            let change = |spent: Option<&[u64]>| match settled {
                LoggedEnd::Spent(cost) => budget.settle(spent, cost, end).state,
                LoggedEnd::Reset => budget.reset(spent, Cost::default(), end).state,
            };
            buckets.change_state(bucket, change);
        }
    }

    /// Returns the state of a bucket. `spent` is the part of the state that says what is spent.
    pub(crate) fn state(&self, bucket: BucketId, budget: &Budget, spent: Option<&[u64]>, now: Timestamp) -> State {
        let held = self.held.get(&bucket).copied().unwrap_or_default();
        budget.state(spent, &[Holder { owner: SIMULATION, held, since: now }], now)
    }

    /// Adds a request that was admitted and runs until `end`.
    pub(crate) fn hold(&mut self, spending: Spending, end: Timestamp) {
        let held = self.held.entry(spending.bucket).or_default();
        *held = held.plus(spending.reserved);
        self.number += 1;
        self.ends.insert((end, self.number), spending);
    }
}
