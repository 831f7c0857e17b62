//! Charges are undone on a real redis-server: a bucket then holds at most what it would hold without the charge.

use base::time::{Micros, Timestamp};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::leaky_bucket::{self, LeakyBucket};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, settle};
use ledger::cost::Cost;
use stores::redis::codec::{Call, add_undone, key_name};
use stores::redis::script;

use crate::support::charge::{plan_of, spend};
use crate::support::{Redis, TakeScript};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const TEN_SECONDS: Micros = Micros(10 * SECOND);

fn algorithms() -> Vec<Algorithm> {
    let rate = Rate { amount: Cost::from_tokens(3), period: Micros(SECOND) };
    let leaky = leaky_bucket::Settings { rate, queue: 50, max_wait: Micros(60 * SECOND), delay_after: 40 };
    vec![
        Algorithm::TokenBucket(TokenBucket::new(rate, 100).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(100, Window::Epoch(TEN_SECONDS)).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(100, Window::FirstRequest(TEN_SECONDS)).unwrap()),
        Algorithm::SlidingWindow(SlidingWindow::new(100, TEN_SECONDS, 10).unwrap()),
        Algorithm::SlidingLog(SlidingLog::new(100, TEN_SECONDS).unwrap()),
        Algorithm::LeakyBucket(LeakyBucket::new(leaky).unwrap()),
    ]
}

fn charge(bucket: u16, algorithm: Algorithm, cost: u64) -> Charge {
    let [low, high] = bucket.to_le_bytes();
    let mut key = [1; 16];
    key[..2].copy_from_slice(&[low, high]);
    let cost = Cost::from_tokens(cost);
    spend(BucketKey(key), algorithm, cost)
}

fn plan(charge: Charge) -> Plan {
    plan_of(charge)
}

fn undo_command(script: String, charge: &Charge, charged: Timestamp, near: Timestamp) -> redis::Cmd {
    let mut text = Vec::new();
    add_undone(&mut text, charge, charged, near);
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(1).arg(key_name("test", &charge.key)).arg(text);
    command
}

/// Runs the command. Returns whether the bucket's value is another one afterwards.
fn is_undone(undo: &redis::Cmd, redis: &Redis) -> bool {
    let (_, before, after): (redis::Value, redis::Value, redis::Value) = undo.query(&mut redis.connection()).unwrap();
    before != after
}

/// Undoes a charge. Returns whether its bucket was changed.
fn undo(redis: &Redis, charge: &Charge, charged: Timestamp, now: Timestamp) -> bool {
    let script = script::at_chosen_moment(&script::give_back());
    is_undone(undo_command(script, charge, charged, now).arg(now.0), redis)
}

fn remaining(algorithm: &Algorithm, state: Option<&[u64]>, now: Timestamp) -> u64 {
    algorithm.step(state, Cost::from_thousandths(1), now).untouched.remaining.thousandths()
}

#[test]
fn a_bucket_whose_charge_was_undone_holds_at_most_what_it_held_without() {
    let redis = Redis::start();
    let mut script = TakeScript::new(&redis);
    let random = &mut fastrand::Rng::with_seed(21);
    for (number, algorithm) in
        (0..240).flat_map(|_| algorithms()).zip(0..).map(|(algorithm, number)| (number, algorithm))
    {
        // A window that the undone charge began would stay where it is.
        let begun_by_request = matches!(algorithm.window(), Some(Window::FirstRequest(_)));
        let span = if begun_by_request { 9 * SECOND } else { 12 * SECOND };
        let mut moments: Vec<u64> = (0..5).map(|_| START + random.u64(0..span)).collect();
        moments.sort_unstable();
        // The second charge is undone at the fourth moment, after another one. The last is of another request again.
        let mut without: Option<State> = None;
        let mut undone_by = 0;
        for (index, now) in moments.iter().map(|now| Timestamp(*now)).enumerate() {
            let one = charge(number, algorithm, random.u64(1..8));
            if index == 3 {
                let undone = charge(number, algorithm, 7);
                undo(&redis, &undone, Timestamp(moments[1]), now);
                undone_by = now.0 - moments[1];
                continue;
            }
            let one = if index == 1 { charge(number, algorithm, 7) } else { one };
            assert!(script.take(&[plan(one.clone())], now).settlements[0].is_granted());
            if index != 1 {
                let (settlement, entries) = settle(&plan(one), &[without.clone()], now);
                assert!(settlement.is_granted());
                without = Some(entries[0].clone().unwrap().state);
            }
        }
        let stored = script.stored(&charge(number, algorithm, 1).key);
        for later in [0, SECOND / 2, 3 * SECOND, 9 * SECOND, 11 * SECOND] {
            let now = Timestamp(moments[4] + later);
            let with = remaining(&algorithm, stored.as_deref(), now);
            let without = remaining(&algorithm, without.as_deref(), now);
            assert!(with <= without, "{algorithm} at {moments:?}: {with} of {without}");
            let lost = match algorithm {
                // What has come back of 3 per second, rounded.
                Algorithm::TokenBucket(_) => 3 * undone_by / 1_000 + 1,
                Algorithm::LeakyBucket(_) => 7_000,
                _ => 0,
            };
            assert!(without - with <= lost, "{algorithm} at {moments:?}: {with} of {without}, more than {lost}");
        }
    }
}

#[test]
fn a_charge_whose_window_is_over_and_an_invalid_bucket_stay_as_they_are() {
    let redis = Redis::start();
    let mut script = TakeScript::new(&redis);
    for (number, algorithm) in (0..).zip(algorithms()) {
        let one = charge(number, algorithm, 5);
        assert!(script.take(&[plan(one.clone())], Timestamp(START)).settlements[0].is_granted());
        let before = script.stored(&one.key);
        assert!(!undo(&redis, &one, Timestamp(START - 20 * SECOND), Timestamp(START + SECOND)), "{algorithm}");
        assert_eq!(script.stored(&one.key), before, "{algorithm}");
        script.tamper(&one.key, "SET", &[b"nonsense"]);
        assert!(!undo(&redis, &one, Timestamp(START), Timestamp(START + SECOND)), "{algorithm}");
        script.tamper(&one.key, "LPUSH", &[b"nonsense"]);
        assert!(!undo(&redis, &one, Timestamp(START), Timestamp(START + SECOND)), "{algorithm}");
    }
}

/// Otherwise, units would be given back that others have already been granted.
#[test]
fn what_others_may_have_refilled_since_is_not_given_back() {
    let redis = Redis::start();
    let mut script = TakeScript::new(&redis);
    let bucket = |per_second: u64, burst| {
        let rate = Rate { amount: Cost::from_tokens(per_second), period: Micros(SECOND) };
        TokenBucket::new(rate, burst).unwrap()
    };
    let (fast, slow) = (bucket(10_000, 10_000), bucket(1, 20));
    let (fast, slow) = (Algorithm::TokenBucket(fast.alongside(&slow)), Algorithm::TokenBucket(slow.alongside(&fast)));
    let (undone, all) = (charge(1, slow, 20), charge(1, fast, 10_000));
    assert!(script.take(&[plan(undone.clone())], Timestamp(START)).settlements[0].is_granted());
    // What the slow one took has come back.
    assert!(script.take(&[plan(all)], Timestamp(START + 2_000)).settlements[0].is_granted());
    let now = Timestamp(START + 2_500);
    undo(&redis, &undone, Timestamp(START), now);
    let stored = script.stored(&undone.key);
    // Of half a millisecond.
    assert_eq!(remaining(&fast, stored.as_deref(), now), 5_000);
}

/// Gateways whose limit has the longer window still need all grants in it.
#[test]
fn a_log_is_kept_for_the_longer_window_although_a_charge_of_the_shorter_one_is_undone() {
    let redis = Redis::start();
    let log = |window| Algorithm::SlidingLog(SlidingLog::new(100, Micros(window * SECOND)).unwrap());
    let (long, short) = (charge(1, log(60), 10), charge(1, log(10), 1));
    let sha: String = redis.command(&["SCRIPT", "LOAD", &script::take()]);
    // On the clock of the server, by which keys expire.
    let take = |charge: &Charge| {
        let plans = [plan(charge.clone())];
        let call = Call::new(&plans);
        let near = Timestamp(START);
        let reply = call.command(&sha, "test", near, None).query(&mut redis.connection()).unwrap();
        call.settle(&reply).unwrap().now
    };
    take(&long);
    let charged = take(&short);
    assert!(is_undone(&undo_command(script::give_back(), &short, charged, charged), &redis));
    let left: i64 = redis::cmd("PTTL").arg(key_name("test", &short.key)).query(&mut redis.connection()).unwrap();
    assert!(left > 50_000, "{left}");
}
