//! Logs of which a reply has only an excerpt: on a real redis-server, the script grants exactly what a model of all grants
//! allows.

use std::cell::RefCell;

use base::time::{Micros, Timestamp};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Plan, settle};
use ledger::cost::Cost;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Value;
use stores::redis::codec::Call;
use stores::redis::script;

use crate::support::charge::{plan_of, spend};
use crate::support::{Gateway, Redis, TakeScript, Upstream, now, short_or_long};

const START: u64 = 1_763_672_400_123_456;
const WINDOW: u64 = 1_000_000;
const KEY: BucketKey = BucketKey([3; 16]);

fn log(limit: u64, window: u64) -> Algorithm {
    Algorithm::SlidingLog(SlidingLog::new(limit, Micros(window)).unwrap())
}

fn plan(algorithm: Algorithm, cost: u64) -> Plan {
    let cost = Cost::from_thousandths(cost);
    plan_of(spend(KEY, algorithm, cost))
}

/// Calls: the time since the call before, and the costs of the requests.
fn calls() -> impl Strategy<Value = Vec<(u64, Vec<u64>)>> {
    let cost = prop_oneof![4 => Just(1000), 2 => 1u64..2_000, 1 => 1u64..80_000];
    let later = prop_oneof![1 => Just(0), 8 => 1_000u64..15_000, 1 => 1u64..400_000];
    prop::collection::vec((later, prop::collection::vec(cost, 1..5)), 40..160)
}

/// Plays random calls on one bucket with this script. It must grant what a list of all grants allows, with the same answers
/// and the same state as the step. Returns the number of calls whose reply was shorter than the log.
fn play(script: &str, cases: u32) -> Result<u32, String> {
    let redis = Redis::start();
    let (take_script, excerpts) = (RefCell::new(TakeScript::with(&redis, script)), RefCell::new(0));
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&(20u64..120, calls()), |(limit, calls)| {
        let mut take_script = take_script.borrow_mut();
        redis.command::<()>(&["FLUSHALL"]);
        let (log, mut now) = (log(limit, WINDOW), START);
        let (mut state, mut granted) = (None::<State>, Vec::<(u64, u64)>::new());
        for (later, costs) in calls {
            now += later;
            if state.as_ref().is_some_and(|state| state.len() > 4 + 2 * 17) {
                *excerpts.borrow_mut() += 1;
            }
            let plans: Vec<Plan> = costs.iter().map(|cost| plan(log, *cost)).collect();
            let reply = take_script.take(&plans, Timestamp(now));
            prop_assert_eq!(reply.healed, 0);
            for ((plan, cost), settlement) in plans.iter().zip(costs).zip(&reply.settlements) {
                let (expected, entries) = settle(plan, &[state.clone()], Timestamp(now));
                prop_assert_eq!(settlement, &expected);
                let within = granted.iter().filter(|(moment, _)| moment + WINDOW > now);
                let spent: u64 = within.map(|(_, amount)| amount).sum();
                prop_assert_eq!(settlement.is_granted(), spent + cost <= limit * 1000, "{} and {} spent", cost, spent);
                if let Some(Some(entry)) = entries.into_iter().next() {
                    state = Some(entry.state);
                    granted.push((now, cost));
                }
            }
            prop_assert_eq!(take_script.stored(&KEY), state.as_ref().map(|state| state.to_vec()));
        }
        Ok(())
    });
    result.map(|()| excerpts.into_inner()).map_err(|error| error.to_string())
}

#[test]
fn a_log_that_no_reply_contains_answers_as_a_list_of_all_grants() {
    let excerpts = play(&script::take(), short_or_long(60, 2_000)).unwrap_or_else(|error| panic!("{error}"));
    assert!(excerpts > 500, "{excerpts} calls");
}

/// Variants of the script that are known to be wrong.
#[test]
fn a_script_that_forgets_grants_or_shortens_a_reply_too_much_is_noticed() {
    let script = script::take();
    for (bad, good, instead) in [
        ("pruned a thousandth of a second early", "- limit.window)", "- limit.window + 1000)"),
        (
            "of two grants of one moment the second is lost",
            "    local total = bucket.total + added",
            "    if bucket.last == at then added = 0 end\n    local total = bucket.total + added",
        ),
        (
            "the oldest is dropped at a bound",
            "from, older = from + older + 1 - MOST_PAIRS, MOST_PAIRS - 1",
            "from, older = from + older + 1 - MOST_PAIRS, MOST_PAIRS - 1\n      sum = sum_after(bucket, from)",
        ),
        ("the reply ends before the wait", "if bucket.dearest > 0 and", "if false and"),
    ] {
        assert_eq!(script.matches(good).count(), 1, "{bad}");
        let script = script.replace("MOST_PAIRS, EXCERPT = 20000, 16", "MOST_PAIRS, EXCERPT = 18, 16");
        assert!(play(&script.replace(good, instead), 200).is_err(), "{bad}");
    }
}

/// Returns the value of a log with 10 000 grants of 1, one each millisecond. The first grant is at `first`; the window is an
/// hour.
fn longest_log(first: u64) -> Vec<u8> {
    let head = [10_000_000, 10_000, 3600 * WINDOW, first + 3600 * WINDOW];
    let pairs = (0..10_000).flat_map(|number| [first + 1_000 * number, 1_000 * (number + 1)]);
    head.into_iter().chain(pairs).flat_map(u64::to_le_bytes).collect()
}

#[test]
fn a_reply_about_a_long_log_is_short_whatever_a_request_costs() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    take_script.tamper(&KEY, "SET", &[&longest_log(START)]);
    let (log, now) = (log(10_000, 3600 * WINDOW), START + 10_000_000);
    for cost in [1, 16, 17, 255, 256, 257, 5_000, 9_999, 10_000] {
        let plan = plan(log, 1_000 * cost);
        let Value::Array(parts) = take_script.raw_reply(&Call::new([&plan]), Timestamp(now), Timestamp(now)) else {
            panic!("no list");
        };
        let Some(Value::BulkString(excerpt)) = parts.last() else { panic!("no excerpt: {parts:?}") };
        assert!(excerpt.len() <= 32 + 16 * 257, "{} bytes for {cost}", excerpt.len());
        // The wait is that until so many grants have left, or the last of which the reply tells.
        let leaves = START + 1_000 * (cost.min(256) - 1) + 3600 * WINDOW;
        let refused = take_script.take(&[plan], Timestamp(now));
        let outcome = refused.settlements[0].enforced[0];
        assert_eq!((outcome.remaining, outcome.retry_after), (Cost::default(), Micros(leaves - now)), "{cost}");
    }
}

/// The whole logs would be longer than a connection accepts.
#[test]
fn requests_that_cost_as_much_as_long_logs_are_refused_at_once_and_seldom_by_redis() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let numbers = "{limit: 10000, window: 1h, cost_source: header:x-cost, default_cost: 1, max_cost: 10000}";
    let rule =
        format!("{{name: one, limit_keys: [header:x-user], algorithm: sliding_log, algorithm_config: {numbers}}}");
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + &format!("threads: 1\nrules: [{rule}]\n")));
    let users: Vec<String> = (0..16).map(|number| format!("user {number}")).collect();
    let mut client = gateway.client();
    for user in &users {
        assert_eq!(client.get("/", &[("X-User", user)]).status, 200);
    }
    let time: (u64, u64) = redis.command(&["TIME"]);
    let full = longest_log(time.0 * WINDOW - 10_000_000);
    let mut connection = redis.connection();
    for key in redis.keys() {
        redis::cmd("SET").arg(key).arg(&full).exec(&mut connection).unwrap();
    }
    let sent = |redis: &Redis| {
        let stats: String = redis.command(&["INFO", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let (before, calls) = (sent(&redis), gateway.metric("rate_limiter_store_calls_total", &[]));
    let since = now();
    std::thread::scope(|scope| {
        for user in &users {
            let mut client = gateway.client();
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(client.get("/", &[("X-User", user), ("X-Cost", "10000")]).status, 429);
                }
            });
        }
    });
    gateway.expect("rate_limiter_store_errors_total", &[], 0.0);
    // Each bucket is asked about once a second.
    let asked = 16 * (since.elapsed().as_secs() + 1);
    let bytes = sent(&redis) - before;
    assert!(bytes <= asked * 6_000 + 20_000, "{bytes} bytes for {asked} buckets");
    let calls = gateway.metric("rate_limiter_store_calls_total", &[]) - calls;
    assert!(calls <= f64::from(u32::try_from(asked).unwrap()), "{calls} calls");
}

/// If one call has two sets of numbers for a bucket, the reply has the whole log.
#[test]
fn a_long_log_under_two_sets_of_numbers_in_one_call_is_one_log() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (wide, narrow) = (log(100, 60 * WINDOW), log(50, WINDOW));
    let mut state = None::<State>;
    for call in 0..80 {
        let now = Timestamp(START + 15_000 * call);
        let plans = [plan(wide, 1000), plan(narrow, 500), plan(wide, 1000), plan(narrow, 40_000)];
        let reply = take_script.take(&plans, now);
        for (plan, settlement) in plans.iter().zip(&reply.settlements) {
            let (expected, entries) = settle(plan, &[state.clone()], now);
            assert_eq!(settlement, &expected);
            if let Some(Some(entry)) = entries.into_iter().next() {
                state = Some(entry.state);
            }
        }
        assert_eq!(take_script.stored(&KEY), state.as_ref().map(|state| state.to_vec()));
    }
}

/// A value that is no valid log counts as an empty bucket and is replaced by one.
#[test]
fn an_invalid_log_heals_to_an_empty_bucket() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let bucket = log(5, WINDOW);
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let end = START + WINDOW;
    let impossible: [(&str, &[&[u8]]); 12] = [
        ("SADD", &[b"member"]),
        ("SET", &[b""]),
        ("SET", &[b"12"]),
        ("SET", &[&[0xff; 48]]),
        ("SET", &[&[0; 48]]),
        ("SET", &[&words(&[0, 1, WINDOW])]),
        ("SET", &[&words(&[0, 0, WINDOW, end])]),
        ("SET", &[&words(&[1000, 2, WINDOW, end, START, 1000])]),
        ("SET", &[&words(&[1 << 52, 1, WINDOW, end, START, 1000])]),
        ("SET", &[&words(&[1000, 1, WINDOW, end, START, 1 << 52])]),
        ("SET", &[&words(&[1000, 1, WINDOW - 1, end, START, 1000])]),
        ("SET", &[&words(&[1000, 2, WINDOW, end, START + 1, 1000, START, 2000])]),
    ];
    for (command, rest) in impossible {
        take_script.tamper(&KEY, command, rest);
        let refused = take_script.take(&[plan(bucket, 1000)], Timestamp(START));
        assert_eq!((refused.healed, refused.settlements[0].is_granted()), (1, false), "{command} {rest:?}");
        assert_eq!(refused.settlements[0].enforced[0].retry_after, Micros(WINDOW));
        let second = take_script.take(&[plan(bucket, 5000), plan(bucket, 1)], Timestamp(START + WINDOW));
        let granted: Vec<_> = second.settlements.iter().map(|settlement| settlement.is_granted()).collect();
        assert_eq!((second.healed, granted), (0, vec![true, false]), "{command} {rest:?}");
    }
    // A good one, and one from the future.
    take_script.tamper(&KEY, "SET", &[&words(&[1000, 1, WINDOW, end, START, 1000])]);
    let left = take_script.take(&[plan(bucket, 1000)], Timestamp(START)).settlements[0].enforced[0].remaining;
    assert_eq!(left, Cost::from_tokens(3));
    take_script.tamper(&KEY, "SET", &[&words(&[1000, 1, WINDOW, end, START + 7_200_000_000, 1000])]);
    let moved = take_script.take(&[plan(bucket, 4500)], Timestamp(START));
    assert_eq!((moved.healed, moved.settlements[0].enforced[0].retry_after), (0, Micros(WINDOW)));
    assert_eq!(take_script.stored(&KEY), Some(vec![1000, 1, WINDOW, end, START, 1000]));
}
