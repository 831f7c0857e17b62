//! Runs the status page in a script engine, and checks the text that it shows.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::document::{BROWSER, RULES, ask, document, eventually_reported};
use crate::support::browser::rendered;
use crate::support::{Gateway, Upstream};

/// Returns the page after five seconds of the browser's clock. `None` without a browser.
pub fn shown(address: SocketAddr) -> Option<RenderedPage> {
    rendered("the status page", &format!("http://{address}/")).map(RenderedPage)
}

pub struct RenderedPage(pub String);

impl RenderedPage {
    /// Returns the cells of each rule.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let (_, body) = self.0.split_once("<tbody").unwrap();
        let rows = body.split("</tbody>").next().unwrap().split("<tr").skip(1);
        rows.map(|row| row.split("<td").skip(1).map(|cell| text(&format!("<td{cell}"))).collect()).collect()
    }

    #[track_caller]
    fn row(&self, rule: &str) -> Vec<String> {
        let row = self.rows().into_iter().find(|cells| cells[0] == rule);
        row.unwrap_or_else(|| panic!("no {rule} in {:?}", self.rows()))
    }

    #[track_caller]
    pub fn says(&self, what: &str) {
        assert!(text(&self.0).contains(what), "no {what} in {}", self.0);
    }

    fn is_silent(&self) -> bool {
        !self.0.contains("id=\"silence\" role=\"alert\" hidden")
    }
}

/// Returns the text of a page without its elements. A space separates the texts of two elements, but not the parts of a name.
fn text(markup: &str) -> String {
    let markup = markup.replace("</span><wbr><span class=\"part\">", "");
    let pieces = markup.split('<').filter_map(|piece| piece.split_once('>')).map(|(_, text)| text.trim());
    pieces.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Serves a gateway's page, and these documents one after the other. The last one is repeated. `None` stands for a 503
/// response.
fn played(gateway: &Gateway, documents: Vec<Option<Value>>) -> Upstream {
    played_with(gateway, documents, None, "")
}

/// Serves a gateway's page like `played`, with this last hour, and a script after the page that acts like its reader.
pub fn played_with(gateway: &Gateway, documents: Vec<Option<Value>>, hour: Option<Value>, acts: &str) -> Upstream {
    let page = ask(gateway, "/", &[BROWSER]);
    let policy = page.field("content-security-policy").unwrap();
    // What acts is no part of the page, so the page's policy would keep it from doing so.
    let policy = if acts.is_empty() { policy } else { policy.replace("script-src ", "script-src 'unsafe-inline' ;") };
    let body = format!("{}{acts}", page.body);
    let requests = AtomicUsize::new(0);
    Upstream::answering(move |seen, stream| {
        let next = || &documents[requests.fetch_add(1, Ordering::Relaxed).min(documents.len() - 1)];
        let (code, kind, body) = match seen.line.split(' ').nth(1) {
            Some("/") => ("200 OK", "text/html; charset=utf-8", body.clone()),
            Some("/history.json") if hour.is_some() => {
                ("200 OK", "application/json", hour.as_ref().unwrap().to_string())
            }
            Some("/status.json") => match next() {
                Some(document) => ("200 OK", "application/json", document.to_string()),
                None => ("503 Service Unavailable", "text/plain", String::new()),
            },
            _ => ("404 Not Found", "text/plain", String::new()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}");
        let _ = write!(stream, "{head}\r\nContent-Security-Policy: {policy}\r\n\r\n{body}");
    })
}

/// Returns a document at this time since the start, with these counts of plans/user.
pub fn at(document: &Value, uptime: f64, allowed: u64, refused: u64) -> Value {
    let mut document = document.clone();
    document["uptime"] = uptime.into();
    let rows = document["rows"].as_array_mut().unwrap();
    let row = rows.iter_mut().find(|row| row["rule"] == "user" && row["mode"] == "enforce").unwrap();
    row["asked"] = (allowed + refused).into();
    row["allowed"] = allowed.into();
    row["refused"] = refused.into();
    document["decisions"] = json!({"allowed": allowed, "refused": refused, "exempt": 0, "unlimited": 0});
    document["decision_seconds"] = json!({"bounds": [0.001, 0.01], "counts": [0, allowed, allowed]});
    document
}

#[test]
fn every_rule_has_a_row() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let Some(page) = shown(gateway.admin) else { return };
    let rules: Vec<_> = page.rows().into_iter().map(|cells| cells[0].clone()).collect();
    assert_eq!(
        rules,
        [
            "block/partner Deny",
            "block/probes Allow",
            "plans/user",
            "plans/user Shadow",
            "plans/several.s",
            "plans/several.d",
            "next/trial Shadow"
        ]
    );
    page.says("Ready");
    page.says("memory: up");
    assert!(page.0.contains("class=\"word good\" id=\"standing\""), "{}", page.0);
    assert!(!page.is_silent());
}

#[test]
fn a_quota_tells_when_it_ends_and_in_which_zone() {
    let upstream = Upstream::start();
    let month = "{limit: 5, window: month, timezone: Asia/Kathmandu}";
    let short = "{algorithm: fixed_window, limit: 9, window: 1s}";
    let log = "{algorithm: sliding_log, limit: 5, window: 1d}";
    let sliding = "{algorithm: sliding_window, limit: 9, window: 15m}";
    let rolling = "{algorithm: fixed_window, limit: 9, window: 1d, anchor: first_request}";
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "rules:\n  - name: quota\n    limit_keys: [query:user]\n    algorithm: fixed_window\n    limits: \
             {{month: {month}, short: {short}, rolling: {rolling}, log: {log}, sliding: {sliding}}}"
        ),
    );
    let reported = document(&gateway);
    let end = reported["rows"][0]["ends"].as_str().unwrap();
    assert!(end.ends_with("-01T00:00:00+05:45"), "{reported}");
    // One ends at once, the others with every client.
    assert!((1..5).all(|row| reported["rows"][row].get("ends").is_none()), "{reported}");
    let Some(page) = shown(gateway.admin) else { return };
    assert_eq!(page.row("default/quota.month")[1], format!("5/month Asia/Kathmandu until {end} by query:user"));
    assert_eq!(page.row("default/quota.short")[1], "9/1s by query:user");
    assert_eq!(page.row("default/quota.log")[1], "5 in any 1d by query:user");
    assert_eq!(page.row("default/quota.sliding")[1], "9 in any 15m, in 10 steps by query:user");
}

#[test]
fn requests_that_wait_are_counted_where_a_limit_has_a_queue() {
    let upstream = Upstream::start();
    let line = "algorithm: leaky_bucket, algorithm_config: {rate: 1/min, queue: 2, max_wait: 3m}";
    let gateway = Gateway::start(&upstream, &format!("rules: [{{name: line, limit_keys: [query:user], {line}}}]"));
    assert_eq!(document(&gateway)["waiting"], json!(0.0));
    assert_eq!(gateway.client().get("/?user=a", &[]).status, 200);
    let mut client = gateway.client();
    client.write("GET /?user=a HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually_reported(&gateway, "it waits", |document| document["waiting"] == json!(1.0));
    assert_eq!(document(&Gateway::start(&upstream, RULES))["waiting"], Value::Null);
    let Some(page) = shown(gateway.admin) else { return };
    assert_eq!(page.row("default/line")[1], "1/min queue 2 max_wait 3m by query:user");
    page.says("requests in queues");
}

#[test]
fn rates_are_computed_from_two_documents() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let line = first["rows"][2]["line"].to_string();
    let played = played(&gateway, vec![Some(at(&first, 10.0, 90, 10)), Some(at(&first, 12.0, 390, 110))]);
    let Some(page) = shown(played.address) else { return };
    let row = page.row("plans/user");
    assert_eq!(row[1..], ["2/day burst 2 by query:user", "150", "50", "0", "", &format!(":{line}")]);
    page.says("Requests/s 200");
    page.says("Refused 25 % 50/s");
    page.says("Decision p99 ≤ 10 ms");
    // With one document there is nothing to reckon with.
    let alone = self::played(&gateway, vec![Some(at(&first, 10.0, 90, 10))]);
    let Some(page) = shown(alone.address) else { return };
    assert_eq!(page.row("plans/user")[2..5], ["–", "–", "–"]);
}

#[test]
fn a_restart_is_shown_and_no_rate_is_negative() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let mut restarted = first.clone();
    restarted["started"] = (first["started"].as_f64().unwrap() + 100.0).into();
    let documents =
        [at(&first, 98.0, 800, 0), at(&first, 99.0, 900, 0), at(&restarted, 1.0, 10, 0), at(&restarted, 2.0, 30, 0)];
    let played = played(&gateway, documents.map(Some).into());
    let Some(page) = shown(played.address) else { return };
    assert_eq!(page.row("plans/user")[2], "20");
    page.says("Restarted at ");
}

#[test]
fn a_gateway_that_no_longer_answers_is_named_above_its_last_numbers() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let documents = vec![Some(at(&first, 10.0, 0, 0)), Some(at(&first, 11.0, 70, 0)), None];
    let Some(page) = shown(played(&gateway, documents).address) else { return };
    assert!(page.is_silent());
    page.says("No answer from the gateway (it answers 503). The numbers below are from ");
    assert_eq!(page.row("plans/user")[2], "70");
    // And one that answers again is not.
    let documents = vec![Some(at(&first, 10.0, 0, 0)), None, Some(at(&first, 12.0, 70, 0))];
    let Some(page) = shown(played(&gateway, documents).address) else { return };
    assert!(!page.is_silent());
}

#[test]
fn warnings_are_shown_as_text() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let mut bad = document(&gateway);
    bad["status"] = "draining".into();
    bad["config"]["last_reload_successful"] = false.into();
    bad["store"] = json!({"kind": "redis", "up": false, "meanwhile": "2 limits answer 503", "breaker_open": true, "may_evict": true, "gateways": 2, "calls": 0, "errors": 0,
        "call_seconds": {"bounds": [], "counts": []}, "without": 7, "buckets": 0, "evicted": 0});
    bad["issuers"] = json!([{"issuer": "https://issuer.example/<b>", "fetched": null}]);
    bad["rows"][0]["until"] = 1.into();
    bad["warnings"] = json!([{"name": "open_policy", "path": "policies[1]", "line": 9}]);
    bad["warnings_left_out"] = 3.into();
    let Some(page) = shown(played(&gateway, vec![Some(bad)]).address) else { return };
    for words in [
        "Draining: /readyz answers 503",
        "Invalid file",
        "Store redis is down. Meanwhile 2 limits answer 503",
        "The store may evict",
        "Breaker open",
        "No keys of https://issuer.example/&lt;b&gt;",
        "Live gateways 2",
        "open_policy at policies[1] :9 3 more",
    ] {
        page.says(words);
    }
    assert_eq!(page.row("block/partner Expired, Deny")[1], "no longer applies");
}

#[test]
fn of_a_thousand_rules_the_busiest_hundred_are_drawn() {
    let upstream = Upstream::start();
    let rule = |number| {
        format!(
            "\n  - {{name: r{number}, match: {{path: /{number}}}, limit_keys: [], algorithm_config: {{rate: 1/s}}}}"
        )
    };
    let gateway = Gateway::start(&upstream, &format!("rules:{}", (0..1000).map(rule).collect::<String>()));
    gateway.client().get("/987", &[]);
    let Some(page) = shown(gateway.admin) else { return };
    let rows = page.rows();
    assert_eq!(rows.len(), 100);
    assert!(rows.iter().any(|cells| cells[0].ends_with("/r987")), "{rows:?}");
    page.says("the busiest 100 of 1\u{202f}000");
}
