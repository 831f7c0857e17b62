//! Costs that a JSON body names: they are read before the decision.

use super::json_bodies::{JSON, post_json};
use crate::support::{Gateway, Upstream, eventually};

const WEIGHED: &str = "
rules:
  - name: weighed
    limit_keys: []
    expose: true
    algorithm_config:
      rate: 100/day
      cost_source: request_json:/job/size
      default_cost: 2
      min_cost: 0.5
      max_cost: 50
";

#[test]
fn a_request_costs_what_its_body_names() {
    let upstream = Upstream::start();
    for (body, cost) in [
        (r#"{"job":{"size":7}}"#, 7),
        (r#"{"job":{"size":"7"}}"#, 7),
        (r#"{"job":{"size":6.0001}}"#, 7),
        (r#"{"job":{"size":1.2e1}}"#, 12),
        (r#"{"job":{"size":1000}}"#, 50),
        // No cost: the default.
        (r#"{"job":{"size":0}}"#, 2),
        (r#"{"job":{"size":-7}}"#, 2),
        (r#"{"job":{"size":"many"}}"#, 2),
        (r#"{"job":{}}"#, 2),
        ("", 2),
    ] {
        let gateway = Gateway::before(&upstream).with(WEIGHED).start();
        let response = post_json(&gateway, body);
        assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 100 - cost), "{body}");
        assert_eq!(upstream.last().body, body.as_bytes());
    }
}

#[test]
fn a_refused_cost_never_reaches_the_upstream() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(WEIGHED).start();
    let body = r#"{"job":{"size":40}}"#;
    assert_eq!([0; 3].map(|_| post_json(&gateway, body).status), [200, 200, 429]);
    for ambiguous in [r#"{"job":{"size":1,"size":40}}"#, r#"{"job":{"Size":40}}"#, r#"[{"job":{"size":1}}]"#] {
        let response = post_json(&gateway, ambiguous);
        assert_eq!(response.field("x-tollgate-reason").as_deref(), Some("ambiguous_request"), "{ambiguous}");
    }
    assert_eq!(gateway.client().send("POST", "/", &[JSON], r#"{"job":{"size":19}}"#).status, 200);
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_cost_of_the_body_is_settled_by_the_result() {
    let upstream = Upstream::start();
    let counted = "
rules:
  - name: failures
    limit_keys: []
    expose: true
    algorithm_config: {rate: 100/day, count_on: [5xx], cost_source: request_json:/job/size, max_cost: 50}
";
    let gateway = Gateway::before(&upstream).with(counted).start();
    let held = post_json(&gateway, r#"{"job":{"size":30}}"#);
    assert_eq!((held.status, held.number("ratelimit-remaining")), (200, 70));
    let rule = ["rule=\"failures\""];
    eventually("nothing is held", || gateway.metric("rate_limiter_held", &rule) == 0.0);
    let next = post_json(&gateway, r#"{"job":{"size":10}}"#);
    assert_eq!((next.status, next.number("ratelimit-remaining")), (200, 90));
}
