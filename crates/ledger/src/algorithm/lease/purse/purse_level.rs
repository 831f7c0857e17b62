//! Reads what a purse holds, and what it knows of home, without changing it.

use super::stored_purse::{StoredPurse, StoredRaise};
use super::{Purse, plus};
use crate::algorithm::budget::SpentLimit;
use crate::algorithm::lease::Word;
use crate::algorithm::step::{Level, Period};
use crate::cost::Cost;
use base::time::Timestamp;

/// What a purse holds at one moment.
pub(in crate::algorithm::lease) struct PurseContents {
    pub left: Cost,
    /// The period for which that was leased: its beginning on the clock of home.
    pub leased_for: Timestamp,
    /// What was spent without a lease.
    pub debt: Cost,
    /// The word for whose answer the purse waits.
    pub waiting: Option<Word>,
}

impl Purse {
    /// Returns what is left in the purse at `now`.
    pub fn left(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        Cost::from_thousandths(self.open(state, now).left)
    }

    /// Returns what a purse holds at `now`, and for what it waits.
    pub(in crate::algorithm::lease) fn contents(&self, state: Option<&[u64]>, now: Timestamp) -> PurseContents {
        let purse = self.open(state, now);
        PurseContents {
            left: Cost::from_thousandths(purse.left),
            leased_for: purse.period,
            debt: Cost::from_thousandths(purse.share.map_or(0, |share| share.debt)),
            waiting: purse.word(),
        }
    }

    /// Returns the amount that is spent over all regions, as far as the purse knows.
    pub(in crate::algorithm) fn spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        let purse = self.open(state, now);
        self.most(&purse, now).less(self.level(&purse, now).remaining)
    }

    /// Returns the sum of the raises at home, as last heard, and until when it holds: the first of them ends then. `None` without any.
    pub fn raise(state: Option<&[u64]>, now: Timestamp) -> Option<(Cost, Timestamp)> {
        let StoredRaise { amount, ends } = StoredPurse::parse(state?)?.raise.filter(|raise| raise.ends > now)?;
        Some((Cost::from_thousandths(amount), ends))
    }

    /// Returns the burst or limit, with the raises that run at home. A number of 0 stays 0.
    fn most(&self, purse: &StoredPurse, now: Timestamp) -> Cost {
        match purse.raise {
            Some(raise) if raise.ends > now && self.limit.ceiling() > Cost::default() => {
                self.limit.raised(Cost::from_thousandths(raise.amount)).ceiling()
            }
            _ => self.limit.ceiling(),
        }
    }

    /// Returns the period for which a purse of a fixed window was leased.
    pub(in crate::algorithm) fn period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        let purse = self.open(state, now);
        self.limit.window()?;
        // The beginning is on the clock of home, which can be far ahead.
        (now < purse.ends).then_some(Period { begin: purse.period.min(now), end: purse.ends })
    }

    /// Returns the period for which the amount in the purse was leased: its beginning on the clock of home. `None` for an empty purse.
    pub fn leased_for(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Timestamp> {
        let purse = self.open(state, now);
        (purse.left > 0).then_some(purse.period)
    }

    /// Returns when home was last heard: what other regions have spent since is not known here. `None` before the first answer.
    pub fn heard(state: Option<&[u64]>) -> Option<Timestamp> {
        Some(StoredPurse::parse(state?)?.heard).filter(|heard| *heard > Timestamp(0))
    }

    /// Returns whether the purse knows what is left at home now, from an answer in the running period.
    pub fn is_home_known(&self, state: Option<&[u64]>, now: Timestamp) -> bool {
        self.knows_home(&self.open(state, now), now)
    }

    fn knows_home(&self, purse: &StoredPurse, now: Timestamp) -> bool {
        now < purse.ends || self.is_short(purse, now)
    }

    /// Returns what is left in the purse and at home. Before anything is heard of home, that is the whole limit.
    pub(super) fn level(&self, purse: &StoredPurse, now: Timestamp) -> Level {
        if let (true, Some((share, stored))) = (self.share.is_spent(), self.share_limit().zip(purse.share)) {
            let Level { remaining, reset_after } = share.level(Some(&stored.words), now);
            let remaining = remaining.plus(Cost::from_thousandths(purse.left));
            return Level { remaining, reset_after: reset_after.max(purse.ends.since(now)) };
        }
        let most = self.most(purse, now);
        // What raises that have ended had added is no longer there.
        let gone = purse.raise.filter(|raise| raise.ends <= now).map_or(0, |raise| raise.amount);
        let left = Cost::from_thousandths(plus(purse.left, purse.left_at_home.saturating_sub(gone)));
        let remaining = if self.knows_home(purse, now) { left.min(most) } else { most };
        let reset_after = match &self.limit {
            SpentLimit::FixedWindow(_) => purse.ends.since(now),
            SpentLimit::TokenBucket(bucket) => bucket.time_to_gain(most.less(remaining)),
        };
        Level { remaining, reset_after }
    }
}
