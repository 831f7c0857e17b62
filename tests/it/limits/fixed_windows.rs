//! Tests the fields of responses and the bodies of refusals of fixed windows, end to end.

use crate::support::{Gateway, Upstream};

/// A token bucket and a month, charged together.
const RULES: &str = "
rules:
  - name: plan
    limit_keys: [header:x-user]
    limits:
      second: {rps: 1000, burst: 1000}
      month: {algorithm: fixed_window, limit: 2, window: month, timezone: Asia/Kathmandu}";

#[test]
fn a_month_is_granted_once_and_tells_when_it_ends() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let mut client = gateway.client();
    let user: &[_] = &[("X-User", "a")];
    let granted = client.get("/", user);
    let policy = granted.field("ratelimit-policy").unwrap().to_owned();
    let days = policy.split_once("\"plan.month\";q=2;w=").unwrap().1.parse::<u64>().unwrap() / 86_400;
    assert!((28..=31).contains(&days), "{policy}");
    assert!(granted.field("ratelimit").unwrap().contains("\"plan.month\";r=1;t="), "{granted:?}");
    assert_eq!(client.get("/", user).status, 200);
    let refused = client.get("/", user);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("fixed_window_exceeded")));
    let wait = refused.number("ratelimit-reset");
    let retry_after = refused.number("retry-after");
    assert!((wait..wait + 62).contains(&retry_after), "{refused:?}");
    let body: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
    let resets_at = body["resets_at"].as_str().unwrap();
    assert!(resets_at.ends_with("-01T00:00:00+05:45"), "{body}");
    assert_eq!(body["violated-policies"], serde_json::json!(["plan.month"]));
    // Somebody else has a month of their own.
    assert_eq!(client.get("/", &[("X-User", "b")]).status, 200);
}

#[test]
fn an_override_and_a_shadow_have_other_limits_in_the_same_window() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - name: plan
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 2, window: year, shadow: {limit: 1}}
    overrides: {acme: {limit: 3}}",
    );
    let mut client = gateway.client();
    let mut codes = |user: &str| (0..4).map(|_| client.get("/", &[("X-User", user)]).status).collect::<Vec<_>>();
    assert_eq!(codes("a"), [200, 200, 429, 429]);
    assert_eq!(codes("acme"), [200, 200, 200, 429]);
    let refused = gateway.metric("rate_limiter_rejected_total", &["fixed_window_exceeded", "shadow"]);
    assert!(refused >= 1.0, "{refused}");
}
