//! A raise under load: never more than the larger number passes, and from a second after the raise nobody is refused below it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::bucket_command::bucket;
use crate::support::{Gateway, Postgres, Redis, Upstream, now, print_measured};

const CALLERS: usize = 64;
const LIMIT: u64 = 400;
const RAISE: u64 = 1_200;
/// How long a caller waits between two requests.
const PAUSE: Duration = Duration::from_millis(150);

const RULES: &str = "
check: {allow: [unverified_key, open_policy, forgotten_period]}
rules:
  - {name: year, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 400, window: year}}
";

/// An answer: when it was asked for, when it came, and whether it was a grant.
type Answered = (Instant, Instant, bool);

/// Plays callers of this many gateways on one store.
fn play(gateways: usize, store: &str) {
    let upstream = Upstream::start();
    let gateways: Vec<_> = (0..gateways).map(|_| Gateway::start(&upstream, &format!("{store}\n{RULES}"))).collect();
    let (is_over, granted) = (AtomicBool::new(false), AtomicU64::new(0));
    let call = |gateway: &Gateway| {
        let (mut client, mut answers) = (gateway.client(), Vec::<Answered>::new());
        while !is_over.load(Ordering::Relaxed) {
            let sent = now();
            let status = client.get("/", &[("X-User", "ann")]).status;
            assert!(matches!(status, 200 | 429), "{status}");
            granted.fetch_add(u64::from(status == 200), Ordering::Relaxed);
            answers.push((sent, now(), status == 200));
            std::thread::sleep(PAUSE);
        }
        answers
    };
    let wait_for = |least: u64| {
        let begun = now();
        while granted.load(Ordering::Relaxed) < least && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let (raised, answers) = std::thread::scope(|scope| {
        let call = &call;
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                scope.spawn({
                    let gateway = &gateways[caller % gateways.len()];
                    move || call(gateway)
                })
            })
            .collect();
        wait_for(LIMIT);
        // Everybody is refused for a while.
        std::thread::sleep(Duration::from_millis(500));
        let amount = format!("+{RAISE}");
        let raise = ["raise", "year", "header:x-user=ann", &amount, "--until", "period-end", "--id", "more"];
        let output = bucket(&gateways[0], &raise);
        let raised = now();
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
        wait_for(LIMIT + RAISE);
        std::thread::sleep(Duration::from_secs(1));
        is_over.store(true, Ordering::Relaxed);
        let answers: Vec<Answered> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        (raised, answers)
    });
    let grants = || answers.iter().filter(|(.., is_granted)| *is_granted);
    let last = grants().map(|(sent, ..)| *sent).max().unwrap();
    let late = raised + Duration::from_secs(1);
    let is_early = |(sent, came, is_granted): &&Answered| !is_granted && *sent >= late && *came < last;
    let early = answers.iter().filter(is_early).count();
    let after = grants().filter(|(sent, ..)| *sent >= late).count();
    print_measured(&format!(
        "raise from {LIMIT} to {} under {CALLERS} callers: {} granted, {} refused, {after} granted from a second after the raise",
        LIMIT + RAISE,
        grants().count(),
        answers.len() - grants().count(),
    ));
    assert_eq!((grants().count() as u64, early), (LIMIT + RAISE, 0));
    assert!(after > 200, "{after}");
}

#[test]
fn a_raise_under_callers_of_two_gateways_on_redis_is_exact() {
    let redis = Redis::start();
    play(2, &redis.patient_store());
}

#[test]
fn a_raise_under_callers_of_two_gateways_on_postgresql_is_exact() {
    let postgres = Postgres::start();
    postgres.settings();
    play(2, &(postgres.store_with(", timeout: 10s", "deny") + "\n"));
}

#[test]
fn a_raise_under_callers_of_a_gateway_with_its_buckets_in_memory_is_exact() {
    play(1, "");
}
