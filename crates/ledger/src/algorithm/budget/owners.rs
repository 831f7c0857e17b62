//! Reads and removes the owners of a budget.

use super::{Budget, Opened};
use crate::algorithm::owner_entries::Holder;
use crate::algorithm::step::{Entry, State};
use crate::cost::Cost;
use crate::holds::report::{Owner, TimedHoldStatus};
use base::time::Timestamp;

impl Budget {
    /// Returns the state of a bucket of which these owners hold something. `kept` is the state without what they hold.
    pub fn state(&self, kept: Option<&[u64]>, holders: &[Holder], now: Timestamp) -> State {
        let Opened { spent, ban, entries } = self.open(kept, now);
        let spent = spent.as_deref();
        let entries = entries.with_holders(holders);
        self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries).state
    }

    /// Returns the entry of a bucket without this owner.
    pub(in crate::algorithm) fn without_owner(&self, state: Option<&[u64]>, owner: Owner, now: Timestamp) -> Entry {
        let Opened { spent, ban, entries } = self.open(state, now);
        let spent = spent.as_deref();
        self.joined(self.limit.overdraw(spent, Cost::default(), now), &ban, &entries.without(owner))
    }

    /// Returns what has become of a timed hold.
    pub(in crate::algorithm) fn timed_hold(
        &self,
        state: Option<&[u64]>,
        owner: Owner,
        now: Timestamp,
    ) -> TimedHoldStatus {
        self.open(state, now).entries.timed_hold(owner)
    }

    /// Returns the owners that hold something at `now`, beginning with the owner of the last accepted report.
    pub fn holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        self.open(state, now).entries.holders().collect()
    }
}
