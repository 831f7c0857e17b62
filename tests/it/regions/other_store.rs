//! Gateways of one region that use different stores are found at home.

use std::time::Duration;

use super::{on_redis, rules, store};
use crate::support::{Client, Gateway, Postgres, Redis, Upstream, eventually};

#[test]
fn two_stores_of_one_region_are_found_and_a_flushed_one_is_no_other() {
    let (upstream, redis, postgres) = (Upstream::start(), Redis::start(), Postgres::start());
    postgres.settings();
    let on_postgres = format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\"}}", postgres.port);
    for home in [on_redis(redis.port), on_postgres] {
        let stores: [Redis; 3] = std::array::from_fn(|_| Redis::start());
        let start = |redis: &Redis, region: &str| {
            let gateway = Gateway::before(&upstream).with(&(store(redis, region, &home) + &rules(10)));
            gateway.interval("region_stores", Duration::from_millis(200)).start()
        };
        let is_found = |gateway: &Gateway| gateway.metric("rate_limiter_region_has_other_store", &[]) == 1.0;
        let (one, same, us) = (start(&stores[0], "eu"), start(&stores[0], "eu"), start(&stores[1], "us"));
        stores[0].command::<()>(&["FLUSHALL"]);
        std::thread::sleep(Duration::from_secs(2));
        for gateway in [&one, &same, &us] {
            assert!(!is_found(gateway) && !gateway.has_logged("another store"), "{}", gateway.errors());
        }
        let other = start(&stores[2], "eu");
        for gateway in [&one, &same, &other] {
            eventually("the other store is found", || is_found(gateway));
            gateway.expect_logged("another store speaks for this region");
        }
        assert!(!is_found(&us));
        let status = Client::connect(one.admin).get("/status.json", &[("Connection", "close")]);
        assert!(status.body.contains("another store speaks for this region"), "{}", status.body);
        drop(other);
        eventually("it is gone", || !is_found(&one));
        one.expect_logged("one store speaks for this region again");
    }
}
