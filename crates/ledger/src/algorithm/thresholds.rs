//! Thresholds: shares of a fixed window's limit. A bucket remembers the highest one that was reported in its period, so that over all
//! gateways each is reported at most once.

use crate::cost::Cost;

/// The most thresholds of a limit, so that their Lua twin reads all of them as one number.
pub const MOST_THRESHOLDS: usize = 6;

/// Shares of a limit in percent, in ascending order. Zeros follow the last share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Thresholds([u8; MOST_THRESHOLDS]);

impl Thresholds {
    /// Makes the thresholds at these shares. `None` if there are too many, or if a share is not between 1 and 100 percent.
    pub fn new(shares: &[u8]) -> Option<Thresholds> {
        let mut sorted = shares.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let is_valid = sorted.len() <= MOST_THRESHOLDS && sorted.iter().all(|share| (1..=100).contains(share));
        is_valid.then(|| {
            let mut thresholds = [0; MOST_THRESHOLDS];
            thresholds.iter_mut().zip(sorted).for_each(|(to, share)| *to = share);
            Thresholds(thresholds)
        })
    }

    pub fn is_empty(self) -> bool {
        self == Thresholds::default()
    }

    /// Returns the shares in percent.
    pub fn shares(self) -> impl Iterator<Item = u8> {
        self.0.into_iter().filter(|share| *share > 0)
    }

    /// Returns the shares as one number below 2^48 for the Lua twin, the first share in the lowest byte.
    pub(super) fn packed(self) -> u64 {
        self.0.iter().rev().fold(0, |packed, share| packed << 8 | u64::from(*share))
    }

    /// Returns the amount of this share of a limit, rounded up to a thousandth.
    pub fn amount(share: u8, limit: Cost) -> Cost {
        let (share, limit) = (u64::from(share), limit.thousandths());
        // No product exceeds the limit much, so a store that counts in doubles gets the same amount.
        Cost::from_thousandths(limit / 100 * share + (limit % 100 * share).div_ceil(100))
    }

    /// Returns the amount of the highest threshold that is reached when `spent` is spent. Zero if none is.
    pub(super) fn reached(self, limit: Cost, spent: Cost) -> Cost {
        let amounts = self.shares().map(|share| Thresholds::amount(share, limit));
        amounts.filter(|amount| *amount <= spent).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_sorted_and_between_1_and_100_percent() {
        let shares = |of: &[u8]| Thresholds::new(of).map(|thresholds| thresholds.shares().collect::<Vec<_>>());
        assert_eq!(shares(&[100, 80, 80]), Some(vec![80, 100]));
        assert_eq!((shares(&[0]), shares(&[101]), shares(&[1, 2, 3, 4, 5, 6, 7])), (None, None, None));
        assert_eq!(Thresholds::new(&[80, 100]).unwrap().packed(), 100 * 256 + 80);
        assert!(Thresholds::new(&[]).unwrap().is_empty());
    }

    #[test]
    fn an_amount_is_a_share_of_the_limit_rounded_up() {
        for (share, limit, amount) in [(80, 100_000, 80_000), (33, 10, 4), (100, 7, 7), (1, 0, 0)] {
            let found = Thresholds::amount(share, Cost::from_thousandths(limit));
            assert_eq!(found.thousandths(), amount, "{share} % of {limit}");
        }
        let thresholds = Thresholds::new(&[50, 80]).unwrap();
        let reached = |spent| thresholds.reached(Cost::from_tokens(10), Cost::from_tokens(spent)).whole();
        assert_eq!([4, 5, 7, 8, 20].map(reached), [0, 5, 5, 8, 8]);
    }
}
