//! Requests that cost more than the largest lease of a limit over several regions.

use serde_json::json;

use super::{ask, on_redis, store};
use crate::edges::json_door::{config, take};
use crate::support::{Client, Gateway, Redis, Upstream};

#[test]
fn rules_of_one_meter_that_together_cost_more_than_the_largest_lease_are_paid() {
    let (upstream, home, redis) = (Upstream::start(), Redis::start(), Redis::start());
    let rule = |name: &str| {
        format!(
            "  - name: {name}\n    rules:\n      - {{name: {name}, meter: calls, scope: global, lease: {{share: 1%}}, \
             limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{limit: 60, window: year, fixed_cost: 3}}}}\n"
        )
    };
    let rules = format!("check: {{allow: [unverified_key]}}\npolicies:\n{}{}", rule("one"), rule("two"));
    let gateway = Gateway::start(&upstream, &(store(&redis, "eu", &on_redis(home.port)) + &rules));
    gateway.expect_logged("home is up");
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(ask(&mut client, "a").status, 200);
    }
    let refused = ask(&mut client, "a");
    assert_eq!((refused.status, upstream.count()), (429, 10));
    assert_eq!(refused.field("X-Tollgate-Reason").as_deref(), Some("fixed_window_exceeded"));
}

#[test]
fn a_caller_may_take_more_than_a_lease_at_once_and_what_home_lacks_refuses_no_smaller_cost() {
    let (home, redis) = (Redis::start(), Redis::start());
    let rules = "rules:\n  - name: year\n    scope: global\n    lease: {share: 5%}\n    limit_keys: [\"descriptor:tenant\"]\n    \
                 algorithm: fixed_window\n    algorithm_config: {limit: 100, window: year}\n";
    let text = config("", &(store(&redis, "eu", &on_redis(home.port)) + rules));
    let gateway = Gateway::deciding().with(&text).start();
    gateway.expect_logged("home is up");
    let mut client = gateway.client();
    let asks = |client: &mut Client, cost: u64| {
        let answer = take(client, &json!({"entries": {"tenant": "acme"}, "cost": cost}));
        (answer.status, answer.field("X-Tollgate-Reason"), answer.json()["limits"][0]["remaining"].clone())
    };
    assert_eq!(asks(&mut client, 40), (200, None, json!(60)));
    let too_large = asks(&mut client, 101);
    assert_eq!((too_large.0, too_large.1.as_deref()), (429, Some("cost_too_large")));
    let refused = asks(&mut client, 70);
    assert_eq!((refused.0, refused.1.as_deref()), (429, Some("fixed_window_exceeded")));
    assert_eq!(asks(&mut client, 1).0, 200);
    assert_eq!(asks(&mut client, 59).0, 200);
    assert_eq!(asks(&mut client, 1).0, 429);
}
