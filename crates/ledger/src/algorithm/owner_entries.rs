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
//! | | 8 | only in a budget: the sum that the owner has settled |
//!
//! The first entry belongs to the owner of the last accepted report. An entry is live until its time is over.
//!
//! Each report moves its entry to the front. So entries whose time is over are at the end, and only the end is
//! searched. Their sequences are kept for ten minutes, so that a late call is recognised as old.
//!
//! A reply of Redis has an excerpt, of form 2: the sum, and the entry of the calling owner. Its number of live entries
//! is 1 if this entry is live, and [`MOST_OWNERS`] if there is no room for another owner.

use smallvec::{SmallVec, smallvec};

use super::step::{EXACT, MOST_AHEAD, State};
use crate::cost::Cost;
use crate::holds::report::{LIFE, MOST_HELD, Owner, Report};
use base::time::{Micros, Timestamp};

/// The largest number of entries in a bucket. While all of them are live, no other owner is accepted.
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

/// What one owner holds of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub owner: Owner,
    pub held: Cost,
    /// The second in which the owner began to hold something.
    pub since: Timestamp,
}

/// The kind of a bucket's entries, which follows from the bucket's algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// Entries of four words: what the owners hold.
    Slots,
    /// Entries of five words: what the owners hold, and what they have settled.
    Budget,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerEntry {
    pub owner: Owner,
    pub sequence: u64,
    /// The amount that the owner holds, in thousandths.
    pub held: u64,
    pub until: Timestamp,
    /// The second since the Unix epoch in which the owner began to hold something.
    pub since: u64,
    /// The sum in the owner's last accepted report, in thousandths. 0 for slots.
    pub settled: u64,
}

#[derive(Clone, Debug)]
pub(super) struct OwnerEntries {
    kind: EntryKind,
    pub sum: u64,
    /// The latest time that the bucket has seen. At most `MOST_AHEAD` ahead of the clock.
    moment: Timestamp,
    live: usize,
    entries: SmallVec<[OwnerEntry; 4]>,
    form: u64,
    /// Whether the entries must be stored even if no report is accepted, because the moment was set back.
    pub is_corrected: bool,
}

impl OwnerEntries {
    /// Reads the entries of a state at `now`. In an invalid state, `Owner::NOBODY` holds `everything`.
    pub(super) fn open(kind: EntryKind, state: Option<&[u64]>, everything: u64, now: Timestamp) -> OwnerEntries {
        match state.map(|state| OwnerEntries::parse(kind, state)) {
            None => OwnerEntries::of(kind, SmallVec::new(), now),
            Some(None) => {
                let until = now.plus(LIFE);
                let since = seconds(now);
                let nobody =
                    OwnerEntry { owner: Owner::NOBODY, sequence: 0, held: everything, until, since, settled: 0 };
                OwnerEntries::of(kind, smallvec![nobody], now)
            }
            Some(Some(entries)) => entries.at(now),
        }
    }

    /// Returns the entries as they are at `now`, without those whose time is over.
    #[must_use]
    pub(super) fn at(mut self, now: Timestamp) -> OwnerEntries {
        let ahead = self.moment.since(now);
        if ahead > MOST_AHEAD {
            // Each entry keeps its remaining time.
            self.entries.iter_mut().for_each(|entry| entry.until.0 = entry.until.0.min(EXACT).saturating_sub(ahead.0));
            self.moment = now;
            self.is_corrected = true;
        }
        self.moment = self.moment.max(now);
        if self.form == WHOLE {
            self.forget();
        }
        self
    }

    pub(super) fn of(kind: EntryKind, entries: SmallVec<[OwnerEntry; 4]>, moment: Timestamp) -> OwnerEntries {
        let sum = entries.iter().map(|entry| entry.held).sum();
        OwnerEntries { kind, sum, moment, live: entries.len(), entries, form: WHOLE, is_corrected: false }
    }

    /// Makes the entries of these owners, without sequences.
    pub(super) fn of_holders(kind: EntryKind, holders: &[Holder], now: Timestamp) -> OwnerEntries {
        let entry = |holder: &Holder| OwnerEntry {
            owner: holder.owner,
            sequence: 0,
            held: holder.held.thousandths(),
            until: now.plus(LIFE),
            since: seconds(holder.since),
            settled: 0,
        };
        OwnerEntries::of(kind, holders.iter().map(entry).collect(), now)
    }

    /// Parses entries. `None` if the words cannot be entries of this kind.
    pub(super) fn parse(kind: EntryKind, state: &[u64]) -> Option<OwnerEntries> {
        let (&[first, moment, live], rest) = state.split_first_chunk::<3>()?;
        let entries: SmallVec<[OwnerEntry; 4]> = match kind {
            EntryKind::Slots => {
                let (packed, []) = rest.as_chunks::<4>() else { return None };
                packed.iter().map(|entry| OwnerEntry::unpack(entry, 0)).collect()
            }
            EntryKind::Budget => {
                let (packed, []) = rest.as_chunks::<5>() else { return None };
                let unpack = |[a, b, c, d, settled]: &[u64; 5]| OwnerEntry::unpack(&[*a, *b, *c, *d], *settled);
                packed.iter().map(unpack).collect()
            }
        };
        let (form, sum, live) = (first & 0xff, first >> 8, usize::try_from(live).ok()?);
        let fits = match form {
            WHOLE => (1..=MOST_OWNERS).contains(&entries.len()) && live <= entries.len(),
            EXCERPT => entries.len() <= 1 && (live <= entries.len() || live == MOST_OWNERS),
            _ => false,
        };
        if !fits || sum > EXACT || moment > EXACT || entries.iter().any(|entry| entry.settled > EXACT) {
            return None;
        }
        Some(OwnerEntries { kind, sum, moment: Timestamp(moment), live, entries, form, is_corrected: false })
    }

    /// Returns whether these entries are whole. An excerpt is not whole.
    pub(super) fn is_whole(&self) -> bool {
        self.form == WHOLE
    }

    /// Returns whether no owner has an entry.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a stored value has entries of this kind, and is not the value of another algorithm. It must be
    /// whole, its sum must be right, and no entry may count for longer than [`LIFE`].
    pub(super) fn is_stored(kind: EntryKind, state: &[u64]) -> bool {
        OwnerEntries::parse(kind, state).is_some_and(|read| {
            let held: u64 = read.entries.iter().take(read.live).map(|entry| entry.held).sum();
            let last = read.moment.plus(LIFE);
            read.form == WHOLE && held == read.sum && read.entries.iter().all(|entry| entry.until <= last)
        })
    }

    /// Stops counting the entries whose time is over, and drops them `KEPT_AFTER` later.
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

    /// Accepts a report, and moves its entry to the front. Returns how much the owner has settled since its last
    /// report, in thousandths. `None` if the report is not newer, or if there are too many owners.
    pub(super) fn accept(&mut self, report: Report) -> Option<u64> {
        let own = self.entries.iter().position(|entry| entry.owner == report.owner);
        let (mut since, to) = (None, report.settled.to.thousandths().min(EXACT));
        let mut charged = report.settled.from.thousandths();
        if let Some(index) = own {
            let last = self.entries.get(index).copied().filter(|last| last.sequence < report.sequence)?;
            charged = last.settled;
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
                return None;
            }
            if self.entries.len() >= MOST_OWNERS {
                self.entries.truncate(self.live);
            }
        }
        let held = report.held.min(MOST_HELD).thousandths();
        let since = if held == 0 { 0 } else { since.unwrap_or(seconds(self.moment)) };
        let sequence = report.sequence.min(SEQUENCES);
        let until = self.moment.plus(LIFE);
        // The sum never falls, so that no cost is charged twice. But an owner that reports 0 has forgotten its sum.
        let settled = if own.is_some() && to > 0 { to.max(charged) } else { to };
        self.entries.insert(0, OwnerEntry { owner: report.owner, sequence, held, until, since, settled });
        self.live += 1;
        self.sum += held;
        Some(to.saturating_sub(charged))
    }

    /// Adds an amount to what the owner of the first entry holds. Returns `false` if there is no entry.
    pub(super) fn charge(&mut self, amount: u64) -> bool {
        let since = seconds(self.moment);
        let Some(speaker) = self.entries.first_mut() else { return false };
        if speaker.held == 0 && amount > 0 {
            speaker.since = since;
        }
        speaker.held += amount;
        self.sum += amount;
        true
    }

    /// Returns the owners that hold something, beginning with the owner of the last accepted report.
    pub(super) fn holders(&self) -> impl Iterator<Item = Holder> {
        let holder = |entry: &OwnerEntry| Holder {
            owner: entry.owner,
            held: Cost::from_thousandths(entry.held),
            since: Timestamp(entry.since.saturating_mul(1_000_000)),
        };
        self.entries.iter().take(self.live).filter(|entry| entry.held > 0).map(holder)
    }

    /// Returns the time until which a store must keep the state: [`KEPT`] after the end of the moment's minute. The
    /// time changes only each minute, so a store need not change it at each write.
    pub(super) fn kept_until(&self) -> Timestamp {
        Timestamp((self.moment.0 / MINUTE + 1) * MINUTE).plus(KEPT)
    }

    pub(super) fn pack(&self) -> State {
        let mut state = State::with_capacity(3 + 4 * self.entries.len());
        self.pack_into(&mut state);
        state
    }

    /// Appends the packed entries to a state.
    pub(super) fn pack_into(&self, state: &mut State) {
        state.extend([self.form | self.sum << 8, self.moment.0, self.live as u64]);
        for entry in &self.entries {
            state.extend_from_slice(&entry.pack());
            if self.kind == EntryKind::Budget {
                state.push(entry.settled);
            }
        }
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

    fn unpack(&[owner, first, second, third]: &[u64; 4], settled: u64) -> OwnerEntry {
        OwnerEntry {
            owner: Owner(owner),
            sequence: first & SEQUENCES,
            held: (first >> 48) | (second & 0xffff_ffff) << 16,
            until: Timestamp(second >> 32 | (third & 0xff_ffff) << 32),
            since: third >> 24,
            settled,
        }
    }
}

fn seconds(moment: Timestamp) -> u64 {
    moment.0 / 1_000_000
}
