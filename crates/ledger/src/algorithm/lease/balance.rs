//! Balances a fixed window over several regions: what home counts as spent, less what is unspent in purses, is what regions have charged.
//!
//! An amount on its way between home and a purse is unspent too: a lease that home has given and the purse has not got yet, and a return that
//! has left the purse and of which home has not heard.

use super::purse::PurseContents;
use super::remembered_purse::RememberedPurse;
use super::{Purse, Word, WordKind};
use crate::cost::Cost;
use base::time::Timestamp;

/// The part of a purse in the balance of a fixed window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurseBalance {
    /// What home counts as spent, and the region has not charged.
    pub unspent: Cost,
    /// What the region has charged without a lease, and home does not count as spent.
    pub debt: Cost,
}

impl Purse {
    /// Returns the part of this purse of a fixed window in the balance of the period that begins at `period` on the clock of home.
    /// `remembered` is what home remembers of the purse.
    pub fn balance(
        &self,
        state: Option<&[u64]>,
        now: Timestamp,
        period: Timestamp,
        remembered: Option<&RememberedPurse>,
    ) -> PurseBalance {
        let PurseContents { left, leased_for, debt, waiting } = self.contents(state, now);
        let left = if leased_for == period { left } else { Cost::default() };
        let on_its_way = waiting.map_or(Cost::default(), |word| on_its_way(&word, period, remembered));
        PurseBalance { unspent: left.plus(on_its_way), debt }
    }
}

/// Returns what is debited at home for a purse that waits for the answer to this word, and is not in the purse.
fn on_its_way(word: &Word, period: Timestamp, remembered: Option<&RememberedPurse>) -> Cost {
    let heard = remembered.filter(|remembered| remembered.last == word.id);
    match word.kind {
        WordKind::Lease => heard.filter(|heard| heard.period == period).map_or(Cost::default(), |heard| heard.given),
        WordKind::Return if heard.is_none() && word.period == period => word.amount,
        WordKind::Return => Cost::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::lease::{RegionId, WordId};
    use base::time::Micros;

    const PERIOD: Timestamp = Timestamp(1_763_672_000_000_000);

    fn remembered(number: u64, kind: WordKind, given: u64) -> RememberedPurse {
        RememberedPurse {
            region: RegionId(1),
            last: WordId { number, tag: 7 },
            kind,
            given: Cost::from_tokens(given),
            period: PERIOD,
            held: Cost::default(),
            ends: PERIOD.plus(Micros(1)),
        }
    }

    #[test]
    fn what_is_on_its_way_is_what_home_has_given_or_has_not_got_back() {
        let word = |kind, amount| Word {
            id: WordId { number: 5, tag: 7 },
            kind,
            amount: Cost::from_tokens(amount),
            least: Cost::ONE,
            left: Cost::default(),
            period: PERIOD,
        };
        let next = Timestamp(PERIOD.0 + 1);
        for (kind, period, home, expected) in [
            (WordKind::Lease, PERIOD, Some(remembered(5, WordKind::Lease, 4)), 4),
            (WordKind::Lease, next, Some(remembered(5, WordKind::Lease, 4)), 0),
            (WordKind::Lease, PERIOD, Some(remembered(4, WordKind::Lease, 4)), 0),
            (WordKind::Lease, PERIOD, None, 0),
            (WordKind::Return, PERIOD, Some(remembered(4, WordKind::Lease, 4)), 9),
            (WordKind::Return, next, Some(remembered(4, WordKind::Lease, 4)), 0),
            (WordKind::Return, PERIOD, Some(remembered(5, WordKind::Return, 0)), 0),
        ] {
            let found = on_its_way(&word(kind, 9), period, home.as_ref());
            assert_eq!(found, Cost::from_tokens(expected), "{kind:?} {period:?} {home:?}");
        }
    }

    #[test]
    fn a_purse_that_is_not_read_holds_at_most_a_lease_and_nothing_after_a_return() {
        let most = |purse: RememberedPurse, period| purse.most_unspent(period, Cost::from_tokens(50)).whole();
        assert_eq!(most(remembered(1, WordKind::Lease, 4), PERIOD), 50);
        assert_eq!(most(remembered(1, WordKind::Lease, 80), PERIOD), 130);
        assert_eq!(most(remembered(1, WordKind::Return, 0), PERIOD), 50);
        assert_eq!(most(remembered(1, WordKind::Lease, 4), Timestamp(PERIOD.0 + 1)), 0);
    }
}
