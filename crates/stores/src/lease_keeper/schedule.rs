//! Remembers when words are sent again, and when purses are looked at for what nobody uses.

use std::collections::{BTreeSet, HashMap};

use super::rounds::{Filled, RoundEnd, UnansweredWord};
use super::{LeaseEvent, PurseBucket};
use base::time::{Micros, Timestamp};
use ledger::algorithm::lease::WordId;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;

/// The most purses that are looked at. What lies in others is kept until the period ends.
const MOST_PURSES: usize = 1 << 20;

/// The least time between two looks at the same purse.
const LEAST_PAUSE: Micros = Micros(1_000_000);

/// A purse that this gateway has filled.
#[derive(Clone, Copy, Debug)]
struct FilledPurse {
    purse: PurseBucket,
    look_at: Timestamp,
    /// When the purse ends.
    ends: Timestamp,
    /// What lay in it when it was filled last.
    held: Cost,
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    resends: BTreeSet<(Timestamp, BucketKey, WordId)>,
    /// The purses of these words.
    unanswered: HashMap<BucketKey, PurseBucket>,
    filled: HashMap<BucketKey, FilledPurse>,
    looks: BTreeSet<(Timestamp, BucketKey)>,
    /// What lies in the purses of each limit.
    held: HashMap<LimitTag, Cost>,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub resends: Vec<(PurseBucket, WordId)>,
    pub surpluses: Vec<PurseBucket>,
}

impl Schedule {
    /// Adds what has come of a round. Returns how much lies in purses, where that has changed.
    pub(super) fn add(&mut self, end: RoundEnd) -> Vec<LeaseEvent> {
        let mut changed = Vec::new();
        for UnansweredWord { purse, id, again_at } in end.unanswered {
            self.unanswered.insert(purse.key, purse);
            self.resends.insert((again_at, purse.key, id));
        }
        for Filled { purse, at, ends, held } in end.filled {
            let known = self.remove(&purse.key);
            if self.filled.len() >= MOST_PURSES {
                continue;
            }
            let look_at = known.map_or(at.plus(purse.purse.return_after()), |known| known.look_at);
            self.insert(FilledPurse { purse, look_at, ends, held });
            changed.push(purse.tag);
        }
        for (purse, looked_at) in end.unchanged {
            let Some(known) = self.remove(&purse.key) else { continue };
            changed.push(purse.tag);
            if looked_at < known.ends {
                let look_at = looked_at.plus(purse.purse.return_after().max(LEAST_PAUSE));
                self.insert(FilledPurse { look_at, ..known });
            }
        }
        for purse in end.emptied {
            if self.remove(&purse.key).is_some() {
                changed.push(purse.tag);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        let held = |tag| LeaseEvent::Held { tag, amount: self.held.get(&tag).copied().unwrap_or_default() };
        changed.into_iter().map(held).collect()
    }

    fn insert(&mut self, filled: FilledPurse) {
        let of_limit = self.held.entry(filled.purse.tag).or_default();
        *of_limit = of_limit.plus(filled.held);
        self.looks.insert((filled.look_at, filled.purse.key));
        self.filled.insert(filled.purse.key, filled);
    }

    fn remove(&mut self, key: &BucketKey) -> Option<FilledPurse> {
        let filled = self.filled.remove(key)?;
        self.looks.remove(&(filled.look_at, *key));
        let of_limit = self.held.entry(filled.purse.tag).or_default();
        *of_limit = of_limit.less(filled.held);
        Some(filled)
    }

    /// Returns when something is to be done next.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let resend = self.resends.first().map(|(at, ..)| *at);
        let look = self.looks.first().map(|(at, _)| *at);
        resend.into_iter().chain(look).min()
    }

    /// Returns what is to be done at `now`, once.
    pub(super) fn due(&mut self, now: Timestamp) -> Due {
        let mut due = Due::default();
        while let Some((_, key, id)) = self.resends.first().copied().filter(|(at, ..)| *at <= now) {
            self.resends.pop_first();
            due.resends.extend(self.unanswered.remove(&key).map(|purse| (purse, id)));
        }
        while let Some((_, key)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            self.looks.pop_first();
            // The purse stays among the filled ones, and is looked at again when the round has ended.
            due.surpluses.extend(self.filled.get(&key).map(|filled| filled.purse));
        }
        due
    }
}
