//! Lines about thresholds: each is reported once in a period, over all gateways, in every store.

use serde_json::{Value, json};

use super::{read, send};
use crate::support::bucket_command::says;
use crate::support::{Gateway, Postgres, Redis, Upstream, eventually, tollgate};

const RULES: &str = "
rules:
  - {name: pro, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 10, window: 366d}, meter: api}
records: {to: records.jsonl, every: 1d, meters: [api], subject: [header:x-user], thresholds: [80%, 100%]}
";

/// Returns the lines about thresholds that these gateways have written, as subject, threshold and amount.
fn told(gateways: &[&Gateway]) -> Vec<Value> {
    let lines = gateways.iter().flat_map(|gateway| read(&gateway.file("records.jsonl")));
    let lines = lines.filter(|line| line["type"] == "tollgate.threshold");
    let mut told: Vec<Value> = lines
        .map(|line| json!([line["data"]["subject"], line["data"]["threshold"], line["data"]["quantity"]]))
        .collect();
    told.sort_by_key(Value::to_string);
    told
}

fn expect(gateways: &[&Gateway], expected: Value) {
    let expected: Vec<Value> = serde_json::from_value(expected).unwrap();
    eventually("the thresholds are reported", || told(gateways).len() >= expected.len());
    assert_eq!(told(gateways), expected);
}

/// Plays one customer over two gateways, which may be the same.
fn play(one: &Gateway, other: &Gateway) {
    let both = if one.admin == other.admin { vec![one] } else { vec![one, other] };
    for gateway in [one, other, one, other, one, other, one] {
        assert_eq!(send(gateway, 1, "ann", "pro"), [200]);
    }
    assert_eq!(told(&both), [] as [Value; 0]);
    assert_eq!(send(other, 5, "ann", "pro"), [200, 200, 200, 429, 429]);
    let first = json!([["ann", "100%", 10], ["ann", "80%", 8]]);
    expect(&both, first.clone());
    // What is given back is not told again.
    says(one, &["grant", "pro", "header:x-user=ann", "5"], 0, "gave back 5");
    for gateway in [one, other] {
        eventually("the grant is seen", || send(gateway, 1, "ann", "pro") == [200]);
    }
    assert_eq!(send(other, 4, "ann", "pro"), [200, 200, 200, 429]);
    says(one, &["reset", "pro", "header:x-user=ann"], 0, "full from now on");
    for gateway in [one, other] {
        eventually("the reset is seen", || send(gateway, 1, "ann", "pro") == [200]);
    }
    assert_eq!(send(other, 7, "ann", "pro"), [200; 7]);
    assert_eq!(told(&both), *first.as_array().unwrap());
    // A raised limit has other amounts.
    says(one, &["raise", "pro", "header:x-user=ann", "+10", "--until", "period-end", "--id", "a"], 0, "of 20");
    eventually("the raise is in force", || send(other, 2, "ann", "pro") == [200; 2]);
    send(one, 9, "ann", "pro");
    expect(&both, json!([["ann", "100%", 10], ["ann", "100%", 20], ["ann", "80%", 16], ["ann", "80%", 8]]));
}

/// Waits until both gateways know that they are the only ones.
fn are_known(gateways: &[Gateway; 2]) {
    for gateway in gateways {
        eventually("both gateways are known", || gateway.metric("rate_limiter_live_gateways", &[]) >= 2.0);
    }
}

#[test]
fn thresholds_are_told_once_by_a_gateway_with_its_buckets_in_memory() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    play(&gateway, &gateway);
    let line = read(&gateway.file("records.jsonl")).swap_remove(0);
    let data = &line["data"];
    let named =
        ["meter", "rule", "subject", "subject_from", "unit", "threshold", "quantity", "limit"].map(|name| &data[name]);
    assert_eq!(json!(named), json!(["api", "pro", "ann", "header:x-user", "requests", "80%", 8, 10]));
    assert!(data["period_begin"].is_string() && data["period_end"].is_string(), "{line}");
}

#[test]
fn thresholds_are_told_once_over_two_gateways_on_redis_and_a_missing_line_is_found() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let mut gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{}\n{RULES}", redis.patient_store())));
    are_known(&gateways);
    play(&gateways[0], &gateways[1]);
    assert_eq!(send(&gateways[0], 8, "bob", "pro"), [200; 8]);
    for gateway in &mut gateways {
        gateway.signal("TERM");
        gateway.wait();
    }
    let files = gateways.each_ref().map(|gateway| gateway.file("records.jsonl"));
    let config = gateways[0].file("gateway.yaml").display().to_string();
    let check = || {
        tollgate(&["records", "check", &files[0].display().to_string(), &files[1].display().to_string(), "-c", &config])
    };
    assert!(!check().out.contains("has no line"), "{:?}", check());
    // The lines about bob's threshold are lost.
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let kept: String =
        text.split_inclusive('\n').filter(|line| !(line.contains("threshold") && line.contains("bob"))).collect();
    assert!(kept.len() < text.len(), "{text}");
    std::fs::write(&files[0], kept).unwrap();
    let checked = check();
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.out.contains("api header:x-user=bob: the threshold at 8 has no line\n"), "{checked:?}");
}

#[test]
fn thresholds_are_told_once_over_two_gateways_on_postgresql() {
    let (upstream, postgres) = (Upstream::start(), Postgres::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 10s", "deny") + "\n";
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &format!("{store}{RULES}")));
    are_known(&gateways);
    play(&gateways[0], &gateways[1]);
}
