//! Amounts that an operator gives back: the result is equal in Rust and in Lua, and is available at every later time.

use base::time::{Micros, Timestamp};
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, EVERYTHING};
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::algorithm::{Algorithm, AlgorithmKind, ChargeResult, State};
use ledger::cost::Cost;
use ledger::holds::{Owner, Report, SettledSums};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;
use stores::redis::codec::add_grant;
use stores::redis::script;

use super::random_algorithms::algorithm;
use crate::support::{Redis, short_or_long};

const START: u64 = 1_763_672_400_123_456;

fn words(state: &[u64]) -> Vec<u8> {
    state.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the value that the script makes of a state.
fn in_lua(connection: &mut redis::Connection, sha: &str, kind: AlgorithmKind, state: &[u64], amount: Cost) -> Vec<u8> {
    redis::cmd("SET").arg("bucket").arg(words(state)).arg("PX").arg(60_000).exec(connection).unwrap();
    let mut call = redis::cmd("EVALSHA");
    let mut text = Vec::new();
    add_grant(&mut text, kind, amount);
    call.arg(sha).arg(1).arg("bucket").arg(text);
    let reply: (Value, Vec<u8>, Vec<u8>) = call.query(connection).unwrap();
    let left: u64 = redis::cmd("PTTL").arg("bucket").query(connection).unwrap();
    assert!((1..=60_000).contains(&left), "{left}");
    assert_eq!(reply.1, words(state));
    assert_eq!(reply.2, redis::cmd("GET").arg("bucket").query::<Vec<u8>>(connection).unwrap());
    reply.2
}

#[test]
fn both_implementations_give_back_the_same_of_any_value() {
    let redis = Redis::start();
    let (sha, connection) = (redis.command::<String>(&["SCRIPT", "LOAD", &script::give_back()]), redis.connection());
    let connection = std::cell::RefCell::new(connection);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(500, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let number = prop_oneof![0u64..100, 1_763_000_000_000_000u64..1_764_000_000_000_000, 0u64..=1 << 53];
    let value = (prop::collection::vec(number, 0..6), 0u64..1 << 53, 0..AlgorithmKind::ALL.len());
    let result = runner.run(&value, |(state, amount, kind)| {
        let (kind, amount) = (AlgorithmKind::ALL[kind], Cost::from_thousandths(amount));
        let expected = kind.give_back(&state, amount).map_or_else(|| words(&state), |state| words(&state));
        prop_assert_eq!(in_lua(&mut connection.borrow_mut(), &sha, kind, &state, amount), expected);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn what_is_given_back_is_left_in_addition_at_every_later_moment() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: short_or_long(2_000, 100_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let charges = prop::collection::vec((0u64..3_000_000_000, 1u64..20_000), 1..20);
    let result = runner.run(&(algorithm(), charges, 1u64..50_000, 0u64..5_000_000_000), |case| {
        let (numbers, charges, amount, later) = case;
        let (mut now, mut state) = (START, None::<State>);
        for (step, cost) in charges {
            now += step;
            let cost = Cost::from_thousandths(cost);
            if let ChargeResult::Fits { entry, .. } = numbers.step(state.as_deref(), cost, Timestamp(now)).charge {
                state = Some(entry.state);
            }
        }
        // An operator gives back at home, never to a purse.
        let Some(state) = state.filter(|_| !numbers.kind().is_purse()) else { return Ok(()) };
        let given = numbers.kind().give_back(&state, Cost::from_thousandths(amount)).expect("a state of its own");
        let level = |state: &State, now: u64| {
            let step = numbers.step(Some(state), Cost::ONE, Timestamp(now));
            // In a queue more may be taken than the places whose wait is short enough.
            let left = (!numbers.delays()).then(|| step.untouched.remaining.thousandths());
            (left, numbers.spent(Some(state), Timestamp(now)).thousandths())
        };
        let expected = |(left, spent): (Option<u64>, u64)| {
            let back = amount.min(spent);
            // Where a fraction of a thousandth is spent, all of it is given back.
            (left.map(|left| (left + back).min(numbers.ceiling().thousandths())), spent - back)
        };
        prop_assert_eq!(level(&given, now), expected(level(&state, now)), "at once");
        now += later;
        let (found, wanted) = (level(&given, now), expected(level(&state, now)));
        prop_assert_eq!(found, wanted, "after {:?}", Micros(later));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// The limit was lowered below what is spent, so an amount that is given back first reduces the debt.
#[test]
fn what_is_owed_is_given_back_first() {
    for (numbers, state) in [
        (bucket(20), State::from_slice(&[50_000_000_000, 1_000_000, START])),
        (window(20), State::from_slice(&[50_000, START - 1, START + 9_000_000])),
    ] {
        let given = numbers.kind().give_back(&state, Cost::from_tokens(35)).unwrap();
        let left = |state: &State| numbers.step(Some(state), Cost::ONE, Timestamp(START)).untouched.remaining;
        assert_eq!((left(&state), left(&given)), (Cost::default(), Cost::from_tokens(5)), "{numbers}");
        assert_eq!(numbers.spent(Some(&state), Timestamp(START)), Cost::from_tokens(50));
    }
}

fn bucket(burst: u64) -> Algorithm {
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    let rate = Rate { amount: Cost::from_thousandths(1), period: Micros(1_000_000) };
    Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

fn window(limit: u64) -> Algorithm {
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    Algorithm::FixedWindow(FixedWindow::new(limit, Window::Epoch(Micros(10_000_000))).unwrap())
}

/// What timed holds held that have ended is not spent after a reset, and what the others hold stays held.
#[test]
fn a_reset_forgets_the_same_ended_holds_in_rust_and_in_lua() {
    let redis = Redis::start();
    let sha = redis.command::<String>(&["SCRIPT", "LOAD", &script::give_back()]);
    let mut connection = redis.connection();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap();
    let now = Timestamp(u64::try_from(now.as_micros()).unwrap());
    let ban = Ban::new(&[Micros(60_000_000)], Micros(60_000_000)).unwrap();
    let budgets = [bucket(20), window(20)].map(|limit| match limit {
        Algorithm::TokenBucket(bucket) => Budget::of_token_bucket(bucket),
        Algorithm::FixedWindow(window) => Budget::of_fixed_window(window),
        other => panic!("{other}"),
    });
    let limits = budgets.into_iter().flat_map(|budget| [budget, budget.with_resets(), budget.with_ban(ban)]);
    for limit in limits.map(Algorithm::Budget) {
        for (lives, left) in [(&[30, 300][..], 3_000), (&[30], 0), (&[30, 30], 0), (&[300], 3_000)] {
            let begin = Timestamp(now.0 - 60_000_000);
            let mut state: Option<State> = None;
            for (owner, life) in (1..).zip(lives) {
                let (owner, settled) = (Owner::of_timed_hold(owner << 16), SettledSums::default());
                let life = Micros(life * 1_000_000);
                let report = Report { owner, sequence: 1, held: Cost::from_tokens(3), settled, life };
                state = limit.accept(state.as_deref(), report, begin).map(|entry| entry.state);
            }
            let state = state.unwrap();
            let raise = Raise { id: RaiseId(7), amount: Cost::ONE, end: Timestamp(now.0 + 600_000_000) };
            let raised = limit.set_raise(Some(&state), raise, begin).unwrap().unwrap().state;
            for state in [state, raised] {
                let reset = limit.kind().give_back_at(&state, EVERYTHING, now).unwrap();
                assert_eq!(limit.spent(Some(&reset), now), Cost::default());
                assert_eq!(limit.held(Some(&reset), now).thousandths(), left, "{limit}: {lives:?}");
                assert_eq!(in_lua(&mut connection, &sha, limit.kind(), &state, EVERYTHING), words(&reset));
            }
        }
    }
}
