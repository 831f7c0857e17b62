//! The lines of records: who has used how much of which meter, under which rule, in which period.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::{RULES, after_drain, read, records, send, sum, wait_for};
use crate::support::{Gateway, Upstream, eventually, now};

fn of<'r>(records: &'r [Value], user: &str, rule: &str) -> &'r Value {
    let mut found = records.iter().filter(|record| record["data"]["subject"] == user && record["data"]["rule"] == rule);
    let record = found.next().unwrap_or_else(|| panic!("{user} has no record of {rule}: {records:#?}"));
    assert!(found.next().is_none(), "{records:#?}");
    record
}

#[test]
fn a_line_is_a_cloud_event_with_the_sums_of_a_subject_under_a_rule() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1d")));
    assert_eq!(send(&gateway, 5, "ann", "free"), [200, 200, 200, 429, 429]);
    assert_eq!(send(&gateway, 4, "ann", "pro"), [200; 4]);
    let strange = "b\"o\\b \u{202e}é";
    assert_eq!(gateway.client().get("/", &[("X-User", strange), ("X-Cost", "0.5")]).status, 200);
    // More than a full bucket holds.
    assert_eq!(gateway.client().get("/", &[("X-User", "cat"), ("X-Cost", "9")]).status, 429);
    // A request without the key of the rules is not limited, so it is not recorded.
    assert_eq!(gateway.client().get("/", &[]).status, 200);
    assert_eq!(read(&gateway.file("records.jsonl")).len(), 0, "the interval has not ended");
    let records = after_drain(&mut gateway);
    assert_eq!(records.len(), 4, "{records:#?}");

    let free = of(&records, "ann", "free");
    assert_eq!((&free["specversion"], &free["type"]), (&json!("1.0"), &json!("tollgate.usage")));
    assert!(free["source"].as_str().unwrap().starts_with("tollgate/"));
    assert_eq!(free["id"].as_str().unwrap().len(), 32);
    let data = free["data"].as_object().unwrap();
    let named = ["meter", "rule", "subject_from", "unit", "quantity", "requests", "refused"].map(|name| &data[name]);
    let expected = json!(["api-month", "free", "header:x-user", "requests", 3, 3, 2]);
    assert_eq!(json!(named), expected);
    let moment = |name: &str| data[name].as_str().unwrap().to_owned();
    assert!(moment("from") < moment("to") && free["time"] == data["to"]);
    // This month, in UTC.
    assert!(moment("period_begin").ends_with("-01T00:00:00Z") && moment("period_end").ends_with("-01T00:00:00Z"));
    assert!(moment("period_begin") <= moment("from") && moment("to") < moment("period_end"));
    assert!(!data.contains_key("by"));

    let pro = of(&records, "ann", "pro");
    assert_eq!((&pro["data"]["quantity"], &pro["data"]["refused"]), (&json!(4), &json!(0)));
    let half = of(&records, strange, "free");
    assert_eq!((&half["data"]["quantity"], &half["data"]["requests"]), (&json!("0.5"), &json!(1)));
    let refused = of(&records, "cat", "free");
    assert_eq!((&refused["data"]["quantity"], &refused["data"]["refused"]), (&json!(0), &json!(1)));
    let text = std::fs::read_to_string(gateway.file("records.jsonl")).unwrap();
    assert!(text.contains(r#""subject":"b\"o\\b \u202eé""#), "{text}");
}

/// Clients may choose values, so their length is bounded in memory and in the file.
#[test]
fn a_value_of_more_than_a_kibibyte_is_recorded_as_no_subject() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1d")));
    let [longest, one, other] = [("a", 1024), ("b", 1025), ("c", 5000)].map(|(letter, times)| letter.repeat(times));
    for user in [&longest, &one, &other] {
        assert_eq!(send(&gateway, 1, user, "pro"), [200]);
    }
    let records = after_drain(&mut gateway);
    let data = records.iter().map(|record| &record["data"]);
    let mut found: Vec<Value> =
        data.map(|data| json!([data["subject"], data["subject_from"], data["quantity"]])).collect();
    found.sort_by_key(Value::to_string);
    assert_eq!(found, [json!([longest, "header:x-user", 1]), json!([null, null, 2])]);
}

#[test]
fn each_interval_has_its_lines_with_ids_of_their_own() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1s")));
    let file = gateway.file("records.jsonl");
    assert!(file.exists(), "the file is there from the start");
    send(&gateway, 3, "ann", "pro");
    let first = wait_for(&file, 1).len();
    send(&gateway, 4, "ann", "pro");
    wait_for(&file, first + 1);
    // Nothing is written about intervals in which nothing settled.
    let records = after_drain(&mut gateway);
    assert_eq!((sum(&records, "ann", "quantity"), sum(&records, "ann", "requests")), (7, 7));
    let mut ids: Vec<_> = records.iter().map(|record| record["id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), records.len());
    gateway.errors().lines().for_each(|line| assert!(!line.contains("records"), "{line}"));
}

#[test]
fn a_period_that_ends_in_an_interval_has_a_line_of_its_own() {
    let upstream = Upstream::start();
    let rules = "
rules:
  - {name: all, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 100000, window: 2s}, meter: api-month}
";
    let mut gateway = Gateway::start(&upstream, &format!("{rules}{}", records("1d")));
    let mut client = gateway.client();
    let (begun, mut sent) = (now(), 0);
    while begun.elapsed() < Duration::from_secs(5) {
        assert_eq!(client.get("/", &[("X-User", "ann")]).status, 200);
        sent += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let records = after_drain(&mut gateway);
    assert!((3..=5).contains(&records.len()), "{records:#?}");
    assert_eq!(sum(&records, "ann", "quantity"), sent);
    let mut periods: Vec<(String, String)> = records
        .iter()
        .map(|record| ["period_begin", "period_end"].map(|name| record["data"][name].as_str().unwrap().to_owned()))
        .map(|[begin, end]| (begin, end))
        .collect();
    periods.sort();
    assert!(periods.windows(2).all(|pair| pair[0].1 == pair[1].0), "{periods:?}");
}

#[test]
fn a_budget_of_money_is_recorded_when_it_settles_with_the_tokens_of_each_model() {
    let upstream = Upstream::answering(|request, stream| {
        let model = request.field("x-model").unwrap_or("m-1");
        let usage =
            r#""usage":{"prompt_tokens":20,"completion_tokens":30,"prompt_tokens_details":{"cached_tokens":5}}"#;
        let body = format!(r#"{{"model":"{model}","choices":[{{"message":{{"content":"x"}}}}],{usage}}}"#);
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        let _ = stream.write_all(format!("{head}{body}").as_bytes());
    });
    let rules = "
prices: {file: prices.csv, default: refuse}
rules:
  - name: spend
    limit_keys: [header:x-user]
    limits:
      tokens: {algorithm: fixed_window, limit: 1000000, window: month, cost_source: llm_tokens, reserve: 100, meter: tokens}
      money: {algorithm: fixed_window, limit: 100.00, window: month, cost_source: llm_cost, reserve: 1, meter: money}
records: {to: records.jsonl, every: 1d, meters: [tokens, money], subject: [jwt:sub, header:x-user]}
jwt: {algorithms: [HS256], keys: {secret: \"0123456789abcdef0123456789abcdef\"}}
";
    let prices = "model,input,output,cached\nm-*,1,10,0.5\n";
    let mut gateway = Gateway::before(&upstream).with(rules).file("prices.csv", prices).start();
    let mut client = gateway.client();
    for model in ["m-1", "m-1", "m-2"] {
        let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
        let fields = [("X-User", "ann"), ("X-Model", model), ("Content-Type", "application/json")];
        assert_eq!(client.send("POST", "/v1/chat/completions", &fields, &body).status, 200);
    }
    eventually("all are settled", || gateway.metric("rate_limiter_settled_total", &[]) >= 6.0);
    let records = after_drain(&mut gateway);
    assert_eq!(records.len(), 2, "{records:#?}");
    let by = json!({
        "m-1": {"input": 30, "output": 60, "cached": 10},
        "m-2": {"input": 15, "output": 30, "cached": 5},
    });
    let named = |rule: &str| {
        let data = &of(&records, "ann", rule)["data"];
        json!([data["unit"], data["quantity"], data["requests"], data["subject_from"], data["by"]])
    };
    assert_eq!(named("spend.tokens"), json!(["tokens", 150, 3, "header:x-user", by]));
    // 15 × 1, 30 × 10 and 5 × 0.5 USD for a million tokens, three times.
    assert_eq!(named("spend.money"), json!(["usd", "0.0009525", 3, "header:x-user", by]));
}

#[test]
fn a_ban_has_a_line_at_once() {
    let upstream = Upstream::start();
    let rules = "
rules:
  - name: scraper
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 2, window: month}
    meter: api-month
    ban: {for: [15m]}
";
    let gateway = Gateway::start(&upstream, &format!("{rules}{}", records("1d")));
    assert_eq!(send(&gateway, 4, "ann", "free"), [200, 200, 429, 429]);
    let records = wait_for(&gateway.file("records.jsonl"), 1);
    assert_eq!((records.len(), &records[0]["type"]), (1, &json!("tollgate.ban")));
    let data = &records[0]["data"];
    let named = ["policy", "rule", "subject", "subject_from", "step"].map(|name| &data[name]);
    assert_eq!(json!(named), json!(["default", "scraper", "ann", "header:x-user", 1]));
    let seconds = |name: &str| base::rfc3339::parse(data[name].as_str().unwrap()).unwrap() / 1_000_000;
    assert!((899..=901).contains(&(seconds("to") - seconds("from"))), "{data}");
}

#[test]
fn a_shadow_and_a_meter_that_is_not_listed_are_not_recorded() {
    let upstream = Upstream::start();
    let rules = "
policies:
  - name: dry
    mode: shadow
    rules: [{name: tried, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 1, window: month}, meter: dry}]
  - name: other
    rules: [{name: all, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 9, window: month}, meter: all}]
records: {to: records.jsonl, every: 1d, meters: [dry], subject: [header:x-user]}
";
    let mut gateway = Gateway::start(&upstream, rules);
    assert_eq!(send(&gateway, 3, "ann", "free"), [200; 3]);
    assert_eq!(after_drain(&mut gateway).len(), 0);
}
