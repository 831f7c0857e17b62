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
//! | | 2 | the number of live entries |
//! | | 2 | the number of live entries that belong to timed holds |
//! | | 4 | zeros |
//! | entry | 8 | the owner |
//! | | 6 | the owner's sequence |
//! | | 6 | how much the owner holds |
//! | | 7 | the moment until which the entry counts |
//! | | 5 | the second since which the owner holds something |
//! | | 8 | only in a budget: the sum that the owner has settled |
//! | | 8 | only in a budget with resets: how many resets the owner has settled |
//!
//! The first entry belongs to the owner of the last accepted report. An entry is live until its time is over.
//!
//! Each report moves its entry to the front. So entries whose time is over are at the end, and only the end is
//! searched. Their sequences are kept for ten minutes, so that a late call is recognised as old. While there are timed
//! holds, which end at different times, all live entries are searched.
//!
//! A timed hold ends with its second report, which settles. Its entry then counts no more, but is kept like others. If it does
//! not report in time, what it held of a budget is spent. Only the last 64 such entries are kept.
//!
//! `owner_entry.rs` packs one entry.
//!
//! A reply of Redis has an excerpt, of form 2: the sum, and the entry of the calling owner. Its number of live entries
//! is 1 if this entry is live, and [`MOST_OWNERS`] if there is no room for another owner.

use smallvec::{SmallVec, smallvec};

use super::owner_entry::{OwnerEntry, SEQUENCES};
use super::step::{EXACT, MOST_AHEAD, State};
use crate::cost::Cost;
use crate::holds::report::{LIFE, LONGEST_HOLD, MOST_HELD, MOST_TIMED_HOLDS, Owner, Report, SETTLE, TimedHoldStatus};
use base::time::{Micros, Timestamp};

/// The largest number of entries in a bucket. While all of them are live, no other owner is accepted.
pub(super) const MOST_OWNERS: usize = 1024;

/// How long an entry is kept after its owner's last report.
pub(super) const KEPT: Micros = Micros(600_000_000);

/// How long an entry is kept after its time is over.
const KEPT_AFTER: Micros = Micros(KEPT.0 - LIFE.0);

/// How many timed holds that have ended or settled a bucket knows: the last ones. A repeated settlement of an older one is unknown.
const MOST_ENDED: usize = 64;

/// A minute, in microseconds.
const MINUTE: u64 = 60_000_000;

const WHOLE: u64 = 1;
const EXCERPT: u64 = 2;

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
    /// Entries of six words: what the owners hold, what they have settled, and how often they have reset the bucket.
    BudgetWithResets,
}

/// What is new in an accepted report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewSettlements {
    /// Whether the owner has reset the bucket: all that was spent before is forgotten.
    pub is_reset: bool,
    /// The costs that the owner has settled since its last report, and since the reset. In thousandths.
    pub spent: u64,
}

#[derive(Clone, Debug)]
pub(super) struct OwnerEntries {
    kind: EntryKind,
    pub sum: u64,
    /// The latest time that the bucket has seen. At most `MOST_AHEAD` ahead of the clock.
    moment: Timestamp,
    live: usize,
    /// The number of live entries that belong to timed holds.
    timed: usize,
    entries: SmallVec<[OwnerEntry; 4]>,
    form: u64,
    /// Whether the entries must be stored even if no report is accepted, because the moment was set back or a timed hold has
    /// ended without a report.
    pub is_corrected: bool,
    /// The timed holds that have ended without a report since the entries were stored, in the order of their ends.
    pub ended: SmallVec<[EndedHold; 0]>,
}

/// A timed hold that has ended without a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndedHold {
    pub end: Timestamp,
    /// The amount that it held until then.
    pub held: Cost,
}

impl OwnerEntries {
    /// Reads the entries of a state at `now`. In an invalid state, `Owner::NOBODY` holds `everything`.
    pub(super) fn open(kind: EntryKind, state: Option<&[u64]>, everything: u64, now: Timestamp) -> OwnerEntries {
        match state.map(|state| OwnerEntries::parse(kind, state)) {
            None => OwnerEntries::of(kind, SmallVec::new(), now),
            Some(None) => {
                let until = now.plus(LIFE);
                let since = seconds(now);
                let nobody = OwnerEntry { held: everything, since, ..OwnerEntry::silent(Owner::NOBODY, until) };
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
        let before = self.moment;
        self.moment = self.moment.max(now);
        if self.form == WHOLE {
            self.forget(before);
        }
        self
    }

    pub(super) fn of(kind: EntryKind, entries: SmallVec<[OwnerEntry; 4]>, moment: Timestamp) -> OwnerEntries {
        let sum = entries.iter().map(|entry| entry.held).sum();
        let timed = entries.iter().filter(|entry| entry.owner.is_timed()).count();
        let (live, form, is_corrected, ended) = (entries.len(), WHOLE, false, SmallVec::new());
        OwnerEntries { kind, sum, moment, live, timed, entries, form, is_corrected, ended }
    }

    /// Makes the entries of these owners, without sequences.
    pub(super) fn of_holders(kind: EntryKind, holders: &[Holder], now: Timestamp) -> OwnerEntries {
        OwnerEntries::of(kind, SmallVec::new(), now).with_holders(holders)
    }

    /// Adds the entries of these owners, without sequences.
    #[must_use]
    pub(super) fn with_holders(mut self, holders: &[Holder]) -> OwnerEntries {
        let until = self.moment.plus(LIFE);
        for holder in holders.iter().rev() {
            let (held, since) = (holder.held.thousandths(), seconds(holder.since));
            self.entries.insert(0, OwnerEntry { held, since, ..OwnerEntry::silent(holder.owner, until) });
            self.live += 1;
            self.sum += held;
        }
        self
    }

    /// Parses entries. `None` if the words cannot be entries of this kind.
    pub(super) fn parse(kind: EntryKind, state: &[u64]) -> Option<OwnerEntries> {
        let (&[first, moment, counts], rest) = state.split_first_chunk::<3>()?;
        let entries: SmallVec<[OwnerEntry; 4]> = match kind {
            EntryKind::Slots => {
                let (packed, []) = rest.as_chunks::<4>() else { return None };
                packed.iter().map(|entry| OwnerEntry::unpack(entry, 0, 0)).collect()
            }
            EntryKind::Budget => {
                let (packed, []) = rest.as_chunks::<5>() else { return None };
                let unpack = |[a, b, c, d, settled]: &[u64; 5]| OwnerEntry::unpack(&[*a, *b, *c, *d], *settled, 0);
                packed.iter().map(unpack).collect()
            }
            EntryKind::BudgetWithResets => {
                // A caller that knows only the key of a bucket makes entries without resets, for at most two owners.
                let (packed, []) = rest.as_chunks::<6>() else {
                    let entries = OwnerEntries::parse(EntryKind::Budget, state)?;
                    return Some(OwnerEntries { kind, ..entries });
                };
                let unpack =
                    |[a, b, c, d, settled, resets]: &[u64; 6]| OwnerEntry::unpack(&[*a, *b, *c, *d], *settled, *resets);
                packed.iter().map(unpack).collect()
            }
        };
        let (form, sum, [live, timed]) = (first & 0xff, first >> 8, unpack_counts(counts)?);
        let fits = match form {
            WHOLE => (1..=MOST_OWNERS).contains(&entries.len()) && live <= entries.len() && timed <= live,
            EXCERPT => entries.len() <= 1 && (live <= entries.len() || live == MOST_OWNERS),
            _ => false,
        };
        if !fits || sum > EXACT || moment > EXACT || entries.iter().any(|entry| entry.settled.max(entry.resets) > EXACT)
        {
            return None;
        }
        let (moment, is_corrected, ended) = (Timestamp(moment), false, SmallVec::new());
        Some(OwnerEntries { kind, sum, moment, live, timed, entries, form, is_corrected, ended })
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
    /// whole, its sum must be right, and no entry may count for longer than [`LIFE`], or a timed hold for longer than
    /// [`LONGEST_HOLD`].
    pub(super) fn is_stored(kind: EntryKind, state: &[u64]) -> bool {
        OwnerEntries::parse(kind, state).is_some_and(|read| {
            let held: u64 = read.entries.iter().take(read.live).map(|entry| entry.held).sum();
            let last = |owner: Owner| read.moment.plus(if owner.is_timed() { LONGEST_HOLD } else { LIFE });
            read.form == WHOLE && held == read.sum && read.entries.iter().all(|entry| entry.until <= last(entry.owner))
        })
    }

    /// Stops counting the entries whose time is over, and drops them `KEPT_AFTER` later. `before` is the moment at which the
    /// entries were stored.
    fn forget(&mut self, before: Timestamp) {
        if self.timed > 0 {
            self.end_timed(before);
        }
        while self.timed == 0
            && let Some(last) = self.live.checked_sub(1).and_then(|last| self.entries.get(last))
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

    /// Moves all entries whose time is over behind the live ones, and notes the timed holds among them.
    fn end_timed(&mut self, before: Timestamp) {
        let is_over = |entry: &OwnerEntry| entry.until <= self.moment;
        let live = self.entries.iter().take(self.live).copied();
        let (over, kept): (SmallVec<[OwnerEntry; 4]>, SmallVec<[OwnerEntry; 4]>) = live.partition(is_over);
        if over.is_empty() {
            return;
        }
        let ended = over.iter().filter(|entry| entry.owner.is_timed() && entry.held > 0);
        let ended =
            ended.map(|entry| EndedHold { end: entry.until.max(before), held: Cost::from_thousandths(entry.held) });
        self.ended.extend(ended);
        // An amount is spent as at its end, and what is spent comes back from then on.
        self.ended.sort_unstable_by_key(|hold| hold.end);
        self.is_corrected |= !self.ended.is_empty();
        self.sum = kept.iter().map(|entry| entry.held).sum();
        self.timed = kept.iter().filter(|entry| entry.owner.is_timed()).count();
        let rest: SmallVec<[OwnerEntry; 4]> = self.entries.iter().skip(self.live).copied().collect();
        self.live = kept.len();
        self.entries = kept.into_iter().chain(over).chain(rest).collect();
        self.drop_old_timed();
    }

    /// Drops the timed holds whose time is over, except for the last [`MOST_ENDED`].
    fn drop_old_timed(&mut self) {
        if self.entries.len().saturating_sub(self.live) <= MOST_ENDED {
            return;
        }
        let (mut seen, mut ended) = (0, 0);
        self.entries.retain(|entry| {
            seen += 1;
            ended += usize::from(seen > self.live && entry.owner.is_timed());
            seen <= self.live || !entry.owner.is_timed() || ended <= MOST_ENDED
        });
    }

    /// Accepts a report, and moves its entry to the front. Returns what is new in the report. `None` if the report is not
    /// newer, or if there are too many owners. The report with which a timed hold settles is accepted only if the hold has not
    /// ended.
    pub(super) fn accept(&mut self, report: Report) -> Option<NewSettlements> {
        let own = self.entries.iter().position(|entry| entry.owner == report.owner);
        let is_timed = report.owner.is_timed();
        let settles = is_timed && report.sequence >= SETTLE;
        if settles && own.is_none_or(|index| index >= self.live) {
            return None;
        }
        let (mut since, to) = (None, report.settled.to.thousandths().min(EXACT));
        let mut charged = report.settled.from.thousandths();
        let (mut known, resets) = (report.settled.resets.accepted, report.settled.resets.count.min(EXACT));
        if let Some(index) = own {
            let last = self.entries.get(index).copied().filter(|last| last.sequence < report.sequence)?;
            (charged, known) = (last.settled, last.resets);
            if index < self.live {
                self.sum = self.sum.saturating_sub(last.held);
                self.live -= 1;
                self.timed = self.timed.saturating_sub(usize::from(is_timed));
                since = Some(last.since).filter(|_| last.held > 0);
            }
            self.entries.remove(index);
        } else {
            let is_full = match self.form {
                WHOLE => self.entries.len() >= MOST_OWNERS && self.live >= MOST_OWNERS,
                _ => self.live >= MOST_OWNERS,
            };
            if is_full || is_timed && self.timed >= MOST_TIMED_HOLDS {
                return None;
            }
            if self.entries.len() >= MOST_OWNERS {
                // The last entry counts no more.
                self.entries.pop();
            }
        }
        let held = report.held.min(MOST_HELD).thousandths();
        let since = if held == 0 { 0 } else { since.unwrap_or(seconds(self.moment)) };
        let sequence = report.sequence.min(SEQUENCES);
        let until = self.moment.plus(report.life);
        let is_reset = self.kind == EntryKind::BudgetWithResets && resets > known;
        let spent = to.saturating_sub(if is_reset { report.settled.resets.sum.thousandths() } else { charged });
        // The numbers never fall, so that no cost is charged twice. But an owner that reports 0 has forgotten its sum.
        let (settled, resets) =
            if own.is_some() && to > 0 { (to.max(charged), resets.max(known)) } else { (to, resets) };
        let entry = OwnerEntry { owner: report.owner, sequence, held, until, since, settled, resets };
        if settles {
            self.entries.insert(self.live, entry);
            self.drop_old_timed();
        } else {
            self.entries.insert(0, entry);
            self.live += 1;
            self.timed += usize::from(is_timed);
            self.sum += held;
        }
        Some(NewSettlements { is_reset, spent })
    }

    /// Returns what has become of a timed hold.
    pub(super) fn timed_hold(&self, owner: Owner) -> TimedHoldStatus {
        match self.entries.iter().enumerate().find(|(_, entry)| entry.owner == owner) {
            None => TimedHoldStatus::Unknown,
            Some((_, entry)) if entry.sequence >= SETTLE => TimedHoldStatus::Settled,
            Some((index, _)) if index < self.live => TimedHoldStatus::Runs,
            Some((_, entry)) => TimedHoldStatus::Ended(entry.until),
        }
    }

    /// Removes the entry of an owner.
    #[must_use]
    pub(super) fn without(mut self, owner: Owner) -> OwnerEntries {
        if let Some(index) = self.entries.iter().position(|entry| entry.owner == owner) {
            let entry = self.entries.remove(index);
            if index < self.live {
                self.live -= 1;
                self.timed = self.timed.saturating_sub(usize::from(owner.is_timed()));
                self.sum = self.sum.saturating_sub(entry.held);
            }
        }
        self
    }

    /// Returns the entries without the timed holds that have ended by `now` and are not spent yet. `None` if no hold has ended.
    pub(super) fn without_ended(&self, now: Timestamp) -> Option<OwnerEntries> {
        let is_over = |entry: &&OwnerEntry| entry.owner.is_timed() && entry.until <= now;
        let over: SmallVec<[Owner; 4]> =
            self.entries.iter().take(self.live).filter(is_over).map(|entry| entry.owner).collect();
        (!over.is_empty()).then(|| over.into_iter().fold(self.clone(), OwnerEntries::without))
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
    /// time changes only each minute, so a store need not change it at each write. Until the last timed hold ends, its end takes
    /// the place of the moment.
    pub(super) fn kept_until(&self) -> Timestamp {
        let last = self.timed_holds().map_or(self.moment, |(end, _)| end.max(self.moment));
        Timestamp((last.0 / MINUTE + 1) * MINUTE).plus(KEPT)
    }

    /// Returns when the last timed hold ends, and how much all timed holds hold. `None` without timed holds.
    pub(super) fn timed_holds(&self) -> Option<(Timestamp, Cost)> {
        let live = self.entries.iter().take(if self.timed > 0 { self.live } else { 0 });
        let timed = live.filter(|entry| entry.owner.is_timed()).map(|entry| (entry.until, entry.held));
        let all = timed.reduce(|(end, held), (other, more)| (end.max(other), held + more));
        all.map(|(end, held)| (end, Cost::from_thousandths(held)))
    }

    pub(super) fn pack(&self) -> State {
        let mut state = State::with_capacity(3 + 4 * self.entries.len());
        self.pack_into(&mut state);
        state
    }

    /// Appends the packed entries to a state.
    pub(super) fn pack_into(&self, state: &mut State) {
        state.extend([self.form | self.sum << 8, self.moment.0, self.live as u64 | (self.timed as u64) << 16]);
        for entry in &self.entries {
            state.extend_from_slice(&entry.pack());
            match self.kind {
                EntryKind::Slots => {}
                EntryKind::Budget => state.push(entry.settled),
                EntryKind::BudgetWithResets => state.extend([entry.settled, entry.resets]),
            }
        }
    }
}

fn seconds(moment: Timestamp) -> u64 {
    moment.0 / 1_000_000
}

/// Returns the numbers of live entries and of timed holds among them. `None` if the word cannot be two such numbers.
fn unpack_counts(counts: u64) -> Option<[usize; 2]> {
    let count = |bits: u64| usize::try_from(bits & 0xffff).ok();
    (counts >> 32 == 0).then_some([count(counts)?, count(counts >> 16)?])
}
