//! Two regions spend one limit, with stores and homes of every kind: all of it is granted, and no more.

use stores::postgres::Durability;
use stores::{Settings, memory};

use crate::region::{LIMIT, Region, open, plan, purse_alone};
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::redis_cluster::RedisCluster;

/// Makes requests in two regions until each has been refused. Returns how many passed in each.
async fn spend(regions: &mut [Region; 2], home: &stores::LeaseStore, key: u8) -> [u64; 2] {
    let (plan, mut passed) = (plan(key, 1000), [0, 0]);
    for _ in 0..LIMIT + 10 {
        for (region, passed) in regions.iter_mut().zip(&mut passed) {
            *passed += u64::from(region.request(key, home, &plan).await);
        }
    }
    passed
}

/// Spends some limits, whose buckets are on different nodes of a cluster.
async fn spend_all(regions: [&Settings; 2], settings: &Settings) {
    let home = open(settings).await;
    let [eu, us] = regions;
    let mut regions = [Region::new("eu", eu).await, Region::new("us", us).await];
    for key in [1, 90, 180] {
        let passed = spend(&mut regions, &home, key).await;
        assert_eq!(passed.iter().sum::<u64>(), LIMIT, "{passed:?}");
        assert!(passed.iter().all(|passed| *passed > 10), "{passed:?}");
    }
    assert_eq!(home.heard().is_some(), settings.is_shared());
}

#[tokio::test]
async fn regions_on_redis_spend_exactly_a_limit_at_home_on_postgres() {
    let (regions, home) = ([Redis::start(&[]), Redis::start(&[])], Postgres::start());
    let [eu, us] = regions.each_ref().map(|redis| Settings::Redis(redis.settings()));
    spend_all([&eu, &us], &Settings::Postgres(home.settings(Durability::Sync))).await;
}

#[tokio::test]
async fn regions_on_postgres_and_in_memory_spend_exactly_a_limit_at_home_on_a_cluster() {
    let (region, home) = (Postgres::start(), RedisCluster::start());
    let eu = Settings::Postgres(region.settings(Durability::Async));
    let us = Settings::Memory(memory::Settings::default());
    spend_all([&eu, &us], &Settings::Redis(home.settings(16))).await;
}

#[tokio::test]
async fn regions_on_a_cluster_spend_exactly_a_limit_at_home_in_memory() {
    let region = RedisCluster::start();
    let eu = Settings::Redis(region.settings(16));
    let us = Settings::Memory(memory::Settings::default());
    spend_all([&eu, &us], &Settings::Memory(memory::Settings::default())).await;
}

#[tokio::test]
async fn regions_on_redis_spend_exactly_a_limit_though_scripts_are_forgotten() {
    let servers = [Redis::start(&[]), Redis::start(&[]), Redis::start(&[])];
    let [home, eu, us] = servers.each_ref().map(|redis| Settings::Redis(redis.settings()));
    let home = open(&home).await;
    let mut regions = [Region::new("eu", &eu).await, Region::new("us", &us).await];
    let (plan, mut passed) = (plan(1, 1000), [0, 0]);
    for round in 0..LIMIT + 10 {
        // The server is restarted behind a proxy, say.
        if round == 5 {
            servers.iter().for_each(|server| server.command::<()>(&["SCRIPT", "FLUSH"]));
        }
        for (region, passed) in regions.iter_mut().zip(&mut passed) {
            *passed += u64::from(region.request(1, &home, &plan).await);
        }
    }
    assert_eq!(passed.iter().sum::<u64>(), LIMIT, "{passed:?}");
}

/// Makes requests that a purse can pay, and another bucket of theirs only twice.
async fn pays_with_the_other_buckets_or_not_at_all(region: &Settings) {
    let home = Redis::start(&[]);
    let home = open(&Settings::Redis(home.settings())).await;
    let mut region = Region::new("eu", region).await;
    // The other bucket pays two requests.
    let two = plan(1, 2);
    let mut passed = 0;
    for _ in 0..10 {
        passed += u64::from(region.request(1, &home, &two).await);
    }
    assert_eq!(passed, 2);
    // The refused requests have spent nothing of the purse: 4 of the 6 that home has given are left.
    let mut from_purse = 0;
    while region.take(&purse_alone(1)).await.0 {
        from_purse += 1;
    }
    assert_eq!(from_purse, 4);
}

#[tokio::test]
async fn in_postgres_a_purse_is_paid_from_together_with_the_other_buckets_of_a_request_or_not_at_all() {
    let server = Postgres::start();
    pays_with_the_other_buckets_or_not_at_all(&Settings::Postgres(server.settings(Durability::Async))).await;
}

#[tokio::test]
async fn in_redis_a_purse_is_paid_from_together_with_the_other_buckets_of_a_request_or_not_at_all() {
    let server = Redis::start(&[]);
    pays_with_the_other_buckets_or_not_at_all(&Settings::Redis(server.settings())).await;
}
