//! The door `json`: what a service takes, the answers, and calls that are repeated.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Client, Gateway, Redis, Response, access_log, eventually, tollgate};

pub const JSON: (&str, &str) = ("Content-Type", "application/json");

const RULES: &str = r#"
policies:
  - name: mail
    match: {descriptor:domain: mail}
    rules:
      - {name: blocked, match: {descriptor:user: banned}, action: deny}
      - name: users
        # The library of this test writes the names of an object in alphabetical order.
        match: {descriptor:entries: kind/user, door: json}
        limit_keys: ["descriptor:user"]
        algorithm: fixed_window
        algorithm_config: {limit: 5, window: 365d}
      - name: tenants
        match: {descriptor:entries: tenant}
        limit_keys: ["descriptor:tenant"]
        limits:
          day: {algorithm: fixed_window, limit: 100, window: day}
          burst: {rps: 0.001, burst: 3}
  - name: hidden
    match: {descriptor:entries: tenant}
    rules: [{name: secret, limit_keys: [], expose: false, algorithm_config: {rps: 0.001, burst: 50}}]
"#;

/// Returns a file with one listener, which decides for services on this host.
pub fn config(settings: &str, rest: &str) -> String {
    format!(
        "listeners: [{{name: mail, address: 127.0.0.1:0, decide: [json], clients: [127.0.0.0/8]{settings}}}]\n{rest}"
    )
}

pub fn start(rest: &str) -> Gateway {
    Gateway::deciding().with(&config("", rest)).start()
}

/// Takes what the body asks for.
pub fn take(client: &mut Client, body: &Value) -> Response {
    client.send("POST", "/take", &[JSON], &body.to_string())
}

fn mail(user: &str, cost: u64) -> Value {
    json!({"entries": {"user": user, "kind": "mail"}, "domain": "mail", "cost": cost})
}

/// Returns whether a call was allowed, and what is left of each limit that its answer shows.
fn levels(response: &Response) -> (bool, Vec<(String, u64)>) {
    let body = response.json();
    let level = |limit: &Value| (limit["name"].as_str().unwrap().to_owned(), limit["remaining"].as_u64().unwrap());
    let limits = body["limits"].as_array().unwrap().iter().map(level).collect();
    (body["allowed"].as_bool().unwrap(), limits)
}

#[test]
fn a_service_takes_from_the_limits_that_apply_or_from_none() {
    let redis = Redis::start();
    for store in ["", &redis.patient_store()] {
        let gateway = start(&format!("{RULES}{store}"));
        let mut client = gateway.client();
        let granted = take(&mut client, &mail("u1", 2));
        assert_eq!((granted.status, levels(&granted)), (200, (true, vec![("users".to_owned(), 3)])));
        for (name, value) in
            [("content-type", "application/json"), ("cache-control", "no-store"), ("ratelimit-remaining", "3")]
        {
            assert_eq!(granted.field(name).as_deref(), Some(value), "{granted:?}");
        }
        let limit = &granted.json()["limits"][0];
        let shown =
            ["policy", "unit", "limit", "used", "held", "window", "banned_until"].map(|name| limit[name].clone());
        let expected = [json!("mail"), json!("requests"), json!(5), json!(2), json!(0), json!("365d"), Value::Null];
        assert_eq!(shown, expected, "{limit}");
        assert!(limit["resets_at"].as_str().is_some_and(|moment| moment.ends_with('Z')), "{limit}");
        let refused = take(&mut client, &mail("u1", 4));
        assert_eq!((refused.status, levels(&refused)), (429, (false, vec![("users".to_owned(), 3)])));
        assert_eq!(refused.field("content-type").as_deref(), Some("application/json"));
        assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("fixed_window_exceeded"));
        assert!(refused.number("retry-after") > 0);
        // 0 asks whether one would pass, and takes nothing. Without a cost, it is 1.
        assert_eq!(levels(&take(&mut client, &mail("u1", 0))), (true, vec![("users".to_owned(), 3)]));
        let one = json!({"domain": "mail", "entries": {"user": "u1", "kind": "mail"}});
        assert_eq!(levels(&take(&mut client, &one)), (true, vec![("users".to_owned(), 2)]));
        // Other entries are another limit, and none of its limits is charged unless all are.
        let tenant = |cost: u64| json!({"domain": "mail", "entries": {"tenant": "acme"}, "cost": cost});
        let level = |day, burst| vec![("tenants.day".to_owned(), day), ("tenants.burst".to_owned(), burst)];
        assert_eq!(levels(&take(&mut client, &tenant(2))), (true, level(98, 1)));
        assert_eq!(take(&mut client, &tenant(2)).status, 429);
        assert_eq!(levels(&take(&mut client, &tenant(1))), (true, level(97, 0)));
        // What a limit can never hold, what a rule denies, and what no rule limits.
        let never = take(&mut client, &mail("u1", u64::MAX));
        assert_eq!((never.status, never.field("x-tollgate-reason").as_deref()), (429, Some("cost_too_large")));
        let denied = take(&mut client, &mail("banned", 1));
        assert_eq!((denied.status, denied.json()), (403, json!({"allowed": false, "limits": []})));
        for free in [json!({"entries": {}}), json!({"entries": {"user": "u1", "kind": "mail"}, "domain": "other"})] {
            let passed = take(&mut client, &free);
            assert_eq!((passed.status, passed.json()), (200, json!({"allowed": true, "limits": []})));
        }
        for (result, count) in [("allowed", 5.0), ("refused", 4.0), ("unlimited", 2.0)] {
            gateway.expect("rate_limiter_decisions_total", &["door=\"json\"", result], count);
        }
        gateway.expect("rate_limiter_allowed_total", &["rule=\"tenants.day\""], 2.0);
    }
}

#[test]
fn without_the_store_its_answer_is_a_refusal_without_limits() {
    let gateway =
        start(&format!("{RULES}store: {{redis: {{url: \"redis://127.0.0.1:1\"}}}}\non_store_failure: deny\n"));
    let refused = take(&mut gateway.client(), &mail("u1", 1));
    assert_eq!((refused.status, refused.json()), (503, json!({"allowed": false, "limits": []})), "{refused:?}");
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("store_unavailable"));
}

#[test]
fn what_is_no_call_is_an_error_that_says_what_is_wrong() {
    let gateway = Gateway::deciding().with(&config("", &format!("limits: {{body_timeout: 1s}}\n{RULES}"))).start();
    let mut client = gateway.client();
    let long = json!({"entries": {"a": "x".repeat(65 << 10)}}).to_string();
    for (method, target, fields, body, status, detail) in [
        ("GET", "/take", &[JSON][..], "", 405, None),
        ("PUT", "/take", &[JSON], "{}", 405, None),
        ("POST", "/", &[JSON], "{}", 404, None),
        ("POST", "/take/", &[JSON], "{}", 404, None),
        ("POST", "/settle", &[JSON], "{}", 400, Some("missing field `hold_id`")),
        ("POST", "/take", &[], r#"{"entries": {}}"#, 415, None),
        ("POST", "/take", &[("Content-Type", "text/plain")], r#"{"entries": {}}"#, 415, None),
        ("POST", "/take", &[JSON, ("Content-Encoding", "gzip")], "x", 415, None),
        ("POST", "/take", &[JSON], &long, 413, None),
        ("POST", "/take", &[JSON], "", 400, Some("the body must be a JSON object")),
        ("POST", "/take", &[JSON], r#"{"entries": {}, "hold_for": "1s"}"#, 400, Some("`hold_for` needs `hash_key`")),
        ("POST", "/take", &[JSON], r#"{"entries": {"a": 1}}"#, 400, Some("expected a string at line 1 column 1")),
        (
            "POST",
            "/take",
            &[JSON],
            "{\"entries\": {\"a\":\n\"\u{7f}\", \"a\": \"\"}}",
            400,
            Some("`entries` must have each name once"),
        ),
    ] {
        let answer = client.send(method, target, fields, body);
        assert_eq!(answer.status, status, "{method} {target} {body}: {answer:?}");
        assert_eq!(answer.field("content-type").as_deref(), Some("application/problem+json"), "{answer:?}");
        let found = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        assert!(found.contains(detail.unwrap_or_default()) && found.is_empty() == detail.is_none(), "{answer:?}");
        if status == 405 {
            assert_eq!(answer.field("allow").as_deref(), Some("POST"));
        }
    }
    // A body whose length is not known before, and one that does not arrive.
    client.write(
        "POST /take HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    client.write(&format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len()));
    assert_eq!(client.response("POST").unwrap().status, 413);
    let mut client = gateway.client();
    client.write("POST /take HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{");
    assert_eq!(client.response("POST").unwrap().status, 408);
    gateway.expect("rate_limiter_decisions_total", &["door=\"json\""], 0.0);
    gateway.expect("tollgate_refused_requests_total", &["reason=\"bad_request\""], 13.0);
}

#[test]
fn a_repeated_id_is_answered_as_the_first_and_takes_once() {
    let redis = Redis::start();
    let gateway = start(&format!("{RULES}{}", redis.patient_store()));
    let mut client = gateway.client();
    let with_id = |id: &str, cost: u64| {
        let mut call = mail("u1", cost);
        call["id"] = json!(id);
        call
    };
    let first = take(&mut client, &with_id("a", 2));
    let mut other = gateway.client();
    let again = other.send("POST", "/take", &[JSON, ("X-Request-Id", "mine")], &with_id("a", 2).to_string());
    assert_eq!((first.status, &first.body), (200, &again.body));
    assert_eq!(again.field("x-request-id").as_deref(), Some("mine"));
    assert_eq!(first.field("ratelimit"), again.field("ratelimit"));
    assert_eq!(levels(&take(&mut client, &with_id("b", 2))), (true, vec![("users".to_owned(), 1)]));
    // A refusal is repeated too, although now one is left.
    let refused = take(&mut client, &with_id("c", 2));
    assert_eq!((refused.status, take(&mut client, &with_id("c", 2)).status), (429, 429));
    // The id of another question is a mistake of the service. Of another domain it is another id.
    let mistaken = take(&mut client, &with_id("a", 1));
    assert_eq!((mistaken.status, mistaken.json()["detail"].as_str().unwrap().contains("`id`")), (400, true));
    let mut elsewhere = with_id("a", 1);
    elsewhere["domain"] = json!("other");
    assert_eq!(take(&mut client, &elsewhere).status, 200);
    gateway.expect("rate_limiter_decisions_total", &["door=\"json\"", "allowed"], 2.0);
    gateway.expect("rate_limiter_decisions_total", &["door=\"json\"", "refused"], 1.0);
    gateway.expect("tollgate_take_ids_total", &["repeated"], 2.0);
}

#[test]
fn calls_with_one_id_at_the_same_time_take_once() {
    let redis = Redis::start();
    let gateway = start(&format!("threads: 3\n{RULES}{}", redis.patient_store()));
    let mut call = mail("u1", 2);
    call["id"] = json!("one");
    redis.signal("STOP");
    let callers: Vec<_> = (0..24)
        .map(|_| {
            let (mut client, call) = (gateway.client(), call.clone());
            std::thread::spawn(move || take(&mut client, &call))
        })
        .collect();
    // Every caller but the first waits for the answer to the first.
    gateway.expect("tollgate_take_ids_total", &["repeated"], 23.0);
    redis.signal("CONT");
    for caller in callers {
        assert_eq!(levels(&caller.join().unwrap()), (true, vec![("users".to_owned(), 3)]));
    }
    assert_eq!(levels(&take(&mut gateway.client(), &mail("u1", 0))), (true, vec![("users".to_owned(), 3)]));
}

#[test]
fn a_service_that_has_left_learns_with_its_id_what_it_has_taken() {
    let redis = Redis::start();
    let gateway = start(&format!("{RULES}{}", redis.patient_store()));
    let mut call = mail("u1", 2);
    call["id"] = json!("one");
    // The first call makes the connection to the store.
    assert_eq!(take(&mut gateway.client(), &mail("u2", 1)).status, 200);
    redis.signal("STOP");
    let mut client = gateway.client();
    let body = call.to_string();
    let head =
        format!("POST /take HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
    client.write(&format!("{head}\r\n\r\n{body}"));
    eventually("the store is asked", || redis.has_unread_calls());
    drop(client);
    redis.signal("CONT");
    assert_eq!(levels(&take(&mut gateway.client(), &call)), (true, vec![("users".to_owned(), 3)]));
    gateway.expect("tollgate_take_ids_total", &["repeated"], 1.0);
    gateway.expect("rate_limiter_decisions_total", &["door=\"json\"", "allowed"], 2.0);
}

#[test]
fn two_gateways_never_grant_more_than_the_limit_to_64_callers() {
    const LIMIT: usize = 300;
    let redis = Redis::start();
    let rules = format!(
        "rules: [{{name: all, limit_keys: [\"descriptor:tenant\"], algorithm: fixed_window, algorithm_config: {{limit: {LIMIT}, window: 365d}}}}]\n{}",
        redis.patient_store()
    );
    let gateways = [start(&rules), start(&rules)];
    let callers: Vec<_> = (0..64)
        .map(|caller: usize| {
            let mut client = gateways[caller % 2].client();
            std::thread::spawn(move || {
                let mut taken = 0;
                for call in 0..10 {
                    let cost = 1 + (caller + call) % 3;
                    let id = format!("{caller}-{call}");
                    let body = json!({"id": id, "entries": {"tenant": "acme"}, "cost": cost});
                    let answer = take(&mut client, &body);
                    // Each call is sent twice, as after a timeout.
                    let again = take(&mut client, &body);
                    assert_eq!((answer.status, &answer.body), (again.status, &again.body));
                    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                    taken += if answer.status == 200 { cost } else { 0 };
                }
                taken
            })
        })
        .collect();
    let taken: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    // The callers ask for far more, and many for only one.
    assert_eq!(taken, LIMIT);
    let full = take(&mut gateways[0].client(), &json!({"entries": {"tenant": "acme"}}));
    assert_eq!((full.status, &full.json()["limits"][0]["used"]), (429, &json!(LIMIT)));
}

#[test]
fn it_answers_over_http2_and_beside_other_doors_and_sends_100_continue() {
    let listener = "name: mail, address: 127.0.0.1:0, clients: [127.0.0.0/8], original_request: path";
    let file = format!("listeners: [{{{listener}, decide: [http, rls, json], protocols: [h2c, http/1.1]}}]\n{RULES}");
    let gateway = Gateway::deciding().with(&file).start();
    let url = format!("http://{}/take", gateway.http);
    for (version, left) in [("--http2-prior-knowledge", 4), ("--http1.1", 3)] {
        let output = Command::new("curl")
            .args([
                "-s",
                "--max-time",
                "10",
                version,
                "-H",
                "Content-Type: application/json",
                "-H",
                "Expect: 100-continue",
            ])
            .args(["-w", "\n%{http_code}", "-d", &mail("u1", 1).to_string(), &url])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, code) = text.rsplit_once('\n').unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!((code, &body["limits"][0]["remaining"]), ("200", &json!(left)), "{version}");
    }
    let mut client = gateway.client();
    let described = [("X-Forwarded-Proto", "https"), ("X-Forwarded-For", "203.0.113.7")];
    assert_eq!(client.send("GET", "/decide/take", &described, "").status, 200);
    assert_eq!(client.send("GET", "/other", &described, "").status, 404);
    gateway.expect("rate_limiter_decisions_total", &["door=\"json\"", "allowed"], 2.0);
    gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "unlimited"], 1.0);
}

#[test]
fn only_those_in_clients_may_ask() {
    let listener = "name: mail, address: 127.0.0.1:0, decide: [json], clients: [192.0.2.0/24]";
    let gateway = Gateway::deciding().with(&format!("listeners: [{{{listener}}}]\n{RULES}")).start();
    let mut client = gateway.client();
    let _ = client.write_bytes(b"POST /take HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.response("POST").is_err());
    gateway.expect("tollgate_decision_connections_closed_total", &[], 1.0);
}

#[test]
fn a_call_has_its_line_in_the_access_log_and_explain_says_why() {
    let rest = format!(
        "hash_key: 0123456789abcdef\naccess_log: {{to: access.jsonl, when: [allowed, refused, error], values: [door, listener, \"descriptor:user\"]}}\n{RULES}"
    );
    let gateway = start(&rest);
    let mut client = gateway.client();
    let ask = |client: &mut Client, id: &str, body: &Value| {
        client.send("POST", "/take", &[JSON, ("X-Request-Id", id)], &body.to_string()).status
    };
    let mut repeated = mail("u1", 1);
    repeated["id"] = json!("x");
    assert_eq!(ask(&mut client, "granted", &mail("u1", 3)), 200);
    assert_eq!(ask(&mut client, "refused", &mail("u1", 3)), 429);
    assert_eq!(ask(&mut client, "denied", &mail("banned", 1)), 403);
    assert_eq!(ask(&mut client, "invalid", &json!({})), 400);
    assert_eq!(ask(&mut client, "first", &repeated), 200);
    assert_eq!(ask(&mut client, "repeated", &repeated), 200);
    let lines = access_log::wait_for(&gateway, 6);
    for (id, kind, code, rule) in [
        ("granted", "allowed", 200, Some("users")),
        ("refused", "refused", 429, Some("users")),
        ("denied", "refused", 403, Some("blocked")),
        ("invalid", "refused", 400, None),
        ("first", "allowed", 200, Some("users")),
        ("repeated", "allowed", 200, None),
    ] {
        let line = access_log::with_id(&lines, id);
        let found = (line["door"].as_str(), line["kind"].as_str(), line["code"].as_u64(), line["rule"].as_str());
        assert_eq!(found, (Some("json"), Some(kind), Some(code), rule), "{line}");
        assert_eq!(line["values"]["door"], "json", "{line}");
    }
    assert_eq!(access_log::with_id(&lines, "refused")["values"]["descriptor:user"], "u1");
    let file = gateway.file("gateway.yaml");
    let explain = |arguments: &[&str]| tollgate(&[&["explain", "-c", file.to_str().unwrap()], arguments].concat());
    let log = gateway.file("access.jsonl");
    let logged = explain(&["--id", "refused", "--log", log.to_str().unwrap()]);
    assert!(logged.out.contains("REFUSED 429") && logged.out.contains("asked about at the door json"), "{logged:?}");
    let entries = ["--descriptor", "kind=mail", "--descriptor", "user=u1"];
    let explained = explain(&[&["--domain", "mail"], &entries[..]].concat());
    assert!(explained.out.contains("users"), "{explained:?}");
    // Without a domain, a service has none.
    let other = explain(&entries);
    assert!(other.out.contains("in no domain"), "{other:?}");
}

#[test]
fn a_decision_waits_for_the_store_no_longer_than_answer_within() {
    let redis = Redis::start();
    let rest = format!("{RULES}{}", redis.patient_store().replace("deny", "local"));
    let gateway = Gateway::deciding().with(&config(", answer_within: 50ms", &rest)).start();
    let mut client = gateway.client();
    assert_eq!(take(&mut client, &mail("u1", 1)).status, 200);
    redis.signal("STOP");
    let begun = crate::support::now();
    let local = levels(&take(&mut client, &mail("u1", 1)));
    assert_eq!(local, (true, Vec::new()), "the level of a share is not that of the limit");
    assert!(begun.elapsed() < Duration::from_secs(5));
    redis.signal("CONT");
    gateway.expect("rate_limiter_fallback_decisions_total", &["rule=\"users\""], 1.0);
}
