//! Budgets that two gateways share in one Redis, behind sentinels, in a cluster, or in one PostgreSQL.

use super::refusals::SMALL;
use super::{becomes, begin, budget, get, shows, upstream};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::{Gateway, Postgres, Redis, RedisCluster, Replicas, eventually};

#[test]
fn two_gateways_on_one_redis_share_what_is_spent_and_held() {
    let redis = Redis::start();
    share(&redis.patient_store());
}

#[test]
fn two_gateways_on_one_postgresql_share_what_is_spent_and_held() {
    let postgres = Postgres::start();
    postgres.settings();
    share(&postgres.store_with(", timeout: 10s", "deny"));
}

#[test]
fn two_gateways_behind_sentinels_share_what_is_spent_and_held() {
    let group = SentinelGroup::with(&SentinelSetup::without_failover());
    share(&group.patient_store());
}

#[test]
fn two_gateways_on_a_cluster_share_what_is_spent_and_held() {
    let cluster = RedisCluster::start(Replicas::None);
    share(&cluster.store("deny", ""));
}

fn share(store: &str) {
    let (upstream, finish) = upstream::start();
    let config = format!("{store}{}", budget());
    let [one, two] = [(); 2].map(|()| Gateway::start(&upstream, &config));
    assert_eq!(get(&one, "/cost/7", "ann").status, 200);
    becomes(&two, "ann", 7);
    assert_eq!(get(&two, "/cost/40", "ann").status, 200);
    becomes(&one, "ann", 47);
    let before = upstream.count();
    let mut running = begin(&one, "/hold/cost/100", "ann");
    eventually("the request runs", || upstream.count() > before);
    shows(&two, "ann", 52);
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    becomes(&two, "ann", 147);
    becomes(&one, "ann", 147);
    let before = upstream.count();
    let cut = begin(&two, "/hold/cost/100", "ann");
    // A request that was not sent costs nothing.
    eventually("the request is sent", || upstream.count() > before);
    shows(&one, "ann", 152);
    drop(cut);
    becomes(&one, "ann", 150);
    tells_spent_and_held_apart(store);
    let errors =
        one.metric("rate_limiter_store_errors_total", &[]) + two.metric("rate_limiter_store_errors_total", &[]);
    assert!(errors == 0.0, "{errors}");
}

/// A gateway is refused by what another one holds.
fn tells_spent_and_held_apart(store: &str) {
    let (upstream, finish) = upstream::start();
    let [one, two] = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}{SMALL}")));
    assert_eq!(get(&one, "/cost/4", "eve").status, 200);
    let mut running = begin(&one, "/hold/cost/1", "eve");
    eventually("the request runs", || upstream.count() == 2);
    let mut refused = get(&two, "/cost/0", "eve");
    eventually("another gateway is refused", || {
        refused = get(&two, "/cost/0", "eve");
        refused.status == 429
    });
    let body = refused.json();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains(" Limit 12, spent 4, held 5. "), "{message}");
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
}
