//! Defines the limits of the small world: slots, which only hold, or a budget, which holds and spends.

use super::SECOND;
use crate::algorithm::budget::Budget;
use crate::algorithm::concurrency::{Concurrency, Holder};
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::{Algorithm, ChargeResult, Entry};
use crate::cost::Cost;
use crate::holds::{Report, SlotTerms};
use base::time::{Micros, Timestamp};

/// What the buckets of the world count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// Slots, which are given back when a request ends.
    Slots(Concurrency),
    /// Tokens, of which a request holds one and spends one when the request ends.
    Budget(Budget),
}

impl Limit {
    pub(crate) fn of_slots(limit: u64) -> Limit {
        Limit::Slots(Concurrency::new(limit).unwrap())
    }

    /// Makes a budget of tokens in a period that does not end.
    pub(crate) fn of_tokens(limit: u64) -> Limit {
        let day = Window::FirstRequest(Micros(86_400 * SECOND));
        Limit::Budget(Budget::of_fixed_window(FixedWindow::new(limit, day).unwrap()))
    }

    /// Returns what a request asks for.
    pub(super) fn terms(&self) -> SlotTerms {
        let algorithm = match self {
            Limit::Slots(slots) => Algorithm::Concurrency(*slots),
            Limit::Budget(budget) => Algorithm::Budget(*budget),
        };
        SlotTerms { amount: Cost::ONE, algorithm }
    }

    pub(super) fn size(&self) -> u64 {
        match self {
            Limit::Slots(slots) => slots.limit().whole(),
            Limit::Budget(budget) => budget.ceiling().whole(),
        }
    }

    pub(super) fn accept(&self, state: Option<&[u64]>, report: Report, now: Timestamp) -> Option<Entry> {
        match self {
            Limit::Slots(slots) => slots.accept(state, report, now),
            Limit::Budget(budget) => budget.accept(state, report, now),
        }
    }

    pub(super) fn charge(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> ChargeResult {
        match self {
            Limit::Slots(slots) => slots.step(state, cost, now).charge,
            Limit::Budget(budget) => budget.step(state, cost, now).charge,
        }
    }

    pub(super) fn holders(&self, state: Option<&[u64]>, now: Timestamp) -> Vec<Holder> {
        match self {
            Limit::Slots(slots) => slots.holders(state, now),
            Limit::Budget(budget) => budget.holders(state, now),
        }
    }

    pub(super) fn held(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        match self {
            Limit::Slots(slots) => slots.spent(state, now),
            Limit::Budget(budget) => budget.held(state, now),
        }
    }

    pub(super) fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> u64 {
        match self {
            Limit::Slots(_) => 0,
            Limit::Budget(budget) => budget.spent(state, now).whole(),
        }
    }
}
