//! Remembers which purses this process has filled, until they are in the index of purses.

use std::collections::HashMap;

use super::rounds::PurseFill;
use crate::purse_index::IndexedPurse;
use base::time::{Micros, Timestamp};
use ledger::bucket_key::BucketKey;

/// The most purses that are remembered, which is what the index has room for.
const MOST: usize = 32_768;

/// After how long a purse that is filled again is written to the index again: the store can have lost it.
const AGAIN: Micros = Micros(600_000_000);

/// The time between two searches for purses that have ended, when no room is left.
const SEARCH_PAUSE: Micros = Micros(5_000_000);

#[derive(Debug, Default)]
pub(super) struct FilledPurses {
    /// The purses that are in the index, or will be.
    known: HashMap<BucketKey, KnownPurse>,
    next_search: Timestamp,
    /// Those that are not in the index.
    waiting: Vec<IndexedPurse>,
}

#[derive(Clone, Copy, Debug)]
struct KnownPurse {
    ends: Timestamp,
    told: Timestamp,
}

impl FilledPurses {
    /// Adds purses that were filled. One that is known waits again only if it lasts much longer now, or after a while.
    pub(super) fn add(&mut self, filled: &[PurseFill]) {
        for PurseFill { purse, at, ends, .. } in filled {
            let is_told = |known: &KnownPurse| {
                *ends <= known.ends.plus(purse.purse.return_after()) && *at < known.told.plus(AGAIN)
            };
            if self.known.get(&purse.key).is_some_and(is_told) {
                continue;
            }
            if self.known.len() >= MOST && *at >= self.next_search {
                self.next_search = at.plus(SEARCH_PAUSE);
                self.known.retain(|_, known| known.ends > *at);
            }
            if self.known.len() >= MOST || self.waiting.len() >= MOST {
                continue;
            }
            self.known.insert(purse.key, KnownPurse { ends: *ends, told: *at });
            let (numbers, tag) = (purse.purse.numbers_hash(), purse.tag);
            self.waiting.push(IndexedPurse { key: purse.key, numbers, tag, ends: *ends });
        }
    }

    pub(super) fn take(&mut self) -> Vec<IndexedPurse> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn put_back(&mut self, purses: &[IndexedPurse]) {
        let room = MOST.saturating_sub(self.waiting.len());
        self.waiting.extend(purses.iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::test_purse;
    use super::*;
    use ledger::cost::Cost;

    #[test]
    fn a_purse_waits_for_the_index_once_until_it_lasts_longer() {
        let mut filled = FilledPurses::default();
        let fill = |key: u8, ends: u64| PurseFill {
            purse: test_purse(key),
            at: Timestamp(1),
            ends: Timestamp(ends),
            held: Cost::ONE,
        };
        // A purse of the test is returned after a microsecond.
        filled.add(&[fill(1, 100), fill(2, 100), fill(1, 101)]);
        let keys = |purses: &[IndexedPurse]| purses.iter().map(|one| (one.key.0[0], one.ends.0)).collect::<Vec<_>>();
        let first = filled.take();
        assert_eq!(keys(&first), [(1, 100), (2, 100)]);
        filled.add(&[fill(2, 90), fill(1, 200)]);
        filled.put_back(&first[1..]);
        assert_eq!(keys(&filled.take()), [(1, 200), (2, 100)]);
        assert_eq!(filled.take(), []);
    }

    #[test]
    fn a_purse_that_is_filled_for_long_is_told_again_because_the_store_can_have_lost_it() {
        let mut filled = FilledPurses::default();
        let fill =
            |at: Timestamp| PurseFill { purse: test_purse(1), at, ends: Timestamp(u64::MAX / 2), held: Cost::ONE };
        let mut told = |at| {
            filled.add(&[fill(at)]);
            filled.take().len()
        };
        let begin = Timestamp(1);
        assert_eq!([begin, begin.plus(Micros(AGAIN.0 - 1)), begin.plus(AGAIN)].map(&mut told), [1, 0, 1]);
    }
}
