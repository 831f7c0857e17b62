//! Bans: a limit with a ban refuses all requests for a while after a request that exceeds the limit.
//!
//! A ban begins if the cost of a request does not fit beside what is spent, and something was spent since the last ban
//! ended. A ban that begins within `forget_after` of the last one's end has the next duration. Requests during a ban
//! spend nothing and do not prolong the ban.
//!
//! A bucket's state has three words about its ban, after the words about what is spent: when the last ban began, when
//! it ends, and its step. The third word also has a mark if something was spent since the end, and how long the bucket is
//! kept after the end. If the ban was over when the bucket was last written, it begins at its end, so that it stays over
//! if the clock is set back.

use std::collections::HashSet;
use std::fmt;

use parking_lot::Mutex;

use crate::algorithm::Algorithm;
use crate::algorithm::step::{EXACT, MOST_AHEAD, Numbers, State, length_text};
use base::time::{Micros, Timestamp};

/// The largest number of durations of a ban.
pub const MOST_DURATIONS: usize = 8;
/// The longest duration, and the longest time after which a ban is forgotten.
pub const LONGEST: Micros = Micros(366 * 86_400_000_000);
/// The number of words of a state that describe its ban.
pub(super) const WORDS: usize = 3;
/// The mark in the third word: something was spent since the last ban ended. The lower bits are the number of the step.
const MAY_BEGIN: u64 = 1 << 32;
/// The first bit above the mark. The bits from there on say for how many minutes after its end the ban is kept.
const KEPT_FOR: u64 = 1 << 33;
const MINUTE: u64 = 60_000_000;

/// The settings of a limit's bans. Equal settings are stored once in the process, and for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    terms: &'static Terms,
    /// Whether a request can begin a ban. A running ban refuses the request in either case.
    begins: bool,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Terms {
    durations: Vec<Micros>,
    forget_after: Micros,
}

/// A ban of one bucket: until when it refuses requests, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanPeriod {
    /// The moment at which the ban ends.
    pub end: Timestamp,
    /// The number of the ban, from 1: the n-th ban has the n-th duration.
    pub step: u32,
}

/// The words of a state that describe its ban.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BanState {
    begin: Timestamp,
    end: Timestamp,
    /// The number of the last ban. 0 before the first ban.
    step: u32,
    /// Whether something was spent since the last ban ended.
    may_begin: bool,
    /// For how many minutes after its end the store keeps the last ban.
    kept_for: u64,
    /// Whether the words must be stored although nothing is charged.
    pub is_corrected: bool,
}

impl Terms {
    /// Returns the kept copy of these settings, and keeps them if they are new.
    fn kept(terms: Terms) -> &'static Terms {
        static KNOWN: Mutex<Option<HashSet<&'static Terms>>> = Mutex::new(None);
        let mut known = KNOWN.lock();
        let known = known.get_or_insert_default();
        if let Some(terms) = known.get(&terms) {
            return terms;
        }
        let terms: &'static Terms = Box::leak(Box::new(terms));
        known.insert(terms);
        terms
    }
}

impl Ban {
    /// Makes the settings of bans. `forget_after` is the time from the end of a ban until it is forgotten. `None`
    /// without durations, with more than [`MOST_DURATIONS`], or if a time is zero or longer than [`LONGEST`].
    pub fn new(durations: &[Micros], forget_after: Micros) -> Option<Ban> {
        let fits = |time: &Micros| (Micros(1)..=LONGEST).contains(time);
        if !(1..=MOST_DURATIONS).contains(&durations.len()) || !durations.iter().chain([&forget_after]).all(fits) {
            return None;
        }
        let terms = Terms::kept(Terms { durations: durations.to_vec(), forget_after });
        Some(Ban { terms, begins: true })
    }

    /// Returns the settings for a request that must begin no ban. A running ban still refuses the request.
    #[must_use]
    pub fn beginning_none(self) -> Ban {
        Ban { begins: false, ..self }
    }

    /// Returns whether no request with these settings begins a ban.
    fn begins_none(&self) -> bool {
        !self.begins
    }

    /// Returns the durations of the first ban, the second, and so on. The last duration holds for all further bans.
    /// Empty if no ban begins.
    pub fn durations(&self) -> &'static [Micros] {
        if self.begins { &self.terms.durations } else { &[] }
    }

    /// Returns the time after a ban within which the next ban has the next duration.
    pub fn forget_after(&self) -> Micros {
        self.terms.forget_after
    }

    /// Returns for how many minutes after its end a store keeps a ban: until it is forgotten, rounded up.
    fn kept_for(&self) -> u64 {
        self.terms.forget_after.0.div_ceil(MINUTE)
    }

    /// Returns the duration of the ban with this number, counted from 1.
    fn duration(&self, step: u32) -> Micros {
        let index = usize::try_from(step).unwrap_or(usize::MAX).saturating_sub(1);
        self.durations().get(index).or(self.durations().last()).copied().unwrap_or_default()
    }

    /// Appends the settings as integers for the Lua twin.
    pub(super) fn add_numbers(&self, numbers: &mut Numbers) {
        numbers.extend([self.terms.forget_after.0, self.durations().len() as u64]);
        numbers.extend(self.durations().iter().map(|duration| duration.0));
    }
}

impl Algorithm {
    /// Returns this limit for a request that must begin no ban, but is refused while one runs. `None` for a limit without
    /// bans.
    pub fn beginning_no_ban(&self) -> Option<Algorithm> {
        match self {
            Algorithm::Budget(budget) if budget.ban().is_some() => Some(Algorithm::Budget(budget.beginning_no_ban())),
            _ => None,
        }
    }
}

/// Displays the settings as gateway.yaml writes the durations: `ban 15m, 1h; forgotten after 7d`.
impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, duration) in self.durations().iter().enumerate() {
            f.write_str(if index == 0 { "ban " } else { ", " })?;
            length_text(f, *duration)?;
        }
        f.write_str(if self.begins_none() { "bans begin elsewhere; forgotten after " } else { "; forgotten after " })?;
        length_text(f, self.forget_after())
    }
}

impl BanState {
    /// Parses the words of a state. `None` if they are impossible.
    pub(super) fn parse(words: &[u64]) -> Option<BanState> {
        let &[begin, end, last] = words else { return None };
        let is_possible = begin <= end && end <= EXACT && last <= EXACT;
        let step = u32::try_from(last % MAY_BEGIN).ok()?;
        is_possible.then_some(BanState {
            begin: Timestamp(begin),
            end: Timestamp(end),
            step,
            may_begin: last % KEPT_FOR >= MAY_BEGIN,
            kept_for: last / KEPT_FOR,
            is_corrected: false,
        })
    }

    /// Returns the ban as it is at `now`. If the clock was set back to before the ban began, the ban begins now. A ban that
    /// was over at the last write ends now, and does not run again. A ban that was kept for a shorter time must be stored
    /// again.
    #[must_use]
    pub(super) fn at(mut self, ban: &Ban, now: Timestamp) -> BanState {
        if self.end.plus(ban.forget_after()) < now {
            return BanState { may_begin: self.may_begin, kept_for: ban.kept_for(), ..BanState::default() };
        }
        if self.end <= now {
            self.begin = self.end;
        } else if self.begin.since(now) > MOST_AHEAD {
            self.end = now.plus(self.end.since(self.begin));
            self.begin = now;
            self.is_corrected = true;
        }
        self.is_corrected |= self.step > 0 && self.kept_for < ban.kept_for();
        self.kept_for = ban.kept_for();
        self
    }

    /// Returns the ban that runs at `now`.
    pub(super) fn running(&self, now: Timestamp) -> Option<BanPeriod> {
        (self.begin < self.end && now < self.end).then_some(BanPeriod { end: self.end, step: self.step })
    }

    /// Returns the last ban, even if it is over, until it is forgotten.
    pub(super) fn last(&self) -> Option<BanPeriod> {
        (self.step > 0).then_some(BanPeriod { end: self.end, step: self.step })
    }

    /// Notes that something was spent at `now`. Does nothing while a ban runs.
    pub(super) fn spend(&mut self, now: Timestamp) {
        self.may_begin |= self.running(now).is_none();
    }

    /// Notes that what was spent is forgotten.
    pub(super) fn forget_spent(&mut self) {
        self.may_begin = false;
    }

    /// Returns whether a request that does not fit beside what is spent begins a ban.
    pub(super) fn may_begin(&self) -> bool {
        self.may_begin
    }

    /// Returns the ban that begins at `now`.
    #[must_use]
    pub(super) fn begun(&self, ban: &Ban, now: Timestamp) -> BanState {
        let step = self.step.saturating_add(1);
        let end = Timestamp(now.plus(ban.duration(step)).0.min(EXACT));
        BanState { begin: now, end, step, may_begin: false, is_corrected: false, ..*self }
    }

    /// Returns a ban that an operator sets at `now`. Its step is that of the last ban, and at least 1.
    #[must_use]
    pub(super) fn set(&self, length: Micros, now: Timestamp) -> BanState {
        let end = Timestamp(now.plus(length).0.min(EXACT));
        BanState { begin: now, end, step: self.step.max(1), may_begin: false, is_corrected: false, ..*self }
    }

    /// Returns the time until which a store must keep the state: until the last ban is forgotten.
    pub(super) fn kept_until(&self) -> Timestamp {
        match self.step {
            0 => Timestamp(0),
            _ => Timestamp(self.end.plus(Micros(self.kept_for * MINUTE)).0.min(EXACT)),
        }
    }

    pub(super) fn pack_into(&self, state: &mut State) {
        let mark = if self.may_begin { MAY_BEGIN } else { 0 };
        let kept_for = if self.step == 0 { 0 } else { self.kept_for };
        state.extend([self.begin.0, self.end.0, u64::from(self.step) | mark | (kept_for * KEPT_FOR)]);
    }
}

#[cfg(test)]
mod tests;
