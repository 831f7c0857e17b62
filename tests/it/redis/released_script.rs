//! Redis runs the same script as in other tests, in a build with test hooks and in a build without them.

use stores::redis::script;

use crate::support::{Gateway, Redis, Upstream};

const RULES: &str = "rules:\n  - {name: one, limit_keys: [header:x-user], algorithm_config: {rate: 3/day}}\n";

/// Returns the number of scripts that the server has cached.
fn scripts(redis: &Redis) -> u32 {
    let memory: String = redis.command(&["INFO", "memory"]);
    let count = memory.lines().find_map(|line| line.strip_prefix("number_of_cached_scripts:"));
    count.unwrap().trim().parse().unwrap()
}

#[test]
fn a_gateway_has_redis_run_the_script_that_is_tested() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = Gateway::start(&upstream, &(redis.patient_store() + RULES));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    let mut client = gateway.client();
    let mut answer = |user: &str| {
        let response = client.get("/", &[("X-User", user)]);
        (response.status, response.number("RateLimit-Remaining"))
    };
    assert_eq!([(); 4].map(|()| answer("a")), [(200, 2), (200, 1), (200, 0), (429, 0)]);
    let before = scripts(&redis);
    assert!(before > 0);
    // It is the one that the server knows already.
    redis.command::<String>(&["SCRIPT", "LOAD", &script::take()]);
    assert_eq!(scripts(&redis), before);
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(answer("b"), (200, 2));
    redis.command::<String>(&["SCRIPT", "LOAD", &script::take()]);
    let known = scripts(&redis);
    assert_eq!(redis.command::<String>(&["SCRIPT", "LOAD", "return 1"]).len(), 40);
    assert_eq!(scripts(&redis), known + 1);
}
