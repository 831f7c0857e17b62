//! Remembers when words are sent again, and when purses are looked at for what nobody uses.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use super::rounds::{Look, LookResult, PurseFill, RoundEnd, UnansweredWord};
use super::{LeaseEvent, NumberChange, PurseBucket};
use base::time::{Micros, Timestamp};
use ledger::algorithm::lease::WordId;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;

/// The most purses that are looked at, and the most words that are sent again. What lies in other purses is kept until the period ends.
const MOST_PURSES: usize = 1 << 20;

/// The least time between two looks at the same purse.
const LEAST_PAUSE: Micros = Micros(1_000_000);

/// The longest time between two looks at a purse while home is away.
const LONGEST_PAUSE_WHILE_AWAY: Micros = Micros(10_000_000);

/// For how many times `return_after` a purse is looked at that a request has used, and that this gateway has not filled. A purse that is
/// used for longer is adopted again.
const ADOPTED: u64 = 3;

/// A purse that this gateway has filled.
#[derive(Clone, Copy, Debug)]
struct FilledPurse {
    purse: PurseBucket,
    /// When it was filled last, or adopted.
    filled_at: Timestamp,
    look_at: Timestamp,
    /// When the purse ends.
    ends: Timestamp,
    /// What lay in it when it was filled last.
    held: Cost,
    /// The pause after the next look at a purse that no limit has any more. `None` for any other purse.
    retired: Option<Micros>,
    /// Whether the next look is the first after a reload: it takes what lies in a retired purse though it was just used. A gateway that still
    /// has the old file may go on using it afterwards.
    is_first_look: bool,
}

impl FilledPurse {
    /// Returns the purse as one that no limit has any more, with its next look.
    fn retired(self, look_at: Timestamp) -> FilledPurse {
        FilledPurse { look_at, retired: Some(LEAST_PAUSE), is_first_look: false, ..self }
    }
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    resends: BTreeSet<(Timestamp, BucketKey)>,
    /// The words, one for each purse: a purse waits for one answer at a time.
    unanswered: HashMap<BucketKey, UnansweredWord>,
    filled: HashMap<BucketKey, FilledPurse>,
    looks: BTreeSet<(Timestamp, BucketKey)>,
    /// What lies in the purses of each limit.
    held: HashMap<LimitTag, Cost>,
    /// The last reload.
    change: Option<NumberChange>,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub resends: Vec<(PurseBucket, WordId)>,
    /// The purses to look at, and how long they must have been untouched.
    pub surpluses: Vec<(PurseBucket, Micros)>,
}

impl Schedule {
    /// Adds what has come of a round. Returns how much lies in purses, if that has changed.
    pub(super) fn add(&mut self, end: RoundEnd) -> Option<LeaseEvent> {
        let mut has_changed = false;
        for (key, id) in end.resent {
            if self.unanswered.get(&key).is_some_and(|word| word.id == id) {
                self.unanswered.remove(&key);
            }
        }
        for word in end.unanswered {
            self.resend(word);
        }
        for PurseFill { purse, at, ends, held } in end.filled {
            let known = self.remove(&purse.key);
            if self.filled.len() >= MOST_PURSES {
                continue;
            }
            let look_at = known.map_or(at.plus(purse.purse.return_after()), |known| known.look_at);
            let filled = FilledPurse { purse, filled_at: at, look_at, ends, held, retired: None, is_first_look: false };
            // A request that began before the reload has leased it.
            let is_retired = self.is_retired(&purse);
            self.insert(if is_retired { filled.retired(at.plus(LEAST_PAUSE)) } else { filled });
            has_changed = true;
        }
        for Look { purse, at, result } in end.looks {
            // The answer to a return may be late, and the purse filled since. Its next look has a time.
            let is_outdated = |known: &FilledPurse| at < known.filled_at;
            if self.filled.get(&purse.key).is_none_or(is_outdated) {
                continue;
            }
            let Some(known) = self.remove(&purse.key) else { continue };
            has_changed = true;
            let return_after = purse.purse.return_after();
            let left = if let LookResult::GaveBack { left } = result { left } else { known.held };
            let (held, is_emptied) = (known.held.min(left), result == LookResult::GaveBack { left: Cost::default() });
            match known.retired {
                _ if result == LookResult::HomeAway => {
                    let pause = known.retired.unwrap_or(return_after).min(LONGEST_PAUSE_WHILE_AWAY).max(LEAST_PAUSE);
                    if at < known.ends {
                        self.insert(FilledPurse { look_at: at.plus(pause), ..known });
                    }
                }
                // Requests that began before the reload may still use it.
                Some(pause) if pause <= return_after.max(LEAST_PAUSE) => {
                    let (look_at, retired) = (at.plus(pause), Some(Micros(pause.0 * 2)));
                    self.insert(FilledPurse { look_at, held, retired, is_first_look: false, ..known });
                }
                None if !is_emptied && at < known.ends => {
                    self.insert(FilledPurse { look_at: at.plus(return_after.max(LEAST_PAUSE)), held, ..known });
                }
                Some(_) | None => {}
            }
        }
        has_changed.then(|| LeaseEvent::Held(self.held.clone()))
    }

    /// Looks at a purse later that a request has used, unless this gateway has filled it. What lies in it is not known.
    pub(super) fn adopt(&mut self, purse: PurseBucket, now: Timestamp) {
        if self.filled.contains_key(&purse.key) || self.filled.len() >= MOST_PURSES {
            return;
        }
        let pause = purse.purse.return_after().max(LEAST_PAUSE);
        let ends = now.plus(Micros(pause.0.saturating_mul(ADOPTED)));
        let filled = FilledPurse {
            purse,
            filled_at: now,
            look_at: now.plus(pause),
            ends,
            held: Cost::default(),
            retired: None,
            is_first_look: false,
        };
        self.insert(if self.is_retired(&purse) { filled.retired(now.plus(LEAST_PAUSE)) } else { filled });
    }

    /// Looks now at the purses that no limit has any more after a reload, and a few times later.
    pub(super) fn change_numbers(&mut self, change: NumberChange, now: Timestamp) {
        for (key, filled) in &mut self.filled {
            match change.is_retired(&filled.purse) {
                Some(true) => {
                    self.looks.remove(&(filled.look_at, *key));
                    *filled = FilledPurse { is_first_look: true, ..filled.retired(now) };
                    self.looks.insert((filled.look_at, *key));
                }
                Some(false) => filled.retired = None,
                None => {}
            }
        }
        self.change = Some(change);
    }

    /// Whether no limit has a purse any more.
    fn is_retired(&self, purse: &PurseBucket) -> bool {
        self.change.as_ref().and_then(|change| change.is_retired(purse)) == Some(true)
    }

    /// Looks at those purses again whose round was broken off, and sends those words again.
    pub(super) fn look_again(&mut self, now: Timestamp) {
        for (key, word) in &mut self.unanswered {
            if !self.resends.contains(&(word.again_at, *key)) {
                word.again_at = now.plus(LEAST_PAUSE);
                self.resends.insert((word.again_at, *key));
            }
        }
        for (key, filled) in &mut self.filled {
            if !self.looks.contains(&(filled.look_at, *key)) {
                filled.look_at = now.plus(LEAST_PAUSE);
                self.looks.insert((filled.look_at, *key));
            }
        }
    }

    /// Remembers a word in place of the last one of its purse.
    fn resend(&mut self, word: UnansweredWord) {
        let key = word.purse.key;
        match self.unanswered.get(&key) {
            // A later word of the purse is under way, and home would not hear this one.
            Some(last) if last.id.number > word.id.number => return,
            Some(last) => _ = self.resends.remove(&(last.again_at, key)),
            // The next request that the purse cannot pay sends the word again.
            None if self.unanswered.len() >= MOST_PURSES => return,
            None => {}
        }
        self.resends.insert((word.again_at, key));
        self.unanswered.insert(key, word);
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
        if *of_limit == Cost::default() {
            self.held.remove(&filled.purse.tag);
        }
        Some(filled)
    }

    /// Returns when something is to be done next.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let resend = self.resends.first().map(|(at, _)| *at);
        let look = self.looks.first().map(|(at, _)| *at);
        resend.into_iter().chain(look).min()
    }

    /// Returns what is to be done at `now`, once.
    pub(super) fn due(&mut self, now: Timestamp) -> Due {
        let mut due = Due::default();
        while let Some((_, key)) = self.resends.first().copied().filter(|(at, _)| *at <= now) {
            self.resends.pop_first();
            // The word is forgotten when the round has ended.
            due.resends.extend(self.unanswered.get(&key).map(|word| (word.purse, word.id)));
        }
        while let Some((_, key)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            self.looks.pop_first();
            // The purse stays among the filled ones, and is looked at again when the round has ended.
            due.surpluses.extend(self.filled.get(&key).map(|filled| {
                let idle = match filled.retired {
                    Some(_) if filled.is_first_look => Micros(0),
                    Some(_) => LEAST_PAUSE,
                    None => filled.purse.purse.return_after(),
                };
                (filled.purse, idle)
            }));
        }
        due
    }
}

/// A purse of a window, for tests.
#[cfg(test)]
pub(super) fn test_purse(key: u8) -> PurseBucket {
    use ledger::algorithm::budget::SpentLimit;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    let limit = SpentLimit::FixedWindow(FixedWindow::new(10, Window::Epoch(Micros(60_000_000))).unwrap());
    let purse = ledger::algorithm::lease::Purse::new(limit, Cost::ONE, Micros(1), Micros(1)).unwrap();
    PurseBucket { key: BucketKey([key; 16]), purse, tag: LimitTag(1) }
}
