//! Several gateways on one Redis, checked request by request: no wrong grant and no wrong refusal.

use std::sync::LazyLock;
use std::time::Duration;

use base::time::Micros;
use ledger::calendar::CalendarUnit;
use stores::Source;
use stores::redis::fault_injection::{Combining, Hooks, Refusals};

use super::history::gateways::{Clocks, Gateways, PATIENT, Run, random_request, undisturbed};
use super::history::{Answer, CalendarPeriods, GrantLifetime, LeakyLimit, Limit, Numbers, utc};
use crate::support::{Answers, Redis, Relay, print_measured, short_or_long};

const GATEWAYS: usize = 3;

/// The limit that every request is charged to.
const EVERYBODY: Numbers = Numbers::per_second(2_000, 2_000);

/// The end of the month in Berlin. Redis' clock reaches it soon after the load has begun.
static END_OF_OCTOBER: LazyLock<i64> = LazyLock::new(|| utc("2026-10-31T23:00:00Z"));

/// One limit of each algorithm except the token bucket, and of each way in which it counts.
static OTHERS: LazyLock<Vec<Limit>> = LazyLock::new(|| {
    let begins = [utc("2026-09-30T22:00:00Z"), *END_OF_OCTOBER, utc("2026-11-30T23:00:00Z")];
    let month = CalendarPeriods { unit: CalendarUnit::Month, zone: "Europe/Berlin", anchor: "1", begins };
    vec![
        Limit::window(90, GrantLifetime::Epoch(1_000_000)),
        Limit::window(110, GrantLifetime::FirstGrant(1_234_567)),
        Limit::window(130, GrantLifetime::Calendar(month)),
        Limit::window(120, GrantLifetime::Steps { window: 1_000_000, steps: 7 }),
        Limit::window(120, GrantLifetime::Log(1_100_000)),
        // Bounded by the wait of its last request.
        Limit::Leaky(LeakyLimit {
            places: Numbers { burst: 60, amount: 123_457, period: 1_000_003 },
            delay_after: 20,
            max_wait: 200_000,
        }),
    ]
});

/// Returns token buckets: one that every request charges, three that gateways share, and one for each of eight users. Then
/// the other limits, which gateways share.
fn buckets() -> Vec<Limit> {
    // They divide unevenly: nothing may be rounded anywhere.
    let shared = Numbers { burst: 700, amount: 54_321_987, period: 60_000_000 };
    let own = Numbers { burst: 250, amount: 997_123, period: 7_000_003 };
    let buckets = [EVERYBODY].into_iter().chain([shared; 3]).chain([own; 8]);
    buckets.map(Limit::from).chain(OTHERS.iter().copied()).collect()
}

fn request(caller: usize) -> Vec<(usize, u64)> {
    random_request(caller, OTHERS.len())
}

/// The load, in comparison with the rate of the first bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Over,
    Near,
}

fn play(redis: &Redis, combining: Combining, refusals: Refusals, load: Load) -> Run {
    let (callers, pauses) = match load {
        // 48 callers, each of whom asks again a few milliseconds after a refusal.
        Load::Over => (8, [Duration::from_millis(2), Duration::from_millis(6)]),
        // 24 callers, each of whom asks for 4 tokens every 30 ms or so.
        Load::Near => (4, [Duration::from_millis(26); 2]),
    };
    let hooks = Hooks { combining, refusals, ..Hooks::default() };
    let gateways = Gateways {
        hooks: vec![hooks; GATEWAYS],
        workers: 2,
        callers,
        buckets: buckets(),
        mistaken: |_, limit| limit,
        clocks: Clocks { begin: Some(*END_OF_OCTOBER - 1_200_000), hours_wrong: [-2, 0, 2] },
        request,
        pauses,
        lasting: short_or_long(Duration::from_millis(2500), Duration::from_secs(30)),
        timeout: PATIENT,
    };
    undisturbed(|| {
        redis.command::<()>(&["FLUSHALL"]);
        gateways.play(redis, redis.port, || ())
    })
}

#[track_caller]
fn nothing_is_granted_too_much_or_withheld(combining: Combining, refusals: Refusals) {
    let redis = Redis::start();
    for load in [Load::Over, Load::Near] {
        let Run { history, calls } = play(&redis, combining, refusals, load);
        let (requests, granted) = (history.records.len(), history.grants(0));
        let cached = history.count(|answer| matches!(answer, Answer::Refused { source: Source::Cached, .. }));
        let by_store = history
            .count(|answer| matches!(answer, Answer::Granted { .. } | Answer::Refused { source: Source::Store, .. }));
        // What the first bucket gave, of what it had until then: the most of it in the second half of its grants. At another
        // moment a busy machine may have asked for less than there was.
        let mut grants: Vec<_> =
            granted.iter().map(|grant| (grant.sent, history.buckets[0].price(grant.cost))).collect();
        grants.sort_unstable();
        let (first, last) = (grants[0].0, grants[grants.len() - 1].0);
        let possible = |until| EVERYBODY.capacity() + EVERYBODY.refill(first, until);
        let totals = grants.iter().scan(0, |total, (sent, price)| {
            *total += price;
            Some(*total * 1000 / possible(*sent))
        });
        let given = totals.skip(grants.len() / 2).max().unwrap();
        let findings = history.check();
        print_measured(&format!(
            "history: combining {combining:?}, refusals {refusals:?}, load {load:?}: {requests} requests, {} granted, \
             {by_store} decided in {calls} calls, {cached} refused without; {given} ‰ of what was there; clocks ±{} µs; {findings:?}",
            granted.len(),
            history.clock.tolerance,
        ));
        assert!(findings.is_empty(), "{findings:?}");
        assert!((0..history.buckets.len()).all(|index| !history.grants(index).is_empty()), "one was never asked");
        assert_eq!(by_store + cached, requests);
        assert!(refusals == Refusals::Local || cached == 0);
        assert!(combining == Combining::On || calls >= u64::try_from(by_store).unwrap());
        let asked: i128 = history.records.iter().map(|record| history.buckets[0].price(record.charges[0].1)).sum();
        let enough = match load {
            // On a busy machine less may be asked for than there is.
            Load::Over if asked < 3 * possible(last) => granted.len() > 50,
            // There was no starving.
            Load::Over => requests - granted.len() > 100 && given >= 970,
            Load::Near => granted.len() > requests / 2 && granted.len() > 50,
        };
        assert!(enough, "{} of {requests}, {asked} asked for of {}", granted.len(), possible(last));
    }
}

#[test]
fn combined_calls_with_local_refusals_are_exact() {
    nothing_is_granted_too_much_or_withheld(Combining::On, Refusals::Local);
}

#[test]
fn combined_calls_with_refusals_from_redis_are_exact() {
    nothing_is_granted_too_much_or_withheld(Combining::On, Refusals::ByRedis);
}

#[test]
fn single_calls_with_local_refusals_are_exact() {
    nothing_is_granted_too_much_or_withheld(Combining::Off, Refusals::Local);
}

#[test]
fn single_calls_with_refusals_from_redis_are_exact() {
    nothing_is_granted_too_much_or_withheld(Combining::Off, Refusals::ByRedis);
}

#[test]
fn a_request_without_a_reply_is_charged_once_or_not_at_all() {
    let losses = short_or_long(1, 20);
    let redis = Redis::start();
    let relay = Relay::start(redis.port);
    let gateways = Gateways {
        hooks: vec![Hooks::default(); 2],
        workers: 1,
        callers: 12,
        buckets: vec![Numbers::per_second(100, 100).into()],
        mistaken: |_, limit| limit,
        clocks: Clocks::default(),
        request: |_| vec![(0, fastrand::u64(1..=7) * 1000)],
        pauses: [Duration::from_millis(2), Duration::from_millis(6)],
        lasting: short_or_long(Duration::from_secs(4), Duration::from_secs(30)),
        timeout: Micros(100_000),
    };
    let Run { history, .. } = undisturbed(|| {
        redis.command::<()>(&["FLUSHALL"]);
        std::thread::scope(|scope| {
            gateways.play(&redis, relay.port, || {
                scope.spawn(|| {
                    for answers in [Answers::Pass, Answers::Lost].repeat(losses) {
                        relay.set(answers);
                        std::thread::sleep(Duration::from_millis(300));
                    }
                    relay.set(Answers::Pass);
                });
            })
        })
    });
    let unknown = history.count(|answer| matches!(answer, Answer::Unknown));
    let findings = history.check();
    print_measured(&format!(
        "history: answers lost for 300 ms, {losses} times: {} requests, {} granted, {unknown} not answered; {findings:?}",
        history.records.len(),
        history.grants(0).len()
    ));
    assert!(findings.is_empty(), "{findings:?}");
    assert!(unknown > 0 && history.grants(0).len() > 50);
}
