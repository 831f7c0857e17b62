//! Servers that die, forget, change their role or do not answer: no word is answered twice in different ways, and stores connect again.

use std::time::{Duration, Instant};

use ledger::algorithm::lease::{LeaseReply, PurseReply};
use stores::postgres::Durability;
use stores::{ActResult, BucketAct, LeaseStore, Micros, Settings, StoreError, breaker, redis};

use crate::region::{LIMIT, PATIENCE, Region, SECOND, at_home, one, open, plan, without_times};
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::sentinel::SentinelGroup;

/// Waits for a state of a store.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Does an act as soon as the store answers.
async fn answered(store: &LeaseStore, act: BucketAct) -> LeaseReply {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match store.act(&[act], PATIENCE).await {
            Ok(done) => match done.results[..] {
                [ActResult::Done(reply)] => return reply,
                _ => panic!("{done:?}"),
            },
            Err(fault) => assert!(Instant::now() < until, "{fault:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn what_home_gave_to_a_region_that_forgot_its_mark_is_lost_and_never_spent() {
    let (mut server, home) = (Redis::start(&[]), Postgres::start());
    let home = open(&Settings::Postgres(home.settings(Durability::Sync))).await;
    let mut region = Region::new("eu", &Settings::Redis(server.settings())).await;
    let marked = region.mark(1).await;
    let LeaseReply::Home(answer) = one(&home, at_home(1, region.id, marked)).await else { panic!("no answer") };
    // The region's store loses the purse after home has debited the lease.
    server.kill();
    server.restart();
    answered(&region.purses, at_home(2, region.id, marked)).await;
    assert_eq!(region.credit(1, &marked, answer).await, PurseReply::Nothing);
    let mut passed = 0;
    for _ in 0..LIMIT + 10 {
        passed += u64::from(region.request(1, &home, &plan(1, 1000)).await);
    }
    // The first lease is lost.
    assert!((LIMIT - 8..LIMIT).contains(&passed), "{passed}");
}

#[tokio::test]
async fn a_home_that_crashes_answers_a_word_as_before_and_its_store_connects_again() {
    let (region, mut server) = (Redis::start(&[]), Postgres::start());
    let home = open(&Settings::Postgres(server.settings(Durability::Sync))).await;
    let mut region = Region::new("eu", &Settings::Redis(region.settings())).await;
    let marked = region.mark(1).await;
    let word = at_home(1, region.id, marked);
    let LeaseReply::Home(first) = one(&home, word).await else { panic!("no answer") };
    server.stop("immediate");
    until("home is away", || home.is_away(&word.key)).await;
    let begin = Instant::now();
    let fault = home.act(&[word], PATIENCE).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(1), "{fault:?}");
    server.launch();
    until("home is connected again", || !home.is_away(&word.key)).await;
    let LeaseReply::Home(second) = one(&home, word).await else { panic!("no answer") };
    assert_eq!(without_times(&LeaseReply::Home(second)), without_times(&LeaseReply::Home(first)));
    assert_eq!(region.credit(1, &marked, second).await, PurseReply::Credited);
    let mut passed = 0;
    for _ in 0..LIMIT + 10 {
        passed += u64::from(region.request(1, &home, &plan(1, 1000)).await);
    }
    assert_eq!(passed, LIMIT);
}

#[tokio::test]
async fn a_server_that_is_a_replica_now_does_no_act_and_one_that_is_a_master_again_does() {
    let (server, other) = (Redis::start(&[]), Redis::start(&[]));
    let home = open(&Settings::Redis(server.settings())).await;
    let region = Redis::start(&[]);
    let mut region = Region::new("eu", &Settings::Redis(region.settings())).await;
    let word = at_home(1, region.id, region.mark(1).await);
    let () = server.command(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    let fault = home.act(&[word], PATIENCE).await.unwrap_err();
    assert!(matches!(fault.error, StoreError::Replica | StoreError::Closed | StoreError::Loading), "{fault:?}");
    until("home is away", || home.is_away(&word.key)).await;
    let () = server.command(&["REPLICAOF", "NO", "ONE"]);
    until("home is connected again", || !home.is_away(&word.key)).await;
    assert!(matches!(one(&home, word).await, LeaseReply::Home(_)));
}

#[tokio::test]
async fn after_a_failover_by_sentinels_the_new_master_does_the_acts() {
    let group = SentinelGroup::start();
    let home = open(&Settings::Redis(group.settings())).await;
    let region = Redis::start(&[]);
    let mut region = Region::new("eu", &Settings::Redis(region.settings())).await;
    let [first, second] = [region.mark(1).await, region.mark(2).await];
    let [first, second] = [at_home(1, region.id, first), at_home(2, region.id, second)];
    let before = one(&home, first).await;
    let keys = |server: usize| group.servers[server].try_command::<usize>(&["DBSIZE"]).unwrap_or_default();
    until("the replica has the bucket", || keys(1) == 1).await;
    until("the sentinel begins a failover", || group.ask(&["SENTINEL", "FAILOVER", "mymaster"]).contains("OK")).await;
    let role = || group.servers[1].try_command::<String>(&["INFO", "replication"]).unwrap_or_default();
    until("the replica is the master", || role().contains("role:master")).await;
    let end = Instant::now() + Duration::from_secs(30);
    while keys(1) < 2 {
        // Until the connection has moved, acts fail, or are done by the old master.
        let _ = home.act(&[second], PATIENCE).await;
        assert!(Instant::now() < end, "no act reaches the new master");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(without_times(&answered(&home, first).await), without_times(&before));
}

#[tokio::test]
async fn a_home_that_does_not_answer_opens_the_breaker_which_a_later_act_closes() {
    let server = Redis::start(&[]);
    let cooldown = Micros(SECOND / 5);
    let breaker = breaker::Settings { failures: 3, cooldown, max_cooldown: cooldown };
    let timeout = Micros(SECOND / 10);
    let home = open(&Settings::Redis(redis::Settings { timeout, breaker, ..server.settings() })).await;
    let region = Redis::start(&[]);
    let mut region = Region::new("eu", &Settings::Redis(region.settings())).await;
    let word = at_home(1, region.id, region.mark(1).await);
    let () = server.command(&["CLIENT", "PAUSE", "1500", "ALL"]);
    let begin = Instant::now();
    let mut errors = Vec::new();
    while errors.last() != Some(&StoreError::BreakerOpen) {
        errors.push(home.act(&[word], PATIENCE).await.unwrap_err().error);
    }
    assert_eq!(errors[..3], [StoreError::Timeout; 3]);
    assert!(begin.elapsed() < Duration::from_millis(1400) && home.is_away(&word.key), "{errors:?}");
    answered(&home, word).await;
    assert!(!home.is_away(&word.key));
}

#[tokio::test]
async fn a_home_that_is_slow_is_an_error_in_time_and_the_same_word_is_answered_later() {
    let (server, redis) = (Redis::start(&[]), Redis::start(&[]));
    let home = open(&Settings::Redis(server.settings())).await;
    let mut region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let marked = region.mark(1).await;
    let word = at_home(1, region.id, marked);
    let () = server.command(&["CLIENT", "PAUSE", "600", "ALL"]);
    let begin = Instant::now();
    let fault = home.act(&[word], Micros(SECOND / 10)).await.unwrap_err();
    assert!(fault.error == StoreError::Timeout && begin.elapsed() < Duration::from_millis(500), "{fault:?}");
    // The first try runs after the pause, and the second is answered as the first one.
    region.lease(1, &home, marked).await;
    assert!(region.take(&plan(1, 9)).await.0);
}
