//! Unused purses are given back to home, also after the gateway that has filled them was killed.

use std::time::Duration;

use super::{ask, on_redis, rules, store};
use crate::support::{Client, Gateway, Postgres, Redis, RedisCluster, Replicas, Upstream, eventually, node_list};

/// Returns how many requests pass before one is refused.
fn spend(client: &mut Client, user: &str) -> u64 {
    (0..).find(|_| ask(client, user).status != 200).unwrap()
}

#[test]
fn a_gateway_returns_what_one_that_was_killed_has_leased_and_nobody_uses() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let rules = rules(60).replace("window: year}", "window: year}\n    lease: {share: 50%}");
    let soon = |text: String| text.replace("    timeout: 2s\n", "    timeout: 2s\n    return_after: 2s\n");
    let (one, cluster, postgres) = (Redis::start(), RedisCluster::start(Replicas::None), Postgres::start());
    postgres.settings();
    let eu = soon(store(&one, "eu", &on_redis(home.port)));
    let own = format!("redis: {{url: \"redis://127.0.0.1:{}\", timeout: 2s}}", one.port);
    let on_nodes = format!("redis: {{cluster: {{nodes: {}}}, timeout: 2s}}", node_list([cluster.masters[0].port]));
    let on_postgres =
        format!("postgres: {{url: \"postgres://tollgate@127.0.0.1:{}/limits\", timeout: 5s}}", postgres.port);
    let other = Redis::start();
    let us = Gateway::start(&upstream, &(soon(store(&other, "us", &on_redis(home.port))) + &rules));
    us.expect_logged("home is up");
    for (user, region) in [("a", eu.clone()), ("b", eu.replace(&own, &on_nodes)), ("c", eu.replace(&own, &on_postgres))]
    {
        let start = || {
            let gateway = Gateway::before(&upstream).with(&(region.clone() + &rules));
            gateway.interval("purse_index", Duration::from_millis(100)).start()
        };
        let first = start();
        first.expect_logged("home is up");
        assert_eq!(ask(&mut first.client(), user).status, 200);
        // It is in the index.
        std::thread::sleep(Duration::from_millis(1000));
        first.signal("KILL");
        drop(first);
        let again = start();
        let mut client = us.client();
        // Ten were leased, of which one was spent.
        let mut passed = spend(&mut client, user);
        assert!(passed <= 50, "{passed}");
        eventually("the rest comes back", || {
            passed += spend(&mut client, user);
            passed >= 59
        });
        assert_eq!(passed, 59);
        again.expect("rate_limiter_returned_total", &["rule=\"year\""], 9.0);
    }
}
