//! Lets a purse pay while home gives no answer: from the share of its region, less what the region has leased.
//!
//! The share is the limit divided by the number of regions. It is a token bucket or fixed window like the limit, and its state is in the
//! purse. A lease is charged to it as well, even if it does not fit. What was spent without a lease is a debt, which the next leases pay
//! before they fill the purse. So a region passes at most its share, or what it has leased if that is more. All regions together pass more
//! than the limit if some of them have leased more than their shares: as much more as that is.

use super::Purse;
use super::stored_purse::{PendingWord, StoredShare};
use crate::algorithm::budget::SpentLimit;
use crate::algorithm::token_bucket::TokenBucket;
use crate::cost::Cost;
use base::time::Timestamp;

/// The indices of the Lua twins: without a share, and with a share of a token bucket or of a window.
pub(in crate::algorithm) const PLAIN_TWIN: usize = 16;
const TWIN_WITH_BUCKET: usize = 19;
const TWIN_WITH_WINDOW: usize = 20;

/// What a region may spend without home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionShare {
    /// Nothing.
    None,
    /// Nothing, but what was spent of one of so many shares, and what is leased, stays counted.
    Unspent { regions: u64 },
    /// One of so many shares, after home gave no answer. Until then leases are counted.
    Counted { regions: u64 },
    /// One of so many shares, because home gives no answer.
    Spent { regions: u64 },
}

impl RegionShare {
    pub(super) fn is_spent(self) -> bool {
        matches!(self, RegionShare::Spent { .. })
    }

    /// Returns the number that means this in the Lua twin.
    pub(super) fn code(self) -> u64 {
        match self {
            RegionShare::None | RegionShare::Counted { .. } => 0,
            RegionShare::Spent { .. } => 1,
            RegionShare::Unspent { .. } => 2,
        }
    }

    /// Whether the share is worth keeping after its purse: something may be spent from it, or is to be paid.
    pub(super) fn is_kept(self, debt: u64) -> bool {
        debt > 0 || !matches!(self, RegionShare::Unspent { .. })
    }
}

impl Purse {
    /// Returns the index of the Lua twin.
    pub(in crate::algorithm) fn twin(&self) -> usize {
        match (self.share_limit(), &self.limit) {
            (None, _) => PLAIN_TWIN,
            (Some(_), SpentLimit::TokenBucket(_)) => TWIN_WITH_BUCKET,
            (Some(_), SpentLimit::FixedWindow(_)) => TWIN_WITH_WINDOW,
        }
    }

    /// Returns the share of this region as a limit. `None` if the region has none.
    pub(super) fn share_limit(&self) -> Option<SpentLimit> {
        match self.share {
            RegionShare::None => None,
            RegionShare::Unspent { regions } | RegionShare::Counted { regions } | RegionShare::Spent { regions } => {
                self.limit.divided(regions)
            }
        }
    }

    /// Returns the share at `now`. What was leased before an earlier form of the purse counted it is not known, so it counts as all
    /// that the region may spend.
    pub(super) fn open_share(
        &self,
        is_stored: bool,
        share: Option<StoredShare>,
        now: Timestamp,
    ) -> Option<StoredShare> {
        let words = match &share {
            Some(share) => Some(&share.words[..]),
            None => is_stored.then_some(&[][..]),
        };
        let limit = self.share_limit()?;
        let opened = limit.overdraw(words, Cost::default(), now);
        let unit = limit.token_bucket().map_or(1, TokenBucket::unit);
        let spent = opened.state.first().copied().unwrap_or_default() / unit;
        StoredShare::of(&opened, share.map_or(0, |share| share.debt.min(spent)))
    }

    /// Returns the share after a lease of this amount, which first pays what the region had spent without one. The share of a token bucket is
    /// empty at most: what is leased beyond it is not spent without home.
    pub(super) fn share_after_lease(
        &self,
        share: Option<StoredShare>,
        given: u64,
        now: Timestamp,
    ) -> Option<StoredShare> {
        let StoredShare { words, debt, .. } = share?;
        let (paid, limit) = (debt.min(given), self.share_limit()?);
        let room = |bucket: &TokenBucket| bucket.capacity().saturating_sub(words[0]) / bucket.unit();
        let counted = (given - paid).min(limit.token_bucket().map_or(u64::MAX, room));
        let entry = limit.overdraw(Some(&words), Cost::from_thousandths(counted), now);
        StoredShare::of(&entry, debt - paid)
    }

    /// Returns the share after home has taken back what the purse gave up in the period of the share. What was leased of a token
    /// bucket has been refilled, or soon will be.
    pub(super) fn share_after_return(&self, share: StoredShare, returned: &PendingWord) -> StoredShare {
        let [spent, begin, end] = share.words;
        match self.limit {
            SpentLimit::FixedWindow(_) if Timestamp(begin) <= returned.mark => {
                StoredShare { words: [spent.saturating_sub(returned.amount), begin, end], ..share }
            }
            _ => share,
        }
    }
}
