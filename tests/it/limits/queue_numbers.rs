//! Leaky buckets with different numbers for each request: by credentials, overrides and the rules of a meter.

use serde_json::json;

use super::claimed_numbers::token;
use crate::support::{Client, Gateway, Redis, Response, Upstream, tollgate};

const JWT: &str = "jwt: {algorithms: [HS256], keys: {secret: 0123456789abcdef0123456789abcdef}}\n";

/// Returns the status, and the level of the only limit as the client receives it.
fn answer(response: &Response) -> (u16, String) {
    let level = response.field("ratelimit").unwrap_or_default();
    (response.status, level.split_once(';').map(|(_, level)| level.to_owned()).unwrap_or_default())
}

#[test]
fn a_request_waits_at_the_rate_of_its_token_and_all_share_one_queue() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    let rules = "
rules:
  - name: line
    limit_keys: [jwt:sub]
    algorithm: leaky_bucket
    algorithm_config: {rps: {from: jwt:rps, default: 0.1, max: 100}, queue: 3, max_wait: 5s}
";
    for store in [String::new(), redis.patient_store()] {
        let gateway = Gateway::start(&upstream, &format!("{JWT}{rules}{store}"));
        let get = |rps: serde_json::Value| {
            let token = token(&json!({"sub": "ann", "rps": rps}));
            gateway.client().get("/", &[("Authorization", &token)])
        };
        assert_eq!(get(json!(0.1)).status, 200);
        // One place is ahead of it: at a tenth of a request each second that is ten seconds, twice as long as it may wait.
        let refused = get(json!("0.1"));
        assert_eq!(
            (refused.status, refused.field("x-tollgate-reason").as_deref()),
            (429, Some("leaky_bucket_exceeded"))
        );
        assert_eq!(answer(&get(json!(null))).0, 429, "the default is as slow");
        // At a hundred it is ten milliseconds, of which some have passed.
        assert_eq!(get(json!(1000)).status, 200);
        let nothing = get(json!(0));
        assert_eq!((nothing.status, nothing.field("x-tollgate-reason").as_deref()), (429, Some("cost_too_large")));
        assert_eq!(get(json!(50)).status, 200);
        let file = gateway.file("gateway.yaml").display().to_string();
        let numbers = |rps: &str| {
            let claims = format!(r#"{{"sub": "ann", "rps": {rps}}}"#);
            let explained = tollgate(&["explain", "-c", &file, "--claims", &claims, "--json", "/"]).json();
            let charge = &explained["policies"][0]["rules"][0]["charges"][0];
            [&charge["numbers"], &charge["claimed"][0]].map(|text| text.as_str().unwrap().to_owned())
        };
        assert_eq!(numbers("2.5"), ["2.5/s queue 3 max_wait 5s", r#"rps 2.5: jwt:rps is "2.5""#]);
        assert_eq!(numbers("null"), ["0.1/s queue 3 max_wait 5s", "rps 0.1, the default: jwt:rps is missing"]);
    }
}

fn get(client: &mut Client, fields: &[(&str, &str)]) -> (u16, String) {
    answer(&client.get("/", fields))
}

#[test]
fn an_override_has_its_own_rate_queue_and_wait() {
    let rules = "
rules:
  - name: line
    limit_keys: [header:x-user]
    algorithm: leaky_bucket
    algorithm_config: {rate: 1/min, queue: 1, max_wait: 1s}
    overrides: {acme: {rps: 100, queue: 5, max_wait: 1s}, ours: {limit: unlimited}}
";
    let gateway = Gateway::start(&Upstream::start(), rules);
    let mut client = gateway.client();
    let mut of = |user: &str| get(&mut client, &[("X-User", user)]);
    assert_eq!([of("ann").0, of("ann").0], [200, 429]);
    assert_eq!(of("acme"), (200, "r=5;t=0".to_owned()));
    assert_eq!([of("acme").0, of("acme").0], [200; 2]);
    assert_eq!([of("ours"), of("ours")], [(200, String::new()), (200, String::new())]);
    assert_eq!(gateway.metric("rate_limiter_rejected_total", &["leaky_bucket_exceeded"]), 1.0);
}

/// A client that moves to the faster plan keeps its place in the queue.
#[test]
fn rules_of_one_meter_share_a_queue() {
    let rules = "
rules:
  - name: free
    match: {header:x-plan: free}
    limit_keys: [header:x-user]
    algorithm: leaky_bucket
    algorithm_config: {rate: 6/min, queue: 1, max_wait: 5s}
    meter: line
  - name: pro
    limit_keys: [header:x-user]
    limits:
      day: {rate: 1000/day}
      line: {algorithm: leaky_bucket, rate: 15/min, queue: 4, max_wait: 1m, meter: line}
";
    let gateway = Gateway::start(&Upstream::start(), rules);
    let mut client = gateway.client();
    let mut of = |plan: &str| client.get("/", &[("X-User", "ann"), ("X-Plan", plan)]);
    assert_eq!(of("free").status, 200);
    assert_eq!(of("free").status, 429);
    // Four seconds for the place that is taken, instead of ten: less, as far as it has left meanwhile.
    let fast = of("pro");
    assert_eq!(fast.status, 200);
    let level = fast.field("ratelimit").unwrap();
    assert!((1..=4).any(|wait| level.contains(&format!("\"pro.line\";r=3;t={wait}"))), "{fast:?}");
    assert_eq!(of("free").status, 429);
}
