//! Tests the sections of the status page: the last hour, the top refused buckets, events, other gateways.

use serde_json::json;

use super::document::{RULES, document};
use super::page::{at, played_with, shown};
use crate::support::{Gateway, Upstream};

#[test]
fn the_last_hour_is_drawn_as_soon_as_the_page_is_opened() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let hour = json!({
        "end": [3540.0, 3570.0, 3600.0, 3615.0], "seconds": [30.0, 30.0, 30.0, 15.0],
        "requests": [300, 6000, 300, 150], "refused": [30, 0, 0, 15], "errors": [0, 0, 0, 0],
        "decision_p99": [0.001, null, 0.005, 0.001],
        "limits": {"plans/user enforce": [[2700, 0, 0], [300, 30, 0]]},
    });
    let documents = vec![Some(at(&first, 3615.0, 90, 10)), Some(at(&first, 3616.0, 90, 10))];
    let Some(page) = shown(played_with(&gateway, documents, Some(hour), "").address) else { return };
    page.says("Last hour");
    page.says("up to 200/s");
    page.says("up to 10 %");
    page.says("up to 5 ms");
    // The row's line begins where its limit was first asked, and ends now, at the right.
    let (_, row) = page.0.split_once("aria-label=\"up to 100/s\"").expect("a line of the row");
    let path = row.split("d=\"").nth(1).unwrap().split('"').next().unwrap();
    let points: Vec<&str> = path.split(['M', 'L']).skip(1).collect();
    assert_eq!(points, ["352.5 1.0", "355.5 1.0", "358.5 18.8", "360.0 19.0"]);
}

#[test]
fn a_recently_started_gateway_shows_since_when_it_counts() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let Some(page) = shown(gateway.admin) else { return };
    page.says("Last 5 min");
    page.says("the gateway counts them since its start at ");
}

#[test]
fn the_button_next_to_a_bucket_shows_its_command() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let mut first = document(&gateway);
    let command = "tollgate bucket show -c '/etc/a b/gateway.yaml' plans/user --hash 5f3a9c170011aabb";
    let bucket = json!({"bucket": "5f3a9c170011aabb", "policy": "plans", "rule": "user", "at_least": 1640,
        "at_most": 1700, "command": command});
    first["top_refused"] = json!({"seconds": 40.0, "buckets": [bucket], "skipped": 0});
    let press = "<script>setInterval(() => document.querySelector('#top button')?.click(), 500)</script>";
    let Some(page) = shown(played_with(&gateway, vec![Some(first.clone())], None, press).address) else { return };
    page.says("5f3a9c17 plans/user 41/s copy command");
    page.says(&format!(": {command}"));
    first["top_refused"]["buckets"] = json!([]);
    let Some(page) = shown(played_with(&gateway, vec![Some(first)], None, "").address) else { return };
    page.says("no bucket has refused a request");
}

#[test]
fn events_and_gateways_with_another_file_are_shown_as_text() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let mut reported = document(&gateway);
    let now = reported["now"].as_f64().unwrap();
    reported["events"] = json!([
        {"at": now - 65.0, "first": now - 300.0, "times": 3, "weight": "bad", "what": "store is down", "detail": "closed"},
        {"at": now - 7200.0, "first": now - 7200.0, "times": 1, "weight": "plain", "what": "started", "detail": "<b>"},
    ]);
    reported["others"] = json!([{"host": "gw-81", "configuration": "4b17aa00"}, {"host": "", "configuration": "77"}]);
    reported["config"]["hash"] = "9c17a0e2".into();
    let Some(page) = shown(played_with(&gateway, vec![Some(reported)], None, "").address) else { return };
    page.says("store is down: closed (3 times since ");
    page.says(", 1m ago");
    page.says("started: &lt;b&gt;");
    page.says(", 2h 0m ago");
    page.says("OTHER CONFIGURATION: gw-81 runs 4b17aa00, a gateway runs 77 on the same store; this one runs 9c17a0e2");
}

#[test]
fn a_file_without_rules_is_reported_to_limit_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let Some(page) = shown(gateway.admin) else { return };
    page.says("the configuration has no rules: nothing is limited");
    assert_eq!(page.rows().len(), 0);
}
