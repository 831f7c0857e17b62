//! Tests the sliding log against a model that keeps every grant.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

const SECOND: u64 = 1_000_000;
const START: u64 = 1 << 50;

fn log(limit: u64, window: u64) -> SlidingLog {
    SlidingLog::new(limit, Micros(window)).unwrap()
}

/// The model: a list of every grant with its moment.
#[derive(Clone, Debug, Default)]
struct Naive(Vec<(u64, u64)>);

impl Naive {
    fn last(&self) -> u64 {
        self.0.last().map_or(0, |(moment, _)| *moment)
    }

    fn spent(&self, window: Micros, now: u64) -> u64 {
        self.0.iter().filter(|(moment, _)| moment + window.0 > now).map(|(_, amount)| amount).sum()
    }

    /// Returns the right answer: what remained before the charge, and the result of the charge.
    fn step(&mut self, log: &SlidingLog, cost: u64, now: u64) -> (u64, Result<(u64, u64), Option<u64>>) {
        // After the clock was set back, the time of the last grant is used.
        let at = now.max(self.last());
        let (limit, spent) = (log.limit.thousandths(), self.spent(log.window, at));
        let left = limit.saturating_sub(spent);
        if cost > limit {
            return (left, Err(None));
        }
        if spent + cost <= limit {
            self.0.push((at, cost));
            return (left, Ok((limit - spent - cost, at + log.window.0 - now)));
        }
        let leaves = self.0.iter().map(|(moment, _)| moment + log.window.0).filter(|leaves| *leaves > at);
        let enough = leaves.filter(|leaves| self.spent(log.window, *leaves) + cost <= limit).min().unwrap();
        (left, Err(Some(enough - now)))
    }
}

/// Returns the answer of the log, in the form of the model's answer.
fn answer(log: &SlidingLog, state: &mut Option<State>, cost: u64, now: u64) -> (u64, Result<(u64, u64), Option<u64>>) {
    let step = log.step(state.as_deref(), Cost::from_thousandths(cost), Timestamp(now));
    let result = match step.charge {
        ChargeResult::Fits { level, entry, .. } => {
            *state = Some(entry.state);
            Ok((level.remaining.thousandths(), level.reset_after.0))
        }
        ChargeResult::Short { wait } => Err(Some(wait.0)),
        ChargeResult::Never | ChargeResult::Held | ChargeResult::Banned { .. } => Err(None),
    };
    (step.untouched.remaining.thousandths(), result)
}

/// Generates requests: the time after the previous request, and the cost.
fn requests() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let later = prop_oneof![Just(0), 0i64..30, 0i64..600_000, 0i64..3_000_000, -500_000i64..0];
    let cost = prop_oneof![Just(1000), 1u64..3_000, 1u64..12_000];
    prop::collection::vec((later, cost), 1..120)
}

/// Charges random requests to the log and to the model, and compares the answers. `change` changes each new state.
fn agrees(cases: u32, change: fn(Option<&State>, State) -> State) -> Result<(), String> {
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let windows = prop_oneof![Just(SECOND), SECOND..3 * SECOND];
    let result = runner.run(&(1u64..12, windows, requests()), |(limit, window, requests)| {
        let log = log(limit, window);
        let (mut state, mut naive, mut now) = (None::<State>, Naive::default(), START);
        for (later, cost) in requests {
            now = now.saturating_add_signed(later);
            let before = state.clone();
            let answered = answer(&log, &mut state, cost, now);
            prop_assert_eq!(answered, naive.step(&log, cost, now));
            if answered.1.is_ok() {
                state = state.map(|after| change(before.as_ref(), after));
            }
        }
        // The guarantee: any window grants at most the limit.
        for (begin, _) in &naive.0 {
            let within = naive.0.iter().filter(|(moment, _)| (*begin..begin + window).contains(moment));
            let granted: u64 = within.map(|(_, amount)| amount).sum();
            prop_assert!(granted <= limit * 1000, "{granted} from {begin} on");
        }
        Ok(())
    });
    result.map_err(|error| error.to_string())
}

#[test]
fn it_answers_as_a_model_that_keeps_every_grant() {
    agrees(400, |_, state| state).unwrap();
}

/// Returns a state without its oldest grant.
fn without_first(mut state: State) -> State {
    let [_, before] = Log::parse(&state).unwrap().pairs()[0];
    state[0] = difference(state[state.len() - 1], before);
    state[1] -= 1;
    state.drain(HEAD..HEAD + 2);
    state
}

#[test]
fn variants_that_forget_grants_are_noticed() {
    // This variant keeps at most four pairs.
    let bounded = |_: Option<&State>, state: State| if state[1] > 4 { without_first(state) } else { state };
    assert!(agrees(400, bounded).is_err());
    // This variant forgets a grant a thousandth of a second too early.
    let early = |_: Option<&State>, state: State| {
        let log = Log::parse(&state).unwrap();
        let [[first, _], .., [last, _]] = log.pairs() else { return state };
        if first + log.window.0 <= last + 1000 { without_first(state) } else { state }
    };
    assert!(agrees(2_000, early).is_err());
    // This variant loses the second of two grants at one moment.
    let lost = |before: Option<&State>, state: State| match before {
        Some(before) if before[before.len() - 2] == state[state.len() - 2] => before.clone(),
        _ => state,
    };
    assert!(agrees(400, lost).is_err());
}

/// Two gateways have different windows and limits. Every grant counts for both while the longer window is in use.
#[test]
fn a_shorter_window_opens_no_longer_one_again() {
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&(1u64..12, 1u64..12, prop::collection::vec(any::<bool>(), 120), requests()), |input| {
        let (limit, other, turns, requests) = input;
        let (long, short) = (log(limit, 20 * SECOND), log(other, SECOND));
        let (mut state, mut naive, mut now) = (None::<State>, Naive::default(), START);
        let (mut since, mut until) = (u64::MAX, 0);
        for ((later, cost), turn) in requests.into_iter().zip(turns) {
            now = now.saturating_add_signed(later);
            if now.max(naive.last()) >= until {
                // All grants under the longer window have left it.
                since = u64::MAX;
            }
            let asking = if turn { long } else { short };
            let mut known = naive.clone();
            if turn && since > naive.last() {
                // The bucket may lack grants that only the new longer window counts, so the test begins again.
                state = None;
                known = Naive::default();
            }
            let answered = answer(&asking, &mut state, cost, now);
            prop_assert_eq!(answered, known.step(&asking, cost, now));
            if answered.1.is_ok() && turn {
                until = known.last() + long.window.0;
                since = since.min(known.last());
            }
            naive = known;
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn a_log_has_no_more_pairs_than_its_bound_and_forgets_nothing_then() {
    let (long, short) = (log(MAX_LIMIT, LONGEST.0), log(MAX_LIMIT, SECOND));
    let pairs = (0..MOST_PAIRS as u64).flat_map(|number| [START + 200 * number, 1000 * (number + 1)]);
    let head = [1000 * MOST_PAIRS as u64, MOST_PAIRS as u64, LONGEST.0, START + LONGEST.0];
    let mut state = Some(head.into_iter().chain(pairs).collect::<State>());
    let mut now = START + 200 * MOST_PAIRS as u64;
    for _ in 0..5 {
        assert!(answer(&short, &mut state, 1000, now).1.is_ok());
        now += 200;
    }
    let granted = MOST_PAIRS as u64 + 5;
    let kept = state.as_ref().unwrap();
    assert_eq!((kept.len(), kept[0]), (HEAD + 2 * MOST_PAIRS, granted * 1000));
    // The longer window refuses until only 9999 grants are left in it.
    let leaves = START + 200 * (granted - MAX_LIMIT) + LONGEST.0;
    assert_eq!(answer(&long, &mut state, 1000, now), (0, Err(Some(leaves - now))));
}

#[test]
fn running_totals_go_on_from_zero() {
    let log = log(5, SECOND);
    let mut state: Option<State> =
        Some(smallvec![2000, 2, SECOND, START + SECOND, START - 10, TOTALS - 1500, START, TOTALS - 500]);
    assert_eq!(answer(&log, &mut state, 2000, START + 5), (3000, Ok((1000, SECOND))));
    assert_eq!(answer(&log, &mut state, 2000, START + 6), (1000, Err(Some(SECOND - 16))));
    assert_eq!(state.as_ref().unwrap()[HEAD..], [START - 10, TOTALS - 1500, START, TOTALS - 500, START + 5, 1500]);
    assert_eq!(answer(&log, &mut state, 5000, START + SECOND + 5), (5000, Ok((0, SECOND))));
    assert_eq!(state.unwrap()[HEAD..], [START + SECOND + 5, 6500]);
}

#[test]
fn numbers_out_of_range_are_no_log() {
    for (limit, window, fits) in [
        (0, SHORTEST, false),
        (1, SHORTEST, true),
        (MAX_LIMIT, LONGEST, true),
        (MAX_LIMIT + 1, LONGEST, false),
        (1, Micros(SHORTEST.0 - 1), false),
        (1, Micros(LONGEST.0 + 1), false),
    ] {
        assert_eq!(SlidingLog::new(limit, window).is_some(), fits, "{limit} in {window:?}");
    }
}

#[test]
fn it_prints_as_an_operator_would_say_it() {
    assert_eq!(log(5, 86_400 * SECOND).to_string(), "5 in any 1d");
    assert_eq!(log(100, 900 * SECOND).to_string(), "100 in any 15m");
}

#[test]
fn a_share_multiplies_the_cost_and_one_cost_always_fits() {
    let whole = log(12, SECOND);
    for (cost, of, at_once) in [(1, 1, 12), (1, 3, 4), (2, 3, 2), (5, 4, 1), (1, 50, 1)] {
        let (share, price) = whole.share(Cost::from_tokens(cost), of);
        let mut state = None;
        let granted = (0..20).filter(|_| answer(&share, &mut state, price.thousandths(), START).1.is_ok()).count();
        assert_eq!(granted, at_once, "{cost} of {of}");
    }
    let (share, cost) = whole.share(Cost::from_thousandths(u64::MAX), u64::MAX);
    assert!(answer(&share, &mut None, cost.thousandths(), START).1.is_ok());
}

proptest! {
    /// An impossible state must not count as more room than the bucket has.
    #[test]
    fn an_impossible_state_is_an_empty_bucket(
        state in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..5, Just(START)], 0..12),
    ) {
        let (log, now) = (log(3, SECOND), Timestamp(START));
        let step = log.step(Some(&state), Cost::ONE, now);
        if Log::parse(&state).is_none() {
            prop_assert_eq!(&step.charge, &ChargeResult::Short { wait: Micros(SECOND) }, "{:?}: {:?}", state, step);
            // The impossible state is replaced by an empty bucket, which is full again a window later.
            let stored = log.correction(Some(&state), now).unwrap().state;
            prop_assert!(log.correction(Some(&stored), now).is_none());
            let later = log.step(Some(&stored), Cost::from_tokens(3), now.plus(Micros(SECOND)));
            prop_assert!(matches!(later.charge, ChargeResult::Fits { .. }), "{:?}", later);
        }
    }

    /// While an excerpt is exact, it gives the same answers as the log. After that, it never shows more than the log
    /// holds.
    #[test]
    fn an_excerpt_never_shows_more_than_the_log(
        grants in prop::collection::vec((0u64..200_000, 1u64..3_000), 1..60),
        cost in 1u64..50_000,
        later in 0u64..1_200_000,
    ) {
        let log = log(50, SECOND);
        let (mut state, mut now) = (None, START);
        for (after, cost) in grants {
            now += after;
            prop_assert_ne!(answer(&log, &mut state, cost, now).1, Err(None));
        }
        let excerpt = SlidingLog::excerpt(state.clone().unwrap());
        // A share that begins with the excerpt has the same level.
        let begun = log.begin_with(&excerpt, Timestamp(now + later));
        let shows = |state: Option<&[u64]>| log.step(state, Cost::ONE, Timestamp(now + later)).untouched;
        prop_assert_eq!(shows(begun.as_ref().map(|entry| &entry.state[..])), shows(Some(&excerpt)));
        prop_assert!(excerpt.len() <= HEAD + 2 * (EXCERPT + 1));
        let (cost, then) = (Cost::from_thousandths(cost), Timestamp(now + later));
        let (whole, part) = (log.step(state.as_deref(), cost, then), log.step(Some(&excerpt), cost, then));
        prop_assert!(part.untouched.remaining <= whole.untouched.remaining);
        if log.tells_until(&excerpt, then) {
            prop_assert_eq!(&part.untouched, &whole.untouched);
        }
        match part.charge {
            ChargeResult::Short { wait } if log.tells_until(&excerpt, then.plus(wait)) => {
                let ChargeResult::Short { wait: whole_wait } = whole.charge else { panic!("it fits: {:?}", whole) };
                prop_assert!(wait <= whole_wait, "{:?} of {:?}", wait, whole_wait);
                // The waits are equal, if the excerpt's wait does not end when its last exact pair leaves.
                let [.., last, _, _, _] = excerpt[..] else { panic!("an excerpt without pairs") };
                let known = excerpt.len() as u64 == 2 * excerpt[1] + HEAD as u64
                    || then.plus(wait) < Timestamp(last).plus(log.window);
                prop_assert!(wait == whole_wait || !known, "{:?} of {:?}", wait, whole_wait);
            }
            _ => {}
        }
    }
}
