//! The limit of what is spent from a budget: a token bucket or a fixed window.

use crate::algorithm::fixed_window::{self, FixedWindow, Window};
use crate::algorithm::step::{Entry, Level, Numbers, Period, Quota, RequestNumbers, Step};
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
    /// Returns whether these words of a state are possible.
    pub(super) fn is_valid(&self, spent: &[u64]) -> bool {
        match self {
            SpentLimit::TokenBucket(_) => token_bucket::valid(spent).is_some(),
            SpentLimit::FixedWindow(_) => fixed_window::is_valid(spent),
        }
    }

    /// Computes the result of spending `cost`, as if nothing were held.
    pub(super) fn step(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.step(spent, cost, now),
            SpentLimit::FixedWindow(window) => window.step(spent, cost, now),
        }
    }

    /// Returns what is left beside what is spent.
    pub(super) fn level(&self, spent: Option<&[u64]>, now: Timestamp) -> Level {
        self.step(spent, Cost::default(), now).untouched
    }

    /// Spends a cost even if it does not fit.
    pub(super) fn overdraw(&self, spent: Option<&[u64]>, cost: Cost, now: Timestamp) -> Entry {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.overdraw(spent, cost, now),
            SpentLimit::FixedWindow(window) => window.overdraw(spent, cost, now),
        }
    }

    /// Returns the amount that is spent at `now`.
    pub(super) fn spent(&self, spent: Option<&[u64]>, now: Timestamp) -> Cost {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.spent(spent, now),
            SpentLimit::FixedWindow(window) => window.spent(spent, now),
        }
    }

    /// Returns whether the words must be stored again although nothing is charged.
    pub(super) fn is_corrected(&self, spent: Option<&[u64]>, now: Timestamp) -> bool {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.correction(spent, now).is_some(),
            SpentLimit::FixedWindow(window) => window.correction(spent, now).is_some(),
        }
    }

    /// Returns the limit's quota at `now`.
    pub(super) fn quota(&self, now: Timestamp) -> Quota {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.quota(),
            SpentLimit::FixedWindow(window) => window.quota(now),
        }
    }

    /// Returns the largest cost that fits if nothing is spent.
    pub(super) fn ceiling(&self) -> Cost {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.burst(),
            SpentLimit::FixedWindow(window) => window.limit(),
        }
    }

    /// Returns how a fixed window defines its periods; `None` for a token bucket.
    pub(super) fn window(&self) -> Option<Window> {
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
    pub(super) fn period(&self, spent: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        match self {
            SpentLimit::TokenBucket(_) => None,
            SpentLimit::FixedWindow(window) => window.period(spent, now),
        }
    }

    /// Returns the limit for a request with its own rate and size. `least` is the smallest cost of a request.
    pub(super) fn for_request(&self, numbers: RequestNumbers, least: Cost) -> SpentLimit {
        match self {
            SpentLimit::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket.for_request(numbers, least)),
            SpentLimit::FixedWindow(window) => SpentLimit::FixedWindow(window.for_request(numbers, least)),
        }
    }

    /// Returns the limit with the fastest refill that any of its requests can have.
    pub(super) fn at_fastest(&self) -> SpentLimit {
        match self {
            SpentLimit::TokenBucket(bucket) => SpentLimit::TokenBucket(bucket.at_fastest()),
            SpentLimit::FixedWindow(_) => *self,
        }
    }

    /// Returns this limit for a bucket that `other` may charge too.
    pub(super) fn alongside(self, other: &SpentLimit) -> SpentLimit {
        match (self, other) {
            (SpentLimit::TokenBucket(bucket), SpentLimit::TokenBucket(other)) => {
                SpentLimit::TokenBucket(bucket.alongside(other))
            }
            (mine, _) => mine,
        }
    }

    /// Returns the name of a setting that must be equal if both limits charge one bucket, but differs in `other`.
    pub(super) fn conflict(&self, other: &SpentLimit) -> Option<&'static str> {
        match (self, other) {
            (SpentLimit::FixedWindow(window), SpentLimit::FixedWindow(other)) => window.conflict(other),
            _ => None,
        }
    }

    /// Returns one of `of` equal shares of this limit, and the cost to charge to the share.
    pub(super) fn share(&self, cost: Cost, of: u64) -> (SpentLimit, Cost) {
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

    /// Returns the settings as integers for the Lua twin, for a call at about the time `near`.
    pub(super) fn numbers(&self, near: Timestamp) -> Numbers {
        match self {
            SpentLimit::TokenBucket(bucket) => bucket.numbers(),
            SpentLimit::FixedWindow(window) => window.numbers(near),
        }
    }
}
