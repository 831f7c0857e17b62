//! Records for billing of limits over several regions, and of limits beside them.

use serde_json::{Value, json};

use super::{Region, ask};
use crate::support::{Gateway, Redis, Upstream, eventually};

const RULES: &str = "
check: {allow: [unverified_key]}
policies:
  - name: everywhere
    rules:
      - name: year
        scope: global
        limit_keys: [header:x-user]
        algorithm: fixed_window
        algorithm_config: {limit: 1000, window: year}
        meter: requests
  - name: here
    rules:
      - name: spend
        limit_keys: [header:x-team]
        algorithm: fixed_window
        algorithm_config: {limit: 20, window: 366d, reserve: 1, cost_source: \"response_header:x-cost\", default_cost: 9}
        meter: spend
";

fn records(meters: &str, thresholds: &str) -> String {
    format!("records: {{to: records.jsonl, every: 1s, meters: {meters}, subject: [header:x-user]{thresholds}}}\n")
}

/// Returns the data of the records of a type that a gateway has written.
fn read(gateway: &Gateway, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(gateway.file("records.jsonl")).unwrap_or_default();
    // The last line may not be whole yet.
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["type"] == kind).map(|mut line| line["data"].take()).collect()
}

#[test]
fn a_request_that_waits_for_home_reports_the_threshold_of_another_limit() {
    let (upstream, home) = (Upstream::start(), Redis::start());
    let region = Region::start(
        "eu",
        home.port,
        &format!("threads: 1\n{RULES}{}", records("[spend]", ", thresholds: [40%]")),
        &upstream,
    );
    let gateway = &region.gateway;
    eventually("no older gateway runs", || gateway.metric("rate_limiter_live_gateways", &[]) == 1.0);
    let mut client = gateway.client();
    let mut send = |user| client.get("/", &[("X-User", user), ("X-Team", "red")]).status;
    assert_eq!(send("ann"), 200);
    gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
    // The purse of this user is empty, so the first charge is refused, and finds what ann's request has cost.
    assert_eq!(send("bob"), 200);
    let told = || read(gateway, "tollgate.threshold").into_iter().map(|data| json!([data["rule"], data["quantity"]]));
    eventually("the threshold is reported", || told().any(|line| line == json!(["spend", 8])));
    assert_eq!(told().count(), 1);
}

#[test]
fn a_request_that_home_did_not_answer_is_no_refusal_of_the_limit() {
    let (upstream, mut home) = (Upstream::start(), Redis::start());
    let region = Region::start("eu", home.port, &(RULES.to_owned() + &records("[requests, spend]", "")), &upstream);
    let mut client = region.gateway.client();
    assert_eq!(ask(&mut client, "ann").status, 200);
    home.kill();
    region.gateway.expect_logged("home is down");
    // Nothing is in the purse of this user.
    assert_eq!(ask(&mut client, "bob").status, 503);
    let mut gateway = region.gateway;
    gateway.signal("TERM");
    gateway.wait();
    let records = read(&gateway, "tollgate.usage");
    let of = |user: &str| records.iter().find(|data| data["subject"] == user && data["meter"] == "requests");
    assert_eq!(
        of("ann").map(|data| [&data["quantity"], &data["refused"]]),
        Some([&json!(1), &json!(0)]),
        "{records:?}"
    );
    assert_eq!(of("bob"), None, "{records:?}");
}
