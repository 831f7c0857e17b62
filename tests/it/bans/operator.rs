//! An operator bans buckets and lists those that are banned, in memory, Redis, a cluster and PostgreSQL.

use std::time::Duration;

use serde_json::json;

use super::{limit, reason, send, upstream};
use crate::support::bucket_command::{bucket, document, says};
use crate::support::{Client, Gateway, Postgres, Redis, RedisCluster, Replicas, eventually, tollgate};

/// Plays bans by hand with two rules that have bans. `other` shares the store; `None` for buckets in memory.
fn play(one: &Gateway, other: Option<&Gateway>) {
    let gateways: Vec<&Gateway> = [Some(one), other].into_iter().flatten().collect();
    let (ann, bob) = ("header:x-user=ann", "header:x-user=bob");
    let listed = || document(one, &["list", "guesses", "--banned"]);
    says(one, &["list", "guesses", "--banned"], 0, "no bucket of default/guesses is banned\n");
    // A bucket that is not stored.
    let banned = document(one, &["ban", "guesses", ann, "--for", "24h"]);
    assert_eq!((&banned["act"], &banned["buckets"][0]["ban_step"]), (&json!("ban"), &json!(1)));
    for gateway in &gateways {
        let refused = send(gateway, "ann", 200);
        assert_eq!((refused.status, reason(&refused).as_deref()), (429, Some("banned")));
        let wait = refused.number("retry-after");
        assert!((86_000..=86_400).contains(&wait), "{wait}");
        assert_eq!(send(gateway, "bob", 200).status, 200);
    }
    // The next ban replaces the one that runs, everywhere within a second.
    says(one, &["ban", "guesses", ann, "--for", "2h"], 0, "s, by ban 1\nbanned from now on, in ");
    std::thread::sleep(Duration::from_millis(1_050));
    for gateway in &gateways {
        let wait = send(gateway, "ann", 200).number("retry-after");
        assert!((7_000..=7_200).contains(&wait), "{wait}");
    }
    // By the name in the access log, of a bucket that is stored.
    assert_eq!(send(one, "bob", 401).status, 401);
    let shown = || document(one, &["show", "guesses", bob])["buckets"][0].clone();
    eventually("the answer is counted", || shown()["spent"] == 1);
    let hash = shown()["bucket"].as_str().unwrap().to_owned();
    says(one, &["ban", "pages", "--hash", &hash, "--for", "1h"], 1, &format!("bucket {hash} is not one of pages"));
    says(one, &["ban", "guesses", "--hash", &hash, "--for", "30d"], 0, "\n    banned until ");
    for gateway in &gateways {
        assert_eq!(reason(&send(gateway, "bob", 200)).as_deref(), Some("banned"));
    }
    assert_eq!((shown()["spent"].clone(), shown()["ban_step"].clone()), (json!(1), json!(1)));
    // The list begins with the ban that ends last, and has none of another limit.
    says(one, &["ban", "pages", "header:x-user=eve", "--for", "3h"], 0, "banned from now on");
    let list = listed();
    let names: Vec<&str> =
        list["buckets"].as_array().unwrap().iter().map(|ban| ban["bucket"].as_str().unwrap()).collect();
    assert_eq!(names, [&*hash, banned["buckets"][0]["bucket"].as_str().unwrap()], "{list}");
    assert_eq!(list["buckets"][0]["banned_until"], shown()["banned_until"]);
    assert_eq!((&list["act"], &list["limit"], &list["complete"]), (&json!("list"), &json!("guesses"), &json!(true)));
    assert!(list["visited"].as_u64() >= Some(3), "{list}");
    let text = bucket(one, &["list", "default/guesses", "--banned"]).out;
    assert!(text.starts_with("2 buckets of default/guesses are banned\n"), "{text}");
    assert!(text.contains(&format!("\n  bucket {hash}  banned until ")) && text.contains("s, by ban 1\n"), "{text}");
    assert!(text.contains(" buckets of all limits\n"), "{text}");
    let pages = document(one, &["list", "pages", "--banned"]);
    assert_eq!(pages["buckets"].as_array().unwrap().len(), 1, "{pages}");
    // A gateway answers without a file as well.
    let admin =
        tollgate(&["bucket", "list", "guesses", "--banned", "--json", "--admin", &one.admin.to_string()]).json();
    assert_eq!(admin["buckets"], list["buckets"]);
    says(one, &["reset", "guesses", ann], 0, "would have ended in ");
    eventually("the ban is lifted", || gateways.iter().all(|gateway| send(gateway, "ann", 200).status == 200));
    assert_eq!(listed()["buckets"].as_array().unwrap().len(), 1);
}

fn rules(store: &str) -> String {
    let pages = "
  - name: pages
    limit_keys: [header:x-user]
    match: {path: /pages}
    algorithm: fixed_window
    algorithm_config: {limit: 3, window: 366d, count_on: [401]}
    ban: {for: [1h]}";
    let first = limit("for: [15m, 1h]").replace("limit_keys", "match: {path: /login}\n    limit_keys");
    format!("{store}\ncheck: {{allow: [forgotten_period]}}{first}{pages}\n")
}

/// More rules: without a ban, and with several.
const OTHERS: &str =
    "  - {name: plain, limit_keys: [header:x-user], match: {path: /plain}, algorithm_config: {rate: 5/min}}
  - name: two
    limit_keys: [header:x-user]
    match: {path: /two}
    limits: {hour: {rate: 5/h, ban: {for: [1h]}}, day: {rate: 100/d, ban: {for: [1d]}}, year: {rate: 1000/d}}";

#[test]
fn an_operator_bans_in_memory() {
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, &rules(""));
    play(&gateway, None);
    gateway.expect_logged("buckets were banned by an operator");
}

#[test]
fn an_operator_bans_in_redis() {
    let (upstream, redis) = (upstream(), Redis::start());
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &rules(&redis.patient_store())));
    play(&gateways[0], Some(&gateways[1]));
    let logged = bucket(&gateways[0], &["ban", "guesses", "header:x-user=secret-user", "--for", "1h"]).err;
    assert!(
        logged.contains(" INFO bucket banned by an operator user=") && logged.contains(" seconds=3600 "),
        "{logged}"
    );
    assert!(!logged.contains("secret"), "{logged}");
}

#[test]
fn an_operator_bans_in_a_cluster() {
    let (upstream, cluster) = (upstream(), RedisCluster::start(Replicas::None));
    let gateway = Gateway::start(&upstream, &rules(&cluster.store("deny", "")));
    play(&gateway, None);
}

#[test]
fn an_operator_bans_in_postgresql() {
    let (upstream, postgres) = (upstream(), Postgres::start());
    postgres.settings();
    let store = postgres.store_with(", timeout: 10s", "deny") + "\n";
    let gateways = [(); 2].map(|()| Gateway::start(&upstream, &rules(&store)));
    play(&gateways[0], Some(&gateways[1]));
}

#[test]
fn a_ban_by_hand_needs_a_limit_with_bans_and_a_length() {
    let (upstream, ann) = (upstream(), "header:x-user=ann");
    let gateway = Gateway::start(&upstream, &(rules("") + OTHERS));
    let none = "plain has no `ban`: only a limit with `ban` can ban its clients";
    says(&gateway, &["ban", "plain", ann, "--for", "1h"], 1, none);
    says(&gateway, &["list", "plain", "--banned"], 1, none);
    let several = "several limits of two have a `ban`: name one of two.day, two.hour";
    says(&gateway, &["ban", "two", ann, "--for", "1h"], 1, several);
    says(&gateway, &["list", "two", "--banned"], 1, "several limits of two have a `ban`: name one of ");
    says(&gateway, &["ban", "two.year", ann, "--for", "1h"], 1, "two.year has no `ban`");
    says(&gateway, &["ban", "two.day", ann, "--for", "1h"], 0, "banned from now on, in the gateway at ");
    says(&gateway, &["list", "two.day", "--banned"], 0, "1 bucket of default/two.day is banned\n");
    says(&gateway, &["list", "two.hour", "--banned"], 0, "no bucket of default/two.hour is banned\n");
    for length in ["500ms", "367d", "1", "forever"] {
        says(&gateway, &["ban", "guesses", ann, "--for", length], 2, "must be a duration from 1s to 366d");
    }
    says(&gateway, &["ban", "guesses", ann], 2, "--for <DURATION>");
    says(&gateway, &["ban", "--hash", "0c2a66c5", "--for", "1h"], 2, "RULE: missing; a ban needs it beside --hash");
    says(&gateway, &["ban", "guesses", "--hash", "0c2a66c5", "--for", "1h"], 1, "no bucket is called 0c2a66c5");
    says(&gateway, &["list", "guesses"], 1, "no meter of guesses is in `records`");
    says(&gateway, &["list", "no-rule", "--banned"], 1, "no rule is called \"no-rule\"");
}

#[test]
fn no_foreign_page_can_ban() {
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, &rules(""));
    let query = json!({"act": {"ban": 3_600_000_000_u64}, "rule": "guesses", "keys": ["header:x-user=ann"], "hash": null,
        "issuer": null, "user": "eve", "gateway": "g"});
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, query.to_string());
    let host = gateway.admin.to_string();
    let ask = |method: &str, fields: &[(&str, &str)]| {
        let query = [("Tollgate-Bucket", &*encoded)];
        Client::connect(gateway.admin).send(method, "/buckets", &[&query, fields].concat(), "").status
    };
    for (method, fields) in [
        ("PATCH", &[("Host", &*host)][..]),
        ("PATCH", &[("Host", &*host), ("Tollgate-Operator", "grant")]),
        ("GET", &[("Host", &*host), ("Tollgate-Operator", "ban")]),
        ("DELETE", &[("Host", &*host), ("Tollgate-Operator", "reset")]),
        ("PATCH", &[("Host", "evil.example"), ("Tollgate-Operator", "ban")]),
    ] {
        assert_eq!(ask(method, fields), 403, "{method} {fields:?}");
    }
    assert_eq!(send(&gateway, "ann", 200).status, 200);
    assert_eq!(ask("PATCH", &[("Host", &host), ("Tollgate-Operator", "ban")]), 200);
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
}
