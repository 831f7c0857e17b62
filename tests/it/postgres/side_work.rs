//! Heartbeats delay no request, stopped gateways are not counted, and refused requests leave no rows.

use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::postgres::Settings;
use stores::{EventSink, Store, Worker};
use tokio::task::JoinSet;

use crate::support::charge::{plan, spend, unrefilled};
use crate::support::{Gateway, Postgres, Upstream, eventually, now};

const RULES: &str =
    "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rps: 1000, burst: 1000}}\n";

#[test]
fn a_table_of_gateways_that_is_locked_delays_no_request_beyond_its_deadline() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    let text = format!("threads: 1\n{}{RULES}", postgres.store_with(", timeout: 2s", "deny"));
    let gateway = Gateway::start(&upstream, &text);
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    gateway.expect("rate_limiter_live_gateways", &[], 1.0);
    std::thread::scope(|scope| {
        let locked = scope.spawn(|| {
            postgres
                .sql("BEGIN; LOCK TABLE tollgate_bucket_gateway IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(6); COMMIT")
        });
        eventually("it is locked", || {
            postgres.sql(
                "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                          AND relation = 'tollgate_bucket_gateway'::regclass",
            ) == "1"
        });
        let (mut client, mut statuses) = (gateway.client(), Vec::new());
        while !locked.is_finished() {
            statuses.push(client.get("/", &[("X-User", "a")]).status);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(statuses.len() > 10 && statuses.iter().all(|status| *status == 200), "{statuses:?}");
    });
    assert!(postgres.log().contains("canceling statement due to lock timeout"));
}

#[test]
fn a_gateway_that_was_seen_before_the_clock_was_set_back_does_not_count() {
    let (postgres, upstream) = (Postgres::start(), Upstream::start());
    postgres.settings();
    postgres.sql(
        "INSERT INTO tollgate_bucket_gateway (name, host, configuration, seen) VALUES \
         ('\\x0102030405060708', 'gone', 'abc', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 7200000000)",
    );
    let gateway = Gateway::before(&upstream).with(&(postgres.store("deny") + RULES)).short_heartbeats().start();
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    eventually("it is removed", || postgres.sql("SELECT count(*) FROM tollgate_bucket_gateway") == "1");
    gateway.expect("rate_limiter_live_gateways", &[], 1.0);
}

fn charge(bucket: u8, burst: u64) -> Charge {
    spend(BucketKey([bucket; 16]), unrefilled(burst), Cost::ONE)
}

#[test]
fn refused_requests_with_new_keys_leave_no_rows() {
    let postgres = Postgres::start();
    let settings = postgres.settings();
    refused_requests_leave_no_rows(&postgres, settings);
}

#[track_caller]
pub fn refused_requests_leave_no_rows(postgres: &Postgres, settings: Settings) {
    let store = Arc::new(Store::open(&settings.into(), 1, Clock::system(), EventSink::new(|_| ())));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let granted = runtime.block_on(async {
        // Each of a client of its own, whose bucket is new, and all from a bucket that can pay three of them.
        let plans: Vec<Plan> = (1..40).map(|client| plan([charge(client, 10), charge(200, 3)])).collect();
        let all = async {
            store.first_attempt().await;
            let deadline = now() + Duration::from_secs(10);
            while store.take(Worker(0), &plans[0], None).await.is_err() {
                assert!(now() < deadline, "the store does not answer");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let (one, other) = (&plans[1..20], &plans[20..]);
            let mut granted = 0;
            // Together in one transaction, of which some are granted, and in one of which none is.
            for plans in [one, other] {
                let mut asked = JoinSet::new();
                for plan in plans {
                    let (store, plan) = (Arc::clone(&store), plan.clone());
                    asked.spawn(async move { store.take(Worker(0), &plan, None).await });
                }
                for reply in asked.join_all().await {
                    granted += usize::from(reply.unwrap().unwrap().settlement.is_granted());
                }
            }
            granted
        };
        tokio::select! {
            () = store.run(Worker(0)) => panic!("it runs for ever"),
            granted = all => granted,
        }
    });
    assert_eq!(granted, 2);
    // Of three clients, and of the bucket of all.
    assert_eq!(postgres.sql("SELECT count(*) FROM tollgate_bucket"), "4");
    assert_eq!(postgres.sql("SELECT count(*) FROM tollgate_bucket WHERE state IS NULL"), "0");
}
