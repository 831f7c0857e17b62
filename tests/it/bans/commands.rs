//! Bans in `check`, `explain` and `bucket`.

use super::{guess, limit, reason, send, upstream};
use crate::support::{Gateway, Redis, tollgate};

fn run(gateway: &Gateway, arguments: &[&str]) -> String {
    let file = gateway.file("gateway.yaml");
    let mut all = arguments.to_vec();
    all.extend(["-c", file.to_str().unwrap()]);
    let output = tollgate(&all);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    output.out
}

#[test]
fn a_check_against_the_old_file_names_a_ban_that_was_added_or_removed() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, rules: &str| {
        let path = folder.path().join(name).display().to_string();
        std::fs::write(&path, format!("upstream: http://127.0.0.1:9000{rules}\n")).unwrap();
        path
    };
    let with = written("with.yaml", &limit("for: [15m]"));
    let without = written("without.yaml", limit("for: [15m]").split("    ban:").next().unwrap());
    let longer = written("longer.yaml", &limit("for: [15m, 1h]"));
    let changes = |old: &str, new: &str| tollgate(&["check", "--against", old, new]).out;
    let reset = "buckets reset: policy default, limit guesses: it has";
    assert_eq!(changes(&without, &with), format!("{reset} a ban now\nok\n"));
    assert_eq!(changes(&with, &without), format!("{reset} no ban any more\nok\n"));
    let kept = changes(&with, &longer);
    assert!(kept.starts_with("buckets kept: policy default, limit guesses: was 3/366d; ban 15m; "), "{kept}");
}

#[test]
fn a_replay_bans_by_the_time_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.yaml").display().to_string();
    let rules = "upstream: http://127.0.0.1:9000
rules:
  - name: pages
    limit_keys: [ip:address]
    algorithm: fixed_window
    algorithm_config: {limit: 2, window: 1h, count_on: [404]}
    ban: {for: [10m, 1h], forget_after: 1d}
";
    std::fs::write(&file, rules).unwrap();
    let log = folder.path().join("access.log").display().to_string();
    // One address asks for pages that are not there, every minute of an hour. Another one asks for pages that are.
    let mut lines = String::new();
    for minute in 0..60 {
        for (address, status) in [("192.0.2.7", 404), ("192.0.2.8", 200)] {
            let time = format!("21/Nov/2026:12:{minute:02}:00 +0000");
            lines += &format!("{address} - - [{time}] \"GET /a HTTP/1.1\" {status} 5 \"-\" \"-\"\n");
        }
    }
    std::fs::write(&log, lines).unwrap();
    let report = tollgate(&["replay", "-c", &file, &log]).out;
    assert!(report.contains("banned  default/pages: 1 key with 1 ban\n"), "{report}");
    assert!(!report.contains("leaves out"), "{report}");
    // Two are counted, the third begins the ban, and the window goes on after it.
    let json = tollgate(&["replay", "-c", &file, "--json", &log]).json();
    assert_eq!(json["files"][0]["bans"], serde_json::json!([{"name": "default/pages", "bans": 1, "keys": 1}]));
    assert_eq!(json["files"][0]["refused"], 58);
}

#[test]
fn a_replay_forgets_what_was_spent_after_a_result_that_resets() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, file) = (path("access.log"), path("gateway.yaml"));
    // Two wrong passwords and a right one, again and again.
    let line = |minute: usize| {
        let status = if minute % 3 == 2 { 200 } else { 401 };
        format!("192.0.2.7 - - [21/Nov/2026:12:{minute:02}:00 +0000] \"GET /a HTTP/1.1\" {status} 5 \"-\" \"-\"\n")
    };
    std::fs::write(&log, (0..30).map(line).collect::<String>()).unwrap();
    let refused = |keys: &str| {
        let rules = format!(
            "upstream: http://127.0.0.1:9000
rules:
  - name: guesses
    limit_keys: [ip:address]
    algorithm: fixed_window
    algorithm_config: {{limit: 3, window: 366d, {keys}}}
    ban: {{for: [1h]}}
"
        );
        std::fs::write(&file, rules).unwrap();
        tollgate(&["replay", "-c", &file, "--json", &log]).json()["files"][0]["refused"].as_u64().unwrap()
    };
    assert_eq!([refused("count_on: [401], reset_on: [2xx]"), refused("count_on: [401]")], [0, 26]);
}

#[test]
fn the_commands_show_a_ban_and_a_reset_lifts_it() {
    let (upstream, redis) = (upstream(), Redis::start());
    let config = redis.patient_store() + &limit("for: [15m, 1h], forget_after: 7d");
    let gateway = Gateway::start(&upstream, &config);
    let explain = ["explain", "-H", "X-User: ann", "http://a/login"];
    let explained = run(&gateway, &explain);
    assert!(explained.contains("ban 15m, 1h; forgotten after 7d"), "{explained}");
    guess(&gateway, "ann");
    let live = [&explain[..], &["--live"]].concat();
    let explained = run(&gateway, &live);
    assert!(explained.contains("the request would begin ban 1, for 900s"), "{explained}");
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    let explained = run(&gateway, &live);
    assert!(explained.contains("REFUSED 429 banned by guesses: ban 1 ends in "), "{explained}");
    let shown = run(&gateway, &["bucket", "show", "guesses", "header:x-user=ann"]);
    assert!(shown.contains("    banned until ") && shown.contains("s, by ban 1\n"), "{shown}");
    let shown = run(&gateway, &["bucket", "show", "guesses", "header:x-user=ann", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(document["buckets"][0]["ban_step"], serde_json::json!(1));
    assert!(document["buckets"][0]["banned_until"].is_string(), "{shown}");
    run(&gateway, &["bucket", "reset", "guesses", "header:x-user=ann"]);
    crate::support::eventually("the ban is lifted", || send(&gateway, "ann", 200).status == 200);
}
