//! Tests homes: leases and returns, each answered once, what is held of purses, and raises.

use super::region_entries::MOST_ENTRIES;
use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::raise::{Raise, RaiseId};
use crate::algorithm::token_bucket::{Rate, TokenBucket};

const NOW: Timestamp = Timestamp(1_763_672_400_000_000);
const SECOND: u64 = 1_000_000;
const EU: RegionId = RegionId(1);
const US: RegionId = RegionId(2);

/// 100 in each minute, for two regions.
fn window() -> Algorithm {
    let window = FixedWindow::new(100, Window::Epoch(Micros(60 * SECOND))).unwrap();
    Algorithm::Home(Home::new(SpentLimit::FixedWindow(window), 2, Micros(0)).unwrap())
}

/// A burst of 100 and 1 per second, for two regions. What lies in purses is held for 60 seconds.
fn bucket() -> Algorithm {
    let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
    let bucket = TokenBucket::new(rate, 100).unwrap();
    Algorithm::Home(Home::new(SpentLimit::TokenBucket(bucket), 2, Micros(60 * SECOND)).unwrap())
}

fn lease(number: u64, amount: u64, least: u64, left: u64) -> Word {
    let [amount, least, left] = [amount, least, left].map(Cost::from_tokens);
    Word { id: WordId { number, tag: number + 7 }, kind: WordKind::Lease, amount, least, left, period: Timestamp(0) }
}

fn give_up(number: u64, amount: u64, period: Timestamp) -> Word {
    Word { kind: WordKind::Return, period, ..lease(number, amount, 0, 0) }
}

/// A home that hears words.
struct Heard {
    home: Algorithm,
    state: Option<State>,
    now: Timestamp,
}

impl Heard {
    fn new(home: Algorithm) -> Heard {
        Heard { home, state: None, now: NOW }
    }

    fn hear(&mut self, region: RegionId, word: &Word) -> HomeAnswer {
        let (entry, answer) = self.home.hear(self.state.as_deref(), region, word, self.now).unwrap();
        if let Some(entry) = entry {
            self.state = Some(entry.state);
        }
        answer
    }

    /// Returns the whole tokens that the answer gives.
    #[track_caller]
    fn given(&mut self, region: RegionId, word: &Word) -> u64 {
        match self.hear(region, word) {
            HomeAnswer::Answer { given, .. } => given.whole(),
            HomeAnswer::Older { last } => panic!("older than {last:?}"),
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Micros(seconds * SECOND));
    }

    fn spent(&self) -> u64 {
        self.home.spent(self.state.as_deref(), self.now).whole()
    }
}

#[test]
fn a_window_gives_its_rest_in_ever_smaller_leases_but_at_least_what_helps() {
    let mut home = Heard::new(window());
    assert_eq!(home.given(EU, &lease(1, 50, 1, 0)), 25);
    assert_eq!(home.given(US, &lease(1, 50, 1, 0)), 18);
    assert_eq!(home.given(EU, &lease(2, 50, 40, 0)), 40);
    assert_eq!(home.given(EU, &lease(3, 50, 18, 0)), 0);
    assert_eq!(home.given(EU, &lease(4, 50, 17, 0)), 17);
    assert_eq!(home.spent(), 100);
    let refused = home.hear(US, &lease(2, 5, 1, 0));
    let HomeAnswer::Answer { given, again_after, rest, .. } = refused else { panic!("{refused:?}") };
    assert_eq!((given, again_after, rest), (Cost::default(), Micros(60 * SECOND), Cost::default()));
}

#[test]
fn the_same_word_is_answered_as_the_first_time_but_by_the_time_that_remains() {
    let mut home = Heard::new(window());
    let word = lease(5, 10, 1, 0);
    let first = home.hear(EU, &word);
    home.wait(50);
    let HomeAnswer::Answer { given, period, remains, .. } = first else { panic!("{first:?}") };
    assert_eq!((given, period, remains), (Cost::from_tokens(10), NOW, Micros(60 * SECOND)));
    let again = home.hear(EU, &word);
    let HomeAnswer::Answer { given, period, remains, .. } = again else { panic!("{again:?}") };
    assert_eq!((given, period, remains), (Cost::from_tokens(10), NOW, Micros(10 * SECOND)));
    assert_eq!(home.spent(), 10);
    home.wait(20);
    // The next period has begun, and nothing was debited from it.
    let later = home.hear(EU, &word);
    let HomeAnswer::Answer { given, period, remains, .. } = later else { panic!("{later:?}") };
    assert_eq!((given, period, remains, home.spent()), (Cost::from_tokens(10), NOW, Micros(0), 0));
}

#[test]
fn an_answer_that_was_given_while_the_clock_was_far_ahead_ends_with_the_period_that_runs() {
    let mut home = Heard::new(window());
    home.wait(86_400);
    let word = lease(5, 10, 1, 0);
    home.hear(EU, &word);
    home.now = NOW.plus(Micros(20 * SECOND));
    let again = home.hear(EU, &word);
    let HomeAnswer::Answer { remains, .. } = again else { panic!("{again:?}") };
    assert_eq!((remains, home.spent()), (Micros(40 * SECOND), 10));
}

#[test]
fn an_older_word_and_one_with_another_tag_change_nothing_and_are_told_the_last() {
    let mut home = Heard::new(window());
    let last = lease(5, 10, 1, 0);
    home.hear(EU, &last);
    let state = home.state.clone();
    for word in [lease(4, 10, 1, 0), Word { id: WordId { number: 5, tag: 0 }, ..last }, give_up(5, 10, NOW)] {
        let word = if word.kind == WordKind::Return { Word { id: WordId { number: 5, tag: 1 }, ..word } } else { word };
        assert_eq!(home.hear(EU, &word), HomeAnswer::Older { last: last.id });
        assert_eq!(home.state, state);
    }
    // Another region has numbers of its own.
    assert_eq!(home.given(US, &lease(4, 10, 1, 0)), 10);
}

#[test]
fn a_window_takes_back_what_was_leased_in_this_period_by_a_region_that_it_knows() {
    let mut home = Heard::new(window());
    home.hear(EU, &lease(1, 20, 1, 0));
    home.hear(US, &give_up(1, 5, NOW));
    assert_eq!(home.spent(), 20);
    home.hear(EU, &give_up(2, 5, NOW));
    home.hear(EU, &give_up(2, 5, NOW));
    assert_eq!(home.spent(), 15);
    home.wait(60);
    home.hear(US, &lease(2, 20, 1, 0));
    home.hear(EU, &give_up(3, 5, NOW));
    assert_eq!(home.spent(), 20);
}

#[test]
fn a_bucket_holds_what_lies_in_purses_and_refills_only_what_has_left_them() {
    let mut home = Heard::new(bucket());
    assert_eq!(home.given(EU, &lease(1, 60, 1, 0)), 60);
    home.wait(30);
    assert_eq!((home.spent(), home.given(US, &lease(1, 60, 1, 0))), (0, 40));
    // Half of the purse has been spent since, and is debited now.
    assert_eq!(home.given(EU, &lease(2, 60, 1, 30)), 0);
    assert_eq!(home.spent(), 30);
    home.wait(10);
    assert_eq!((home.spent(), home.given(EU, &lease(3, 60, 1, 30))), (20, 10));
    // What is returned is free, and what has gone is spent.
    home.hear(EU, &give_up(4, 25, Timestamp(0)));
    assert_eq!((home.spent(), home.given(US, &lease(2, 100, 1, 40))), (35, 25));
}

#[test]
fn a_bucket_spends_what_it_holds_of_a_purse_that_has_ended() {
    let mut home = Heard::new(bucket());
    home.hear(EU, &lease(1, 60, 1, 0));
    home.wait(59);
    assert_eq!(home.spent(), 0);
    home.wait(1);
    assert_eq!(home.spent(), 60);
    assert_eq!(home.given(US, &lease(1, 100, 1, 0)), 40);
    home.wait(10);
    // The moment at which it is written is that from which it comes back.
    assert_eq!(home.spent(), 50);
}

#[test]
fn a_region_that_gets_less_than_it_asks_for_pauses_and_one_that_gets_nothing_is_told_when() {
    let mut home = Heard::new(bucket());
    let again = |answer| match answer {
        HomeAnswer::Answer { again_after, .. } => again_after.0,
        HomeAnswer::Older { .. } => panic!("{answer:?}"),
    };
    assert_eq!(again(home.hear(EU, &lease(1, 60, 1, 0))), 0);
    assert_eq!(again(home.hear(US, &lease(1, 60, 1, 0))), PAUSE.0);
    assert_eq!(again(home.hear(EU, &lease(2, 60, 8, 55))), 8 * SECOND);
}

#[test]
fn a_raise_enlarges_what_a_home_gives() {
    for limit in [window(), bucket()] {
        let mut home = Heard::new(limit);
        assert_eq!(home.given(EU, &lease(1, 100, 100, 0)), 100);
        assert_eq!(home.given(EU, &lease(2, 10, 10, 100)), 0);
        let raise = Raise { id: RaiseId(1), amount: Cost::from_tokens(10), end: home.now.plus(Micros(5 * SECOND)) };
        home.state = Some(limit.set_raise(home.state.as_deref(), raise, home.now).unwrap().unwrap().state);
        assert_eq!(home.given(EU, &lease(3, 10, 10, 100)), 10);
        assert_eq!(home.given(US, &lease(1, 10, 1, 0)), 0);
    }
}

#[test]
fn an_answer_tells_the_sum_of_the_raises_and_how_long_it_holds() {
    for limit in [window(), bucket()] {
        let mut home = Heard::new(limit);
        let word = lease(1, 10, 1, 0);
        let raise_of = |home: &mut Heard| match home.hear(EU, &word) {
            HomeAnswer::Answer { raise, .. } => (raise.amount.whole(), raise.remains.0 / SECOND),
            HomeAnswer::Older { last } => panic!("older than {last:?}"),
        };
        assert_eq!(raise_of(&mut home), (0, 0));
        for (id, amount, seconds) in [(1, 50, 20), (2, 7, 5)] {
            let end = home.now.plus(Micros(seconds * SECOND));
            let raise = Raise { id: RaiseId(id), amount: Cost::from_tokens(amount), end };
            home.state = Some(limit.set_raise(home.state.as_deref(), raise, home.now).unwrap().unwrap().state);
        }
        // Also the answer to a word that was answered before.
        assert_eq!(raise_of(&mut home), (57, 5));
        home.wait(5);
        assert_eq!(raise_of(&mut home), (50, 15));
        assert_eq!(HomeAnswer::parse(&home.hear(EU, &word).numbers()), Some(home.hear(EU, &word)));
        home.wait(15);
        assert_eq!(raise_of(&mut home), (0, 0));
    }
}

#[test]
fn an_invalid_state_gives_nothing_and_is_replaced() {
    for state in [&[1, 2][..], &[0, 1, 2, 3], &[0, 1, NOW.0 + 1, 1, 1, 1, 3, 0, 0, 0, 0]] {
        for limit in [window(), bucket()] {
            let mut home = Heard::new(limit);
            home.state = Some(State::from_slice(state));
            assert_eq!(home.given(EU, &lease(1, 10, 1, 0)), 0);
            assert!(limit.correction(home.state.as_deref(), NOW).is_none());
        }
    }
}

#[test]
fn a_home_that_remembers_as_many_regions_as_it_can_gives_nothing_to_another() {
    let mut home = Heard::new(bucket());
    for region in 1..=MOST_ENTRIES as u64 {
        assert_eq!(home.given(RegionId(region), &lease(1, 1, 1, 0)), 1);
    }
    assert_eq!(home.given(RegionId(1000), &lease(1, 1, 1, 0)), 0);
    // After an hour without a word, those whose purses have ended are forgotten.
    home.wait(3661);
    assert_eq!(home.given(RegionId(1000), &lease(2, 1, 1, 0)), 1);
}

#[test]
fn a_window_forgets_the_oldest_purses_to_make_room_and_never_hears_their_words_again() {
    let mut home = Heard::new(window());
    let (last_lease, last_return) = (lease(5, 10, 1, 0), give_up(6, 10, NOW));
    assert_eq!(home.given(EU, &last_lease), 10);
    home.hear(EU, &last_return);
    assert_eq!(home.spent(), 0);
    // Two entries go, for the new one and for what is remembered of those that went.
    for region in 10..10 + MOST_ENTRIES as u64 {
        assert_eq!(home.given(RegionId(region), &lease(7, 1, 1, 0)), 1);
    }
    let spent = home.spent();
    let state = home.state.clone();
    for word in [last_lease, last_return] {
        assert_eq!(home.hear(EU, &word), HomeAnswer::Older { last: WordId { number: 7, tag: 0 } });
    }
    assert_eq!((home.spent(), &home.state), (spent, &state));
    // A purse that hears so goes on with the next number, as a new purse does.
    assert_eq!(home.given(EU, &lease(8, 1, 1, 0)), 1);
    assert_eq!(home.given(US, &lease(9, 1, 1, 0)), 1);
    assert!(home.state.unwrap().len() <= SPENT_WORDS + MOST_ENTRIES * 8);
}

#[test]
fn what_an_operator_gives_back_leaves_the_regions_as_they_are() {
    let mut home = Heard::new(window());
    home.hear(EU, &lease(1, 20, 1, 0));
    let state = home.state.clone().unwrap();
    let after = home.home.kind().give_back(&state, Cost::from_tokens(5)).unwrap();
    assert_eq!((after[0], &after[1..]), (15_000, &state[1..]));
    assert!(is_home(&after) && !is_home(&after[..3]) && !is_home(&after[..10]));
}

#[test]
fn answers_are_read_as_they_were_written() {
    let mut home = Heard::new(bucket());
    for word in [lease(2, 60, 1, 0), lease(1, 1, 1, 0), give_up(3, 5, NOW)] {
        let answer = home.hear(EU, &word);
        assert_eq!(HomeAnswer::parse(&answer.numbers()), Some(answer));
    }
    assert_eq!(HomeAnswer::parse(&[1, 2, 3]), None);
}
