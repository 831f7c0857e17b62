//! Budgets in Redis: what is reserved, what is settled once whatever happens to connections and servers, and what is decided
//! without a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::{Event, EventSink, Reservation, Store, StoreError, Worker};

use super::cluster::{LATE, PATIENT, eventually_async, run, started};
use super::slots::{calls, gateway, settings};
use crate::support::budgets::{assert_balanced, books, daily, reserve, spend_at_random};
use crate::support::charge::{plan, plan_of, spend, tagged_key, unrefilled};
use crate::support::slots::{EndOfLoad, ask, take, take_all};
use crate::support::{Answers, Redis, RedisCluster, Relay, Replicas};

const BUCKET: BucketKey = BucketKey([7; 16]);

fn reserving(budget: Budget, tokens: u64) -> Plan {
    plan_of(reserve(BUCKET, budget, tokens))
}

fn settle(mut reservation: Reservation, tokens: u64) {
    reservation.settle(&BUCKET, Cost::from_tokens(tokens));
}

async fn verdict(store: &Store, plan: &Plan) -> Verdict {
    store.take(Worker(0), plan, None).await.unwrap().unwrap().settlement.enforced[0].verdict
}

#[test]
fn gateways_share_what_is_held_and_what_is_spent() {
    let redis = Redis::start();
    run(async {
        let [one, other] = [gateway(redis.port).await, gateway(redis.port).await];
        let (ten, shared) = (daily(10), settings(redis.port).into());
        let mut held = take(&one, &reserving(ten, 4), 2).await;
        assert_eq!((held.len(), verdict(&other, &reserving(ten, 4)).await), (2, Verdict::Held));
        assert_eq!(books(&shared, BUCKET, ten).await, (0, 8));
        // One request spends more than it has reserved, the other one nothing.
        settle(held.pop().unwrap(), 7);
        drop(held);
        one.all_reported().await;
        assert_eq!(books(&shared, BUCKET, ten).await, (7, 0));
        assert_eq!(verdict(&other, &reserving(ten, 4)).await, Verdict::Deny);
        let last = ask(&other, &reserving(ten, 3)).await.unwrap().unwrap();
        settle(last, 3);
        other.all_reported().await;
        assert_eq!(verdict(&one, &reserving(ten, 0)).await, Verdict::Deny, "nothing is left");
        assert_eq!(verdict(&one, &reserving(ten, 11)).await, Verdict::Never);
    });
}

#[test]
fn only_what_is_spent_refuses_without_a_call() {
    let redis = Redis::start();
    run(async {
        let store = gateway(redis.port).await;
        let ten = daily(10);
        let held = ask(&store, &reserving(ten, 8)).await.unwrap().unwrap();
        let before = calls(&redis);
        for _ in 0..50 {
            assert_eq!(verdict(&store, &reserving(ten, 4)).await, Verdict::Held);
        }
        let refused = calls(&redis) - before;
        assert!((50..60).contains(&refused), "{refused}");
        settle(held, 8);
        store.all_reported().await;
        let before = calls(&redis);
        for _ in 0..50 {
            assert_eq!(verdict(&store, &reserving(ten, 4)).await, Verdict::Deny);
        }
        let refused = calls(&redis) - before;
        assert!(refused < 10, "{refused}");
        assert_eq!(verdict(&store, &reserving(ten, 2)).await, Verdict::Allow);
    });
}

#[test]
fn a_request_that_another_limit_refuses_holds_nothing_and_spends_nothing() {
    let redis = Redis::start();
    run(async {
        let store = gateway(redis.port).await;
        let (ten, shared) = (daily(10), settings(redis.port).into());
        let tokens = spend(BucketKey([8; 16]), unrefilled(2), Cost::ONE);
        let both = plan([reserve(BUCKET, ten, 3), tokens.clone()]);
        let held = take(&store, &both, 5).await;
        assert_eq!(held.len(), 2, "two tokens");
        assert_eq!(books(&shared, BUCKET, ten).await, (0, 6));
        drop(held);
        store.all_reported().await;
        assert_eq!(books(&shared, BUCKET, ten).await, (0, 0));
        assert!(ask(&store, &plan([tokens])).await.unwrap().is_none(), "what a rate has granted stays spent");
    });
}

/// Connections are killed, and answers are lost: each cost is charged once, nothing stays held, and the budget is never
/// exceeded.
#[test]
fn each_cost_is_charged_once_however_connections_end() {
    let redis = Redis::start();
    let relay = Relay::start(redis.port);
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (ended, redis, relay) = (Arc::clone(&done), &redis, &relay);
        scope.spawn(move || {
            let _ends = EndOfLoad(ended);
            let mut random = fastrand::Rng::with_seed(3);
            for round in 0..40 {
                std::thread::sleep(Duration::from_millis(random.u64(20..120)));
                if round % 8 == 7 {
                    relay.set(Answers::Lost);
                    std::thread::sleep(Duration::from_millis(random.u64(50..700)));
                    relay.set(Answers::Pass);
                }
                let _: i64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
        });
        run(async {
            let stores = [gateway(redis.port).await, gateway(relay.port).await];
            for (bucket, limit) in [(BUCKET, 100_000), (BucketKey([9; 16]), 300)] {
                let budget = daily(limit);
                let until = if bucket == BUCKET { Arc::new(AtomicBool::new(false)) } else { Arc::clone(&done) };
                if bucket == BUCKET {
                    let until = Arc::clone(&until);
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(2)).await;
                        until.store(true, Ordering::Relaxed);
                    });
                }
                let settled = spend_at_random(&stores, (bucket, budget), 32, until).await;
                assert!(settled <= limit && settled > limit.min(100), "{settled} of {limit}");
                assert_balanced(&stores, &settings(redis.port).into(), (bucket, budget), settled).await;
            }
        });
    });
}

#[test]
fn a_flushed_server_charges_what_it_had_not_accepted() {
    let redis = Redis::start();
    run(async {
        let relay = Relay::start(redis.port);
        let store = gateway(relay.port).await;
        let (budget, shared) = (daily(100), settings(redis.port).into());
        let mut held = take(&store, &reserving(budget, 5), 3).await;
        settle(held.remove(0), 5);
        store.all_reported().await;
        relay.set(Answers::Lost);
        redis.command::<()>(&["FLUSHALL"]);
        settle(held.remove(0), 4);
        relay.set(Answers::Pass);
        let reported = async || tokio::time::timeout(Duration::from_secs(5), store.all_reported()).await.is_ok();
        eventually_async(reported).await;
        tokio::time::sleep(Duration::from_secs(2) + LATE).await;
        assert_eq!(books(&shared, BUCKET, budget).await, (4, 5));
        drop(held);
    });
}

#[test]
fn without_the_server_costs_count_in_the_share_at_once_and_are_reported_afterwards() {
    let redis = Redis::start();
    run(async {
        let relay = Relay::start(redis.port);
        let [one, other] = [gateway(relay.port).await, gateway(redis.port).await];
        let (twelve, shared) = (daily(12), settings(redis.port).into());
        let granted = ask(&one, &reserving(twelve, 2)).await.unwrap().unwrap();
        relay.set(Answers::Lost);
        assert!(ask(&one, &reserving(twelve, 1)).await.is_err());
        let pass = |tokens: u64| {
            let reply = one.take_fallback(Worker(0), &reserving(twelve, tokens));
            let verdict = reply.settlement.enforced[0].verdict;
            (verdict, reply.settlement.is_granted().then_some(reply.reservation))
        };
        // The share is six, of which two are held, and one is asked without an answer: what is asked may be held by the
        // server, but not by a request here.
        let (verdict, passed) = pass(3);
        assert_eq!(verdict, Verdict::Allow);
        assert_eq!(pass(2).0, Verdict::Held);
        settle(granted, 2);
        settle(passed.unwrap(), 3);
        assert_eq!(pass(2).0, Verdict::Deny);
        assert_eq!(pass(2).0, Verdict::Deny, "each cost counts once");
        let (verdict, last) = pass(1);
        assert_eq!(verdict, Verdict::Allow);
        settle(last.unwrap(), 1);
        assert_eq!(pass(1).0, Verdict::Deny);
        // A request that no limit decides about settles its cost too.
        settle(one.hold(Worker(0), &reserving(twelve, 1)), 2);
        relay.set(Answers::Pass);
        eventually_async(async || ask(&one, &plan_of(reserve(BucketKey([1; 16]), twelve, 1))).await.is_ok()).await;
        assert_balanced(std::slice::from_ref(&one), &shared, (BUCKET, twelve), 8).await;
        assert!(ask(&other, &reserving(twelve, 5)).await.unwrap().is_none());
        assert!(ask(&other, &reserving(twelve, 4)).await.unwrap().is_some());
    });
}

#[test]
fn a_share_of_a_token_bucket_is_refilled_while_costs_are_not_reported() {
    let redis = Redis::start();
    run(async {
        let relay = Relay::start(redis.port);
        let store = gateway(relay.port).await;
        // The share gains one token each 200 ms.
        let rate = Rate { amount: Cost::from_tokens(10), period: Micros(1_000_000) };
        let budget = Budget::of_token_bucket(TokenBucket::new(rate, 8).unwrap());
        drop(ask(&store, &reserving(budget, 1)).await.unwrap());
        relay.set(Answers::Lost);
        assert!(ask(&store, &reserving(budget, 1)).await.is_err());
        let pass = || {
            let reply = store.take_fallback(Worker(0), &reserving(budget, 1));
            reply.settlement.is_granted().then_some(reply.reservation)
        };
        let passed: Vec<_> = std::iter::from_fn(pass).take(20).collect();
        assert_eq!(passed.len(), 4);
        passed.into_iter().for_each(|reservation| settle(reservation, 1));
        assert!(pass().is_none());
        tokio::time::sleep(Duration::from_millis(450)).await;
        let passed: Vec<_> = std::iter::from_fn(pass).take(20).collect();
        assert!((2..=4).contains(&passed.len()), "{}", passed.len());
    });
}

/// The costs of 65 536 buckets are kept for a server that gives no answer.
#[test]
fn costs_of_too_many_buckets_are_lost_without_the_server_and_counted() {
    let redis = Redis::start();
    run(async {
        let lost = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lost);
        let events = EventSink::new(move |event| {
            counted.fetch_add(usize::from(event == Event::CostLost), Ordering::Relaxed);
        });
        let shared: stores::Settings = settings(redis.port).into();
        let store = Arc::new(Store::open(&shared, 1, Clock::system(), events));
        let budget = daily(9);
        let key = |number: u64| {
            let mut key = [3; 16];
            key[..8].copy_from_slice(&number.to_le_bytes());
            BucketKey(key)
        };
        for number in 0..65_636 {
            let mut reservation = store.hold(Worker(0), &plan_of(reserve(key(number), budget, 1)));
            reservation.settle(&key(number), Cost::from_tokens(2));
        }
        assert_eq!(lost.load(Ordering::Relaxed), 100);
        let store = started(store).await;
        eventually_async(async || tokio::time::timeout(Duration::from_millis(100), store.all_reported()).await.is_ok())
            .await;
        let mut spent = Vec::new();
        for number in [0, 65_535, 65_536] {
            spent.push(books(&shared, key(number), budget).await);
        }
        assert_eq!(spent, [(2, 0), (2, 0), (0, 0)]);
        assert_eq!(lost.load(Ordering::Relaxed), 100);
    });
}

/// A thread keeps the sums of 65 536 buckets. The sum of a further one begins again at 0, which it tells the server first. If a
/// successor lacks that, it takes the new sum for the old one until the new one is larger.
#[test]
fn a_failover_after_a_forgotten_sum_leaves_no_more_than_that_sum_uncharged() {
    let redis = Redis::start();
    run(async {
        let store = gateway(redis.port).await;
        let (budget, shared) = (daily(100), settings(redis.port).into());
        let spend = |key: BucketKey, tokens: u64| {
            let mut reservation = store.hold(Worker(0), &plan_of(reserve(key, budget, 1)));
            reservation.settle(&key, Cost::from_tokens(tokens));
        };
        let reported = async || {
            eventually_async(async || {
                tokio::time::timeout(Duration::from_millis(100), store.all_reported()).await.is_ok()
            })
            .await;
        };
        spend(BUCKET, 5);
        reported().await;
        // What the successor will have.
        let mut connection = redis.connection();
        let [name] = <[Vec<u8>; 1]>::try_from(redis.keys()).unwrap();
        let old: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
        for number in 0..65_536_u64 {
            let mut key = [3; 16];
            key[..8].copy_from_slice(&number.to_le_bytes());
            spend(BucketKey(key), 1);
        }
        reported().await;
        spend(BUCKET, 3);
        reported().await;
        assert_eq!(books(&shared, BUCKET, budget).await, (8, 0), "without a failover nothing is lost");
        let () = redis::cmd("SET").arg(&name).arg(&old).query(&mut connection).unwrap();
        spend(BUCKET, 4);
        reported().await;
        // 7 are settled since the sum has begun again, of which the old sum hides 5.
        assert_eq!(books(&shared, BUCKET, budget).await, (5 + 2, 0));
        spend(BUCKET, 6);
        reported().await;
        assert_eq!(books(&shared, BUCKET, budget).await, (5 + 2 + 6, 0));
    });
}

/// The answer to the report of a reset is lost, and the report is repeated.
#[test]
fn a_reset_whose_answer_is_lost_forgets_nothing_that_is_settled_later() {
    let redis = Redis::start();
    let relay = Relay::start(redis.port);
    run(async {
        let [one, other] = [gateway(relay.port).await, gateway(redis.port).await];
        let (budget, shared) = (daily(100).with_resets(), settings(redis.port).into());
        let held = ask(&one, &reserving(budget, 1)).await.unwrap().unwrap();
        settle(held, 4);
        one.all_reported().await;
        let mut right = ask(&one, &reserving(budget, 1)).await.unwrap().unwrap();
        settle(ask(&other, &reserving(budget, 1)).await.unwrap().unwrap(), 7);
        other.all_reported().await;
        assert_eq!(books(&shared, BUCKET, budget).await, (11, 1));
        relay.set(Answers::Lost);
        right.reset(&BUCKET, Cost::ONE);
        let is_reset = async || books(&shared, BUCKET, budget).await == (1, 0);
        for _ in 0..200 {
            if is_reset().await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(is_reset().await);
        settle(ask(&other, &reserving(budget, 1)).await.unwrap().unwrap(), 3);
        other.all_reported().await;
        assert_eq!(books(&shared, BUCKET, budget).await, (4, 0));
        relay.set(Answers::Pass);
        one.all_reported().await;
        assert_eq!(books(&shared, BUCKET, budget).await, (4, 0));
        // A server without the bucket is not reset once more.
        redis.command::<()>(&["FLUSHALL"]);
        settle(ask(&other, &reserving(budget, 1)).await.unwrap().unwrap(), 2);
        other.all_reported().await;
        settle(ask(&one, &reserving(budget, 1)).await.unwrap().unwrap(), 5);
        one.all_reported().await;
        assert_eq!(books(&shared, BUCKET, budget).await, (7, 0));
    });
}

#[test]
fn a_server_without_memory_loses_no_cost() {
    let redis = Redis::start();
    run(async {
        let store = gateway(redis.port).await;
        let (budget, shared) = (daily(100), settings(redis.port).into());
        let held = ask(&store, &reserving(budget, 5)).await.unwrap().unwrap();
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        settle(held, 6);
        let answer = ask(&store, &reserving(budget, 5)).await;
        assert!(matches!(answer, Err(StoreError::OutOfMemory)), "{answer:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        assert_balanced(std::slice::from_ref(&store), &shared, (BUCKET, budget), 6).await;
    });
}

#[test]
fn in_a_cluster_a_reservation_that_another_hash_tag_refuses_is_given_back() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(super::cluster::gateway(&cluster, 0, PATIENT)).await;
        let [low, high] = [tagged_key(1, 4), tagged_key(2, 9)];
        let Algorithm::TokenBucket(rate) = unrefilled(3) else { unreachable!() };
        let (ten, four) = (daily(10), daily(4));
        let rate = spend(tagged_key(3, 0), Algorithm::TokenBucket(rate), Cost::ONE);
        let all = plan([rate.clone(), reserve(low, ten, 2), reserve(high, four, 2)]);
        let mut held = take(&store, &all, 10).await;
        assert_eq!(held.len(), 2, "the second budget is held");
        // Nothing of the first budget is held for the refused requests, and the rate still has a token.
        let (rest, _) = take_all(&store, &plan([reserve(low, ten, 2)]), 3).await;
        drop(rest);
        let mut settled = held.remove(0);
        settled.settle(&low, Cost::from_tokens(3));
        settled.settle(&high, Cost::from_tokens(1));
        drop((settled, held));
        let (last, _) = take_all(&store, &all, 1).await;
        assert!(ask(&store, &plan([rate])).await.unwrap().is_none());
        // Three of ten are spent, and two are held.
        assert!(ask(&store, &plan([reserve(low, ten, 6)])).await.unwrap().is_none());
        assert!(ask(&store, &plan([reserve(low, ten, 5)])).await.unwrap().is_some());
        drop(last);
        take_all(&store, &plan([reserve(high, four, 3)]), 1).await;
    });
}
