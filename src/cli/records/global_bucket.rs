//! Reads what is spent of a limit over several regions: the bucket at home, less what is unspent in purses.
//!
//! The purses of regions whose files were not given are not read. Home remembers the last word of each, which bounds what they can hold.

use std::collections::BTreeMap;

use super::regions::Regions;
use crate::gateway::bucket_levels::Levels;
use ledger::algorithm::lease::{Purse, PurseBalance, RegionId, RememberedPurse};
use ledger::algorithm::{Algorithm, Period};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;

/// The bucket of a limit over several regions.
#[derive(Debug)]
pub(super) struct GlobalBucket {
    /// The key at home.
    pub key: BucketKey,
    home: Algorithm,
    /// The purses of a region. Limits of one meter with other numbers have other purses.
    pub purses: BTreeMap<BucketKey, Purse>,
}

/// What regions hold of a limit, or have passed beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PursesOfRegions {
    /// What home counts as spent, and lies in the purses that were read, or is on its way.
    pub unspent: Cost,
    /// What was charged in these regions without home.
    pub debt: Cost,
    /// The number of purses that were not read, and can hold something.
    pub unread: usize,
    /// What these can hold at most.
    pub most_unread: Cost,
    /// What regions that were not read can have charged without home.
    pub most_unread_debt: Cost,
}

impl GlobalBucket {
    /// Returns the bucket that these purses are filled from. `None` without purses.
    pub(super) fn of(purses: BTreeMap<BucketKey, Purse>, regions: &Regions) -> Option<GlobalBucket> {
        let (key, purse) = purses.first_key_value()?;
        Some(GlobalBucket { key: key.across(purse), home: Algorithm::Home(purse.home(regions.all)?), purses })
    }

    /// Returns the algorithm of the bucket at home.
    pub(super) fn home(&self) -> &Algorithm {
        &self.home
    }

    /// Returns what the regions hold of this period. `levels` are those of the regions that are read.
    pub(super) fn purses_of(
        &self,
        regions: &Regions,
        period: Period,
        at_home: &Levels,
        levels: &[Levels],
    ) -> PursesOfRegions {
        let mut found = PursesOfRegions::default();
        let mut remembered = self.remembered(at_home);
        for (region, levels) in regions.read.iter().zip(levels) {
            for (key, purse) in &self.purses {
                let id = RegionId::of_purse(&region.name, key.0);
                let place = remembered.iter().position(|purse| purse.region == id);
                let known = place.map(|place| remembered.swap_remove(place));
                let (state, now) = (levels.state(key), levels.at.of(&Algorithm::Purse(*purse)));
                let PurseBalance { unspent, debt } = purse.balance(state.as_deref(), now, period.begin, known.as_ref());
                found.unspent = found.unspent.plus(unspent);
                found.debt = found.debt.plus(debt);
            }
        }
        let largest = self.purses.values().map(Purse::largest).max().unwrap_or_default();
        for most in remembered.iter().map(|purse| purse.most_unspent(period.begin, largest)) {
            found.unread += usize::from(most > Cost::default());
            found.most_unread = found.most_unread.plus(most);
        }
        let shares = self.purses.values().map(Purse::share_of_region).max().unwrap_or_default();
        found.most_unread_debt = shares.times(regions.unread());
        found
    }

    fn remembered(&self, at_home: &Levels) -> Vec<RememberedPurse> {
        let Algorithm::Home(home) = &self.home else { return Vec::new() };
        home.purses(at_home.state(&self.key).as_deref(), at_home.at.of(&self.home)).into_vec()
    }
}
