//! The door `json`: what is counted, recorded and told of a hold, while it runs and at its end.

use std::time::Duration;

use serde_json::{Value, json};

use super::holds::{RULES, hold, job, settle, stores};
use super::json_door::{config, start, take};
use crate::support::{Gateway, Orphan, RedisCluster, Replicas, eventually, tollgate};

/// Returns the rules, with records of the pages.
fn recorded(store: &str) -> String {
    let rules = RULES.replace("algorithm: fixed_window", "meter: pages\n        algorithm: fixed_window");
    format!(
        "{rules}records: {{to: records.jsonl, every: 1s, meters: [pages], subject: [\"descriptor:tenant\"]}}\n{store}"
    )
}

/// Returns the sum of what a gateway has recorded of a tenant, and of the calls.
fn sums(gateway: &Gateway, tenant: &str) -> (u64, u64) {
    let text = std::fs::read_to_string(gateway.file("records.jsonl")).unwrap_or_default();
    let mut sums = (0, 0);
    // The last line may not be whole yet.
    for data in text.lines().filter_map(|line| Some(serde_json::from_str::<Value>(line).ok()?["data"].take())) {
        if data["subject"] == tenant {
            sums.0 += data["quantity"].as_u64().unwrap();
            sums.1 += data["requests"].as_u64().unwrap();
        }
    }
    sums
}

/// Checks the records of these gateways against the buckets.
fn check(gateways: &[&Gateway]) -> (Option<i32>, String) {
    let files = gateways.iter().map(|gateway| gateway.file("records.jsonl").display().to_string());
    let files: Vec<String> = files.collect();
    let config = gateways[0].file("gateway.yaml").display().to_string();
    let arguments: Vec<&str> = ["records", "check"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let checked = tollgate(&[&arguments[..], &["-c", &config]].concat());
    (checked.code, format!("{}{}", checked.out, checked.err))
}

#[test]
fn what_is_spent_at_the_end_of_a_hold_is_recorded_once_by_the_gateway_that_took_it() {
    let (redis, postgres) = stores();
    let cluster = RedisCluster::start(Replicas::None);
    for store in [redis.patient_store(), postgres.store_with(", timeout: 5s", "deny"), cluster.store("deny", "")] {
        let file = recorded(&store);
        let (one, other) = (start(&file), start(&file));
        let mut client = one.client();
        // One is settled here and one elsewhere; of the third, nobody says what it has cost.
        let settled = [hold(&mut client, "acme", "2s"), hold(&mut client, "acme", "2s")];
        hold(&mut client, "acme", "1s");
        for (gateway, id, cost) in [(&one, &settled[0], 5), (&other, &settled[1], 7)] {
            assert_eq!(settle(&mut gateway.client(), &json!({"hold_id": id, "cost": cost})).status, 200);
        }
        eventually("what is spent is recorded", || sums(&one, "acme") == (25, 2));
        eventually("the other records what was settled there", || sums(&other, "acme") == (7, 1));
        // Before the end of this hold, the first gateway has found that the second one was settled.
        hold(&mut client, "zoo", "2s");
        eventually("the end of a later hold is recorded", || sums(&one, "zoo") == (20, 1));
        assert_eq!((sums(&one, "acme"), sums(&other, "acme")), ((25, 2), (7, 1)));
        let (code, out) = check(&[&one, &other]);
        assert!(code == Some(0) && out.contains("32 spent: equal"), "{out}");
        one.expect("rate_limiter_records_lost_total", &[], 0.0);
    }
}

#[test]
fn what_is_spent_in_memory_at_the_end_of_a_hold_is_recorded() {
    let gateway = start(&recorded(""));
    let mut client = gateway.client();
    hold(&mut client, "acme", "1s");
    let id = hold(&mut client, "zoo", "1s");
    assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 0})).status, 200);
    eventually("what is spent is recorded", || sums(&gateway, "acme") == (20, 1));
    assert_eq!(sums(&gateway, "zoo"), (0, 0));
}

/// The next process has its own copy of the buckets in memory, so the previous one does not know what was settled there.
#[test]
fn a_hold_in_memory_that_the_next_process_settles_is_not_recorded_again_by_the_previous_one() {
    let mut gateway = start(&recorded(""));
    let id = hold(&mut gateway.client(), "acme", "6s");
    // A call whose body is not complete keeps the previous process.
    let mut open = gateway.client();
    open.write("POST /take HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
    gateway.signal("USR2");
    let _next = Orphan::of(&gateway, 1);
    assert_eq!(settle(&mut gateway.client(), &json!({"hold_id": id, "cost": 5})).status, 200);
    eventually("what is settled is recorded", || sums(&gateway, "acme") == (5, 1));
    // What has become of the hold is not known there.
    gateway.expect_logged("records lost");
    assert_eq!(sums(&gateway, "acme"), (5, 1));
    drop(open);
    assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
    assert_eq!(sums(&gateway, "acme"), (5, 1));
}

#[test]
fn what_is_settled_after_a_reload_is_recorded_under_the_attribute_of_the_take() {
    let file = |subjects: &str| recorded("").replace("[\"descriptor:tenant\"]}", &format!("[{subjects}]}}"));
    let gateway = start(&file("\"descriptor:kind\", \"descriptor:tenant\""));
    let mut client = gateway.client();
    let [swapped, removed] = [0; 2].map(|_| hold(&mut client, "acme", "1h"));
    gateway.reload_text(&config("", &file("\"descriptor:tenant\", \"descriptor:kind\"")));
    let settled = settle(&mut gateway.client(), &json!({"hold_id": swapped, "cost": 5}));
    assert_eq!(settled.status, 200, "{settled:?}");
    gateway.reload_text(&config("", &file("\"descriptor:tenant\"")));
    let settled = settle(&mut gateway.client(), &json!({"hold_id": removed, "cost": 7}));
    assert_eq!(settled.status, 200, "{settled:?}");
    let named = |(from, subject): (Value, Value)| {
        let text = std::fs::read_to_string(gateway.file("records.jsonl")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let data = lines.map(|mut line| line["data"].take());
        let of = data.filter(|data| data["subject_from"] == from && data["subject"] == subject);
        of.map(|data| data["quantity"].as_u64().unwrap()).sum::<u64>()
    };
    eventually("both are recorded", || named((json!("descriptor:kind"), json!("job"))) == 5);
    eventually("without the attribute it has no subject", || named((Value::Null, Value::Null)) == 7);
}

#[test]
fn the_end_of_a_hold_is_recorded_after_an_outage_of_the_store() {
    let (redis, _) = stores();
    let store = redis.patient_store().replace("timeout: 10s", "timeout: 300ms");
    let gateway = start(&recorded(&store));
    hold(&mut gateway.client(), "acme", "1s");
    redis.signal("STOP");
    std::thread::sleep(Duration::from_secs(3));
    redis.signal("CONT");
    eventually("what is spent is recorded", || sums(&gateway, "acme") == (20, 1));
}

#[test]
fn what_a_hold_holds_is_counted_until_it_is_settled_or_ends() {
    let (redis, postgres) = stores();
    for store in [String::new(), redis.patient_store(), postgres.store_with(", timeout: 5s", "deny")] {
        let file = format!("{RULES}{store}");
        let gateway = start(&file);
        let counted = |slots: f64, pages: f64| {
            gateway.expect("rate_limiter_in_flight", &["rule=\"running\""], slots);
            gateway.expect("rate_limiter_held", &["rule=\"month\""], pages);
        };
        counted(0.0, 0.0);
        let mut client = gateway.client();
        let settled = hold(&mut client, "acme", "1h");
        hold(&mut client, "acme", "1s");
        let elsewhere = hold(&mut client, "zoo", "2s");
        counted(3.0, 60.0);
        for _ in 0..2 {
            assert_eq!(settle(&mut client, &json!({"hold_id": settled, "cost": 1})).status, 200);
        }
        if !store.is_empty() {
            let other = start(&file);
            assert_eq!(settle(&mut other.client(), &json!({"hold_id": elsewhere, "cost": 1})).status, 200);
            other.expect("rate_limiter_in_flight", &["rule=\"running\""], 0.0);
        }
        // A refused take holds nothing.
        assert_eq!(take(&mut client, &job("acme", 4, "1h")).status, 429);
        eventually("all have ended", || {
            let held = |name, rule| gateway.metric(name, &[rule]);
            held("rate_limiter_in_flight", "rule=\"running\"") == 0.0
                && held("rate_limiter_held", "rule=\"month\"") == 0.0
        });
    }
}

#[test]
fn a_reset_says_what_is_left_and_what_is_held() {
    let (redis, postgres) = stores();
    for store in [String::new(), redis.patient_store(), postgres.store_with(", timeout: 5s", "deny")] {
        let gateway = start(&format!("{RULES}{store}"));
        let mut client = gateway.client();
        let id = hold(&mut client, "acme", "1h");
        assert_eq!(settle(&mut client, &json!({"hold_id": id, "cost": 30})).status, 200);
        hold(&mut client, "acme", "1h");
        let place = match store.is_empty() {
            true => ["--admin".to_owned(), gateway.admin.to_string()],
            false => ["-c".to_owned(), gateway.file("gateway.yaml").display().to_string()],
        };
        let reset = |json: &[&str]| {
            let arguments = ["bucket", "reset", "month", "descriptor:tenant=acme", &place[0], &place[1]];
            let output = tollgate(&[&arguments[..], json].concat());
            assert_eq!(output.code, Some(0), "{output:?}");
            output
        };
        let output = reset(&[]);
        let (text, log) = (&output.out, &output.err);
        assert!(text.contains("80 left of 100 now, 20 held; had 50\nnothing is spent from now on, in "), "{text}");
        assert!(!text.contains("full from now on"), "{text}");
        assert!(store.is_empty() || log.contains("had=50 left=80"), "{log}");
        let found = reset(&["--json"]).json()["buckets"][0].clone();
        assert_eq!(json!([found["left"], found["left_after"], found["held_after"]]), json!([80, 80, 20]), "{found}");
    }
}

#[test]
fn explain_shows_what_a_hold_would_hold() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    let pool = "  - {name: pool, match: {descriptor:kind: job}, rules: [{name: pool, limit_keys: [], algorithm: concurrency, \
                algorithm_config: {limit: 9, max_hold: 10s}}]}\n";
    std::fs::write(&file, config("", RULES)).unwrap();
    let explain = |arguments: &[&str]| {
        let sent = ["--descriptor", "kind=job", "--descriptor", "tenant=acme"];
        tollgate(&[&["explain", "-c", file.to_str().unwrap()], &sent[..], arguments].concat())
    };
    let plain = explain(&[]).out;
    assert_eq!(plain.matches("no charge: the call has no `hold_for`").count(), 2, "{plain}");
    let held = explain(&["--hold-for", "30s"]).out;
    for part in [
        "in no domain, held for 30s\n",
        "cost 1   3 at once; held for 30s, then free",
        "cost 20  100/366d",
        "; held for 30s, then spent",
        "PASSES if running holds 1",
    ] {
        assert!(held.contains(part), "{part} is not in {held}");
    }
    // The shortest `max_hold` ends the whole hold.
    std::fs::write(&file, config("", &format!("{RULES}{pool}"))).unwrap();
    let found = explain(&["--hold-for", "30s", "--json"]).json();
    let charges: Vec<&Value> = found["policies"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|policy| policy["rules"][0]["charges"].as_array().unwrap())
        .collect();
    let told: Vec<Value> = charges.iter().map(|charge| json!([charge["limit"], charge["held"]])).collect();
    assert_eq!(
        told,
        [
            json!(["running", "held for 10s, then free"]),
            json!(["month", "held for 10s, then spent"]),
            json!(["starts", null]),
            json!(["pool", "held for 10s, then free"]),
        ]
    );
    // What the gateway would refuse.
    for (text, fault) in [
        (config("", RULES).replace("hash_key: 0123456789abcdef\n", ""), "`hold_for` needs `hash_key`"),
        (config("", RULES).replace("[json]", "[rls]"), "only a listener with `decide: [json]` holds"),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = explain(&["--hold-for", "30s"]);
        assert!(refused.code != Some(0) && refused.err.contains(fault), "{refused:?}");
    }
    assert_eq!(explain(&["--hold-for", "2h"]).code, Some(2));
}
