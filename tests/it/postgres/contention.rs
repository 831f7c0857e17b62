//! Transactions wait for each other for at most `timeout`. A gateway that hangs in a transaction soon loses its locks.

use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Certificates, Gateway, Lateness, PgBouncer, Postgres, Upstream, eventually, now, print_measured};

/// Counts the sessions that a test holds. The type is checked because processes of the server may have the administrator's
/// name.
const HOLDS: &str = "SELECT count(*) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND usename = 'admin' AND pid <> pg_backend_pid()";

/// Returns a policy with a single bucket.
fn policy(name: &str) -> String {
    format!(
        "  - {{name: {name}, rules: [{{name: {name}, limit_keys: [], expose: true, algorithm_config: {{rate: 1000/day}}}}]}}\n"
    )
}

/// Locks a bucket, by its index in the order of keys.
fn lock(index: usize) -> String {
    format!(
        "PERFORM FROM tollgate_bucket WHERE key = (SELECT key FROM tollgate_bucket ORDER BY key OFFSET {index} LIMIT 1) FOR UPDATE"
    )
}

#[test]
fn a_deadlock_costs_no_request() {
    let (postgres, upstream) = (Postgres::start_with("deadlock_timeout = 1s"), Upstream::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 5s", "deny");
    let gateway = Gateway::start(&upstream, &format!("{store}policies:\n{}{}", policy("one"), policy("two")));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    // Locks both rows in the other order, the second one when a gateway waits for the first, and then waits patiently.
    let opposite = format!(
        "SET deadlock_timeout = '30s'; DO $$ BEGIN {}; LOOP PERFORM pg_sleep(0.05);
         EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE NOT granted); END LOOP; {}; END $$",
        lock(1),
        lock(0)
    );
    // The server looks for a deadlock once in each wait. If the machine is so busy that the other transaction has not come
    // to its second lock by then, the gateway's waits for `timeout`: then it is refused.
    let (mut granted, mut attempts) = (1, 0);
    loop {
        attempts += 1;
        assert!(attempts < 10, "no deadlock that a second attempt survived");
        let deadlocks = || postgres.log().matches("deadlock detected").count();
        let before = deadlocks();
        postgres.hold(&opposite);
        let response = client.get("/", &[]);
        assert!([200, 503].contains(&response.status), "{response:?}");
        granted += u64::from(response.status == 200);
        // What the gateway had locked, it has released.
        eventually("the other transaction has ended", || postgres.sql(HOLDS) == "0");
        if response.status == 200 && deadlocks() > before {
            break;
        }
    }
    // Each was charged once, and the others were not.
    assert_eq!(client.get("/", &[]).number("RateLimit-Remaining"), 1000 - granted - 1);
}

/// The server applies `lock_timeout` to each row separately. While the gateway waited for one row after the other, the rows
/// that it has locked would stay locked.
#[test]
fn a_transaction_that_waits_for_several_rows_waits_for_the_timeout_in_all() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let policies: String = ["one", "two", "three"].map(policy).concat();
    let text = format!("{}policies:\n{policies}", postgres.store_with(", timeout: 3s", "deny"));
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    // The second row is released when the gateway has waited for it, the third one is not.
    let waited = "EXISTS (SELECT FROM pg_locks WHERE NOT granted AND clock_timestamp() - waitstart > '1s')";
    postgres.hold(&format!("DO $$ BEGIN {}; PERFORM pg_sleep(60); END $$", lock(2)));
    postgres
        .hold(&format!("DO $$ BEGIN {}; LOOP PERFORM pg_sleep(0.05); EXIT WHEN {waited}; END LOOP; END $$", lock(1)));
    assert_eq!(client.get("/", &[]).status, 503);
    eventually("the transaction was ended", || postgres.log().contains("canceling statement due to"));
    assert!(postgres.log().contains("canceling statement due to statement timeout"), "{}", postgres.log());
    gateway.expect("rate_limiter_store_errors_total", &["kind=\"busy\""], 1.0);
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()");
    eventually("it decides again", || client.get("/", &[]).status == 200);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
}

#[test]
fn a_gateway_that_hangs_in_a_transaction_holds_its_rows_for_the_timeout_at_most() {
    const TIMEOUT: Duration = Duration::from_millis(700);
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let text = postgres.store_with(", timeout: 700ms", "deny")
        + "rules:\n  - {name: one, limit_keys: [], algorithm_config: {rps: 100000, burst: 100000}}\n";
    let (hanging, other) = (Gateway::start(&upstream, &text), Gateway::start(&upstream, &text));
    for gateway in [&hanging, &other] {
        gateway.expect("rate_limiter_store_up", &[], 1.0);
    }
    let holds = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'tollgate' AND state = 'idle in transaction'";
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = hanging.client();
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    client.get("/", &[]);
                }
            });
        }
        eventually("it hangs in a transaction", || {
            hanging.signal("STOP");
            let is_held = postgres.sql(holds) != "0";
            if !is_held {
                hanging.signal("CONT");
            }
            is_held
        });
        let late = Lateness::measure();
        let stopped = now();
        let mut client = other.client();
        eventually("another gateway is granted", || client.get("/", &[]).status == 200);
        let held = stopped.elapsed();
        hanging.signal("CONT");
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        print_measured(&format!("PostgreSQL: a gateway that hangs held its rows for {held:?}, of {TIMEOUT:?}"));
        // What is more is the time that a busy machine needs, and a second attempt.
        assert!(held < TIMEOUT + Duration::from_millis(1_500) + late.of_a_request(), "{held:?}");
    });
    assert!(postgres.log().contains("idle-in-transaction timeout"), "{}", postgres.log());
    hanging.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = hanging.client();
    eventually("it is granted again", || client.get("/", &[]).status == 200);
}

#[test]
fn a_commit_that_waits_for_a_replica_is_cancelled_and_counts_as_spent() {
    let postgres = Postgres::start();
    postgres.settings();
    a_waiting_commit_is_cancelled(
        &postgres,
        &format!("url: \"postgres://tollgate@127.0.0.1:{}/limits\"", postgres.port),
    );
}

#[test]
fn a_commit_that_waits_for_a_replica_is_cancelled_over_tls() {
    let (certificates, folder) = (Certificates::shared(), TempDir::new().unwrap());
    let postgres = Postgres::start_tls(certificates);
    postgres.settings();
    postgres.set_hba("hostssl all tollgate 127.0.0.1/32 trust\nhost all admin 127.0.0.1/32 trust\n");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &certificates.authority).unwrap();
    let url = format!("postgres://tollgate@localhost:{}/limits", postgres.port);
    a_waiting_commit_is_cancelled(&postgres, &format!("url: \"{url}\", tls: {{ca_file: {}}}", file.display()));
}

#[test]
fn a_commit_that_waits_for_a_replica_is_cancelled_behind_a_pooler() {
    let postgres = Postgres::start();
    postgres.settings();
    let pooler = PgBouncer::before(&postgres, 2);
    a_waiting_commit_is_cancelled(&postgres, &format!("url: \"postgres://tollgate@127.0.0.1:{}/limits\"", pooler.port));
}

/// The commit waits for a replica, and no timeout of the server limits this wait.
#[track_caller]
fn a_waiting_commit_is_cancelled(postgres: &Postgres, keys: &str) {
    const LIMIT: u64 = 1000;
    let upstream = Upstream::start();
    let store = format!("store: {{postgres: {{{keys}, timeout: 500ms, durability: sync}}}}\non_store_failure: deny\n");
    let text = store + "policies:\n" + &policy("one");
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let (mut asked, mut granted, late) = (0, 0, Lateness::measure());
    let mut ask = || {
        asked += 1;
        let sent = now();
        let response = client.get("/", &[]);
        let took = sent.elapsed();
        assert!(took < Duration::from_millis(500 + 1_500) + late.of_a_request(), "{took:?}");
        granted += u64::from(response.status == 200);
        response
    };
    eventually("the store decides", || ask().status == 200);
    let connections =
        || postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'tollgate'").parse::<u64>().unwrap();
    let before = connections();
    postgres.set("synchronous_standby_names", "nobody");
    let waits = || postgres.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") != "0";
    let cancelled = || postgres.log().matches("canceling wait for synchronous replication").count();
    for round in 1..=2 {
        eventually("a commit waits", || {
            // Refused as long as the breaker is open, and granted until the setting is in force.
            ask();
            waits()
        });
        eventually("it is cancelled", || cancelled() >= round && !waits());
    }
    // One more may be there that removes old rows.
    eventually("no server process stays behind", || connections() <= before + 1);
    postgres.set("synchronous_standby_names", "''");
    let mut left = 0;
    eventually("it decides again", || {
        let response = ask();
        left = if response.status == 200 { response.number("RateLimit-Remaining") } else { 0 };
        response.status == 200
    });
    // What was committed and not answered is spent, once.
    let spent = LIMIT - left;
    assert!((granted + 2..=asked).contains(&spent), "{granted} granted of {asked}, {spent} spent");
}
