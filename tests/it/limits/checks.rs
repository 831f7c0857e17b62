//! Plans in which some charges only check their buckets: every store decides them as the memory store does, also if the
//! buckets are under several hash tags of a cluster. A check takes nothing.

use std::sync::Arc;
use std::time::Duration;

use base::host_port::HostPort;
use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::redis::cluster::Place;
use stores::redis::{Login, Settings, Target, cluster};
use stores::{EventSink, Store, TakeReply, Worker, breaker, memory};

use crate::support::charge::{plan_of, spend, tagged_key, unrefilled};
use crate::support::{Postgres, Redis, RedisCluster, Replicas, now};

const BUCKETS: u8 = 9;
/// The index of the bucket that is only checked.
const UNSPENT: u8 = BUCKETS - 1;
const LIMIT: u64 = 30;
const HOUR: Micros = Micros(3_600_000_000);

/// Returns a request to one of a few buckets, which are on all nodes. Nothing is refilled during the test.
fn one(bucket: u8, cost: u64) -> Plan {
    let algorithm = match bucket % 3 {
        0 => unrefilled(LIMIT),
        1 => Algorithm::FixedWindow(FixedWindow::new(LIMIT, Window::Epoch(Micros(8_760 * HOUR.0))).unwrap()),
        _ => Algorithm::SlidingLog(SlidingLog::new(LIMIT, HOUR).unwrap()),
    };
    plan_of(spend(tagged_key(bucket, 2 * bucket % 16), algorithm, Cost::from_tokens(cost)))
}

/// Makes a plan as the descriptors of a call do.
fn random_plan(random: &mut fastrand::Rng) -> Plan {
    let mut plan = Plan::default();
    for _ in 0..random.u8(1..=4) {
        let (bucket, cost) = (random.u8(..BUCKETS), random.u64(1..=4));
        if bucket == UNSPENT || random.bool() {
            plan.join_check(one(bucket, cost));
        } else {
            plan.join(one(bucket, cost), 1);
        }
    }
    plan
}

fn redis(target: Target) -> stores::Settings {
    let settings = Settings {
        target,
        login: Login::default(),
        timeout: Micros(10_000_000),
        prefix: "test".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    };
    settings.into()
}

async fn started(settings: stores::Settings) -> Arc<Store> {
    let store = Arc::new(Store::open(&settings, 1, Clock::system(), EventSink::new(|_| ())));
    let driven = Arc::clone(&store);
    tokio::spawn(async move { driven.run(Worker(0)).await });
    store.first_attempt().await;
    store
}

async fn ask(store: &Store, plan: &Plan) -> TakeReply {
    store.take(Worker(0), plan, None).await.unwrap().unwrap()
}

/// Returns whether the request is granted, and the verdict and the level of each charge.
fn decided(reply: &TakeReply) -> (bool, Vec<(Verdict, u64)>) {
    let outcomes = reply.settlement.enforced.iter().map(|outcome| (outcome.verdict, outcome.remaining.whole()));
    (reply.settlement.is_granted(), outcomes.collect())
}

/// Returns the level of a bucket, by a check that takes nothing.
async fn level(store: &Store, bucket: u8) -> u64 {
    let mut plan = Plan::default();
    plan.join_check(one(bucket, 1));
    ask(store, &plan).await.settlement.enforced[0].remaining.whole()
}

#[test]
fn every_store_decides_checks_alike_and_charges_nothing_for_them() {
    let (server, cluster, postgres) = (Redis::start(), RedisCluster::start(Replicas::None), Postgres::start());
    let nodes = vec![HostPort::new("127.0.0.1", cluster.masters[0].port)];
    let spread = Target::Cluster(Box::new(cluster::Settings { nodes, place: Place::DEFAULT }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let memory = started(memory::Settings::default().into()).await;
        let stores = [
            ("redis", started(redis(Target::at("127.0.0.1", server.port))).await),
            ("cluster", started(redis(spread)).await),
            ("postgres", started(postgres.settings().into()).await),
        ];
        let mut random = fastrand::Rng::with_seed(7);
        let (mut granted, mut refused) = (0, 0);
        for number in 0..100 {
            let plan = random_plan(&mut random);
            let (is_granted, expected) = decided(&ask(&memory, &plan).await);
            *if is_granted { &mut granted } else { &mut refused } += 1;
            for (name, store) in &stores {
                let reply = ask(store, &plan).await;
                let (was_granted, outcomes) = decided(&reply);
                assert_eq!(was_granted, is_granted, "{number} on {name}: {plan:?} {reply:?}");
                // A refusal need not have asked all.
                let mut pairs = outcomes.iter().zip(&expected);
                let same = pairs.all(|(one, expected)| one == expected || one.0 == Verdict::Unasked && !is_granted);
                assert!(same, "{number} on {name}: {plan:?} {outcomes:?} {expected:?}");
                // On a cluster what was charged before another node refused is given back after the answer.
                for bucket in 0..BUCKETS {
                    let (left, deadline) = (level(&memory, bucket).await, now() + Duration::from_secs(20));
                    while level(store, bucket).await != left {
                        assert!(now() < deadline, "{number} on {name}: {bucket} has not {left}");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
        }
        assert!(granted > 20 && refused > 20, "{granted} {refused}");
        assert_eq!(level(&memory, UNSPENT).await, LIMIT);
    });
}
