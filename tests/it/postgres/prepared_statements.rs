//! The statements of calls are prepared by name on a direct connection to the server, and sent as text if a pooler is in
//! between.

use stores::postgres::schema;

use crate::support::{Gateway, PgBouncer, Postgres, Upstream, eventually};

const RULES: &str =
    "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 1000, burst: 1000}}\n";

/// The text in the server's log for a statement that locks buckets.
const LOCK: &str = ": SELECT key, state FROM \"tollgate_bucket\"";

#[derive(Debug, Default, PartialEq, Eq)]
struct Locks {
    by_name: usize,
    as_text: usize,
}

fn locks(log: &str) -> Locks {
    let mut locks = Locks::default();
    for line in log.lines() {
        let Some((_, statement)) = line.split_once("LOG:  execute ") else { continue };
        match statement.split_once(LOCK) {
            Some(("<unnamed>", _)) => locks.as_text += 1,
            Some(_) => locks.by_name += 1,
            None => {}
        }
    }
    locks
}

#[track_caller]
fn expect_200(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..requests).map(|_| client.get("/", &[("X-User", "a")]).status).collect();
    assert_eq!(statuses, vec![200; requests]);
}

#[test]
fn without_a_pooler_they_are_prepared_by_name_and_outlive_the_tables() {
    let (postgres, upstream) = (Postgres::start_with("log_statement = 'all'"), Upstream::start());
    let settings = postgres.settings();
    let gateway = Gateway::start(&upstream, &format!("threads: 1\n{}{RULES}", postgres.store("deny")));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    expect_200(&gateway, 20);
    let before = locks(&postgres.log());
    assert!(before.by_name >= 20 && before.as_text == 0, "{before:?}");
    // By now the server has kept a plan for tables that are replaced here.
    postgres.sql("DROP TABLE tollgate_bucket, tollgate_bucket_gateway");
    postgres.sql(&schema::statements(&settings));
    eventually("it goes on", || gateway.client().get("/", &[("X-User", "a")]).status == 200);
    expect_200(&gateway, 20);
    let after = locks(&postgres.log());
    assert!(after.by_name >= before.by_name + 20 && after.as_text == 0, "{after:?}");
    assert_eq!(postgres.sql("SELECT count(*) FROM tollgate_bucket"), "1");
}

#[test]
fn behind_a_pooler_they_are_sent_as_texts() {
    let (postgres, upstream) = (Postgres::start_with("log_statement = 'all'"), Upstream::start());
    postgres.settings();
    let pooler = PgBouncer::before(&postgres, 2);
    let store = format!(
        "store: {{postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\", timeout: 2s}}}}\non_store_failure: deny\n",
        pooler.port
    );
    let gateway = Gateway::start(&upstream, &format!("threads: 1\n{store}{RULES}"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    expect_200(&gateway, 20);
    let locks = locks(&postgres.log());
    assert!(locks.as_text >= 20 && locks.by_name == 0, "{locks:?}");
}
