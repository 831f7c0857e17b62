//! Tests of the mark with which a bucket remembers the highest threshold that was reported.

use super::*;
use crate::algorithm::Algorithm;
use crate::algorithm::budget::{Budget, EVERYTHING};
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::thresholds::Thresholds;
use crate::bucket_key::BucketKey;
use crate::charge::{Charge, Plan, settle};
use crate::holds::report::LIFE;
use crate::holds::{Owner, Report, Resets, SettledSums};
use crate::outcome::ToldThresholds;

const HOURS: u64 = 3_600_000_000;
/// The beginning of an hour.
const NOW: Timestamp = Timestamp(500_000 * HOURS);

fn later(micros: u64) -> Timestamp {
    NOW.plus(Micros(micros))
}

/// An hour of 10, of which 50, 80 and 100 percent are reported.
fn window() -> Algorithm {
    let window = FixedWindow::new(10, Window::Epoch(Micros(HOURS))).unwrap();
    Algorithm::FixedWindow(window).with_thresholds(Thresholds::new(&[50, 80, 100]).unwrap())
}

/// Sends one request. Returns whether it was granted, and the told thresholds in whole tokens.
fn send(limit: &Algorithm, state: &mut Option<State>, cost: Cost, now: Timestamp) -> (bool, Option<(u64, u64)>) {
    let mut plan = Plan::default();
    plan.enforce(Charge::new(BucketKey([1; 16]), *limit, cost));
    let (settlement, entries) = settle(&plan, std::slice::from_ref(state), now);
    if let Some(Some(entry)) = entries.into_iter().next() {
        *state = Some(entry.state);
    }
    let told = settlement.enforced[0].told;
    let told = (told != ToldThresholds::default()).then(|| (told.above.whole(), told.to.whole()));
    (settlement.is_granted(), told)
}

fn told(limit: &Algorithm, state: &mut Option<State>, times: usize, now: Timestamp) -> Vec<(u64, u64)> {
    (0..times).filter_map(|_| send(limit, state, Cost::ONE, now).1).collect()
}

#[test]
fn each_threshold_is_told_once_in_a_period_by_the_charge_that_reaches_it() {
    let (limit, mut state) = (window(), None);
    assert_eq!(told(&limit, &mut state, 4, NOW), []);
    assert_eq!(told(&limit, &mut state, 6, NOW), [(0, 5), (5, 8), (8, 10)]);
    assert_eq!(send(&limit, &mut state, Cost::ONE, NOW), (false, None));
    // What is given back and spent again is not told again, nor after a reset.
    let given = limit.kind().give_back(state.as_deref().unwrap(), EVERYTHING);
    assert_eq!(told(&limit, &mut given.clone(), 10, later(1)), []);
    let reset = after_reset(state.as_deref().unwrap(), later(1)).unwrap();
    assert_eq!(reset.kept_until, later(2 * HOURS));
    assert_eq!(told(&limit, &mut Some(reset.state), 10, later(1)), []);
    // The next period has thresholds of its own.
    assert_eq!(told(&limit, &mut state, 10, later(HOURS)), [(0, 5), (5, 8), (8, 10)]);
}

#[test]
fn one_charge_tells_all_thresholds_that_it_passes() {
    let (limit, mut state) = (window(), None);
    assert_eq!(send(&limit, &mut state, Cost::from_tokens(9), NOW), (true, Some((0, 8))));
}

#[test]
fn the_thresholds_of_a_raised_limit_are_told_above_those_before() {
    let (limit, mut state) = (window(), None);
    assert_eq!(told(&limit, &mut state, 10, NOW), [(0, 5), (5, 8), (8, 10)]);
    let raise = Raise { id: RaiseId(1), amount: Cost::from_tokens(10), end: later(2 * HOURS) };
    let mut state = Some(limit.set_raise(state.as_deref(), raise, NOW).unwrap().unwrap().state);
    // 50 % of 20 is reported already.
    assert_eq!(told(&limit, &mut state, 10, NOW), [(10, 16), (16, 20)]);
    assert_eq!(limit.raised_by(state.as_deref(), NOW), Cost::from_tokens(10));
}

#[test]
fn a_limit_without_thresholds_keeps_the_mark() {
    let limit = window();
    let other = limit.with_thresholds(Thresholds::default());
    let mut state = None;
    assert_eq!(told(&limit, &mut state, 5, NOW), [(0, 5)]);
    assert_eq!(told(&other, &mut state, 4, NOW), []);
    assert_eq!(told_in(state.as_deref().unwrap(), NOW), Cost::from_tokens(5));
    // The next charge tells what was passed meanwhile.
    assert_eq!(told(&limit, &mut state, 1, NOW), [(5, 10)]);
    assert_eq!(told_in(state.as_deref().unwrap(), later(HOURS)), Cost::default());
    // An hour after its period, nothing of it is left.
    assert_eq!(told(&other, &mut state, 1, later(2 * HOURS)), []);
    assert!(!has_raises(state.as_deref().unwrap()));
}

#[test]
fn a_budget_tells_with_the_next_request_what_was_settled_also_if_that_is_refused() {
    let Algorithm::FixedWindow(hour) = window() else { panic!("a window") };
    let limit = Algorithm::Budget(Budget::of_fixed_window(hour));
    let report = |sequence, settled: u64| Report {
        owner: Owner(7),
        sequence,
        held: Cost::default(),
        settled: SettledSums { from: Cost::default(), to: Cost::from_tokens(settled), resets: Resets::default() },
        life: LIFE,
    };
    let mut state = None;
    for (sequence, settled, answer) in
        [(1, 4, (true, None)), (2, 8, (true, Some((0, 8)))), (3, 12, (false, Some((8, 10)))), (4, 12, (false, None))]
    {
        state = Some(limit.accept(state.as_deref(), report(sequence, settled), NOW).unwrap().state);
        assert_eq!(send(&limit, &mut state, Cost::ONE, NOW), answer, "{settled}");
    }
}

#[test]
fn a_copy_of_a_state_has_no_mark() {
    let (limit, mut state) = (window(), None);
    told(&limit, &mut state, 5, NOW);
    assert!(!has_raises(&without_ends(state.unwrap(), NOW)));
}
