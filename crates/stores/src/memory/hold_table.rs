//! The table of what requests hold of the buckets of one shard: by this process, and by the process before it.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use super::settlements::{Settlements, UnchargedCost, keep};
use super::slot_stream::HeldAmount;
use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::Budget;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::Charge;
use ledger::cost::Cost;
use ledger::holds::{SlotId, SlotTerms, Slots};

/// What is held of the buckets of one shard.
#[derive(Debug, Default)]
pub(super) struct HoldTable {
    pub buckets: HashMap<BucketKey, HeldBucket, RandomState>,
    pub slots: Slots,
    /// For each slot of a budget, the limit to which its cost is charged.
    pub budgets: HashMap<SlotId, SlotBudget, RandomState>,
    /// What the requests of earlier processes hold.
    pub elsewhere: HashMap<BucketKey, HeldBucket, RandomState>,
    /// What the last message of the previous process said to be settled.
    settled_elsewhere: HashMap<BucketKey, Settlements, RandomState>,
    /// Settled costs and resets that no bucket of this process knows yet.
    pub uncharged: HashMap<BucketKey, UnchargedCost, RandomState>,
    pub is_handing_over: bool,
}

/// How much is held of a bucket, and since when.
#[derive(Debug)]
pub(super) struct HeldBucket {
    pub amount: Cost,
    pub since: Timestamp,
    pub is_budget: bool,
    /// The budget of the last hold. `None` for slots, and for holds of another process.
    pub budget: Option<Box<Budget>>,
}

/// The limit of a budget of which a request holds something.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotBudget {
    pub budget: Budget,
    pub tag: LimitTag,
}

impl HoldTable {
    pub(super) fn add(&mut self, charge: &Charge, terms: SlotTerms, now: Timestamp) -> SlotId {
        let new = HeldBucket {
            amount: Cost::default(),
            since: now,
            is_budget: charge.algorithm.kind().is_budget(),
            budget: None,
        };
        let held = self.buckets.entry(charge.key).or_insert(new);
        held.amount = held.amount.plus(terms.amount);
        let slot = self.slots.add(charge.key, terms, now);
        if let Algorithm::Budget(budget) = terms.algorithm {
            held.budget = Some(Box::new(budget));
            self.budgets.insert(slot, SlotBudget { budget, tag: charge.tag });
        }
        slot
    }

    pub(super) fn lower(&mut self, (key, amount): (BucketKey, Cost)) {
        if let Some(held) = self.buckets.get_mut(&key) {
            held.amount = held.amount.less(amount);
            if held.amount == Cost::default() {
                self.buckets.remove(&key);
            }
        }
    }

    pub(super) fn end_overdue(&mut self, now: Timestamp) {
        while let Some(ended) = self.slots.end_overdue(now) {
            self.lower(ended);
        }
    }

    /// Returns what the previous process holds of a bucket, for an operator. What it has settled is held until the next request
    /// charges it to the bucket.
    pub(super) fn held_elsewhere(&self, key: &BucketKey) -> Option<HeldBucket> {
        let running = self.elsewhere.get(key).map(|held| (held.amount, held.since, held.is_budget));
        let settled =
            self.uncharged.get(key).filter(|_| !self.is_handing_over).map(|kept| (kept.settled.cost, kept.at, true));
        let both = running.into_iter().chain(settled);
        let (amount, since, is_budget) =
            both.reduce(|one, other| (one.0.plus(other.0), one.1.min(other.1), other.2))?;
        Some(HeldBucket { amount, since, is_budget, budget: None })
    }

    pub(super) fn of(&self, key: &BucketKey) -> Cost {
        let of = |held: Option<&HeldBucket>| held.map_or(Cost::default(), |held| held.amount);
        of(self.buckets.get(key)).plus(of(self.elsewhere.get(key)))
    }

    /// Returns what is held of each bucket, for the next process.
    pub(super) fn amounts(&self) -> Vec<HeldAmount> {
        let uncharged = |key: &BucketKey| self.uncharged.get(key).filter(|_| self.is_handing_over);
        let settled = |key: &BucketKey| uncharged(key).map_or(Settlements::default(), |kept| kept.settled);
        let amount = |(key, own): (&BucketKey, &HeldBucket)| {
            let since = self.elsewhere.get(key).map_or(own.since, |other| other.since.min(own.since));
            let (amount, is_budget, Settlements { resets, cost }) = (self.of(key), own.is_budget, settled(key));
            HeldAmount { key: *key, amount, since, settled: cost, resets, is_budget }
        };
        let only_elsewhere = self.elsewhere.iter().filter(|(key, _)| !self.buckets.contains_key(*key));
        let is_held = |key: &BucketKey| self.buckets.contains_key(key) || self.elsewhere.contains_key(key);
        let only_settled = self.uncharged.iter().filter(|(key, _)| self.is_handing_over && !is_held(key));
        let only_settled = only_settled.map(|(key, UnchargedCost { settled, at, .. })| HeldAmount {
            key: *key,
            amount: Cost::default(),
            since: *at,
            settled: settled.cost,
            resets: settled.resets,
            is_budget: true,
        });
        self.buckets.iter().chain(only_elsewhere).map(amount).chain(only_settled).collect()
    }

    /// Accepts what the previous process says that it holds, and keeps what it has settled since its last message.
    pub(super) fn count_elsewhere(&mut self, amounts: impl Iterator<Item = HeldAmount>, now: Timestamp) {
        self.elsewhere.clear();
        for HeldAmount { key, amount, since, settled, resets, is_budget } in amounts {
            if amount > Cost::default() {
                self.elsewhere.insert(key, HeldBucket { amount, since, is_budget, budget: None });
            }
            let said = Settlements { resets, cost: settled };
            if said != Settlements::default() {
                let before = self.settled_elsewhere.insert(key, said).unwrap_or_default();
                keep(&mut self.uncharged, key, said.since(before), now);
            }
        }
    }

    /// Notes that the next process knows these settled costs.
    pub(super) fn mark_sent(&mut self, sent: &HeldAmount) {
        if let Some(uncharged) = self.uncharged.get_mut(&sent.key) {
            uncharged.sent = Settlements { resets: sent.resets, cost: sent.settled };
        }
    }

    /// Returns whether costs are settled that the next process does not know.
    pub(super) fn has_unsent_costs(&self) -> bool {
        self.is_handing_over && self.uncharged.values().any(|uncharged| uncharged.sent != uncharged.settled)
    }
}
