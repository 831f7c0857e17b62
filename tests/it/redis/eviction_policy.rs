//! A Redis that evicts buckets when its memory is full is reported, if the user may read the setting.

use std::time::Duration;

use super::connection::{documented_user, make_user, statuses, store};
use crate::support::{Client, Gateway, Redis, Upstream, eventually};

const MAY_EVICT: &str = "rate_limiter_store_may_evict";

fn start(upstream: &Upstream, redis: &Redis, user: &str) -> Gateway {
    let url = format!("redis://{user}127.0.0.1:{}", redis.port);
    Gateway::before(upstream).with(&store(&url, "")).interval("eviction_policy", Duration::from_millis(50)).start()
}

fn scrape(gateway: &Gateway) -> String {
    Client::connect(gateway.admin).get("/metrics", &[]).body
}

#[test]
fn a_policy_that_evicts_is_logged_and_counted_until_it_is_changed() {
    let (redis, upstream) = (Redis::start_with(&["--maxmemory-policy", "volatile-ttl"]), Upstream::start());
    let gateway = start(&upstream, &redis, "");
    gateway.expect(MAY_EVICT, &[], 1.0);
    let warned = |policy: &str| {
        eventually(policy, || gateway.has_logged(&format!("the store may evict buckets maxmemory_policy={policy}")));
    };
    warned("volatile-ttl");
    let document = Client::connect(gateway.admin).get("/status.json", &[]).body;
    assert!(document.contains("\"may_evict\":true") && document.contains("store may evict buckets"), "{document}");
    let set = |policy: &str| redis.command::<()>(&["CONFIG", "SET", "maxmemory-policy", policy]);
    set("noeviction");
    gateway.expect(MAY_EVICT, &[], 0.0);
    eventually("it is logged", || gateway.has_logged("the store evicts no buckets any more"));
    set("allkeys-lru");
    gateway.expect(MAY_EVICT, &[], 1.0);
    warned("allkeys-lru");
    // Once for each change, however often it is read.
    assert_eq!(gateway.errors().matches("the store may evict buckets").count(), 2, "{}", gateway.errors());
}

#[test]
fn where_the_user_may_not_ask_nothing_is_said() {
    let (redis, upstream) = (Redis::start_with(&["--maxmemory-policy", "allkeys-lru"]), Upstream::start());
    for (more, known) in [(None, false), (Some("+info"), true), (Some("+config|get"), true)] {
        let mut user = documented_user();
        user.extend(more.map(str::to_owned));
        make_user(&redis, &user);
        redis.command::<()>(&["ACL", "LOG", "RESET"]);
        let gateway = start(&upstream, &redis, "tollgate:SECRET@");
        assert_eq!(statuses(&gateway)[2], 429);
        if known {
            gateway.expect(MAY_EVICT, &[], 1.0);
        } else {
            let refused = || redis.command::<Vec<redis::Value>>(&["ACL", "LOG"]).len();
            eventually("both ways were tried", || refused() == 2);
            assert!(!scrape(&gateway).contains(&format!("\n{MAY_EVICT} ")), "{more:?}");
            assert!(!gateway.has_logged("may evict"), "{}", gateway.errors());
        }
        assert!(gateway.metric("rate_limiter_store_errors_total", &[]) == 0.0, "{}", gateway.errors());
        redis.command::<()>(&["FLUSHALL"]);
    }
}
