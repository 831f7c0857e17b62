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

use super::super::{RegionId, WordId, WordKind};
use super::KEPT;
use crate::algorithm::step::{EXACT, State};
use base::time::Timestamp;

/// The number of words of an entry.
pub(super) const WORDS: usize = 8;

/// The largest number of regions that a bucket remembers. Others get nothing.
pub(super) const MOST_REGIONS: usize = 64;

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
        if packed.len() > MOST_REGIONS {
            return None;
        }
        packed.iter().map(RegionEntry::unpack).collect::<Option<_>>().map(RegionEntries)
    }

    pub(super) fn of(&self, region: RegionId) -> Option<&RegionEntry> {
        self.0.iter().find(|entry| entry.region == region)
    }

    /// Returns whether an entry of this region can be stored.
    pub(super) fn has_room_for(&self, region: RegionId) -> bool {
        self.0.len() < MOST_REGIONS || self.of(region).is_some()
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
