//! The answers: limits with their fields, of every algorithm, and the header fields.

use std::io::Write;

use serde_json::{Value, json};

use super::{PATH, USAGE, ask, ask_with, books, limits, names, send};
use crate::support::http2::Http2Client;
use crate::support::{Client, Gateway, Upstream, eventually};

const PLAN: &str = "
policies:
  - {name: ceiling, rules: [{name: everybody, limit_keys: [], algorithm_config: {rate: 1000/day}}]}
  - name: plan
    rules:
      - {name: free, match: {path: /free}, action: allow}
      - name: pro
        limit_keys: [header:x-user]
        limits:
          day: {rate: 10/day}
          month: {algorithm: fixed_window, limit: 4, window: month, timezone: Europe/Berlin}
";

#[test]
fn a_client_learns_what_its_limits_have_left_and_pays_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{USAGE}{PLAN}"));
    assert_eq!(send(&gateway, 3, "/", "ann"), [200; 3]);
    for _ in 0..5 {
        let answer = ask(&gateway, "", "ann");
        let shown = limits(&answer);
        assert_eq!(shown.len(), 2, "a hidden limit is left out: {shown:?}");
        let fields = ["name", "policy", "unit", "limit", "used", "held", "remaining", "window", "banned_until"];
        let of = |limit: &Value| fields.map(|field| limit[field].clone());
        let expected = [
            json!(["pro.day", "plan", "requests", 10, 3, 0, 7, "1d", null]),
            json!(["pro.month", "plan", "requests", 4, 3, 0, 1, "month", null]),
        ];
        assert_eq!(json!([of(&shown[0]), of(&shown[1])]), json!(expected));
        let ends = [0, 1].map(|index| shown[index]["resets_at"].as_str().unwrap().to_owned());
        assert!(
            ends[0].ends_with('Z')
                && (ends[1].ends_with("-01T00:00:00+01:00") || ends[1].ends_with("-01T00:00:00+02:00"))
        );
        let (policy, level) = (answer.field("ratelimit-policy").unwrap(), answer.field("ratelimit").unwrap());
        assert!(policy.starts_with("\"pro.day\";q=10;w=86400, \"pro.month\";q=4;w="), "{policy}");
        assert!(level.starts_with("\"pro.day\";r=7;t=") && level.contains("\"pro.month\";r=1;t="), "{level}");
        assert_eq!((answer.number("ratelimit-limit"), answer.number("ratelimit-remaining")), (4, 1));
    }
    assert_eq!(names(&ask(&gateway, "", "bob")), ["pro.day", "pro.month"]);
    assert_eq!(limits(&ask(&gateway, "", "bob"))[1]["used"], 0);
    assert_eq!(upstream.count(), 3, "no question reaches the upstream");
    gateway.expect("rate_limiter_requests_total", &["rule=\"pro.day\""], 3.0);
}

#[test]
fn it_answers_when_everything_is_used_up() {
    let gateway = Gateway::start(&Upstream::start(), &format!("{USAGE}{PLAN}"));
    assert_eq!(send(&gateway, 6, "/", "ann"), [200, 200, 200, 200, 429, 429]);
    let answer = ask(&gateway, "", "ann");
    let month = &limits(&answer)[1];
    assert_eq!((&month["used"], &month["remaining"]), (&json!(4), &json!(0)));
    let [out, ends] = ["runs_out_at", "resets_at"].map(|field| month[field].as_str().unwrap().to_owned());
    assert!(out <= ends, "{month}");
    assert!(answer.field("ratelimit").unwrap().contains("\"pro.month\";r=0;"), "{answer:?}");
}

#[test]
fn head_and_http2_get_the_same_answer() {
    let config = format!("listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n{USAGE}{PLAN}");
    let gateway = Gateway::start(&Upstream::start(), &config);
    assert_eq!(send(&gateway, 2, "/", "ann"), [200; 2]);
    let get = ask(&gateway, "", "ann");
    let mut client = gateway.client();
    let head = client.send("HEAD", PATH, &[("X-User", "ann")], "");
    assert_eq!((head.status, &*head.body), (200, ""));
    assert_eq!(head.field("content-length"), get.field("content-length"));
    assert!(head.field("ratelimit").unwrap().starts_with("\"pro.day\";r=8;"));
    assert_eq!(client.get(PATH, &[("X-User", "ann")]).status, 200, "the connection is kept");
    let other = Http2Client::connect(gateway.http).get(PATH, &[("x-user", "ann")]);
    assert_eq!((other.status, other.field("cache-control")), (200, "no-store"));
    let shown: Value = serde_json::from_slice(&other.body).unwrap();
    assert_eq!((&shown["limits"][0]["used"], &shown["limits"][1]["used"]), (&json!(2), &json!(2)));
    assert_eq!(other.field("ratelimit-policy"), get.field("ratelimit-policy").unwrap());
}

#[test]
fn every_algorithm_says_what_is_used_and_left() {
    let limit = |name: &str, rest: &str| {
        format!("  - {{name: {name}, rules: [{{name: {name}, limit_keys: [header:x-user], {rest}}}]}}\n")
    };
    let policies = [
        limit("bucket", "algorithm_config: {rate: 20/day}"),
        limit("window", "algorithm: fixed_window, algorithm_config: {limit: 20, window: 366d}"),
        limit("first", "algorithm: fixed_window, algorithm_config: {limit: 20, window: 1h, anchor: first_request}"),
        limit("sliding", "algorithm: sliding_window, algorithm_config: {limit: 20, window: 1h}"),
        limit("log", "algorithm: sliding_log, algorithm_config: {limit: 20, window: 90s}"),
        limit("costly", "algorithm_config: {rate: 20/day, fixed_cost: 2.5}"),
        limit("slots", "algorithm: concurrency, algorithm_config: {limit: 4}"),
        limit(
            "queue",
            "algorithm: leaky_bucket, algorithm_config: {rate: 1/day, queue: 4, max_wait: 1s, delay_after: 4}",
        ),
        limit("tried", "mode: shadow, algorithm_config: {rate: 20/day}"),
    ];
    let upstream = Upstream::answering(|request, stream| {
        if request.line.contains("/hold") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
            // The end of the body never comes.
            std::thread::sleep(std::time::Duration::from_secs(30));
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let gateway = Gateway::start(&upstream, &format!("{USAGE}policies:\n{}", policies.concat()));
    assert_eq!(send(&gateway, 2, "/", "ann"), [200; 2]);
    let mut held: Client = gateway.client();
    held.write("GET /hold HTTP/1.1\r\nHost: a\r\nX-User: ann\r\n\r\n");
    held.until("ok");
    let shown = limits(&ask(&gateway, "", "ann"));
    let lines: Vec<Value> = shown
        .iter()
        .map(|limit| {
            json!([limit["name"], limit["unit"], limit["limit"], limit["used"], limit["remaining"], limit["window"]])
        })
        .collect();
    let expected = json!([
        ["bucket", "requests", 20, 3, 17, "1d"],
        ["window", "requests", 20, 3, 17, "366d"],
        ["first", "requests", 20, 3, 17, "1h"],
        ["sliding", "requests", 20, 3, 17, "1h"],
        ["log", "requests", 20, 3, 17, "90s"],
        // 7.5 are used, and 12.5 are left.
        ["costly", "requests", 20, 8, 12, "1d"],
        ["slots", "slots", 4, 1, 3, null],
        ["queue", "requests", 9, 3, 2, "9d"],
    ]);
    assert_eq!(json!(lines), expected);
    for limit in &shown {
        let resets = limit["resets_at"].as_str();
        assert_eq!(resets.is_some(), limit["name"] != "slots", "{limit}");
        assert_eq!((&limit["runs_out_at"], &limit["held"]), (&Value::Null, &json!(0)), "{limit}");
    }
    drop(held);
    eventually("the slot is free", || {
        let shown = limits(&ask(&gateway, "?path=/x", "ann"));
        shown.iter().any(|limit| limit["name"] == "slots" && limit["used"] == 0)
    });
    let unused = limits(&ask(&gateway, "", "bob"));
    let resets: Vec<bool> = unused.iter().map(|limit| limit["resets_at"].is_string()).collect();
    assert_eq!(
        resets,
        [false, true, false, false, false, false, false, false],
        "only that period has an end: {unused:?}"
    );
}

#[test]
fn the_numbers_are_those_of_the_client() {
    let config = "
policies:
  - name: plan
    rules:
      - name: acme
        limit_keys: [header:x-user]
        algorithm_config: {rate: 5/day}
        overrides: {big: {rate: 500/day}}
  - name: month
    rules:
      - {name: paid, match: {header:x-plan: paid}, limit_keys: [header:x-user], meter: use, algorithm: fixed_window, algorithm_config: {limit: 100, window: 366d}}
      - {name: free, limit_keys: [header:x-user], meter: use, algorithm: fixed_window, algorithm_config: {limit: 10, window: 366d}}
";
    let gateway = Gateway::start(&Upstream::start(), &format!("{USAGE}{config}"));
    let quota = |fields: &[(&str, &str)]| -> Vec<Value> {
        limits(&ask_with(&gateway, "", fields))
            .iter()
            .map(|limit| json!([limit["name"], limit["limit"], limit["used"]]))
            .collect()
    };
    assert_eq!(send(&gateway, 4, "/", "big"), [200; 4]);
    assert_eq!(json!(quota(&[("X-User", "big")])), json!([["acme", 500, 4], ["free", 10, 4]]));
    assert_eq!(json!(quota(&[("X-User", "big"), ("X-Plan", "paid")])), json!([["acme", 500, 4], ["paid", 100, 4]]));
    assert_eq!(json!(quota(&[("X-User", "small")])), json!([["acme", 5, 0], ["free", 10, 0]]));
}

/// A budget of which a waiting request holds 5, and the answer 3.
#[test]
fn what_requests_in_flight_hold_is_apart_from_what_is_used() {
    let budget = "
rules:
  - name: spend
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 100, window: 366d, cost_source: \"response_header:x-cost\", reserve: 5, default_cost: 3}
";
    let (upstream, finish) = Upstream::answering_when_told();
    let gateway = Gateway::start(&upstream, &format!("{USAGE}{budget}"));
    let mut waiting = gateway.client();
    waiting.write("GET /slow HTTP/1.1\r\nHost: a\r\nX-User: ann\r\n\r\n");
    eventually("the request is held", || books(&ask(&gateway, "", "ann")) == (0, 5, 95));
    finish.send(()).unwrap();
    assert_eq!(waiting.response("GET").unwrap().status, 200);
    eventually("it is settled", || books(&ask(&gateway, "", "ann")) == (3, 0, 97));
}

#[test]
fn limits_on_models_are_shown_for_the_requests_that_they_count() {
    let config = "
prices: {file: prices.csv}
rules:
  - name: spend
    limit_keys: [header:x-user]
    expose: true
    limits:
      usd: {algorithm: fixed_window, limit: 250.00, window: month, cost_source: llm_cost, reserve: 4.50}
      tokens: {algorithm: fixed_window, limit: 1000, window: month, cost_source: llm_tokens, reserve: 5}
";
    let answer =
        r#"{"model":"m","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let upstream = Upstream::answering(move |_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{answer}", answer.len());
    });
    let prices = "model,input,output\nm,500000,1000000\n";
    let gateway = Gateway::before(&upstream).with(&format!("{USAGE}{config}")).file("prices.csv", prices).start();
    let chat = "?method=POST&path=/v1/chat/completions";
    let shown = |query: &str| -> Vec<Value> {
        let fields = ["name", "unit", "limit", "used", "held", "remaining"];
        limits(&ask(&gateway, query, "ann")).iter().map(|limit| json!(fields.map(|field| &limit[field]))).collect()
    };
    let unused =
        json!([["spend.usd", "usd", "250.00", "0.00", "0.00", "250.00"], ["spend.tokens", "tokens", 1000, 0, 0, 1000]]);
    assert_eq!(json!(shown(chat)), unused);
    assert_eq!((shown(""), shown("?method=POST&path=/v1/audio/speech")), (vec![], vec![]));
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let fields = [("X-User", "ann"), ("Content-Type", "application/json")];
    assert_eq!(gateway.client().send("POST", "/v1/chat/completions", &fields, body).status, 200);
    let used =
        json!([["spend.usd", "usd", "250.00", "3.50", "0.00", "246.50"], ["spend.tokens", "tokens", 1000, 5, 0, 995]]);
    eventually("both are settled", || json!(shown(chat)) == used);
}
