//! Remembers when words are sent again, and when purses are looked at for what nobody uses.

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

#[cfg(test)]
mod tests {
    use super::super::LimitNumbers;
    use super::test_purse as purse;
    use super::*;
    use ledger::algorithm::budget::SpentLimit;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::algorithm::lease::Purse;
    use std::collections::HashSet;

    /// Returns the end of a round that has looked at these purses.
    fn end_of_looks(purses: Vec<(PurseBucket, Micros)>, at: Timestamp, is_emptied: bool) -> RoundEnd {
        end_of_looks_with(
            purses,
            at,
            if is_emptied { LookResult::GaveBack { left: Cost::default() } } else { LookResult::Kept },
        )
    }

    fn end_of_looks_with(purses: Vec<(PurseBucket, Micros)>, at: Timestamp, result: LookResult) -> RoundEnd {
        let looks = purses.into_iter().map(|(purse, _)| Look { purse, at, result }).collect();
        RoundEnd { looks, ..RoundEnd::default() }
    }

    fn unanswered(key: u8, number: u64, at: u64) -> RoundEnd {
        let word = UnansweredWord { purse: purse(key), id: WordId { number, tag: 3 }, again_at: Timestamp(at) };
        RoundEnd { unanswered: vec![word], ..RoundEnd::default() }
    }

    #[test]
    fn a_purse_that_another_process_has_filled_is_looked_at_until_nobody_uses_it() {
        let mut schedule = Schedule::default();
        let at = |seconds: u64| Timestamp(seconds * LEAST_PAUSE.0);
        schedule.adopt(purse(1), at(10));
        schedule.adopt(purse(1), at(10));
        for (second, looked) in [(11, 1), (12, 1), (13, 1), (14, 0)] {
            let due = schedule.due(at(second)).surpluses;
            assert_eq!(due.len(), looked, "second {second}");
            schedule.add(end_of_looks(due, at(second), false));
        }
        assert_eq!(schedule.next(), None);
        schedule.adopt(purse(1), at(20));
        schedule.add(end_of_looks(vec![(purse(1), Micros(1))], at(20), true));
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_purse_whose_numbers_have_left_the_file_is_looked_at_now_and_ever_later_also_if_it_was_empty() {
        let mut schedule = Schedule::default();
        let at = |seconds: u64| Timestamp(seconds * LEAST_PAUSE.0);
        let lasting = |key: u8, limit: u64| {
            let window = FixedWindow::new(limit, Window::Epoch(Micros(3600 * LEAST_PAUSE.0))).unwrap();
            let (limit, return_after) = (SpentLimit::FixedWindow(window), Micros(10 * LEAST_PAUSE.0));
            PurseBucket { purse: Purse::new(limit, Cost::ONE, Micros(1), return_after).unwrap(), ..purse(key) }
        };
        let [old, new] = [lasting(1, 10), lasting(2, 20)];
        let file = |purse: PurseBucket| LimitNumbers::from_iter([(purse.tag, purse.purse)]);
        let fill = |purse: PurseBucket, second: u64| RoundEnd {
            filled: vec![PurseFill { purse, at: at(second), ends: at(3000), held: Cost::ONE }],
            ..RoundEnd::default()
        };
        schedule.add(fill(old, 0));
        schedule.change_numbers(NumberChange { before: file(old), after: file(new), claimed: HashSet::new() }, at(1));
        let mut looks = Vec::new();
        for second in 1..100 {
            let due = schedule.due(at(second)).surpluses;
            looks.extend(due.iter().map(|(purse, idle)| (second, purse.key.0[0], *idle)));
            schedule.add(end_of_looks(due, at(second), second < 3));
            if second == 20 {
                // A request that began before the reload.
                schedule.add(fill(old, second));
            }
        }
        let seconds: Vec<_> = looks.iter().map(|(second, ..)| *second).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 21, 22, 24, 28, 36]);
        // After the first look, a purse that is still used stays.
        let expected = |place: usize| (1, if place == 0 { Micros(0) } else { LEAST_PAUSE });
        assert!(looks.iter().enumerate().all(|(place, (_, key, idle))| (*key, *idle) == expected(place)));
        // The numbers are in the file again.
        schedule.add(fill(old, 100));
        schedule.change_numbers(NumberChange { before: file(new), after: file(old), claimed: HashSet::new() }, at(100));
        let idle: Vec<_> = schedule.due(at(109)).surpluses.into_iter().map(|(_, idle)| idle).collect();
        assert_eq!(idle, [old.purse.return_after()]);
    }

    #[test]
    fn while_home_is_away_purses_keep_what_they_hold_and_are_looked_at_every_ten_seconds() {
        let mut schedule = Schedule::default();
        let at = |seconds: u64| Timestamp(seconds * LEAST_PAUSE.0);
        let limit = SpentLimit::FixedWindow(FixedWindow::new(10, Window::Epoch(Micros(9_000_000_000))).unwrap());
        let lasting = Purse::new(limit, Cost::ONE, Micros(1), Micros(100 * LEAST_PAUSE.0)).unwrap();
        let purse = PurseBucket { purse: lasting, ..purse(1) };
        let filled = PurseFill { purse, at: at(0), ends: at(5000), held: Cost::from_tokens(9) };
        schedule.add(RoundEnd { filled: vec![filled], ..RoundEnd::default() });
        let mut looks = Vec::new();
        for second in 1..400 {
            let due = schedule.due(at(second)).surpluses;
            let result = match second {
                ..125 => LookResult::HomeAway,
                _ => LookResult::GaveBack { left: Cost::from_tokens(4) },
            };
            looks.extend(due.iter().map(|_| second));
            schedule.add(end_of_looks_with(due, at(second), result));
        }
        assert_eq!(looks, [100, 110, 120, 130, 230, 330]);
        assert_eq!(schedule.held.values().copied().collect::<Vec<_>>(), [Cost::from_tokens(4)]);
    }

    #[test]
    fn a_purse_whose_round_was_broken_off_is_looked_at_again() {
        let mut schedule = Schedule::default();
        let at = |seconds: u64| Timestamp(seconds * LEAST_PAUSE.0);
        schedule.adopt(purse(1), at(10));
        schedule.adopt(purse(2), at(11));
        assert_eq!(schedule.due(at(11)).surpluses.len(), 1);
        schedule.look_again(at(11));
        assert_eq!(schedule.due(at(11)).surpluses.len(), 0);
        assert_eq!(schedule.due(at(12)).surpluses.len(), 2);
    }

    #[test]
    fn what_lies_in_purses_is_told_for_all_tags_at_once() {
        let mut schedule = Schedule::default();
        let filled = |key: u8, tag: u32, held: u64| {
            let purse = PurseBucket { tag: LimitTag(tag), ..purse(key) };
            let (at, ends) = (Timestamp(1), Timestamp(9));
            RoundEnd {
                filled: vec![PurseFill { purse, at, ends, held: Cost::from_tokens(held) }],
                ..RoundEnd::default()
            }
        };
        let held = |event: Option<LeaseEvent>| match event {
            Some(LeaseEvent::Held(held)) => {
                let mut held: Vec<_> = held.into_iter().map(|(tag, held)| (tag.0, held.whole())).collect();
                held.sort_unstable();
                held
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(held(schedule.add(filled(1, 4, 10))), [(4, 10)]);
        assert_eq!(held(schedule.add(filled(2, 5, 3))), [(4, 10), (5, 3)]);
        assert_eq!(held(schedule.add(filled(1, 4, 7))), [(4, 7), (5, 3)]);
        let emptied = end_of_looks(vec![(purse(1), Micros(1))], Timestamp(1), true);
        assert_eq!(held(schedule.add(emptied.clone())), [(5, 3)]);
        assert_eq!(schedule.add(emptied), None);
    }

    #[test]
    fn only_the_newest_word_of_a_purse_is_sent_again_however_often_there_was_no_answer() {
        let mut schedule = Schedule::default();
        for number in 0..1000 {
            schedule.add(unanswered(1, number, 10 + number));
            schedule.add(unanswered(2, number, 5000 - number));
        }
        assert_eq!((schedule.resends.len(), schedule.unanswered.len()), (2, 2));
        assert_eq!(schedule.next(), Some(Timestamp(1009)));
        let due = |due: Due| due.resends.iter().map(|(purse, id)| (purse.key.0[0], id.number)).collect::<Vec<_>>();
        assert_eq!(due(schedule.due(Timestamp(1008))), []);
        assert_eq!(due(schedule.due(Timestamp(1009))), [(1, 999)]);
        assert_eq!(due(schedule.due(Timestamp(9000))), [(2, 999)]);
        assert_eq!((schedule.next(), schedule.unanswered.len()), (None, 2));
        let resent = [1, 2].map(|key| (purse(key).key, WordId { number: 999, tag: 3 })).to_vec();
        schedule.add(RoundEnd { resent, ..RoundEnd::default() });
        assert_eq!((schedule.next(), schedule.unanswered.len()), (None, 0));
    }

    #[test]
    fn a_word_whose_round_was_broken_off_is_sent_again_and_one_with_an_answer_is_not() {
        let mut schedule = Schedule::default();
        let at = |seconds: u64| Timestamp(seconds * LEAST_PAUSE.0);
        let resent = |key: u8, number: u64| vec![(purse(key).key, WordId { number, tag: 3 })];
        schedule.add(unanswered(1, 7, at(1).0));
        schedule.add(unanswered(2, 8, at(1).0));
        assert_eq!(schedule.due(at(1)).resends.len(), 2);
        // One round ends without an answer to its word, the other is broken off.
        schedule.add(RoundEnd { resent: resent(1, 7), ..unanswered(1, 7, at(4).0) });
        schedule.look_again(at(2));
        assert_eq!(schedule.due(at(3)).resends, [(purse(2), WordId { number: 8, tag: 3 })]);
        schedule.add(RoundEnd { resent: resent(2, 8), ..RoundEnd::default() });
        // An older word of the purse was answered, and another one was not: the newer one is still sent again.
        schedule.add(RoundEnd { resent: resent(1, 6), ..RoundEnd::default() });
        schedule.add(unanswered(1, 5, at(3).0));
        assert_eq!(schedule.due(at(9)).resends, [(purse(1), WordId { number: 7, tag: 3 })]);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn a_purse_that_was_filled_while_it_gave_back_is_looked_at_again() {
        let mut schedule = Schedule::default();
        let fill = |at: u64| {
            let filled = PurseFill { purse: purse(1), at: Timestamp(at), ends: Timestamp(1 << 40), held: Cost::ONE };
            RoundEnd { filled: vec![filled], ..RoundEnd::default() }
        };
        schedule.add(fill(10));
        let due = schedule.due(Timestamp(20)).surpluses;
        assert_eq!(due.len(), 1);
        // The answer to what was given back is lost, and a request has leased meanwhile.
        schedule.add(fill(30));
        assert_eq!(schedule.add(end_of_looks(due, Timestamp(20), true)), None);
        let due = schedule.due(Timestamp(40)).surpluses;
        assert_eq!(due.len(), 1);
        schedule.add(end_of_looks(due, Timestamp(40), true));
        assert_eq!(schedule.next(), None);
    }
}
