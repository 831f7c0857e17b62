//! `tollgate replay` of budgets: requests hold their reservation while they run, and cost what the log says.

use serde_json::{Value, json};

use super::replay::{json as found, play, reported, text};

/// A token of `m-1` costs 0.01 USD in the request, and 0.02 USD in the response.
const PRICES: &str = "model,input,output\nm-1,10000,20000\n";

/// A budget of money for all clients together, in USD.
fn money(limit: &str, keys: &str) -> String {
    let file = budget(1, keys).replace("limit: 1,", &format!("limit: {limit},")).replace("llm_tokens", "llm_cost");
    format!("prices: {{file: prices.csv}}\n{file}")
}

/// A budget of tokens for all clients together.
fn budget(limit: u64, keys: &str) -> String {
    let numbers = format!("limit: {limit}, window: 1d, cost_source: llm_tokens, {keys}");
    format!(
        "upstream: http://127.0.0.1:9000\nrules: [{{name: tokens, limit_keys: [], algorithm: fixed_window, algorithm_config: {{{numbers}}}}}]\n"
    )
}

/// Returns a line of the gateway's own log: a request of this second that took so many seconds, with further members.
fn line(second: u64, seconds: u64, more: &Value) -> String {
    let (minute, second) = (second / 60, second % 60);
    let mut line = json!({
        "time": format!("2026-11-21T12:{minute:02}:{second:02}.000000Z"), "request_id": "r", "kind": "allowed",
        "route": "default", "method": "POST", "code": 200, "origin": "upstream", "duration_us": seconds * 1_000_000,
        "decision_us": 40, "request_bytes": 0, "response_bytes": 5,
    });
    for (name, value) in more.as_object().unwrap() {
        line[name] = value.clone();
    }
    format!("{line}\n")
}

/// Returns what the log says about the budget: what was reserved, and what was settled.
fn settled(cost: u64, settled: u64) -> Value {
    json!({"policy": "default", "rule": "tokens", "cost": cost, "settled": settled, "remaining": 1,
        "bucket": "5f3a9c170011aabb", "source": "store"})
}

fn with_usage(mut line: Value, input: u64, output: u64, is_estimated: bool) -> Value {
    line["model"] = "m-1".into();
    line["usage"] = json!({"input": input, "output": output, "cached": 0, "cache_write": 0});
    if is_estimated {
        line["usage"]["estimated"] = true.into();
    }
    line
}

/// Replays a log under two files. Returns how many requests each refuses, and which it leaves out.
#[track_caller]
fn refused(log: &str, files: [&str; 2]) -> ([u64; 2], [Value; 2]) {
    let [one, other] = files;
    let inputs = [
        ("gateway.yaml", one.as_bytes()),
        ("other.yaml", other.as_bytes()),
        ("prices.csv", PRICES.as_bytes()),
        ("a.log", log.as_bytes()),
    ];
    let found = found(&play(&inputs, "--against other.yaml --json a.log", b""));
    let of = |file: usize, key: &str| found["files"][file][key].clone();
    ([0, 1].map(|file| of(file, "refused").as_u64().unwrap()), [0, 1].map(|file| of(file, "left_out")))
}

#[test]
fn the_report_says_what_a_smaller_budget_and_a_larger_reservation_would_have_refused() {
    let log: String = (0..6).map(|number| line(number * 10, 60, &settled(10, 40))).collect();
    let late: String = [100, 110].map(|second| line(second, 1, &settled(10, 40))).concat();
    let get = line(105, 1, &json!({"method": "GET"}));
    let unknown = line(106, 1, &json!({}));
    let log = log + &late + &get + &unknown;
    let (today, tomorrow) = (budget(330, "reserve: 10"), budget(250, "reserve: 60"));
    let files = [("gateway.yaml", today.as_bytes()), ("tomorrow.yaml", tomorrow.as_bytes()), ("a.log", log.as_bytes())];
    let output = play(&files, "-c gateway.yaml --against tomorrow.yaml a.log", b"");
    let reported = reported(&output);
    let (above, below) = reported.split_once("newly refused  ").unwrap_or((&reported, ""));
    let expected = "\
read 10 lines, Sat 21 Nov 12:00 to Sat 21 Nov 12:01 UTC
! gateway.yaml: default/tokens leaves out 1 request (10.0 %): the log does not tell what the response has cost
! tomorrow.yaml: default/tokens leaves out 1 request (10.0 %): the log does not tell what the response has cost
                  gateway.yaml  tomorrow.yaml  change
allowed            10  100.0 %      7  70.0 %      -3
refused             0    0.0 %      3  30.0 %      +3
  default/tokens    0               3              +3   1 key, 1 never refused before
worst minute  Sat 21 Nov 12:00 UTC, 0 → 2 refused
";
    assert_eq!(above, expected);
    // The name of the bucket has another key in each run.
    assert_eq!(below.split_once("  ").unwrap().1, "default/tokens  3 of 8 (37.5 %)\n");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_reservation_is_held_until_the_response_ends_and_the_cost_is_spent_afterwards() {
    // Three at once hold 90 of 100. When they have ended, 120 are spent.
    let at_once: String = (0..4).map(|second| line(second, 60, &settled(30, 40))).collect();
    let later = line(90, 1, &settled(30, 0));
    let files = |limit| budget(limit, "reserve: 30");
    let (small, large) = (files(100), files(1000));
    assert_eq!(refused(&at_once, [&small, &large]).0, [1, 0]);
    assert_eq!(refused(&(at_once.clone() + &later), [&small, &large]).0, [2, 0]);
    // Short requests leave room for each other.
    let short: String = (0..4).map(|second| line(second * 10, 1, &settled(30, 5))).collect();
    assert_eq!(refused(&(short + &later), [&small, &large]).0, [0, 0]);
    // A cost counts in the minute in which its response ends, and is forgotten after that minute.
    let minute = small.replace("1d", "1min");
    assert_eq!(refused(&(at_once.clone() + &later), [&small, &minute]).0, [2, 2]);
    let much_later = line(150, 1, &settled(30, 0));
    assert_eq!(refused(&(at_once + &much_later), [&small, &minute]).0, [2, 1]);
}

#[test]
fn tokens_have_the_weights_of_the_file() {
    let log = |is_estimated: bool| -> String {
        let spent = with_usage(settled(10, 50), 20, 30, is_estimated);
        [line(0, 1, &spent), line(10, 1, &settled(10, 10)), line(20, 1, &settled(10, 10))].concat()
    };
    let (plain, weighted) = (budget(100, "reserve: 10"), budget(100, "reserve: 10, weights: {output: 4}"));
    assert_eq!(refused(&log(false), [&plain, &weighted]).0, [0, 2]);
    // What was charged for a response without usage, as `default_cost`, is charged again.
    assert_eq!(refused(&log(true), [&plain, &weighted]).0, [0, 0]);
    // A request that cost nothing costs nothing again.
    let free = line(0, 1, &with_usage(settled(10, 0), 20, 30, true)) + &line(10, 1, &settled(10, 10));
    assert_eq!(refused(&free, [&plain, &weighted]).0, [0, 0]);
}

#[test]
fn what_was_refused_costs_its_reservation_if_it_is_refused_no_more() {
    let refusal = json!({"kind": "refused", "origin": "gateway", "code": 429, "reason": "budget_held", "policy": "default",
        "rule": "tokens", "cost": 30, "remaining": 1, "bucket": "5f3a9c170011aabb", "source": "store"});
    let log: String = (0..5).map(|second| line(second, 0, &refusal)).collect();
    let (one, other) = (budget(100, "reserve: 30"), budget(100, "reserve: 20"));
    let (count, left_out) = refused(&log, [&one, &other]);
    assert_eq!((count, left_out), ([2, 0], [Value::Null, Value::Null]));
}

#[test]
fn lines_without_a_cost_and_lines_of_other_logs_are_left_out_and_counted() {
    let file = budget(1, "reserve: 1");
    let lines: String = (0..3).map(|second| line(second, 1, &json!({}))).collect();
    let get: String = (0..3).map(|second| line(second, 1, &json!({"method": "GET"}))).collect();
    let expected = json!([{"name": "default/tokens", "lines": 3}]);
    let (count, left_out) = refused(&(lines + &get), [&file, &file]);
    assert_eq!((count, left_out), ([0, 0], [expected.clone(), expected]));
    let nginx = "203.0.113.7 - - [21/Nov/2026:12:00:00 +0000] \"POST / HTTP/1.1\" 200 5 \"-\" \"-\"\n".repeat(2);
    let (count, [left_out, _]) = refused(&nginx, [&file, &file]);
    assert_eq!((count, left_out), ([0, 0], json!([{"name": "default/tokens", "lines": 2}])));
}

#[test]
fn a_new_limit_on_money_is_priced_by_the_tokens_in_the_log() {
    // Each request costs 20 × 0.01 + 30 × 0.02 = 0.80 USD.
    let log: String = (0..5).map(|number| line(number * 10, 1, &with_usage(settled(10, 50), 20, 30, false))).collect();
    let (tokens, spent) = (budget(1000, "reserve: 10"), money("2.40", "reserve: 0.01"));
    assert_eq!(refused(&log, [&tokens, &spent]), ([0, 2], [Value::Null, Value::Null]));
    // The reservation is at least the price of the output by default: 20 × 0.01 + 100 × 0.02 = 2.20 USD.
    let worst = money("2.40", "reserve: {worst: {default_output: 100}}");
    assert_eq!(refused(&log, [&tokens, &worst]), ([0, 4], [Value::Null, Value::Null]));
    // Estimated tokens are priced too. A request that cost nothing costs nothing.
    let estimated = |settled: Value| line(0, 1, &with_usage(settled, 200, 30, true));
    let rest = line(10, 1, &with_usage(settled(10, 50), 20, 30, false));
    assert_eq!(refused(&(estimated(settled(10, 230)) + &rest), [&tokens, &spent]).0, [0, 1]);
    assert_eq!(refused(&(estimated(settled(10, 0)) + &rest), [&tokens, &spent]).0, [0, 0]);
}

#[test]
fn a_limit_on_money_leaves_out_lines_without_tokens_and_models_without_a_price() {
    let without = line(0, 1, &settled(10, 50));
    let mut other = with_usage(settled(10, 50), 20, 30, false);
    other["model"] = "m-2".into();
    let log = without + &line(10, 1, &other) + &line(20, 1, &with_usage(settled(10, 50), 20, 30, false));
    let (tokens, spent) = (budget(1000, "reserve: 10"), money("2.40", "reserve: 0.01"));
    let left_out = json!([{"name": "default/tokens", "lines": 2}]);
    assert_eq!(refused(&log, [&tokens, &spent]), ([0, 0], [Value::Null, left_out]));
    // With a price for all models, only the line without tokens is left out.
    let all = spent.replace("prices.csv}", "prices.csv, default: m-1}");
    let left_out = json!([{"name": "default/tokens", "lines": 1}]);
    assert_eq!(refused(&log, [&tokens, &all]), ([0, 0], [Value::Null, left_out]));
}

#[test]
fn what_a_limit_on_money_has_cost_has_the_prices_of_the_file() {
    let mut paid = settled(0, 0);
    (paid["cost"], paid["settled"], paid["unit"]) = (json!(10_000), json!(800_000), json!("usd-millionths"));
    let log: String = (0..5).map(|number| line(number * 10, 1, &with_usage(paid.clone(), 20, 30, false))).collect();
    let (same, more) = (money("3.30", "reserve: 0.01"), money("1.70", "reserve: 0.01"));
    assert_eq!(refused(&log, [&same, &more]).0, [0, 2]);
    // Without tokens in the log, the cost is as logged.
    let without: String = (0..5).map(|number| line(number * 10, 1, &paid)).collect();
    assert_eq!(refused(&without, [&same, &more]), ([0, 2], [Value::Null, Value::Null]));
}
