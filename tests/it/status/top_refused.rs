//! The list of the top refused buckets: their names, and the command for each.

use std::process::Command;

use serde_json::Value;

use super::document::{document, eventually_reported};
use crate::support::{Gateway, Redis, Upstream};

const RULES: &str = "
policies:
  - name: plan
    rules:
      - {name: free, match: {query:plan: free}, limit_keys: [query:user], algorithm_config: {rate: 1/day, burst: 2}}
  - name: several
    match: {query:plan: several}
    rules:
      - {name: two-parts, limit_keys: [query:user], limits: {a: {rate: 9/day}, b: {rate: 1/day}}}
";

fn buckets(document: &Value) -> &[Value] {
    document["top_refused"]["buckets"].as_array().unwrap()
}

/// Runs a command in a shell, with `tollgate` in the path, as an operator would.
fn typed(command: &str) -> (Option<i32>, String) {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tollgate"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh").arg("-c").arg(command).env("PATH", path).current_dir("/").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn the_command_next_to_a_refusing_bucket_shows_that_bucket() {
    let (redis, upstream) = (Redis::start(), Upstream::start());
    for store in [String::new(), redis.patient_store()] {
        let gateway = Gateway::start(&upstream, &format!("{RULES}{store}"));
        let mut client = gateway.client();
        for _ in 0..7 {
            client.get("/?plan=free&user=the-name-of-a-client", &[]);
        }
        for _ in 0..3 {
            client.get("/?plan=several&user=another-client", &[]);
        }
        let reported = eventually_reported(&gateway, "both are reported", |reported| buckets(reported).len() == 2);
        let [first, second] = buckets(&reported) else { panic!("{reported}") };
        assert_eq!((&first["policy"], &first["rule"]), (&"plan".into(), &"free".into()));
        assert_eq!((&first["at_least"], &first["at_most"]), (&5.into(), &5.into()));
        // Only the limit that could not pay, not the one beside it.
        assert_eq!((&second["rule"], &second["at_least"]), (&"two-parts.b".into(), &2.into()));
        let seconds = reported["top_refused"]["seconds"].as_f64().unwrap();
        assert!(seconds > 0.0 && seconds <= reported["uptime"].as_f64().unwrap().min(60.0), "{reported}");
        let text = reported.to_string();
        assert!(!text.contains("the-name-of-a-client") && !text.contains("another-client"), "{text}");
        for (bucket, says) in [(first, "plan/free  1/day burst 2"), (second, "several/two-parts.b  1/day burst 1")] {
            let (code, text) = typed(bucket["command"].as_str().unwrap());
            assert_eq!(code, Some(0), "{bucket}: {text}");
            let name = bucket["bucket"].as_str().unwrap();
            assert_eq!(name.len(), 16);
            assert!(text.starts_with(&format!("{says}  bucket {name}\n  0 left of ")), "{text}");
        }
    }
}

#[test]
fn after_a_reload_no_bucket_is_attributed_to_another_rule() {
    let upstream = Upstream::start();
    let rule = |name: &str| format!("{{name: {name}, limit_keys: [query:user], algorithm_config: {{rate: 1/day}}}}");
    let gateway = Gateway::start(&upstream, &format!("rules: [{}]", rule("one")));
    let mut client = gateway.client();
    for _ in 0..3 {
        client.get("/?user=a", &[]);
    }
    eventually_reported(&gateway, "it is reported", |reported| buckets(reported).len() == 1);
    gateway.reload(&upstream, &format!("rules: [{}]", rule("other")));
    let reported =
        eventually_reported(&gateway, "the other file is reported", |reported| reported["rows"][0]["rule"] == "other");
    assert_eq!(buckets(&reported).len(), 0, "{reported}");
    for _ in 0..2 {
        client.get("/?user=b", &[]);
    }
    let reported = eventually_reported(&gateway, "the new one is reported", |reported| buckets(reported).len() == 1);
    assert_eq!(buckets(&reported)[0]["rule"], "other");
}

#[test]
fn a_flood_of_refused_clients_is_shown_in_ten_lines() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "rules: [{name: one, limit_keys: [query:user], algorithm_config: {rate: 1/day}}]");
    let mut client = gateway.client();
    for user in 0..300 {
        client.get(&format!("/?user={user}"), &[]);
        client.get(&format!("/?user={user}"), &[]);
        client.get("/?user=0", &[]);
    }
    let reported = eventually_reported(&gateway, "the busiest is reported", |reported| {
        buckets(reported).first().is_some_and(|bucket| bucket["at_least"].as_u64().unwrap() >= 301)
    });
    assert_eq!(buckets(&reported).len(), 10);
    assert!(document(&gateway)["decisions"]["refused"].as_u64().unwrap() >= 600);
}
