//! Selects buckets at the home of limits over several regions, for `--home`.

use super::bucket::{Place, failure};
use super::bucket_backend::Backend;
use super::failure::{Failure, with_hint};
use crate::gateway::bucket_lookup::{self, BucketSelection, Limit};
use config::Config;
use ledger::algorithm::Algorithm;

/// Where the selected buckets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    /// In the store of this region: of a limit over several regions, the purse.
    Region,
    /// At home: only limits over several regions.
    Home,
}

impl Site {
    pub(super) fn of(place: &Place) -> Site {
        if place.home { Site::Home } else { Site::Region }
    }

    /// Returns the place of the buckets at home.
    ///
    /// # Errors
    /// When the file has no home.
    pub(super) fn backend(config: &Config) -> Result<Backend, Failure> {
        let home = config.home.as_ref().ok_or("--home: the file has no `home` in `store`")?;
        Ok(Backend::Shared(Box::new(home.store.clone())))
    }

    /// Returns those of the buckets to which an amount can be given back here.
    ///
    /// # Errors
    /// Without such buckets, or if one of them is at home and this is the region.
    pub(super) fn grantable(self, chosen: Vec<BucketSelection>) -> Result<Vec<BucketSelection>, Failure> {
        if self == Site::Region {
            bucket_lookup::not_at_home(&chosen).map_err(failure)?;
        }
        bucket_lookup::changeable(chosen).map_err(failure)
    }

    /// Returns the buckets of the selected limits there.
    ///
    /// # Errors
    /// When none of the limits has a home.
    pub(super) fn select(self, chosen: Vec<BucketSelection>, config: &Config) -> Result<Vec<BucketSelection>, Failure> {
        if self == Site::Region {
            return Ok(chosen);
        }
        let regions = config.home.as_ref().map_or(0, |home| home.regions.len());
        let regions = u64::try_from(regions).unwrap_or(u64::MAX);
        let at_home = |selection: BucketSelection| {
            let limit = selection.limit?;
            let Algorithm::Purse(purse) = &limit.algorithm else { return None };
            let (key, algorithm) = (selection.key.across(purse), Algorithm::Home(purse.home(regions)?));
            let limit = Limit { algorithm, ..limit.clone() };
            Some(BucketSelection { key, limit: Some(limit), of: selection.of })
        };
        let found: Vec<BucketSelection> = chosen.into_iter().filter_map(at_home).collect();
        match found.is_empty() {
            true => Err(with_hint("--home: no such limit has `scope: global`", "leave out --home")),
            false => Ok(found),
        }
    }
}
