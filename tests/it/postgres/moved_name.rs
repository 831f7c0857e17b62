//! The host name of a PostgreSQL server is moved to another server, as hosting providers do.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Gateway, Lateness, MovableName, Postgres, Relay, Upstream, eventually, now, print_measured};

#[test]
fn a_server_whose_name_has_moved_is_left_although_it_answers() {
    const NAME: &str = "postgres.tollgate.test";
    let (first, upstream, name) = (Postgres::start(), Upstream::start(), MovableName::new(NAME));
    first.settings();
    // At the same port of another address. One thread, since the file of names must not change while two read it.
    let second = first.replica();
    let _relay = Relay::start_at(("127.0.0.2", first.port), second.port);
    let text = format!(
        "store: {{postgres: {{url: \"postgres://tollgate@{NAME}:{}/limits\", timeout: 2s}}}}\non_store_failure: deny\nthreads: 1\n\
         rules:\n  - {{name: one, limit_keys: [header:x-user], algorithm_config: {{rate: 1000/day}}}}\n",
        first.port
    );
    let builder = Gateway::before(&upstream)
        .with(&text)
        .variables(&name.variables().each_ref().map(|(key, value)| (*key, &**value)));
    let gateway = builder.interval("resolve_store", Duration::from_millis(100)).start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[("X-User", "a")]).number("RateLimit-Remaining"), 999);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'tollgate'";
    // A name that cannot be looked up for a while says nothing.
    let before = first.sql(sessions);
    name.remove();
    crate::support::wait_for_nothing(Duration::from_millis(300));
    assert_eq!(first.sql(sessions), before);
    let in_step = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()";
    eventually("the replica has everything", || first.sql(in_step) == "1");
    second.promote();
    name.point("127.0.0.2");
    eventually("the first server is left", || first.sql(sessions) == "0");
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    eventually("the second server decides", || client.get("/", &[("X-User", "a")]).status == 200);
    assert_eq!(client.get("/", &[("X-User", "b")]).number("RateLimit-Remaining"), 999);
    assert_ne!(second.sql(sessions), "0");
    assert!(gateway.metric("rate_limiter_store_errors_total", &["kind=\"moved\""]) > 0.0, "{}", gateway.errors());
    gateway.expect_logged("is at another address now");
}

#[test]
fn a_name_is_followed_at_once_although_its_former_address_hangs() {
    const NAME: &str = "postgres.tollgate.test";
    let (postgres, upstream, name) = (Postgres::start(), Upstream::start(), MovableName::new(NAME));
    postgres.settings();
    // It accepts connections, and nothing that is sent over them.
    let hanging = TcpListener::bind(("127.0.0.2", postgres.port)).unwrap();
    name.point("127.0.0.2");
    let (attempts, lateness) = (Arc::new(AtomicU64::new(0)), Lateness::measure());
    let counted = Arc::clone(&attempts);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in hanging.incoming() {
            open.push(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let text = format!(
        "store: {{postgres: {{url: \"postgres://tollgate@{NAME}:{}/limits\", timeout: 2s}}}}\non_store_failure: deny\nthreads: 1\n\
         rules:\n  - {{name: one, limit_keys: [], algorithm_config: {{rate: 1000/day}}}}\n",
        postgres.port
    );
    let variables = name.variables();
    let builder = Gateway::before(&upstream).with(&text);
    let gateway = builder.variables(&variables.each_ref().map(|(key, value)| (*key, &**value))).start();
    let made = attempts.load(Ordering::Relaxed);
    eventually("it has begun to log in", || attempts.load(Ordering::Relaxed) > made);
    let named = now();
    name.point("127.0.0.1");
    let mut client = gateway.client();
    eventually("the server with the name decides", || client.get("/", &[]).status == 200);
    let (took, busy) = (named.elapsed(), lateness.of_a_request());
    print_measured(&format!("PostgreSQL: back {took:?} after its name had moved, while the former address hung"));
    // A login that is not answered is given up after 2 s.
    assert!(took < Duration::from_secs(1) + busy, "{took:?} on a machine that delays a request by {busy:?}");
}
