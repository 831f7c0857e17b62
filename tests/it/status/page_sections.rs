//! The sections of the status page: the last hour, the top refused buckets, events, and other gateways.

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
        "requests": [300, 6000, 300, 150], "refused": [30, 0, 0, 15], "unlimited": [0, 600, 0, 0], "errors": [0, 0, 0, 0],
        "decision_p99": [0.001, null, 0.005, 0.001],
        "limits": {"plans/user enforce": [[2700, 0, 0], [300, 30, 0]]},
    });
    let documents = vec![Some(at(&first, 3615.0, 90, 10)), Some(at(&first, 3616.0, 90, 10))];
    let Some(page) = shown(played_with(&gateway, documents, Some(hour), "").address) else { return };
    page.says("Last hour");
    page.says("up to 200/s");
    page.says("up to 10 %");
    page.says("up to 5 ms");
    // The chart has an axis of each kind, and an area of each outcome.
    page.says("Requests per second by outcome, last hour");
    page.says("Allowed 6\u{202f}105 Without a limit 600 Refused 45");
    page.says("0 50 100 150 200");
    for outcome in ["allowed", "unlimited", "refused"] {
        assert!(page.0.contains(&format!("<path class=\"{outcome}\" d=\"M")), "{outcome}: {}", page.0);
    }
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
    page.says("5f3a9c17 plans/user 41/s Copy command");
    page.says(&format!(": {command}"));
    first["held"] =
        json!([{"bucket": "5f3a9c170011aabb", "policy": "plans", "rule": "user", "requests": 41, "command": command}]);
    let Some(page) = shown(played_with(&gateway, vec![Some(first.clone())], None, "").address) else { return };
    page.says("Buckets with most requests in flight here");
    page.says("5f3a9c17 plans/user 41 in flight Copy command");
    first["held"][0]["amount"] = json!({"held": 12_288.0, "unit": "tokens"});
    let row = first["rows"].as_array_mut().unwrap().iter_mut().find(|row| row["action"] == "charge").unwrap();
    row["budget"] = json!({"unit": "usd", "spent": 4.2, "held": 0.001});
    let Some(page) = shown(played_with(&gateway, vec![Some(first.clone())], None, "").address) else { return };
    page.says("5f3a9c17 plans/user 41 in flight, 12\u{202f}288 tokens held Copy command");
    page.says("; &lt;$0.01 held, $4.20 spent here");
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
    page.says("Other configuration: gw-81 runs 4b17aa00, a gateway runs 77 on the same store; this one runs 9c17a0e2");
}

#[test]
fn a_file_without_rules_is_reported_to_limit_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let Some(page) = shown(gateway.admin) else { return };
    page.says("the configuration has no rules: nothing is limited");
    assert_eq!(page.rows().len(), 0);
}

/// Returns a document with this many requests that a limit has let pass without the store.
fn without_store(document: &serde_json::Value, uptime: f64, passed: u64) -> serde_json::Value {
    let mut document = at(document, uptime, 0, 0);
    let rows = document["rows"].as_array_mut().unwrap();
    let row = rows.iter_mut().find(|row| row["rule"] == "user" && row["mode"] == "enforce").unwrap();
    row["fallback"] = json!({"allow": passed});
    document
}

#[test]
fn limits_that_fall_back_are_listed_while_they_do_with_what_is_done() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let documents =
        [(10.0, 0), (11.0, 40), (12.0, 80)].map(|(uptime, passed)| Some(without_store(&first, uptime, passed)));
    let Some(page) = shown(played_with(&gateway, documents.into(), None, "").address) else { return };
    page.says("Limits decided without the store now plans/user: allow, let pass without a charge 40/s");
    page.says("now without the store: allow 40/s");
    let row = page.rows().into_iter().find(|cells| cells[0] == "plans/user").unwrap();
    assert_eq!(row[2], "40", "what passes is counted: {row:?}");
    // And no longer when the store decides again.
    let documents = [(10.0, 0), (11.0, 40), (17.0, 40), (18.0, 40)]
        .map(|(uptime, passed)| Some(without_store(&first, uptime, passed)));
    let Some(page) = shown(played_with(&gateway, documents.into(), None, "").address) else { return };
    assert!(page.0.contains("id=\"fallback-list\" hidden"), "{}", page.0);
}

#[test]
fn no_number_is_above_the_maximum_next_to_it() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let first = document(&gateway);
    let hour = json!({
        "end": [30.0, 60.0], "seconds": [30.0, 30.0], "requests": [60, 60], "refused": [3, 0], "unlimited": [0, 0],
        "errors": [0, 0], "decision_p99": [0.001, 0.001], "limits": {},
    });
    let documents = vec![Some(at(&first, 60.0, 0, 0)), Some(at(&first, 61.0, 300, 100))];
    let Some(page) = shown(played_with(&gateway, documents, Some(hour), "").address) else { return };
    page.says("Requests/s 400");
    page.says("up to 400/s");
    page.says("Refused 25 %");
    page.says("up to 25 %");
    page.says("Decision p99 ≤ 10 ms rules and store up to 10 ms");
}

#[test]
fn ready_is_not_green_above_anything_red() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let standing = |document: serde_json::Value| {
        let page = shown(played_with(&gateway, vec![Some(document)], None, "").address)?;
        let (_, rest) = page.0.split_once("class=\"word ").unwrap();
        let (kind, rest) = rest.split_once("\" id=\"standing\">").unwrap();
        Some((kind.to_owned(), rest.split('<').next().unwrap().to_owned()))
    };
    let first = document(&gateway);
    let Some(good) = standing(first.clone()) else { return };
    assert_eq!(good, ("good".into(), "Ready".into()));
    let mut broken = first.clone();
    broken["config"]["last_reload_successful"] = false.into();
    let mut ill = first.clone();
    let endpoint = |state: &str| {
        json!({"upstream": "api", "endpoint": "10.0.0.1:80", "state": state, "requests": 0, "failed": 0,
        "finished": 0, "seconds": 0})
    };
    ill["endpoints"] = json!([endpoint("down"), endpoint("available")]);
    for document in [broken, ill] {
        assert_eq!(standing(document).unwrap(), ("bad".into(), "Ready, with problems".into()));
    }
    // What has happened and is over is no problem of now.
    let mut over = first;
    over["events"] =
        json!([{"at": 1.0, "first": 1.0, "times": 1, "weight": "bad", "what": "store is down", "detail": ""}]);
    assert_eq!(standing(over).unwrap(), ("good".into(), "Ready".into()));
}
