//! Tests when words are sent again, and when purses are looked at.

use std::collections::HashSet;

use super::super::LimitNumbers;
use super::test_purse as purse;
use super::*;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::lease::Purse;

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
        RoundEnd { filled: vec![PurseFill { purse, at, ends, held: Cost::from_tokens(held) }], ..RoundEnd::default() }
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
