//! Many requests for one bucket: when they wait for each other, this is no failure of the database. A gateway has few
//! connections to it, whatever its number of threads.

use std::time::Duration;

use crate::support::{Gateway, PgBouncer, Postgres, Upstream, eventually, now, print_measured};

/// A bucket for all requests, and one bucket for each user.
const RULES: &str = "\
policies:
  - {name: all, rules: [{name: all, match: {header:x-all: \"1\"}, limit_keys: [], algorithm_config: {rate: 1000000/day}}]}
  - {name: each, rules: [{name: each, match: {header:x-user: \"*\"}, limit_keys: [header:x-user], algorithm_config: {rate: 1000/day}}]}
";

/// Each commit takes this long, in microseconds, on any disk.
const SLOW_COMMITS: &str = "fsync = on\ncommit_delay = 50000\ncommit_siblings = 0\n";

#[track_caller]
fn never_opened_its_breaker(gateway: &Gateway) {
    assert!(!gateway.errors().contains("circuit breaker opened"), "{}", gateway.errors());
    gateway.expect("rate_limiter_breaker_open", &[], 0.0);
}

/// This resembles a disk that needs 5 ms for a commit and a `timeout` of 50 ms.
#[test]
fn one_bucket_of_all_does_not_open_the_breaker_of_a_gateway_with_many_threads() {
    let (postgres, upstream) = (Postgres::start_with(SLOW_COMMITS), Upstream::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 500ms, durability: sync", "deny");
    let gateway = Gateway::start(&upstream, &format!("threads: 16\n{store}{RULES}"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || {
            let mut client = gateway.client();
            (0..20).map(|_| client.get("/", &[("X-All", "1")]).status).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..64).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let granted = statuses.iter().filter(|status| **status == 200).count();
    let connections = postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'tollgate'");
    print_measured(&format!(
        "PostgreSQL, commits of 50 ms, 16 threads: {granted} of {} requests for one bucket granted, {connections} connections",
        statuses.len()
    ));
    never_opened_its_breaker(&gateway);
    // Those of a machine that stands still are late.
    assert!(2 * granted > statuses.len(), "{granted}: {}", gateway.errors());
    // One more may be there that removes old rows.
    assert!(connections.parse::<u64>().unwrap() <= 3, "{connections}");
}

#[test]
fn a_row_that_others_hold_is_no_failure_of_the_database() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let text = format!("threads: 1\n{}{RULES}", postgres.store_with(", timeout: 800ms", "deny"));
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    eventually("the store decides", || client.get("/", &[("X-All", "1")]).status == 200);
    postgres.hold("BEGIN; SELECT * FROM tollgate_bucket FOR UPDATE; SELECT pg_sleep(60)");
    // More than what opens the breaker.
    for _ in 0..7 {
        assert_eq!(client.get("/", &[("X-All", "1")]).status, 503);
    }
    assert_eq!(client.get("/", &[("X-User", "a")]).status, 200, "{}", gateway.errors());
    never_opened_its_breaker(&gateway);
    assert!(gateway.metric("rate_limiter_fallback_decisions_total", &["cause=\"busy\""]) >= 1.0);
}

/// Commits wait for a disk or a replica one after the other. The rows are not locked in this time.
#[test]
fn rows_are_not_locked_while_a_commit_waits() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 2s, durability: sync", "deny");
    let gateway = Gateway::start(&upstream, &format!("threads: 1\n{store}{RULES}"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    eventually("the store decides", || client.get("/", &[("X-All", "1")]).status == 200);
    postgres.set("synchronous_standby_names", "nobody");
    eventually("the setting is in force", || postgres.sql("SHOW synchronous_standby_names") == "nobody");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| gateway.client().get("/", &[("X-All", "1")]).status);
        eventually("a commit waits", || {
            postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
        });
        // A commit of this statement would wait too.
        let lock = "BEGIN; SELECT key FROM tollgate_bucket FOR UPDATE NOWAIT; ROLLBACK";
        assert!(!postgres.sql(lock).is_empty());
        // What was not answered in time was not granted.
        assert_eq!(waiting.join().unwrap(), 503);
    });
    gateway.expect_logged("store warns");
    assert!(!gateway.errors().contains("INFO WARNING"), "{}", gateway.errors());
}

#[test]
fn refusals_do_not_close_the_breaker_while_no_commit_succeeds() {
    let postgres = Postgres::start();
    the_breaker_closes_after_a_commit(&postgres, postgres.port);
}

/// Behind a pooler, a commit waits by itself.
#[test]
fn refusals_behind_a_pooler_do_not_close_the_breaker_while_no_commit_succeeds() {
    let postgres = Postgres::start();
    let pooler = PgBouncer::before(&postgres, 4);
    the_breaker_closes_after_a_commit(&postgres, pooler.port);
}

/// An answer that needs no commit does not show that commits succeed.
#[track_caller]
fn the_breaker_closes_after_a_commit(postgres: &Postgres, port: u16) {
    const WAITS: Duration = Duration::from_secs(4);
    let upstream = Upstream::start();
    postgres.settings();
    let store = format!(
        "store: {{postgres: {{url: \"postgres://tollgate@127.0.0.1:{port}/limits\", timeout: 200ms, durability: sync}}, \
         breaker: {{failures: 2, cooldown: 100ms, max_cooldown: 200ms}}}}\non_store_failure: deny\n"
    );
    let rules = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 2/day}}\n";
    let gateway = Gateway::start(&upstream, &format!("threads: 2\n{store}{rules}"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let mut ask = |user: &str| client.get("/", &[("X-User", user)]).status;
    for user in 0..20 {
        eventually("its bucket is empty", || ask(&user.to_string()) == 429);
    }
    postgres.set("synchronous_standby_names", "nobody");
    eventually("the setting is in force", || postgres.sql("SHOW synchronous_standby_names") == "nobody");
    let mut new = 100..;
    let mut opened = || {
        assert_ne!(ask(&new.next().unwrap().to_string()), 200);
        gateway.errors().contains("circuit breaker opened")
    };
    eventually("the breaker opens", &mut opened);
    let (begin, mut user) = (now(), 0);
    while begin.elapsed() < WAITS {
        user = (user + 1) % 20;
        ask(&user.to_string());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!gateway.errors().contains("circuit breaker closed"), "{}", gateway.errors());
    postgres.set("synchronous_standby_names", "''");
    eventually("it decides again", || ask(&new.next().unwrap().to_string()) == 200);
    gateway.expect_logged("circuit breaker closed, the store answers again");
}

#[test]
fn warnings_of_the_server_are_escaped_cut_and_throttled() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    postgres.sql(
        "CREATE FUNCTION warns() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE WARNING E'one\\n\\x1b[31mtwo%', repeat('x', 1000); RETURN NULL; END $$;
         CREATE TRIGGER warns BEFORE UPDATE ON tollgate_bucket FOR EACH STATEMENT EXECUTE FUNCTION warns()",
    );
    let gateway = Gateway::start(&upstream, &(postgres.store("deny") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let (begin, mut client) = (now(), gateway.client());
    for _ in 0..100 {
        assert_eq!(client.get("/", &[("X-All", "1")]).status, 200);
    }
    gateway.expect_logged("store warns");
    let (errors, took) = (gateway.errors(), begin.elapsed().as_secs());
    let lines: Vec<&str> = errors.lines().filter(|line| line.contains("[31mtwo")).collect();
    let escaped =
        |line: &&str| line.contains("store warns") && line.contains("one\\n\\u{1b}[31mtwox") && line.len() < 500;
    assert!(lines.iter().all(escaped), "{lines:?}");
    assert!((1..=took + 2).contains(&(lines.len() as u64)), "{} lines in {took} s", lines.len());
}
