//! Divides a limit into shares. While the shared store is down, each gateway decides about its share alone.

use super::Algorithm;
use super::step::Entry;
use crate::cost::Cost;
use base::time::Timestamp;

impl Algorithm {
    /// Divides the limit into `of` equal shares. Returns the limit of one share, and the cost to charge to the share.
    /// Slots are divided. For other limits the cost is multiplied, to avoid rounding. A share begins no bans.
    pub fn share(&self, cost: Cost, of: u64) -> (Algorithm, Cost) {
        match self {
            Algorithm::TokenBucket(bucket) => {
                let (bucket, cost) = bucket.share(cost, of);
                (Algorithm::TokenBucket(bucket), cost)
            }
            Algorithm::FixedWindow(window) => {
                let (window, cost) = window.share(cost, of);
                (Algorithm::FixedWindow(window), cost)
            }
            Algorithm::SlidingLog(log) => {
                let (log, cost) = log.share(cost, of);
                (Algorithm::SlidingLog(log), cost)
            }
            Algorithm::SlidingWindow(window) => {
                let (window, cost) = window.share(cost, of);
                (Algorithm::SlidingWindow(window), cost)
            }
            Algorithm::LeakyBucket(bucket) => {
                let (bucket, cost) = bucket.share(cost, of);
                (Algorithm::LeakyBucket(bucket), cost)
            }
            Algorithm::Concurrency(slots) => {
                let (slots, cost) = slots.share(cost, of);
                (Algorithm::Concurrency(slots), cost)
            }
            Algorithm::Budget(budget) => budget.share(cost, of),
            // A region that decides alone has no more than one purse again.
            Algorithm::Purse(purse) => purse.alone().plain_share(cost, of),
            Algorithm::Home(home) => home.limit().plain_share(cost, of),
        }
    }

    /// Returns the same limit for one region alone, for a reader that knows one region.
    #[must_use]
    pub fn in_one_region(self) -> Algorithm {
        match self {
            Algorithm::Purse(purse) => purse.limit().plain_share(Cost::default(), 1).0,
            Algorithm::Home(home) => home.limit().plain_share(Cost::default(), 1).0,
            other => other,
        }
    }

    /// Returns the first entry of a share of the limit, made from the plain state `seen` of the whole limit. `None`: the
    /// share begins full, and the caller can charge the spent amount to it.
    pub(super) fn plain_begin_with(&self, seen: &[u64], now: Timestamp) -> Option<Entry> {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_)
            | Algorithm::Budget(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => None,
            Algorithm::SlidingLog(log) => log.begin_with(seen, now),
            Algorithm::SlidingWindow(window) => window.begin_with(seen, now),
        }
    }
}
