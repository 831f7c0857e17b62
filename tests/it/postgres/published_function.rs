//! A published PL/pgSQL function that takes a token from a row. benches/postgres compares the store with it. The tests show
//! that the function grants too much or fails, and that the store does neither in the same situation.

use std::time::Duration;

use crate::support::{Gateway, Postgres, Upstream, now, print_measured};

/// The function that the benchmark runs too.
const FUNCTION: &str = include_str!("../../../benches/postgres/function.sql");

const SESSIONS: usize = 8;

/// Returns the largest refill of a bucket with 10 tokens a second.
fn due(within: Duration) -> u64 {
    u64::try_from(within.as_millis()).unwrap() / 100 + 1
}

/// Sends requests at the same time, which all wait for another transaction that has locked the row. The bucket has 100 tokens
/// and a refill of 10 per second. Returns what is left, and what would be left in an exact bucket.
#[track_caller]
fn left_after_waiting(function: &str) -> [u64; 2] {
    let postgres = Postgres::start();
    postgres.sql(function);
    let begin = now();
    postgres.sql("INSERT INTO rate_limiting_token_bucket VALUES ('a', 100, clock_timestamp())");
    // Until all of them have waited for a second.
    let waited = "SELECT count(*) FROM pg_locks WHERE NOT granted AND clock_timestamp() - waitstart > '1s'";
    postgres.hold(&format!(
        "DO $$ BEGIN PERFORM FROM rate_limiting_token_bucket FOR UPDATE; \
         LOOP PERFORM pg_sleep(0.05); EXIT WHEN ({waited}) >= {SESSIONS}; END LOOP; END $$"
    ));
    std::thread::scope(|scope| {
        for _ in 0..SESSIONS {
            scope.spawn(|| postgres.sql("SELECT rate_limiting_token_bucket_request('a', 10, 100)"));
        }
    });
    let left = postgres.sql("SELECT tk FROM rate_limiting_token_bucket").parse().unwrap();
    [left, 100 + due(begin.elapsed()) - SESSIONS as u64]
}

#[test]
fn it_stores_one_time_and_computes_with_another() {
    let [left, exact] = left_after_waiting(FUNCTION);
    print_measured(&format!(
        "published function: {left} tokens are left after requests that waited, {exact} at most are due"
    ));
    // Each of the requests has refilled for the second that all of them have waited.
    assert!(left > exact + 20, "it is exact now");
    // If it stored the time with which it computes, that would not happen.
    let corrected = FUNCTION.replace("set ts=now()", "set ts=clock_timestamp()");
    assert_ne!(corrected, FUNCTION);
    let [left, exact] = left_after_waiting(&corrected);
    assert!(left <= exact, "{left}, {exact}");
}

#[test]
fn requests_that_wait_for_a_row_refill_it_once() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let rules = "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rps: 10, burst: 100}}\n";
    let gateway = Gateway::start(&upstream, &(postgres.store_with(", timeout: 5s", "deny") + rules));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let ask = || u64::from(gateway.client().get("/", &[]).status == 200);
    let begin = now();
    let mut granted: u64 = (0..50).map(|_| ask()).sum();
    postgres.hold("BEGIN; SELECT FROM tollgate_bucket FOR UPDATE; SELECT pg_sleep(1.2); COMMIT");
    granted += std::thread::scope(|scope| {
        let asked: Vec<_> = (0..SESSIONS).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|granted| granted.join().unwrap()).sum::<u64>()
    });
    assert_eq!(granted, 50 + SESSIONS as u64);
    granted += (0..300).map(|_| ask()).take_while(|granted| *granted == 1).sum::<u64>();
    let most = 100 + due(begin.elapsed());
    assert!(granted <= most, "{granted}, {most}");
}

#[test]
fn it_loses_sessions_to_conflicts_and_the_store_loses_no_request() {
    let (postgres, upstream) =
        (Postgres::start_with("default_transaction_isolation = 'serializable'"), Upstream::start());
    postgres.sql(FUNCTION);
    // As it was published: sessions that call it again and again, each until its first error.
    let request = "SELECT rate_limiting_token_bucket_request('user1', 1000, 3600);\n";
    postgres.sql(request);
    let requests = request.repeat(500);
    let errors: Vec<String> = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS).map(|_| scope.spawn(|| postgres.run_script(&requests))).collect();
        sessions.into_iter().filter_map(|session| session.join().unwrap().err()).collect()
    });
    print_measured(&format!("published function, serializable: {} of {SESSIONS} sessions ended early", errors.len()));
    assert!(!errors.is_empty(), "no conflict");
    assert!(errors.iter().all(|error| error.contains("could not serialize access")), "{errors:?}");
    postgres.settings();
    let rules =
        "rules:\n  - {name: one, limit_keys: [], expose: true, algorithm_config: {rate: 1000/day, burst: 1000}}\n";
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &(postgres.store_with(", timeout: 5s", "deny") + rules)));
    for gateway in &gateways {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            let mut client = gateways[session % 2].client();
            scope.spawn(move || assert!((0..100).all(|_| client.get("/", &[]).status == 200)));
        }
    });
    assert_eq!(gateways[0].client().get("/", &[]).number("RateLimit-Remaining"), 1000 - 100 * SESSIONS as u64 - 1);
}
