//! PostgreSQL stops, hangs or refuses. Every request is answered in time according to the configuration, and the gateway
//! recovers by itself.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, Lateness, Postgres, Upstream, eventually, now};

/// The longest time for a decision, with a margin for a machine that is not busy.
const IN_TIME: Duration = Duration::from_millis(250 + 400);

const TIMEOUT: &str = ", timeout: 250ms";

const RULES: &str = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 1000/day}}\n";

/// While the server is broken, requests are answered in time by `on_store_failure`, and counted by one of `causes`.
/// Afterwards they are limited again.
#[track_caller]
fn goes_through(causes: &[&str], breaks: impl Fn(&mut Postgres), mends: impl Fn(&mut Postgres)) {
    let (mut postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let gateway = Gateway::start(&upstream, &(postgres.store_with(TIMEOUT, "deny") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let client = RefCell::new(gateway.client());
    let ask = || {
        let sent: Instant = now();
        let response = client.borrow_mut().get("/", &[("X-User", "a")]);
        (response, sent.elapsed())
    };
    eventually("the store decides", || ask().0.status == 200);
    breaks(&mut postgres);
    let deadline = now() + Duration::from_secs(20);
    while ask().0.status != 503 {
        assert!(now() < deadline, "{causes:?}: never failed");
    }
    let (lateness, end) = (Lateness::measure(), now() + Duration::from_millis(700));
    while now() < end {
        let (response, took) = ask();
        let busy = lateness.of_a_request();
        assert!(took < IN_TIME + busy, "{causes:?}: {took:?} on a machine that delays it by {busy:?}");
        assert_eq!(response.status, 503, "{causes:?}: {response:?}");
        assert_eq!(response.field("X-Tollgate-Reason").unwrap(), "store_unavailable");
    }
    let counted = |cause: &&&str| {
        gateway.metric("rate_limiter_fallback_decisions_total", &["rule=\"one\"", &format!("cause=\"{cause}\"")]) > 0.0
    };
    assert!(causes.iter().any(|cause| counted(&cause)), "{causes:?}: {}", gateway.errors());
    assert!(Client::connect(gateway.admin).get("/readyz", &[]).status == 200);
    mends(&mut postgres);
    let deadline = now() + Duration::from_secs(20);
    while ask().0.status != 200 {
        assert!(now() < deadline, "{causes:?}: never well again: {}", gateway.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    // Each of a series, although single calls may be late on a busy machine.
    eventually("the store decides again", || (0..20).all(|_| ask().0.status == 200));
}

#[test]
fn requests_survive_a_crash() {
    goes_through(&["unreachable"], |postgres| postgres.stop("immediate"), Postgres::launch);
}

#[test]
fn requests_survive_a_server_that_hangs() {
    goes_through(&["timeout"], |postgres| postgres.signal("STOP"), |postgres| postgres.signal("CONT"));
}

#[test]
fn requests_survive_a_server_that_becomes_read_only() {
    let set = |postgres: &Postgres, value: &str| {
        postgres.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        postgres.signal_server("HUP");
    };
    let mend = |postgres: &mut Postgres| {
        // The session that mends it is read-only itself, which forbids nothing that it does.
        set(postgres, "off");
    };
    goes_through(&["replica"], |postgres| set(postgres, "on"), mend);
}

#[test]
fn requests_survive_a_lock_that_is_not_released() {
    // In a session of its own, which ends with its server process.
    let lock = |postgres: &mut Postgres| {
        postgres.hold("BEGIN; SELECT * FROM tollgate_bucket FOR UPDATE; SELECT pg_sleep(60)");
    };
    let release = |postgres: &mut Postgres| {
        postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()");
    };
    goes_through(&["busy", "timeout"], lock, release);
}

#[test]
fn requests_survive_a_user_who_may_not_log_in_any_more() {
    let refuse = |postgres: &mut Postgres| {
        postgres.sql("ALTER ROLE tollgate NOLOGIN");
        disconnect(postgres);
    };
    goes_through(&["unauthorized"], refuse, |postgres| {
        postgres.sql("ALTER ROLE tollgate LOGIN");
    });
}

#[test]
fn requests_survive_too_many_connections() {
    let refuse = |postgres: &mut Postgres| {
        postgres.sql("ALTER ROLE tollgate CONNECTION LIMIT 0");
        disconnect(postgres);
    };
    goes_through(&["busy"], refuse, |postgres| {
        postgres.sql("ALTER ROLE tollgate CONNECTION LIMIT -1");
    });
}

#[test]
fn requests_survive_a_full_disk() {
    // In place of the table's file a device to which nothing can be written: the server reports what a full disk gives it.
    let fill = |postgres: &mut Postgres| {
        // An empty table has a new file, which nobody has opened yet.
        postgres.sql("TRUNCATE tollgate_bucket");
        let path = postgres.sql("SELECT pg_relation_filepath('tollgate_bucket')");
        let file = postgres.data().join(path);
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
    };
    goes_through(&["out_of_memory"], fill, |postgres| {
        assert!(postgres.log().contains("No space left on device"), "{}", postgres.log());
        postgres.sql("TRUNCATE tollgate_bucket");
    });
}

#[test]
fn requests_survive_a_restart() {
    goes_through(&["unreachable"], |postgres| postgres.stop("fast"), Postgres::launch);
}

#[test]
fn a_killed_session_fails_at_most_the_requests_under_way() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let gateway = Gateway::start(&upstream, &(postgres.store("allow") + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/", &[("X-User", "a")]).status, 200);
        disconnect(&postgres);
        let deadline = now() + Duration::from_secs(20);
        // Its level shows that the store has decided.
        while client.get("/", &[("X-User", "a")]).field("RateLimit").is_none() {
            assert!(now() < deadline, "{}", gateway.errors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn disconnect(postgres: &Postgres) {
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tollgate'");
}
