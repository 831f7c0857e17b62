//! Defines how large a lease may be: a share of the limit, and at least a fixed amount.

use crate::algorithm::step::EXACT;
use crate::cost::Cost;

/// The whole limit, in millionths.
const WHOLE: u64 = 1_000_000;

/// The size of the largest lease of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseSize {
    /// The share of the limit, in millionths.
    share: u64,
    /// A lease may be at least this large, whatever the share is.
    least: Cost,
}

impl LeaseSize {
    /// Makes the size of a share in millionths of the limit, at least `least`. A share above the whole limit is the whole limit.
    pub fn new(share: u64, least: Cost) -> LeaseSize {
        LeaseSize { share: share.min(WHOLE), least }
    }

    /// Makes a size that is the same for every limit.
    pub fn fixed(amount: Cost) -> LeaseSize {
        LeaseSize { share: 0, least: amount }
    }

    /// Returns the largest lease of a limit with this burst or limit: a whole number of tokens, or the least amount.
    pub fn of(&self, limit: Cost) -> Cost {
        let share = u128::from(limit.thousandths()) * u128::from(self.share) / u128::from(WHOLE);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let whole = Cost::from_thousandths(share - share % 1000);
        whole.max(self.least).min(Cost::from_thousandths(EXACT >> 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_share_in_whole_tokens_and_at_least_the_least_amount() {
        let size = LeaseSize::new(50_000, Cost::from_tokens(3));
        let tokens = |limit| size.of(Cost::from_tokens(limit)).thousandths();
        assert_eq!([10, 60, 79, 80, 1000].map(tokens), [3000, 3000, 3000, 4000, 50_000]);
        assert_eq!(LeaseSize::fixed(Cost::from_tokens(7)).of(Cost::from_tokens(1_000_000)), Cost::from_tokens(7));
        assert_eq!(LeaseSize::new(u64::MAX, Cost::ONE).of(Cost::from_tokens(9)), Cost::from_tokens(9));
    }
}
