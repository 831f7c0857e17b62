//! Thresholds that settled costs reach are reported soon, without another request.

use serde_json::{Value, json};

use super::{begin, get, upstream};
use crate::support::{Gateway, Postgres, Redis, eventually};

const RULES: &str = "
hash_key: 0123456789abcdef
rules:
  - name: spend
    limit_keys: [\"header:x-user|descriptor:user\"]
    algorithm: fixed_window
    algorithm_config: {limit: 20, window: 366d, reserve: 2, cost_source: \"response_header:x-cost\", default_cost: 3}
    meter: spend
records: {to: records.jsonl, every: 1d, meters: [spend], subject: [header:x-user, \"descriptor:user\"], thresholds: [50%, 80%]}
";

/// Returns the lines about thresholds of these gateways, as subject, threshold and amount.
fn told(gateways: &[&Gateway]) -> Vec<Value> {
    let texts =
        gateways.iter().map(|gateway| std::fs::read_to_string(gateway.file("records.jsonl")).unwrap_or_default());
    let text = texts.collect::<String>();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| line["type"] == "tollgate.threshold").map(|line| line["data"].clone());
    let mut told: Vec<Value> =
        lines.map(|data| json!([data["subject"], data["threshold"], data["quantity"]])).collect();
    told.sort_by_key(Value::to_string);
    told
}

#[test]
fn what_requests_have_cost_tells_thresholds_once_without_another_request() {
    let (upstream, _finish) = upstream::start();
    let (redis, postgres) = (Redis::start(), Postgres::start());
    // Creates the tables.
    postgres.settings();
    for store in [String::new(), redis.patient_store(), postgres.store_with(", timeout: 5s", "deny")] {
        let file = format!("{RULES}{store}");
        let one = Gateway::start(&upstream, &file);
        let other = (!store.is_empty()).then(|| Gateway::start(&upstream, &file));
        let both: Vec<&Gateway> = std::iter::once(&one).chain(&other).collect();
        assert_eq!(get(&one, "/cost/9", "ann").status, 200);
        assert_eq!(get(other.as_ref().unwrap_or(&one), "/cost/8", "ann").status, 200);
        let expected = [json!(["ann", "50%", 10]), json!(["ann", "80%", 16])];
        eventually("both are reported", || told(&both) == expected);
        // Neither the next request of ann nor the question after it, which comes before that about bob, reports them again.
        assert_eq!(get(&one, "/cost/1", "ann").status, 200);
        // A debt is reported too, although nothing is left.
        assert_eq!(get(&one, "/cost/50", "bob").status, 200);
        let bobs = [json!(["bob", "50%", 10]), json!(["bob", "80%", 16])];
        eventually("bob's are reported", || told(&both).get(2..) == Some(&bobs[..]));
        assert_eq!(told(&both)[..2], expected);
        // The questions are no requests.
        one.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
        let requests: f64 = both.iter().map(|gateway| gateway.metric("rate_limiter_requests_total", &[])).sum();
        assert!((requests - 4.0).abs() < 0.1, "{requests}");
    }
}

/// A refusal that does not ask the store tells nothing.
#[test]
fn a_request_that_is_refused_without_the_store_does_not_answer_for_the_question() {
    let (upstream, finish) = upstream::start();
    let redis = Redis::start();
    let rules = RULES.replace("[50%, 80%]", "[100%]");
    let gateway = Gateway::start(&upstream, &format!("threads: 1\n{rules}{}", redis.patient_store()));
    eventually("no older gateway runs", || gateway.metric("rate_limiter_live_gateways", &[]) == 1.0);
    let held = |amount| gateway.expect("rate_limiter_held", &["rule=\"spend\""], amount);
    // Of this one, the cost is not known yet.
    let mut running = begin(&gateway, "/hold/cost/4", "ann");
    held(2.0);
    assert_eq!(get(&gateway, "/cost/15", "ann").status, 200);
    held(2.0);
    assert_eq!(get(&gateway, "/cost/4", "ann").status, 200);
    held(2.0);
    // From now on, the gateway knows for a second that ann's bucket is short.
    assert_eq!(get(&gateway, "/cost/1", "ann").status, 429);
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
    held(0.0);
    assert_eq!(get(&gateway, "/cost/1", "ann").status, 429);
    eventually("the threshold is reported", || told(&[&gateway]) == [json!(["ann", "100%", 20])]);
}

#[test]
fn what_a_service_settles_tells_thresholds_without_another_take() {
    let redis = Redis::start();
    let listeners = "listeners: [{name: mail, address: 127.0.0.1:0, decide: [json], clients: [127.0.0.0/8]}]\n";
    for store in [String::new(), redis.patient_store()] {
        let gateway = Gateway::deciding().with(&format!("{listeners}{RULES}{store}")).start();
        let mut client = gateway.client();
        let mut post = |path: &str, body: Value| {
            let answer = client.send("POST", path, &[("Content-Type", "application/json")], &body.to_string());
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.json()
        };
        let held = post("/take", json!({"entries": {"user": "ann"}, "hold_for": "1h"}));
        post("/settle", json!({"hold_id": held["hold_id"], "cost": 12}));
        eventually("half is reported", || told(&[&gateway]) == [json!(["ann", "50%", 10])]);
        // Nobody settles for the next ones: what is spent at their ends is reported too.
        (0..2).for_each(|_| drop(post("/take", json!({"entries": {"user": "ann"}, "hold_for": "1s", "cost": 1}))));
        let expected = [json!(["ann", "50%", 10]), json!(["ann", "80%", 16])];
        eventually("the end of holds is reported", || told(&[&gateway]) == expected);
    }
}
