//! The name of a PostgreSQL is moved to another server, as providers of PostgreSQL do.

use std::time::Duration;

use crate::support::{Gateway, MovableName, Postgres, Relay, Upstream, eventually};

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
