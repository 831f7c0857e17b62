//! Bans: a limit with a ban refuses all requests for a while, after a request that what is spent leaves no room for.
//!
//! A ban begins if the cost of a request does not fit beside what is spent, and something was spent since the last ban
//! ended. Each ban within a time after the last one has the next duration. While a ban runs, nothing is spent, and
//! requests prolong nothing.
//!
//! The ban of a bucket is three words of the bucket's state: when the last ban began, when it ends, and its step with
//! a mark that something was spent since its end. The words stand behind the words that say what is spent.

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
/// The mark in the third word. The lower bits are the number of the step.
const MAY_BEGIN: u64 = 1 << 32;

/// The settings of a limit's bans. Equal settings are stored once in the process, and for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    terms: &'static Terms,
    /// Whether a request can begin a ban. Otherwise a ban that runs refuses the request all the same.
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
    /// The number of the ban, from 1: the n-th has the n-th duration.
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
    /// Makes the settings of bans. A ban is forgotten at `forget_after` after its end. `None` if there is no duration or more
    /// than [`MOST_DURATIONS`], or if a time is zero or longer than [`LONGEST`].
    pub fn new(durations: &[Micros], forget_after: Micros) -> Option<Ban> {
        let fits = |time: &Micros| (Micros(1)..=LONGEST).contains(time);
        if !(1..=MOST_DURATIONS).contains(&durations.len()) || !durations.iter().chain([&forget_after]).all(fits) {
            return None;
        }
        let terms = Terms::kept(Terms { durations: durations.to_vec(), forget_after });
        Some(Ban { terms, begins: true })
    }

    /// Returns the settings for a request that must begin no ban. A ban that runs refuses it all the same.
    #[must_use]
    pub fn beginning_none(self) -> Ban {
        Ban { begins: false, ..self }
    }

    /// Returns whether no request with these settings begins a ban.
    pub(super) fn begins_none(&self) -> bool {
        !self.begins
    }

    /// Returns how long the first, the second and each later ban lasts. The last duration holds for all further bans.
    /// Empty if no ban begins.
    pub fn durations(&self) -> &'static [Micros] {
        if self.begins { &self.terms.durations } else { &[] }
    }

    /// Returns how long after its end a ban counts as the one before the next ban.
    pub fn forget_after(&self) -> Micros {
        self.terms.forget_after
    }

    /// Returns how long the ban with this number lasts, from 1.
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
    /// Returns this limit for a request that must begin no ban, but is refused while one runs. With a cost of 0, only a ban
    /// refuses a request of which a budget holds something. `None` for a limit without bans.
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
        let is_possible = begin <= end && end <= EXACT && last < 2 * MAY_BEGIN;
        let step = u32::try_from(last % MAY_BEGIN).ok()?;
        is_possible.then_some(BanState {
            begin: Timestamp(begin),
            end: Timestamp(end),
            step,
            may_begin: last >= MAY_BEGIN,
            is_corrected: false,
        })
    }

    /// Returns the ban as it is at `now`. If the clock was set back to before the ban began, the ban begins now.
    #[must_use]
    pub(super) fn at(mut self, now: Timestamp) -> BanState {
        if self.begin.since(now) > MOST_AHEAD {
            self.end = now.plus(self.end.since(self.begin));
            self.begin = now;
            self.is_corrected = true;
        }
        self
    }

    /// Returns the ban that runs at `now`.
    pub(super) fn running(&self, now: Timestamp) -> Option<BanPeriod> {
        (self.end > now).then_some(BanPeriod { end: self.end, step: self.step })
    }

    /// Returns the last ban, even if it is over, until it is forgotten.
    pub(super) fn last(&self, ban: &Ban, now: Timestamp) -> Option<BanPeriod> {
        let is_remembered = self.step > 0 && self.end.plus(ban.forget_after()) >= now;
        is_remembered.then_some(BanPeriod { end: self.end, step: self.step })
    }

    /// Notes that something was spent at `now`. It does not count while a ban runs.
    pub(super) fn spend(&mut self, now: Timestamp) {
        self.may_begin |= self.end <= now;
    }

    /// Returns whether a request begins a ban for which what is spent leaves no room.
    pub(super) fn may_begin(&self) -> bool {
        self.may_begin
    }

    /// Returns the ban that begins at `now`.
    #[must_use]
    pub(super) fn begun(&self, ban: &Ban, now: Timestamp) -> BanState {
        let is_next = self.step > 0 && now <= self.end.plus(ban.forget_after());
        let step = if is_next { self.step.saturating_add(1) } else { 1 };
        let end = Timestamp(now.plus(ban.duration(step)).0.min(EXACT));
        BanState { begin: now, end, step, may_begin: false, is_corrected: false }
    }

    /// Returns a ban that an operator sets at `now`. Its step is that of the last ban, and at least 1.
    #[must_use]
    pub(super) fn set(&self, length: Micros, now: Timestamp) -> BanState {
        let end = Timestamp(now.plus(length).0.min(EXACT));
        BanState { begin: now, end, step: self.step.max(1), may_begin: false, is_corrected: false }
    }

    /// Returns the time until which a store must keep the state: until the last ban is forgotten.
    pub(super) fn kept_until(&self, ban: &Ban) -> Timestamp {
        if self.step == 0 { Timestamp(0) } else { Timestamp(self.end.plus(ban.forget_after()).0.min(EXACT)) }
    }

    pub(super) fn pack_into(&self, state: &mut State) {
        let mark = if self.may_begin { MAY_BEGIN } else { 0 };
        state.extend([self.begin.0, self.end.0, u64::from(self.step) | mark]);
    }
}

#[cfg(test)]
mod tests;
