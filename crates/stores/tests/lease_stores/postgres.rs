//! Acts in PostgreSQL: many gateways at once, rows that others lock, and callers who leave.

use std::time::{Duration, Instant};

use ledger::algorithm::lease::{LeaseAct, PurseAct};
use stores::postgres::{Durability, Settings as PostgresSettings};
use stores::{ActResult, BucketAct, Micros, Settings, StoreError};

use crate::region::{PATIENCE, Region, SECOND, at_home, one, open, without_times};
use crate::support::eventually;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;

/// Returns words of a region about 20 buckets.
async fn words(region: &mut Region) -> Vec<BucketAct> {
    let mut words = Vec::new();
    for key in 1..=20 {
        words.push(at_home(key, region.id, region.mark(key).await));
    }
    words
}

#[tokio::test]
async fn gateways_that_send_words_in_opposite_orders_do_not_wait_for_each_other_for_ever() {
    let (server, redis) = (Postgres::start(), Redis::start(&[]));
    let settings = Settings::Postgres(server.settings(Durability::Async));
    let mut region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let forth = words(&mut region).await;
    let back: Vec<BucketAct> = forth.iter().rev().copied().collect();
    let homes = [open(&settings).await, open(&settings).await, open(&settings).await, open(&settings).await];
    let mut calls = tokio::task::JoinSet::new();
    for (home, acts) in homes.iter().zip([&forth, &back].into_iter().cycle()) {
        let (home, acts) = (home.clone(), acts.clone());
        calls.spawn(async move {
            for _ in 0..50 {
                let done = home.act(&acts, PATIENCE).await.unwrap();
                assert!(done.results.iter().all(|result| matches!(result, ActResult::Done(_))), "{done:?}");
            }
        });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    assert_eq!(server.sql("SELECT count(*) FROM tollgate_bucket WHERE state IS NOT NULL"), "20");
    assert_eq!(server.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'limits'"), "0");
}

#[tokio::test]
async fn a_row_that_another_session_locks_makes_an_error_in_time_and_no_transaction_stays_open() {
    let (server, redis) = (Postgres::start(), Redis::start(&[]));
    let timeout = Micros(SECOND);
    let settings = PostgresSettings { timeout, ..server.settings(Durability::Async) };
    let home = open(&Settings::Postgres(settings)).await;
    let mut region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let words = words(&mut region).await;
    let first = one(&home, words[0]).await;
    let text = "BEGIN; SELECT FROM tollgate_bucket FOR UPDATE; SELECT pg_sleep(3); COMMIT";
    let mut session = server.psql_command("limits", text).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("the row is locked", || {
        server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == "1"
    });
    let begin = Instant::now();
    // A caller with less patience gets an error of its own, and the acts go on.
    let fault = home.act(&words[..2], Micros(SECOND / 20)).await.unwrap_err();
    assert!(fault.error == StoreError::Timeout && begin.elapsed() < Duration::from_millis(400), "{fault:?}");
    let fault = home.act(&words[..2], PATIENCE).await.unwrap_err();
    assert!(matches!(fault.error, StoreError::Busy | StoreError::Timeout), "{fault:?}");
    session.wait().unwrap();
    let again = loop {
        match home.act(&words[..2], PATIENCE).await {
            Ok(done) => break done,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let ActResult::Done(again) = again.results[0] else { panic!("{again:?}") };
    assert_eq!(without_times(&again), without_times(&first));
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    eventually("no transaction is open", || server.sql(open) == "0");
    assert_eq!(server.sql("SELECT count(*) FROM tollgate_bucket WHERE state IS NOT NULL"), "2");
}

#[tokio::test]
async fn an_act_that_is_none_for_its_limit_leaves_no_row() {
    let (server, redis) = (Postgres::start(), Redis::start(&[]));
    let home = open(&Settings::Postgres(server.settings(Durability::Async))).await;
    let mut region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let word = at_home(1, region.id, region.mark(1).await);
    let wrong = BucketAct { act: LeaseAct::Purse(PurseAct::Surplus { tag: 1, idle: Micros(0) }), ..word };
    let done = home.act(&[wrong], PATIENCE).await.unwrap();
    assert_eq!(done.results, [ActResult::OtherLimit]);
    assert_eq!(server.sql("SELECT count(*) FROM tollgate_bucket"), "0");
}
