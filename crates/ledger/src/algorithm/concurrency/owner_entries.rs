//! Holds the entries of a bucket's owners, which say what each owner holds. Defines the form in which entries are
//! packed.
//!
//! In the packed form, all numbers are little-endian, amounts are thousandths of a slot, and moments are microseconds:
//!
//! | part | bytes | content |
//! |---|---|---|
//! | head | 1 | the form: 1 for a whole value |
//! | | 7 | the sum of all amounts that are held |
//! | | 8 | the bucket's moment |
//! | | 8 | the number of live entries |
//! | entry | 8 | the owner |
//! | | 6 | the owner's sequence |
//! | | 6 | how much the owner holds |
//! | | 7 | the moment until which the entry counts |
//! | | 5 | the second since which the owner holds something |
//!
//! The first entry belongs to the owner whose report was accepted last. An entry is live until its time is over.
//!
//! Each report moves its entry to the front, so entries whose time is over are at the end, and only the end is searched
//! for such entries. Such entries do not count any more, but their sequences are kept for ten minutes, so that a late
//! call is still recognised as old.
//!
//! A reply of Redis has an excerpt, of form 2, in place of a whole value: the sum, and the entry of the calling owner,
//! if the owner has an entry. The number of live entries in an excerpt is 1 if this entry is live, and [`MOST_OWNERS`]
//! if there is no room for another owner's entry.

use smallvec::{SmallVec, smallvec};

use super::super::step::{EXACT, MOST_AHEAD, State};
use crate::holds::report::{LIFE, MOST_HELD, Owner, Report};
use base::time::{Micros, Timestamp};

/// The largest number of entries in a bucket. While all of them are live, the report of another owner is not accepted.
pub(super) const MOST_OWNERS: usize = 1024;

/// How long an entry is kept after its owner's last report.
pub(super) const KEPT: Micros = Micros(600_000_000);

/// How long an entry is kept after its time is over.
const KEPT_AFTER: Micros = Micros(KEPT.0 - LIFE.0);

/// A minute, in microseconds.
const MINUTE: u64 = 60_000_000;

const WHOLE: u64 = 1;
const EXCERPT: u64 = 2;

const SEQUENCES: u64 = (1 << 48) - 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerEntry {
    pub owner: Owner,
    pub sequence: u64,
    /// The amount that the owner holds, in thousandths.
    pub held: u64,
    pub until: Timestamp,
    /// The second since which the owner has held something without a pause, counted from the Unix epoch.
    pub since: u64,
}

#[derive(Clone, Debug)]
pub(super) struct OwnerEntries {
    pub sum: u64,
    /// The latest time that the bucket has seen. This time is set back only if it is more than `MOST_AHEAD` ahead of
    /// the clock.
    moment: Timestamp,
    live: usize,
    entries: SmallVec<[OwnerEntry; 4]>,
    form: u64,
    /// Whether the entries must be stored even if no report is accepted, because their ends were moved back when the
    /// moment was set back.
    pub is_corrected: bool,
}

impl OwnerEntries {
    /// Reads the entries of a state at `now`. An invalid state is read as one entry: `Owner::NOBODY` holds
    /// `everything`.
    pub(super) fn open(state: Option<&[u64]>, everything: u64, now: Timestamp) -> OwnerEntries {
        let mut read = match state.map(OwnerEntries::parse) {
            None => OwnerEntries::of(SmallVec::new(), now),
            Some(None) => {
                let until = now.plus(LIFE);
                let since = seconds(now);
                let nobody = OwnerEntry { owner: Owner::NOBODY, sequence: 0, held: everything, until, since };
                OwnerEntries::of(smallvec![nobody], now)
            }
            Some(Some(entries)) => entries,
        };
        let ahead = read.moment.since(now);
        if ahead > MOST_AHEAD {
            // Moves the end of each entry back too, so that the entry keeps its remaining time.
            read.entries.iter_mut().for_each(|entry| entry.until.0 = entry.until.0.saturating_sub(ahead.0));
            read.moment = now;
            read.is_corrected = true;
        }
        read.moment = read.moment.max(now);
        if read.form == WHOLE {
            read.forget();
        }
        read
    }

    pub(super) fn of(entries: SmallVec<[OwnerEntry; 4]>, moment: Timestamp) -> OwnerEntries {
        let sum = entries.iter().map(|entry| entry.held).sum();
        OwnerEntries { sum, moment, live: entries.len(), entries, form: WHOLE, is_corrected: false }
    }

    /// Parses a state. `None` if it cannot be the state of a concurrency limit.
    fn parse(state: &[u64]) -> Option<OwnerEntries> {
        let (&[first, moment, live], rest) = state.split_first_chunk::<3>()?;
        let (packed, []) = rest.as_chunks::<4>() else { return None };
        let (form, sum, live) = (first & 0xff, first >> 8, usize::try_from(live).ok()?);
        let fits = match form {
            WHOLE => (1..=MOST_OWNERS).contains(&packed.len()) && live <= packed.len(),
            EXCERPT => packed.len() <= 1 && (live <= packed.len() || live == MOST_OWNERS),
            _ => false,
        };
        if !fits || sum > EXACT || moment > EXACT {
            return None;
        }
        let entries = packed.iter().map(OwnerEntry::unpack).collect();
        Some(OwnerEntries { sum, moment: Timestamp(moment), live, entries, form, is_corrected: false })
    }

    /// Returns whether a state is valid and whole. An excerpt is not whole.
    pub(super) fn is_whole(state: &[u64]) -> bool {
        OwnerEntries::parse(state).is_some_and(|entries| entries.form == WHOLE)
    }

    /// Returns whether a stored value is that of a concurrency limit and not of another algorithm: the value must be
    /// whole, its sum must be the sum of its live entries, and no entry may count for longer than [`LIFE`].
    pub(super) fn is_stored(state: &[u64]) -> bool {
        OwnerEntries::parse(state).is_some_and(|read| {
            let held: u64 = read.entries.iter().take(read.live).map(|entry| entry.held).sum();
            let last = read.moment.plus(LIFE);
            read.form == WHOLE && held == read.sum && read.entries.iter().all(|entry| entry.until <= last)
        })
    }

    /// Stops counting the entries whose time is over, and drops these entries `KEPT_AFTER` later.
    fn forget(&mut self) {
        while let Some(last) = self.live.checked_sub(1).and_then(|last| self.entries.get(last))
            && last.until <= self.moment
        {
            self.sum = self.sum.saturating_sub(last.held);
            self.live -= 1;
        }
        if self.live == 0 {
            self.sum = 0;
        }
        while self.entries.len() > self.live
            && let Some(last) = self.entries.last()
            && last.until.plus(KEPT_AFTER) <= self.moment
        {
            self.entries.pop();
        }
    }

    /// Accepts a report, and moves its entry to the front. Returns `false` and changes nothing if the report is not newer than the
    /// owner's last report, or if there are too many owners.
    pub(super) fn accept(&mut self, report: Report) -> bool {
        let own = self.entries.iter().position(|entry| entry.owner == report.owner);
        let mut since = None;
        if let Some(index) = own {
            let Some(last) = self.entries.get(index).copied().filter(|last| last.sequence < report.sequence) else {
                return false;
            };
            if index < self.live {
                self.sum = self.sum.saturating_sub(last.held);
                self.live -= 1;
                since = Some(last.since).filter(|_| last.held > 0);
            }
            self.entries.remove(index);
        } else {
            let is_full = match self.form {
                WHOLE => self.entries.len() >= MOST_OWNERS && self.live >= MOST_OWNERS,
                _ => self.live >= MOST_OWNERS,
            };
            if is_full {
                return false;
            }
            if self.entries.len() >= MOST_OWNERS {
                self.entries.truncate(self.live);
            }
        }
        let held = report.held.min(MOST_HELD).thousandths();
        let since = if held == 0 { 0 } else { since.unwrap_or(seconds(self.moment)) };
        let sequence = report.sequence.min(SEQUENCES);
        let until = self.moment.plus(LIFE);
        self.entries.insert(0, OwnerEntry { owner: report.owner, sequence, held, until, since });
        self.live += 1;
        self.sum += held;
        true
    }

    /// Adds an amount to what the owner of the first entry holds. Returns `false` if there is no entry.
    pub(super) fn charge(&mut self, amount: u64) -> bool {
        let since = seconds(self.moment);
        let Some(speaker) = self.entries.first_mut() else { return false };
        if speaker.held == 0 {
            speaker.since = since;
        }
        speaker.held += amount;
        self.sum += amount;
        true
    }

    /// Returns the entries of the owners that hold something.
    pub(super) fn holders(&self) -> impl Iterator<Item = &OwnerEntry> {
        self.entries.iter().take(self.live).filter(|entry| entry.held > 0)
    }

    /// Returns the time until which a store must keep the state: [`KEPT`] after the end of the moment's minute. The time is the
    /// same for all states of a minute, so a store need not change it at each write.
    pub(super) fn kept_until(&self) -> Timestamp {
        Timestamp((self.moment.0 / MINUTE + 1) * MINUTE).plus(KEPT)
    }

    pub(super) fn pack(&self) -> State {
        let mut state = State::with_capacity(3 + 4 * self.entries.len());
        state.extend([self.form | self.sum << 8, self.moment.0, self.live as u64]);
        self.entries.iter().for_each(|entry| state.extend_from_slice(&entry.pack()));
        state
    }
}

impl OwnerEntry {
    fn pack(&self) -> [u64; 4] {
        let (held, until) = (self.held, self.until.0);
        [
            self.owner.0,
            self.sequence | held << 48,
            (held >> 16) | until << 32,
            ((until >> 32) & 0xff_ffff) | self.since << 24,
        ]
    }

    fn unpack(&[owner, first, second, third]: &[u64; 4]) -> OwnerEntry {
        OwnerEntry {
            owner: Owner(owner),
            sequence: first & SEQUENCES,
            held: (first >> 48) | (second & 0xffff_ffff) << 16,
            until: Timestamp(second >> 32 | (third & 0xff_ffff) << 32),
            since: third >> 24,
        }
    }
}

fn seconds(moment: Timestamp) -> u64 {
    moment.0 / 1_000_000
}
