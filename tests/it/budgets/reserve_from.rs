//! Budgets that hold the amount that a request names in its body.

use super::upstream;
use crate::support::{Client, Gateway, Response, eventually};

/// A budget of each user, with a reserve that the body names.
fn budget(limit: u64, bounds: &str) -> String {
    let places = "\"request_json:/max|request_json:/a~1b/0\"";
    let reserve = format!("reserve: {{from: {places}, {bounds}}}");
    let numbers = format!("limit: {limit}, window: 366d, cost_source: \"response_header:x-cost\", {reserve}");
    format!(
        "
rules:
  - {{name: free, match: {{path: /free}}, action: allow}}
  - {{name: spend, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{{numbers}}}}}"
    )
}

fn post(gateway: &Gateway, path: &str, user: &str, body: &str) -> Response {
    let fields = [("X-User", user), ("Content-Type", "application/json")];
    gateway.client().send("POST", path, &fields, body)
}

/// Sends a request of the user `ann`, and does not wait for its response.
fn begin(gateway: &Gateway, path: &str, body: &str) -> Client {
    let mut client = gateway.client();
    let length = body.len();
    client.write(&format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    client
}

#[test]
fn the_first_number_in_the_body_is_held_within_bounds() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget(1000, "default: 30, min: 2, max: 60"));
    let bodies = [
        (r#"{"max":40}"#, 40),
        (r#"{"a/b":[7]}"#, 7),
        (r#"{"a/b":[7],"max":5}"#, 5),
        (r#"{"max":"12"}"#, 12),
        (r#"{"max":0}"#, 2),
        (r#"{"max":61}"#, 60),
        (r#"{"max":99999999999999999999999}"#, 60),
        // Numbers in other forms.
        (r#"{"max":4e1}"#, 40),
        (r#"{"max":40.0}"#, 40),
        (r#"{"max":1e99}"#, 60),
        (r#"{"max":" +4e1"}"#, 40),
        (r#"{"max":11.5,"a/b":[7]}"#, 12),
        // No number from 0 on.
        (r#"{"max":-1,"a/b":[7]}"#, 30),
        (r#"{"max":true,"a/b":[7]}"#, 30),
        (r#"{"max":"many","a/b":[7]}"#, 30),
        // An object is no value.
        (r#"{"max":{},"a/b":[7]}"#, 7),
        (r#"{"max":{}}"#, 30),
        ("{}", 30),
    ];
    for (index, (body, reserved)) in bodies.into_iter().enumerate() {
        let response = post(&gateway, "/cost/1", &format!("user-{index}"), body);
        assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 1000 - reserved), "{body}");
    }
    // Another media type has no such values.
    let text = gateway.client().send("POST", "/cost/1", &[("X-User", "bob")], r#"{"max":40}"#);
    assert_eq!(text.number("ratelimit-remaining"), 970);
    // Where the rule does not hold, the body is not read.
    assert_eq!(post(&gateway, "/free", "ann", "{").status, 200);
    assert_eq!(post(&gateway, "/cost/1", "ann", "{").status, 400);
}

#[test]
fn a_request_that_asks_for_more_than_the_budget_learns_what_fits() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget(100, "default: 30"));
    let refused = post(&gateway, "/cost/1", "ann", r#"{"max":101}"#);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("cost_too_large")));
    assert_eq!(refused.json()["fits"].as_u64(), Some(100), "{refused:?}");
    assert_eq!(post(&gateway, "/cost/1", "ann", r#"{"max":100}"#).status, 200);
    assert_eq!(upstream.count(), 1);
}

/// 64 callers at once on a budget for 10. Each costs what it has named, or less.
#[test]
fn parallel_requests_never_pass_the_limit_if_each_names_at_least_its_cost() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget(100, "default: 30"));
    let cost = |index: usize| u64::try_from(1 + index % 10).unwrap();
    let mut clients: Vec<_> =
        (0..64).map(|index| begin(&gateway, &format!("/hold/cost/{}", cost(index)), r#"{"max":10}"#)).collect();
    gateway.expect("rate_limiter_refused_by_holds_total", &["rule=\"spend\""], 54.0);
    assert_eq!(upstream.count(), 10);
    (0..10).for_each(|_| finish.send(()).unwrap());
    let admitted = |(index, client): (usize, &mut Client)| {
        let status = client.response("POST").unwrap().status;
        (status == 200).then(|| cost(index))
    };
    let costs: Vec<u64> = clients.iter_mut().enumerate().filter_map(admitted).collect();
    let spent: u64 = costs.iter().sum();
    assert!(costs.len() == 10 && spent <= 100, "{costs:?}");
    // What was held and is not spent is free again.
    eventually("the costs are settled", || {
        let left = post(&gateway, "/cost/0", "ann", r#"{"max":1}"#);
        left.status == 200 && left.number("ratelimit-remaining") == 99 - spent.min(99)
    });
    gateway.expect("rate_limiter_overrun_total", &["rule=\"spend\""], 0.0);
}
