//! Holds what a home remembers of each region: the last word, and the answer to it.
//!
//! An entry has eight words. Amounts are thousandths, and moments are on the clock of home:
//!
//! | words | content |
//! |---|---|
//! | 1 | the region |
//! | 2 | the number and the tag of its last word |
//! | 1 | the kind of that word in the lowest byte, and the amount that was given to the purse |
//! | 1 | the beginning of the period for which the amount was given, 0 for a token bucket |
//! | 1 | until when the purse counts: the end of the period, or of the hold |
//! | 1 | how much can lie in the purse, only for a token bucket |
//! | 1 | until when home could not give what the region asked for |

use smallvec::SmallVec;

use super::super::remembered_purse::RememberedPurse;
use super::super::{RegionId, WordId, WordKind};
use super::KEPT;
use crate::algorithm::step::{EXACT, State};
use crate::cost::Cost;
use base::time::Timestamp;

/// The number of words of an entry.
pub(super) const WORDS: usize = 8;

/// The largest number of entries of a bucket.
pub(super) const MOST_ENTRIES: usize = 64;

/// The region of the entry for all purses that are forgotten to make room. It has the largest number of their words.
const FORGOTTEN: RegionId = RegionId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionEntry {
    pub region: RegionId,
    pub last: WordId,
    pub kind: WordKind,
    /// What the answer to the last word gave to the purse, in thousandths.
    pub given: u64,
    pub period: Timestamp,
    pub ends: Timestamp,
    /// What can lie in the purse, in thousandths. Always 0 for a fixed window.
    pub held: u64,
    pub short_until: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RegionEntries(pub SmallVec<[RegionEntry; 3]>);

impl RegionEntries {
    /// Parses entries. `None` if the words cannot be entries.
    pub(super) fn parse(words: &[u64]) -> Option<RegionEntries> {
        let (packed, []) = words.as_chunks::<WORDS>() else { return None };
        if packed.len() > MOST_ENTRIES {
            return None;
        }
        packed.iter().map(RegionEntry::unpack).collect::<Option<_>>().map(RegionEntries)
    }

    pub(super) fn of(&self, region: RegionId) -> Option<&RegionEntry> {
        self.0.iter().find(|entry| entry.region == region)
    }

    /// Returns the word that counts as the last one of a purse without an entry. A purse whose entry was forgotten may have said any
    /// word up to this one. `None` if no entry was forgotten.
    pub(super) fn last_forgotten(&self) -> Option<WordId> {
        self.of(FORGOTTEN).map(|entry| entry.last)
    }

    /// Makes room for an entry of this region. If there are too many entries, those that end first are forgotten, with the smallest
    /// numbers first, of which nothing is held. Returns whether there is room.
    pub(super) fn make_room_for(&mut self, region: RegionId) -> bool {
        while self.0.len() >= MOST_ENTRIES && self.of(region).is_none() {
            let old = self.0.iter().enumerate().filter(|(_, entry)| entry.held == 0 && entry.region != FORGOTTEN);
            let Some((place, _)) = old.min_by_key(|(_, entry)| (entry.ends, entry.last.number)) else { return false };
            let old = self.0.remove(place);
            let before = self.of(FORGOTTEN).copied().unwrap_or(old);
            // The tag is that of no word, so that a purse that said the last one goes on with a new one.
            let last = WordId { number: old.last.number.max(before.last.number), tag: 0 };
            let ends = old.ends.max(before.ends);
            let nothing = Timestamp(0);
            let kind = WordKind::Lease;
            self.put(RegionEntry {
                region: FORGOTTEN,
                last,
                kind,
                given: 0,
                period: nothing,
                ends,
                held: 0,
                short_until: nothing,
            });
        }
        true
    }

    /// Stores an entry in place of the region's last one.
    pub(super) fn put(&mut self, entry: RegionEntry) {
        match self.0.iter_mut().find(|other| other.region == entry.region) {
            Some(last) => *last = entry,
            None => self.0.push(entry),
        }
    }

    /// Forgets entries that ended long ago. Returns how much was held of purses that have ended at `now`: it is spent from now on.
    pub(super) fn end(&mut self, now: Timestamp) -> u64 {
        let mut ended = 0;
        for entry in self.0.iter_mut().filter(|entry| entry.ends <= now) {
            ended = plus(ended, entry.held);
            entry.held = 0;
        }
        self.0.retain(|entry| entry.ends.plus(KEPT) > now);
        ended
    }

    /// Returns what can lie in all purses, in thousandths.
    pub(super) fn held(&self) -> u64 {
        self.0.iter().fold(0, |sum, entry| plus(sum, entry.held))
    }

    /// Returns when the last purse of which something is held ends.
    pub(super) fn last_end(&self) -> Option<Timestamp> {
        self.0.iter().filter(|entry| entry.held > 0).map(|entry| entry.ends).max()
    }

    /// Returns until when the entries are kept.
    pub(super) fn kept_until(&self) -> Timestamp {
        self.0.iter().map(|entry| entry.ends.plus(KEPT)).max().unwrap_or_default()
    }

    pub(super) fn pack_into(&self, state: &mut State) {
        for entry in &self.0 {
            state.extend_from_slice(&entry.pack());
        }
    }
}

impl RegionEntry {
    /// Whether this is the entry for all purses that are forgotten.
    pub(super) fn is_of_forgotten(&self) -> bool {
        self.region == FORGOTTEN
    }

    pub(super) fn remembered(&self) -> RememberedPurse {
        let RegionEntry { region, last, kind, given, period, ends, held, .. } = *self;
        let [given, held] = [given, held].map(Cost::from_thousandths);
        RememberedPurse { region, last, kind, given, period, held, ends }
    }

    fn pack(&self) -> [u64; WORDS] {
        let kind = self.kind.code() | self.given << 8;
        let WordId { number, tag } = self.last;
        [self.region.0, number, tag, kind, self.period.0, self.ends.0, self.held, self.short_until.0]
    }

    fn unpack(words: &[u64; WORDS]) -> Option<RegionEntry> {
        let &[region, number, tag, kind, period, ends, held, short_until] = words;
        let given = kind >> 8;
        let is_exact =
            [region, number, tag, given, period, ends, held, short_until].into_iter().all(|one| one <= EXACT);
        let entry = RegionEntry {
            region: RegionId(region),
            last: WordId { number, tag },
            kind: WordKind::of_code(kind & 0xff)?,
            given,
            period: Timestamp(period),
            ends: Timestamp(ends),
            held,
            short_until: Timestamp(short_until),
        };
        is_exact.then_some(entry)
    }
}

/// Returns the sum, up to the largest exact number.
pub(super) fn plus(a: u64, b: u64) -> u64 {
    a.saturating_add(b).min(EXACT)
}
