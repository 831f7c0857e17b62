//! The limit of what is spent from a budget: a token bucket or a fixed window.

use super::Budget;
use crate::algorithm::Algorithm;
use crate::algorithm::fixed_window::{self, FixedWindow, Window};
use crate::algorithm::step::{Entry, Level, Numbers, Period, Quota, RequestNumbers, Step};
use crate::algorithm::thresholds::Thresholds;
use crate::algorithm::token_bucket::{self, TokenBucket};
use crate::cost::Cost;
use base::time::Timestamp;

/// How much may be spent from a budget, and how the spent amount comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpentLimit {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
}

impl SpentLimit {
    /// Returns the limit without thresholds. Purses and their homes tell none.
    pub(in crate::algorithm) fn without_thresholds(self) -> SpentLimit {
        match self {
            SpentLimit::FixedWindow(window) => SpentLimit::FixedWindow(window.with_thresholds(Thresholds::default())),
            SpentLimit::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket),
        }
    }

    /// Returns whether these words of a state are possible.
    pub(in crate::algorithm) fn is_valid(&self, spent: &[u64]) -> bool {
        match self {
            SpentLimit::TokenBucket(_) => token_bucket::valid(spent).is_some(),
            SpentLimit::FixedWindow(_) => fixed_window::is_valid(spent),
        }
    }

    /// Computes the result of spending `cost`, as if nothing were held.
    pub(in crate::algorithm) fn step(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.step(spent, cost, now),
            SpentLimit::FixedWindow(window) => window.step(spent, cost, now),
        }
    }

    /// Returns what is left beside what is spent.
    pub(in crate::algorithm) fn level(&self, spent: Option<&[u64]>, now: Timestamp) -> Level {
        self.step(spent, Cost::default(), now).untouched
    }

    /// Spends a cost even if it does not fit.
    pub(in crate::algorithm) fn overdraw(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.overdraw(spent, cost, now),
            SpentLimit::FixedWindow(window) => window.overdraw(spent, cost, now),
        }
    }

    /// Spends a cost as at the earlier moment `at`, even if it does not fit. A fixed window spends nothing if its period at that
    /// moment is over at `now`.
    pub(super) fn overdraw_at(&self, spent: &[u64], cost: Cost, at: Timestamp, now: Timestamp) -> Entry {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.overdraw(Some(spent), cost, at),
            SpentLimit::FixedWindow(window) => window.overdraw_at(spent, cost, at, now),
        }
    }

    /// Forgets what is spent, and spends a cost in its place.
    pub(in crate::algorithm) fn overwrite(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.overwrite(spent, cost, now),
            SpentLimit::FixedWindow(window) => window.overwrite(spent, cost, now),
        }
    }

    /// Returns the amount that is spent at `now`.
    pub(in crate::algorithm) fn spent(&self, spent: Option<&[u64]>, now: Timestamp) -> Cost {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.spent(spent, now),
            SpentLimit::FixedWindow(window) => window.spent(spent, now),
        }
    }

    /// Returns whether the words must be stored again although nothing is charged.
    pub(in crate::algorithm) fn is_corrected(&self, spent: Option<&[u64]>, now: Timestamp) -> bool {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.correction(spent, now).is_some(),
            SpentLimit::FixedWindow(window) => window.correction(spent, now).is_some(),
        }
    }

    /// Returns the limit's quota at `now`.
    pub(in crate::algorithm) fn quota(&self, now: Timestamp) -> Quota {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.quota(),
            SpentLimit::FixedWindow(window) => window.quota(now),
        }
    }

    /// Returns the largest cost that fits if nothing is spent.
    pub(in crate::algorithm) fn ceiling(&self) -> Cost {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.burst(),
            SpentLimit::FixedWindow(window) => window.limit(),
        }
    }

    /// Returns this limit with a burst or limit that is larger by this amount.
    pub(in crate::algorithm) fn raised(&self, by: Cost) -> SpentLimit {
        match self {
            SpentLimit::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket.raised(by)),
            SpentLimit::FixedWindow(window) => SpentLimit::FixedWindow(window.raised(by)),
        }
    }

    /// Returns how a fixed window defines its periods; `None` for a token bucket.
    pub(in crate::algorithm) fn window(&self) -> Option<Window> {
        match self {
            SpentLimit::TokenBucket(_) => None,
            SpentLimit::FixedWindow(window) => Some(window.window()),
        }
    }

    /// Returns the token bucket; `None` for a fixed window.
    pub fn token_bucket(&self) -> Option<&TokenBucket> {
        match self {
            SpentLimit::TokenBucket(bucket) => Some(bucket),
            SpentLimit::FixedWindow(_) => None,
        }
    }

    /// Returns the period of a fixed window that contains `now`. `None` if no period runs, and for a token bucket.
    pub(in crate::algorithm) fn period(&self, spent: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        match self {
            SpentLimit::TokenBucket(_) => None,
            SpentLimit::FixedWindow(window) => window.period(spent, now),
        }
    }

    /// Returns the limit for a request with its own rate and size. `least` is the smallest cost of a request.
    pub(in crate::algorithm) fn for_request(&self, numbers: RequestNumbers, least: Cost) -> SpentLimit {
        match self {
            SpentLimit::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket.for_request(numbers, least)),
            SpentLimit::FixedWindow(window) => SpentLimit::FixedWindow(window.for_request(numbers, least)),
        }
    }

    /// Returns the limit with the fastest refill that any of its requests can have.
    pub(in crate::algorithm) fn at_fastest(&self) -> SpentLimit {
        match self {
            SpentLimit::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket.at_fastest()),
            SpentLimit::FixedWindow(_) => *self,
        }
    }

    /// Returns this limit for a bucket that `other` may charge too.
    pub(in crate::algorithm) fn alongside(self, other: &SpentLimit) -> SpentLimit {
        match (self, other) {
            (SpentLimit::TokenBucket(bucket), SpentLimit::TokenBucket(other)) => {
                SpentLimit::TokenBucket(bucket.alongside(other))
            }
            (mine, _) => mine,
        }
    }

    /// Returns the name of a setting that must be equal if both limits charge one bucket, but differs in `other`.
    pub(in crate::algorithm) fn conflict(&self, other: &SpentLimit) -> Option<&'static str> {
        match (self, other) {
            (SpentLimit::FixedWindow(window), SpentLimit::FixedWindow(other)) => window.conflict(other),
            _ => None,
        }
    }

    /// Returns this limit divided by a number, rounded down. `None` if nothing is left.
    pub(in crate::algorithm) fn divided(&self, by: u64) -> Option<SpentLimit> {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.divided(by).map(SpentLimit::TokenBucket),
            SpentLimit::FixedWindow(window) => {
                let limit = Cost::from_thousandths(window.limit().thousandths().checked_div(by)?);
                window.with_amount(limit).map(SpentLimit::FixedWindow)
            }
        }
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share.
    pub(in crate::algorithm) fn share(&self, cost: Cost, of: u64) -> (SpentLimit, Cost) {
        match self {
            SpentLimit::TokenBucket(bucket) => {
                let (bucket, cost) = bucket.share(cost, of);
                (SpentLimit::TokenBucket(bucket), cost)
            }
            SpentLimit::FixedWindow(window) => {
                let (window, cost) = window.share(cost, of);
                (SpentLimit::FixedWindow(window), cost)
            }
        }
    }

    /// Returns one of `of` equal shares of this limit as a limit by itself, and the cost to charge to the share.
    pub(in crate::algorithm) fn plain_share(&self, cost: Cost, of: u64) -> (Algorithm, Cost) {
        match self.share(cost, of) {
            (SpentLimit::TokenBucket(bucket), cost) => (Algorithm::TokenBucket(bucket), cost),
            (SpentLimit::FixedWindow(window), cost) => (Algorithm::FixedWindow(window), cost),
        }
    }

    /// Returns the settings as integers for the Lua twin, for a call at about the time `near`.
    pub(in crate::algorithm) fn numbers(&self, near: Timestamp) -> Numbers {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.numbers(),
            SpentLimit::FixedWindow(window) => window.numbers(near),
        }
    }
}

impl Budget {
    /// Returns the budget with these thresholds, if it is one of a fixed window.
    pub(in crate::algorithm) fn with_thresholds(&self, thresholds: Thresholds) -> Budget {
        match self.limit {
            SpentLimit::FixedWindow(window) => {
                Budget { limit: SpentLimit::FixedWindow(window.with_thresholds(thresholds)), ..*self }
            }
            SpentLimit::TokenBucket(_) => *self,
        }
    }
}
