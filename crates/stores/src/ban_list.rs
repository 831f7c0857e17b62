//! Lists the bans of a limit that run, for an operator. Of many bans, those that end last are kept.

use std::collections::BTreeSet;

use base::time::Timestamp;
use ledger::algorithm::Algorithm;
use ledger::algorithm::ban::BanPeriod;
use ledger::bucket_key::BucketKey;
use ledger::store_time::StoreTime;

/// The maximum number of bans in a list.
pub const MOST_LISTED: usize = 1_000;

/// The bans of a limit that run, collected from the buckets of a store.
#[derive(Debug, Default)]
pub struct BanList {
    /// The time at which the last buckets were read, by the store's clock.
    pub at: StoreTime,
    /// The number of buckets that were visited, of any limit.
    pub visited: u64,
    /// Whether there are more than [`MOST_LISTED`] bans. Then the ones that end first are missing.
    pub is_cut: bool,
    bans: BTreeSet<(Timestamp, BucketKey, u32)>,
}

impl BanList {
    /// Adds the ban of a bucket if one runs. A bucket that is visited twice is listed once.
    pub(crate) fn add(&mut self, key: BucketKey, algorithm: &Algorithm, state: Option<&[u64]>, at: StoreTime) {
        let Some(BanPeriod { end, step }) = algorithm.running_ban(state, at.of(algorithm)) else { return };
        self.bans.insert((end, key, step));
        if self.bans.len() > MOST_LISTED {
            self.bans.pop_first();
            self.is_cut = true;
        }
    }

    /// Returns the banned buckets. The ban that ends last is the first.
    pub fn bans(&self) -> impl Iterator<Item = (BucketKey, BanPeriod)> {
        self.bans.iter().rev().map(|(end, key, step)| (*key, BanPeriod { end: *end, step: *step }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Micros;
    use ledger::algorithm::ban::Ban;
    use ledger::algorithm::budget::{Budget, SpentLimit};
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    use ledger::cost::Cost;

    #[test]
    fn the_bans_that_end_last_are_kept() {
        let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
        let hour = Ban::new(&[Micros(3_600_000_000)], Micros(3_600_000_000)).unwrap();
        let bucket = SpentLimit::TokenBucket(TokenBucket::new(rate, 1).unwrap());
        let limit = Algorithm::Budget(Budget::banning(bucket, hour));
        let now = Timestamp(1 << 50);
        let mut list = BanList::default();
        for number in 0..=MOST_LISTED as u64 {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&number.to_be_bytes());
            let banned = limit.set_ban(None, Micros(1_000_000 + number), now).unwrap().state;
            // A scan of Redis may visit a bucket twice.
            for _ in 0..2 {
                list.add(BucketKey(key), &limit, Some(&banned[..]), now.into());
            }
        }
        list.add(BucketKey([1; 16]), &limit, None, now.into());
        let ends: Vec<u64> = list.bans().map(|(_, ban)| ban.end.0 - now.0 - 1_000_000).collect();
        assert!(list.is_cut && ends.iter().rev().copied().eq(1..=MOST_LISTED as u64), "{ends:?}");
        // An ended ban is not listed.
        let banned = limit.set_ban(None, Micros(1), now).unwrap().state;
        let mut list = BanList::default();
        list.add(BucketKey([1; 16]), &limit, Some(&banned[..]), now.plus(Micros(1)).into());
        assert_eq!((list.bans().count(), list.is_cut), (0, false));
    }
}
