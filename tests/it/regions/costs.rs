//! Requests that cost more than the largest lease of a limit over several regions.

use serde_json::json;

use super::{on_redis, store};
use crate::edges::json_door::{config, take};
use crate::support::{Client, Gateway, Redis};

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
