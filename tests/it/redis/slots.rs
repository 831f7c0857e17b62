//! Slots in one Redis: what faults of the server cost, how many calls slots need, and what is held while there is no
//! answer.

use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Micros};
use ledger::algorithm::concurrency::Concurrency;
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use stores::redis::{Login, Settings, Target};
use stores::{EventSink, Store, StoreError, Worker, breaker};

use super::cluster::{LATE, eventually_async, run, started};
use crate::support::charge::plan_of;
use crate::support::slots::{ask, is_granted, slot, take, take_all};
use crate::support::{Answers, Redis, Relay};

/// The time after which the owners of slots have repeated all reports.
const REPEATED: Duration = Duration::from_secs(2);

/// Returns the settings of one of two gateways, whose server listens on this port.
pub(super) fn settings(port: u16) -> Settings {
    Settings {
        target: Target::at("127.0.0.1", port),
        login: Login::default(),
        timeout: Micros(500_000),
        prefix: "test".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 2,
    }
}

pub(super) async fn gateway(port: u16) -> Arc<Store> {
    started(Arc::new(Store::open(&settings(port).into(), 1, Clock::system(), EventSink::new(|_| ())))).await
}

/// Returns a plan for one slot of this bucket.
fn slots_of(bucket: u8, slots: u64) -> Plan {
    plan_of(slot(BucketKey([bucket; 16]), slots))
}

/// Returns how many calls of scripts the server has run.
pub(super) fn calls(redis: &Redis) -> u64 {
    let all: String = redis.command(&["INFO", "commandstats"]);
    let line = all.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn what_is_held_is_reported_again_to_a_server_that_was_stopped() {
    let redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        let three = slots_of(1, 3);
        let held = take(&one, &three, 3).await;
        redis.signal("STOP");
        // All reports end by the server's clock.
        tokio::time::sleep(Duration::from_secs(8)).await;
        redis.signal("CONT");
        tokio::time::sleep(REPEATED + LATE).await;
        assert!(!is_granted(&other, &three).await);
        drop(held);
        take_all(&other, &three, 3).await;
    });
}

#[test]
fn a_server_without_memory_loses_no_end_of_a_slot() {
    let redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        let three = slots_of(1, 3);
        let mut held = take(&one, &three, 3).await;
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        held.truncate(1);
        for plan in [&slots_of(2, 1), &three] {
            let answer = ask(&one, plan).await;
            assert!(matches!(answer, Err(StoreError::OutOfMemory)), "{answer:?}");
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        tokio::time::sleep(REPEATED + LATE).await;
        assert_eq!(take(&other, &three, 3).await.len(), 2);
        assert!(is_granted(&other, &slots_of(2, 1)).await, "nothing is held of it");
    });
}

#[test]
fn a_slot_is_free_everywhere_after_at_most_two_calls() {
    let redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        let (three, unrelated) = (slots_of(1, 3), slots_of(2, 9));
        let mut held = take(&one, &three, 3).await;
        held.extend(take(&one, &unrelated, 1).await);
        // The slot ends while a call is under way: it goes with the call after that.
        let before = calls(&redis);
        redis.command::<()>(&["CLIENT", "PAUSE", "300", "ALL"]);
        let asking = {
            let (one, unrelated) = (Arc::clone(&one), unrelated.clone());
            tokio::spawn(async move { ask(&one, &unrelated).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(held.remove(0));
        let _unrelated = asking.await.unwrap().unwrap();
        eventually_async(async || calls(&redis) >= before + 2).await;
        assert_eq!(calls(&redis), before + 2);
        assert!(ask(&other, &three).await.unwrap().is_some(), "the next call gets it");
    });
}

#[test]
fn a_limit_of_slots_refuses_nobody_without_a_call() {
    let redis = Redis::start();
    run(async {
        let store = gateway(redis.port).await;
        let one = slots_of(1, 1);
        let held = take(&store, &one, 1).await;
        let before = calls(&redis);
        assert_eq!(take(&store, &one, 50).await.len(), 0);
        // A repeated report or a heartbeat may be among them.
        let refused = calls(&redis) - before;
        assert!((50..60).contains(&refused), "{refused}");
        drop(held);
        let (_, after) = take_all(&store, &one, 1).await;
        assert!(after < LATE, "{after:?}");
    });
}

#[test]
fn without_the_store_what_it_granted_counts_and_what_is_granted_then_is_reported() {
    let redis = Redis::start();
    run(async {
        let relay = Relay::start(redis.port);
        let [one, other] = [gateway(relay.port).await, gateway(redis.port).await];
        let eight = slots_of(1, 8);
        let mut held = take(&one, &eight, 2).await;
        relay.set(Answers::Lost);
        assert!(ask(&one, &eight).await.is_err());
        // Its share is four, of which it holds two.
        let pass = |store: &Store| {
            let reply = store.take_fallback(Worker(0), &eight);
            reply.settlement.is_granted().then_some(reply.reservation)
        };
        let mut passed: Vec<_> = (0..5).filter_map(|_| pass(&one)).collect();
        assert_eq!(passed.len(), 2);
        // What the store has granted may end meanwhile.
        held.pop();
        passed.extend(pass(&one));
        assert_eq!((passed.len(), pass(&one).is_some()), (3, false));
        // A request that no limit decides about is held too.
        let allowed = one.hold(Worker(0), &eight);
        assert!(pass(&one).is_none());
        relay.set(Answers::Pass);
        eventually_async(async || ask(&one, &slots_of(2, 1)).await.is_ok()).await;
        assert_eq!(take(&other, &eight, 8).await.len(), 3, "five are held");
        drop((held, passed, allowed));
        take_all(&other, &eight, 8).await;
    });
}

#[test]
fn a_gateway_that_ends_can_wait_until_its_slots_are_free() {
    let redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        let three = slots_of(1, 3);
        drop(take(&one, &three, 3).await);
        one.all_reported().await;
        assert_eq!(take(&other, &three, 3).await.len(), 3, "no time passes between");
        // A server that is stopped answers nobody.
        redis.signal("STOP");
        assert!(tokio::time::timeout(Duration::from_millis(200), one.all_reported()).await.is_ok(), "nothing is held");
        let held = one.hold(Worker(0), &three);
        assert!(tokio::time::timeout(Duration::from_millis(200), one.all_reported()).await.is_err());
        redis.signal("CONT");
        drop(held);
        one.all_reported().await;
    });
}

#[test]
fn a_bucket_shows_which_threads_hold_how_much_and_since_when() {
    let redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        let nine = slots_of(1, 9);
        let mut held = take(&one, &nine, 2).await;
        held.extend(take(&other, &nine, 3).await);
        let mut inspector = stores::Settings::from(settings(redis.port)).inspect().await.unwrap();
        let limit = Concurrency::new(9).unwrap();
        let mut holders = async || {
            let (now, states) = inspector.states(&[BucketKey([1; 16])]).await.unwrap();
            (now, limit.holders(states[0].as_deref(), now))
        };
        let (now, shown) = holders().await;
        assert_eq!(shown.iter().map(|holder| holder.held.whole()).collect::<Vec<_>>(), [3, 2]);
        assert!(shown.iter().all(|holder| now.since(holder.since) < Micros(10_000_000)), "{shown:?} at {now:?}");
        assert!(shown[0].owner != shown[1].owner && shown[0].owner.to_string().ends_with("/0"), "{shown:?}");
        drop(held);
        one.all_reported().await;
        other.all_reported().await;
        assert_eq!(holders().await.1, []);
    });
}
