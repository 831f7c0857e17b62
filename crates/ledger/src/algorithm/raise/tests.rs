//! Tests of raises under all algorithms.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::algorithm::ban::Ban;
use crate::algorithm::budget::{Budget, EVERYTHING, SpentLimit};
use crate::algorithm::concurrency::Concurrency;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::leaky_bucket::{LeakyBucket, Settings};
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::{Rate, TokenBucket};
use crate::algorithm::{Algorithm, ChargeResult};
use crate::holds::{LIFE, Owner, Report, SettledSums};
use base::time::Micros;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
/// The beginning of an hour.
const NOW: Timestamp = Timestamp(500_000 * HOUR);

fn later(micros: u64) -> Timestamp {
    NOW.plus(Micros(micros))
}

fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate { amount: Cost::ONE, period: Micros(SECOND) }, burst).unwrap()
}

fn window(limit: u64) -> FixedWindow {
    FixedWindow::new(limit, Window::Epoch(Micros(HOUR))).unwrap()
}

fn ban() -> Ban {
    Ban::new(&[Micros(HOUR)], Micros(HOUR)).unwrap()
}

/// Limits of 10 of all algorithms that can be raised.
fn limits() -> Vec<Algorithm> {
    vec![
        Algorithm::TokenBucket(bucket(10)),
        Algorithm::FixedWindow(window(10)),
        Algorithm::SlidingLog(SlidingLog::new(10, Micros(HOUR)).unwrap()),
        Algorithm::SlidingWindow(SlidingWindow::new(10, Micros(HOUR), 10).unwrap()),
        Algorithm::Concurrency(Concurrency::new(10).unwrap()),
        Algorithm::Budget(Budget::of_token_bucket(bucket(10))),
        Algorithm::Budget(Budget::of_fixed_window(window(10)).with_resets()),
        Algorithm::Budget(Budget::of_fixed_window(window(10)).with_ban(ban())),
        Algorithm::Budget(Budget::banning(SpentLimit::TokenBucket(bucket(10)), ban())),
    ]
}

fn raise(id: u64, tokens: u64, end: Timestamp) -> Raise {
    Raise { id: RaiseId(id), amount: Cost::from_tokens(tokens), end }
}

fn raised(limit: &Algorithm, state: Option<&[u64]>, raise: Raise, now: Timestamp) -> Entry {
    limit.set_raise(state, raise, now).unwrap().unwrap()
}

/// Charges one token as often as the bucket can pay, and returns how often, with the last state. Owners report first.
fn drain(limit: &Algorithm, state: Option<State>, now: Timestamp) -> (u64, Option<State>) {
    let mut state = state;
    if limit.is_held() {
        let known = limit.holders(state.as_deref(), now).iter().fold(Cost::default(), |sum, one| sum.plus(one.held));
        static SEQUENCE: AtomicU64 = AtomicU64::new(1);
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let report = Report { owner: Owner(7), sequence, held: known, settled: SettledSums::default(), life: LIFE };
        state = limit.accept(state.as_deref(), report, now).map(|entry| entry.state);
    }
    let mut times = 0;
    while let ChargeResult::Fits { entry, .. } = limit.step(state.as_deref(), Cost::ONE, now).charge {
        (times, state) = (times + 1, Some(entry.state));
    }
    (times, state)
}

#[test]
fn a_raise_adds_to_the_limit_until_it_ends_and_what_was_spent_stays_spent() {
    for limit in limits() {
        let (times, state) = drain(&limit, None, NOW);
        assert_eq!(times, 10, "{limit:?}");
        let Entry { state, kept_until } = raised(&limit, state.as_deref(), raise(1, 5, later(3 * HOUR)), NOW);
        assert!(kept_until >= later(3 * HOUR), "{limit:?}");
        assert_eq!(limit.raised_by(Some(&state), NOW), Cost::from_tokens(5));
        let (times, state) = drain(&limit, Some(state), NOW);
        assert_eq!(times, 5, "{limit:?}");
        let state = state.unwrap();
        let spent = limit.spent(Some(&state), NOW).plus(limit.held(Some(&state), NOW));
        assert_eq!(spent.whole(), 15, "{limit:?}");
        // After its end the bucket is overspent, as after a limit was lowered.
        let soon = raised(&limit, None, raise(1, 5, later(1)), NOW).state;
        let (times, state) = drain(&limit, Some(soon), NOW);
        assert_eq!(times, 15, "{limit:?}");
        assert_eq!(limit.raised_by(state.as_deref(), later(1)), Cost::default());
        assert_eq!(drain(&limit, state, later(1)).0, 0, "{limit:?}");
    }
}

#[test]
fn a_raise_by_a_faster_rule_of_the_meter_gives_nothing_back() {
    let slow = Algorithm::TokenBucket(bucket(1000));
    let rate = Rate { amount: Cost::from_tokens(20), period: Micros(SECOND) };
    let fast = Algorithm::TokenBucket(TokenBucket::new(rate, 1000).unwrap());
    let ChargeResult::Fits { entry, .. } = slow.step(None, Cost::from_tokens(1000), NOW).charge else { panic!("fits") };
    let now = later(60 * SECOND);
    let state = raised(&fast, Some(&entry.state), raise(1, 1, later(HOUR)), now).state;
    assert_eq!(slow.spent(Some(&state), now), Cost::from_tokens(940));
}

#[test]
fn a_raise_begins_no_window_that_begins_with_the_first_request() {
    let first = |limit| Algorithm::FixedWindow(FixedWindow::new(limit, Window::FirstRequest(Micros(HOUR))).unwrap());
    let ChargeResult::Fits { entry, .. } = first(10).step(None, Cost::ONE, NOW).charge else { panic!("fits") };
    let now = later(HOUR);
    let state = raised(&first(10), Some(&entry.state), raise(1, 1, later(3 * HOUR)), now).state;
    assert_eq!(first(10).period(Some(&state), now), None);
}

#[test]
fn a_raise_that_has_ended_leaves_nothing_in_the_state() {
    for limit in limits() {
        let state = raised(&limit, None, raise(1, 5, later(SECOND)), NOW).state;
        let (times, state) = drain(&limit, Some(state), later(SECOND));
        assert_eq!((times, has_raises(&state.unwrap())), (10, false), "{limit:?}");
    }
}

#[test]
fn raises_with_different_ids_add_up_and_end_by_themselves() {
    let limit = Algorithm::FixedWindow(window(10));
    let state = raised(&limit, None, raise(1, 5, later(SECOND)), NOW).state;
    let state = raised(&limit, Some(&state), raise(2, 20, later(2 * SECOND)), NOW).state;
    let by = |at| limit.raised_by(Some(&state), at).whole();
    assert_eq!([NOW, later(SECOND), later(2 * SECOND)].map(by), [25, 20, 0]);
    assert_eq!(limit.raises(Some(&state), later(SECOND)), [raise(2, 20, later(2 * SECOND))]);
}

#[test]
fn the_same_id_with_the_same_numbers_is_one_raise_and_with_others_an_error() {
    for limit in limits() {
        let first = raise(1, 5, later(HOUR));
        let state = raised(&limit, None, first, NOW).state;
        assert_eq!(limit.set_raise(Some(&state), first, later(1)), Ok(None), "{limit:?}");
        for other in [raise(1, 6, later(HOUR)), raise(1, 5, later(HOUR + 1))] {
            assert_eq!(limit.set_raise(Some(&state), other, NOW), Err(RaiseError::OtherNumbers(first)));
        }
        // The id of a raise that has ended is free again.
        let again = raise(1, 7, later(2 * HOUR));
        let state = raised(&limit, Some(&state), again, later(HOUR)).state;
        assert_eq!(limit.raises(Some(&state), later(HOUR)), [again]);
    }
}

#[test]
fn a_bucket_has_at_most_sixteen_raises_that_run() {
    let limit = Algorithm::TokenBucket(bucket(10));
    let mut state = None;
    for id in 0..16 {
        state = Some(raised(&limit, state.as_deref(), raise(id, 1, later(SECOND + id)), NOW).state);
    }
    let next = raise(16, 1, later(HOUR));
    assert_eq!(limit.set_raise(state.as_deref(), next, later(SECOND - 1)), Err(RaiseError::TooMany));
    let state = raised(&limit, state.as_deref(), next, later(SECOND)).state;
    assert_eq!(limit.raises(Some(&state), later(SECOND)).len(), 16);
}

#[test]
fn impossible_raises_are_refused() {
    let limit = Algorithm::FixedWindow(window(10));
    assert_eq!(limit.set_raise(None, raise(1, 5, NOW), NOW), Err(RaiseError::Ended));
    let slots = Algorithm::Concurrency(Concurrency::new(10).unwrap());
    let largest = Cost::from_tokens(1_000_000_000 - 10);
    assert_eq!(slots.set_raise(None, raise(1, 1_000_000_000, later(1)), NOW), Err(RaiseError::TooLarge { largest }));
    let log = Algorithm::SlidingLog(SlidingLog::new(9_000, Micros(HOUR)).unwrap());
    let state = raised(&log, None, raise(1, 600, later(1)), NOW).state;
    let refused = log.set_raise(Some(&state), raise(2, 500, later(1)), NOW);
    assert_eq!(refused, Err(RaiseError::TooLarge { largest: Cost::from_tokens(400) }));
    let rate = Rate { amount: Cost::ONE, period: Micros(SECOND) };
    let settings = Settings { rate, queue: 5, max_wait: Micros(SECOND), delay_after: 0 };
    let queue = Algorithm::LeakyBucket(LeakyBucket::new(settings).unwrap());
    assert_eq!(queue.set_raise(None, raise(1, 5, later(1)), NOW), Err(RaiseError::LeakyBucket));
}

#[test]
fn a_new_period_a_grant_and_a_reset_keep_raises() {
    for limit in limits() {
        let (_, state) = drain(&limit, None, NOW);
        let state = raised(&limit, state.as_deref(), raise(1, 5, later(30 * HOUR)), NOW).state;
        let (_, state) = drain(&limit, Some(state), NOW);
        let state = state.unwrap();
        // Nothing that was spent counts after two windows, and owners have been silent for too long.
        assert_eq!(drain(&limit, Some(state.clone()), later(3 * HOUR)).0, 15, "{limit:?}");
        for amount in [Cost::ONE, EVERYTHING] {
            let less = limit.kind().give_back(&state, amount).unwrap();
            assert_eq!(limit.raises(Some(&less), NOW), [raise(1, 5, later(30 * HOUR))], "{limit:?}");
        }
        let reset = after_reset(&state, NOW).unwrap();
        assert_eq!((drain(&limit, Some(reset.state), NOW).0, reset.kept_until), (15, later(30 * HOUR)));
        assert_eq!(after_reset(&state, later(30 * HOUR)), None);
    }
}

#[test]
fn a_wait_reckons_with_the_end_of_a_raise() {
    let limit = Algorithm::TokenBucket(bucket(10));
    let (_, state) = drain(&limit, None, NOW);
    let short = raised(&limit, state.as_deref(), raise(1, 5, later(SECOND / 2)), NOW).state;
    let (_, state) = drain(&limit, Some(short), NOW);
    let wait = |state: &State| match limit.step(Some(state), Cost::ONE, NOW).charge {
        ChargeResult::Short { wait } => wait,
        other => panic!("{other:?}"),
    };
    // A token comes back each second. When the raise has ended, five tokens are still overspent.
    let state = state.unwrap();
    assert_eq!(wait(&state), Micros(6 * SECOND));
    // A raise that lasts longer counts, also beside the one that ends.
    let longer = raised(&limit, Some(&state), raise(2, 1, later(HOUR)), NOW).state;
    let (_, longer) = drain(&limit, Some(longer), NOW);
    assert_eq!(wait(&longer.unwrap()), Micros(6 * SECOND));
}

#[test]
fn a_share_of_a_sliding_window_or_log_keeps_the_room_of_a_raise() {
    for limit in limits().into_iter().filter(|limit| limit.name().starts_with("sliding")) {
        let (_, state) = drain(&limit, None, NOW);
        let state = raised(&limit, state.as_deref(), raise(1, 5, later(HOUR)), NOW).state;
        let ChargeResult::Fits { entry, .. } = limit.step(Some(&state), Cost::from_tokens(2), NOW).charge else {
            panic!("{limit:?}")
        };
        let share = limit.begin_with(&entry.state, NOW).unwrap();
        assert_eq!(limit.spent(Some(&share.state), NOW), Cost::from_tokens(7), "{limit:?}");
        assert!(!has_raises(&share.state));
    }
}

#[test]
fn raises_that_a_removal_has_lost_are_restored_beside_what_is_there() {
    let limit = Algorithm::FixedWindow(window(10));
    let (_, spent) = drain(&limit, None, NOW);
    let removed = raised(&limit, spent.as_deref(), raise(1, 5, later(HOUR)), NOW).state;
    let alone = restored(&removed, None, NOW).unwrap();
    assert_eq!((limit.raised_by(Some(&alone.state), NOW), alone.kept_until), (Cost::from_tokens(5), later(HOUR)));
    assert_eq!(limit.spent(Some(&alone.state), NOW), Cost::default());
    let ChargeResult::Fits { entry, .. } = limit.step(None, Cost::ONE, NOW).charge else { panic!("fits") };
    let beside = restored(&removed, Some(&entry.state), NOW).unwrap().state;
    assert_eq!(
        (limit.raised_by(Some(&beside), NOW), limit.spent(Some(&beside), NOW)),
        (Cost::from_tokens(5), Cost::ONE)
    );
    assert_eq!(restored(&removed, Some(&beside), NOW), None);
    assert_eq!(restored(&removed, None, later(HOUR)), None);
    assert_eq!(restored(spent.as_deref().unwrap(), None, NOW), None);
}

#[test]
fn a_raise_ends_no_ban() {
    let limit = Algorithm::Budget(Budget::banning(SpentLimit::FixedWindow(window(10)), ban()));
    let state = limit.set_ban(None, Micros(HOUR), NOW).unwrap().state;
    let state = raised(&limit, Some(&state), raise(1, 5, later(HOUR)), NOW).state;
    assert!(matches!(limit.step(Some(&state), Cost::ONE, NOW).charge, ChargeResult::Banned { .. }));
    assert!(limit.running_ban(Some(&state), NOW).is_some());
    // A ban that an operator sets keeps raises.
    let state = limit.set_ban(Some(&state), Micros(2 * HOUR), NOW).unwrap().state;
    assert_eq!(limit.raises(Some(&state), NOW).len(), 1);
}

#[test]
fn a_limit_of_zero_is_not_raised() {
    let nothing = crate::algorithm::RequestNumbers { rate: None, ceiling: Some(Cost::default()) };
    let limit = Algorithm::FixedWindow(window(10).for_request(nothing, Cost::ONE));
    assert_eq!(limit.raised(Cost::from_tokens(5)).ceiling(), Cost::default());
}

#[test]
fn a_cached_raise_does_not_end() {
    let limit = Algorithm::TokenBucket(bucket(10));
    let state = raised(&limit, None, raise(1, 5, later(SECOND)), NOW).state;
    let state = raised(&limit, Some(&state), raise(2, 7, later(HOUR)), NOW).state;
    let cached = without_ends(state.clone(), NOW);
    assert_eq!([NOW, later(2 * HOUR)].map(|at| limit.raised_by(Some(&cached), at).whole()), [12, 12]);
    assert_eq!(limit.raised_by(Some(&without_ends(state, later(SECOND))), NOW).whole(), 7);
}

#[test]
fn an_id_is_named_by_its_hash() {
    assert_eq!(RaiseId::of("ticket-1203").to_string(), "063852562618c505");
}

proptest! {
    /// A reader without raises must find these states invalid, and a reader with raises must not see raises in other states.
    #[test]
    fn no_algorithm_accepts_a_state_with_raises_or_makes_a_state_that_begins_with_them(
        index in 0usize..9,
        charges in prop::collection::vec((0u64..HOUR, 1u64..4000), 0..30),
    ) {
        let limit = limits()[index];
        let (mut state, mut now): (Option<State>, _) = (None, NOW);
        for (wait, cost) in charges {
            now = now.plus(Micros(wait));
            if limit.is_held() {
                let (owner, settled) = (Owner(wait % 3), SettledSums::default());
                let report = Report { owner, sequence: now.0, held: Cost::ONE, settled, life: LIFE };
                state = limit.plain_accept(state.as_deref(), report, now).map(|entry| entry.state).or(state);
            }
            let cost = Cost::from_thousandths(cost);
            if let ChargeResult::Fits { entry, .. } = limit.plain_step(state.as_deref(), cost, now).charge {
                state = Some(entry.state);
            }
        }
        let state = state.unwrap_or_default();
        prop_assert!(!has_raises(&state));
        let with = Annotations { raises: [raise(1, 5, later(1 << 52))].into_iter().collect(), told: None }.joined(state);
        let nothing_left = limit.plain_step(Some(&with), Cost::ONE, now).untouched.remaining;
        prop_assert_eq!(nothing_left, Cost::default());
    }

    #[test]
    fn broken_raises_are_a_bucket_without_room(words in prop::collection::vec(any::<u64>(), 0..9), count in 0u64..18) {
        let mut state = State::from_slice(&[HEAD | count << 8]);
        state.extend(words);
        for limit in limits() {
            let Some(parts) = split(&state) else {
                prop_assert_eq!(limit.step(Some(&state), Cost::ONE, NOW).untouched.remaining, Cost::default());
                continue;
            };
            prop_assert_eq!(parts.raises.len() as u64, count);
            let sum = Annotations::at(&parts, NOW).sum();
            let _ = (limit.step(Some(&state), Cost::ONE, NOW), limit.excerpt(state.clone()), parts.plain);
            prop_assert!(sum.thousandths() <= EXACT);
        }
    }
}
