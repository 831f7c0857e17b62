//! A keeper of leases whose home is a PostgreSQL server far away.

use std::sync::Arc;
use std::time::Duration;

use base::host_port::HostPort;
use ledger::algorithm::Algorithm;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::cost::Cost;
use stores::postgres::{Durability, Settings as PostgresSettings};
use stores::{
    AskAnswer, Clock, KeeperSettings, LeaseEvent, LeaseKeeper, LeaseSink, LeaseStore, Micros, PurseBucket, Settings,
};

use crate::region::{Region, SECOND, open, purse, purse_that_returns_after};
use crate::relay::Relay;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::redis_cluster::RedisCluster;

/// A keeper that runs, with what it needs.
struct Far {
    keeper: Arc<LeaseKeeper>,
    running: tokio::task::JoinHandle<()>,
    _parts: (Region, Relay, Postgres, Redis),
}

/// Starts a keeper of a region whose home is 80 ms away.
async fn far(events: LeaseSink) -> Far {
    let (server, redis) = (Postgres::start(), Redis::start(&[]));
    let relay = Relay::to(server.port, Duration::from_millis(40)).await;
    let timeout = Micros(SECOND);
    let settings = server.settings(Durability::Async);
    let settings = PostgresSettings { timeout, hosts: vec![HostPort::new("127.0.0.1", relay.port)], ..settings };
    let home = open(&Settings::Postgres(settings)).await;
    let region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let own = KeeperSettings { region: Arc::from("eu"), regions: 3, timeout };
    let purses = LeaseStore::beside(Arc::clone(&region.store));
    let keeper = Arc::new(LeaseKeeper::new(purses, home, own, Clock::system(), events));
    let running = tokio::spawn(Arc::clone(&keeper).run());
    Far { keeper, running, _parts: (region, relay, server, redis) }
}

fn bucket(key: [u8; 2], purse: Algorithm) -> PurseBucket {
    let Algorithm::Purse(purse) = purse else { panic!("no purse") };
    // The hash tag of a bucket in a cluster depends on the first four bytes.
    let [key, group] = key;
    let bytes = [0, 0, group, key, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    PurseBucket { key: BucketKey(bytes), purse, tag: LimitTag(7) }
}

#[tokio::test]
async fn many_purses_are_filled_in_time_from_a_database_far_away_that_does_one_call_at_a_time() {
    let far = far(LeaseSink::new(|_| {})).await;
    let mut asking = tokio::task::JoinSet::new();
    for key in 0..100 {
        let keeper = Arc::clone(&far.keeper);
        asking.spawn(async move {
            // One request after the other, so that no two of them are in one call by chance.
            tokio::time::sleep(Duration::from_millis(10) * u32::from(key)).await;
            keeper.ask([(bucket([key, 0], purse()), Cost::ONE)]).await
        });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), AskAnswer::Answered);
    }
    far.running.abort();
}

#[tokio::test]
async fn what_nobody_uses_is_returned_while_others_are_asked_for_all_the_time() {
    let (sender, mut returned) = tokio::sync::mpsc::unbounded_channel();
    let events = LeaseSink::new(move |event| {
        if let LeaseEvent::Returned { amount, .. } = event {
            // The receiver may have seen enough.
            let _ = sender.send(amount);
        }
    });
    let far = far(events).await;
    let idle = bucket([0, 1], purse_that_returns_after(Micros(SECOND)));
    assert_eq!(far.keeper.ask([(idle, Cost::ONE)]).await, AskAnswer::Answered);
    let keeper = Arc::clone(&far.keeper);
    let asking = tokio::spawn(async move {
        for round in 0..=u8::MAX {
            for key in 0..=u8::MAX {
                keeper.is_low(bucket([key, 2 + round], purse()), Cost::ONE);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    let amount = tokio::time::timeout(Duration::from_secs(8), returned.recv()).await.expect("nothing was returned");
    assert!(amount.is_some_and(|amount| amount > Cost::ONE), "{amount:?}");
    asking.abort();
    far.running.abort();
}

/// Starts a keeper whose home is a cluster.
async fn keeper_of_cluster(
    cluster: &RedisCluster,
    timeout: Micros,
) -> (Arc<LeaseKeeper>, tokio::task::JoinHandle<()>, (Region, Redis)) {
    let redis = Redis::start(&[]);
    let settings = stores::redis::Settings { timeout, ..cluster.settings(16) };
    let home = open(&Settings::Redis(settings)).await;
    let region = Region::new("eu", &Settings::Redis(redis.settings())).await;
    let own = KeeperSettings { region: Arc::from("eu"), regions: 3, timeout };
    let purses = LeaseStore::beside(Arc::clone(&region.store));
    let keeper = Arc::new(LeaseKeeper::new(purses, home, own, Clock::system(), LeaseSink::new(|_| {})));
    let running = tokio::spawn(Arc::clone(&keeper).run());
    (keeper, running, (region, redis))
}

#[tokio::test]
async fn a_node_of_home_that_hangs_keeps_no_request_waiting_for_another_node() {
    let cluster = RedisCluster::start();
    let (keeper, running, _parts) = keeper_of_cluster(&cluster, Micros(4 * SECOND)).await;
    // Connects to every node.
    let warm = |key: u8| keeper.ask([(bucket([key, 1], purse()), Cost::ONE)]);
    for key in 0..32 {
        assert_eq!(warm(key).await, AskAnswer::Answered);
    }
    let () = cluster.masters[0].command(&["CLIENT", "PAUSE", "3000", "ALL"]);
    let started = std::time::Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for key in 0..32 {
        let keeper = Arc::clone(&keeper);
        asking.spawn(async move {
            let answer = keeper.ask([(bucket([key, 2], purse()), Cost::ONE)]).await;
            (answer, started.elapsed() < Duration::from_secs(2))
        });
    }
    let answers = asking.join_all().await;
    assert!(answers.iter().all(|(answer, _)| *answer == AskAnswer::Answered), "{answers:?}");
    let soon = answers.iter().filter(|(_, is_soon)| *is_soon).count();
    // The hanging node has about a third of the buckets.
    assert!((8..32).contains(&soon), "{answers:?}");
    running.abort();
}

#[tokio::test]
async fn a_full_node_of_home_is_not_away_for_purses_on_other_nodes() {
    let cluster = RedisCluster::start();
    let (keeper, running, _parts) = keeper_of_cluster(&cluster, Micros(20 * SECOND)).await;
    let () = cluster.masters[0].command(&["CONFIG", "SET", "maxmemory", "1"]);
    let ask = |key: u8| keeper.ask([(bucket([key, 0], purse()), Cost::ONE)]);
    let mut filled = None;
    for key in 0.. {
        match ask(key).await {
            AskAnswer::Answered => filled = Some(key),
            AskAnswer::NoHome if filled.is_some() => break,
            AskAnswer::NoHome => {}
            other => panic!("{key}: {other:?}"),
        }
    }
    // This purse needs no word of this gateway, as if that of another one were under way.
    assert_eq!(ask(filled.unwrap()).await, AskAnswer::UnderWay);
    running.abort();
}
