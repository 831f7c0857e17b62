//! Tests the lines of the access log: one for each request of the configured kinds, with nothing that the client sent.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::access_log_line::Line;
use tollgate::base::pseudonym::PseudonymKey;
use tollgate::limit::bucket_key::{Descriptor, KeySeed, LimitIdentity};

use crate::support::mint::{Signer, epoch};
use crate::support::{Gateway, Redis, Upstream, eventually};

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub const TO_FILE: &str = "access_log: {to: access.jsonl}\n";

/// What is in a log: every line of it whole.
#[track_caller]
pub fn lines(gateway: &Gateway) -> Vec<Value> {
    read(&gateway.file("access.jsonl"))
}

/// A reader may see the beginning of a line that is being written, up to the end of a page, and soon its end.
#[track_caller]
pub fn read(file: &std::path::Path) -> Vec<Value> {
    let mut text = String::new();
    eventually("the last line is whole", || {
        text = std::fs::read_to_string(file).unwrap_or_default();
        text.is_empty() || text.ends_with('\n')
    });
    text.lines().map(parse).collect()
}

#[track_caller]
pub fn parse(line: &str) -> Value {
    if let Err(error) = Line::read(line.as_bytes()) {
        panic!("{error}: {line}");
    }
    serde_json::from_str(line).unwrap()
}

/// The lines, once there are so many.
#[track_caller]
pub fn wait_for(gateway: &Gateway, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually("the lines are written", || {
        found = lines(gateway);
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:#?}");
    found
}

pub fn with_id<'l>(lines: &'l [Value], id: &str) -> &'l Value {
    let mut found = lines.iter().filter(|line| line["request_id"] == id);
    let line = found.next().unwrap_or_else(|| panic!("no line of {id}"));
    assert!(found.next().is_none(), "two lines of {id}");
    line
}

pub fn token(claims: &Value) -> String {
    format!("Bearer {}", Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), claims))
}

#[test]
fn every_answer_is_of_exactly_one_kind() {
    let upstream = Upstream::answering(|seen, stream| {
        let path = seen.line.split(' ').nth(1).unwrap();
        match path {
            "/closed" => drop(stream.shutdown(Shutdown::Both)),
            "/slow" | "/left" => std::thread::sleep(Duration::from_secs(5)),
            "/broken-off" => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                let _ = stream.shutdown(Shutdown::Both);
            }
            "/fault" => drop(stream.write_all(b"HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\noh\n")),
            _ => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")),
        }
    });
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "
upstream_timeouts: {{read: 3s}}
limits: {{body_bytes: 10B}}
jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}
rules:
  - {{name: closed-to-all, match: {{path: /denied}}, action: deny}}
  - {{name: user, limit_keys: [query:user], algorithm_config: {{rate: 1/day, cost_source: query:cost}}}}
{TO_FILE}"
        ),
    );
    let good = token(&json!({"sub": "ann", "exp": epoch() + 600}));
    let late = token(&json!({"sub": "ann", "exp": 1}));
    for (id, method, target, authorization, body, code) in [
        ("plain", "GET", "/", "", "", 200),
        ("with-token", "POST", "/", &*good, "body", 200),
        ("paid", "GET", "/?user=a", "", "", 200),
        ("theirs", "GET", "/fault", "", "", 500),
        ("used-up", "GET", "/?user=a", "", "", 429),
        ("too-dear", "GET", "/?user=a&cost=2", "", "", 429),
        ("denied", "GET", "/denied", "", "", 403),
        ("twice", "GET", "/?user=a&user=b", "", "", 400),
        ("unreadable", "GET", "/%00", "", "", 400),
        ("late-token", "GET", "/", &*late, "", 401),
        ("long", "POST", "/", "", "eleven bytes", 413),
        ("closed", "POST", "/closed", "", "x", 502),
        ("slow", "POST", "/slow", "", "x", 504),
        ("trace", "TRACE", "/", "", "", 405),
    ] {
        let mut fields = vec![("X-Request-Id", id)];
        if !authorization.is_empty() {
            fields.push(("Authorization", authorization));
        }
        assert_eq!(gateway.client().send(method, target, &fields, body).status, code, "{id}");
    }
    let mut client = gateway.client();
    let decisions = || gateway.metric("rate_limiter_decisions_total", &[]);
    let before = decisions();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nX-Request-Id: streamed\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Chunks that arrive with the head are checked before the decision.
    eventually("it is decided", || decisions() > before);
    client.write("c\r\ntwelve bytes\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").unwrap().status, 413);
    let mut client = gateway.client();
    client.write("GET /broken-off HTTP/1.1\r\nHost: a\r\nX-Request-Id: broken-off\r\n\r\n");
    assert!(client.response("GET").is_err());
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nX-Request-Id: no-host\r\n\r\n");
    assert_eq!(client.response("GET").unwrap().status, 400);
    let before = upstream.count();
    let mut client = gateway.client();
    client.write("GET /left HTTP/1.1\r\nHost: a\r\nX-Request-Id: left\r\n\r\n");
    eventually("it arrives", || upstream.count() > before);
    drop(client);

    let lines = wait_for(&gateway, 18);
    for (id, kind, code, origin, reason, forwarded) in [
        ("plain", "allowed", 200, "upstream", "", true),
        ("with-token", "allowed", 200, "upstream", "", true),
        ("paid", "allowed", 200, "upstream", "", true),
        ("theirs", "allowed", 500, "upstream", "", true),
        ("used-up", "refused", 429, "gateway", "token_bucket_exceeded", false),
        ("too-dear", "refused", 429, "gateway", "cost_too_large", false),
        ("denied", "refused", 403, "gateway", "denied", false),
        ("twice", "refused", 400, "gateway", "ambiguous_request", false),
        ("unreadable", "refused", 400, "gateway", "bad_request", false),
        ("late-token", "refused", 401, "gateway", "token_invalid", false),
        ("long", "refused", 413, "gateway", "bad_request", false),
        ("closed", "error", 502, "gateway", "", true),
        ("slow", "error", 504, "gateway", "", true),
        ("trace", "refused", 405, "gateway", "bad_request", false),
        ("streamed", "refused", 413, "upstream", "bad_request", true),
        ("broken-off", "error", 200, "upstream", "", true),
        ("no-host", "refused", 400, "gateway", "bad_request", false),
        ("left", "error", 499, "upstream", "", true),
    ] {
        let line = with_id(&lines, id);
        let found = (&line["kind"], &line["code"], &line["origin"]);
        assert_eq!(found, (&json!(kind), &json!(code), &json!(origin)), "{line}");
        assert_eq!(line["reason"].as_str().unwrap_or_default(), reason, "{line}");
        assert_eq!(line["upstream_us"].is_u64(), forwarded, "{line}");
        let (duration, upstream) = (line["duration_us"].as_u64().unwrap(), line["upstream_us"].as_u64());
        assert!(upstream.unwrap_or(0) <= duration, "{line}");
        // What was answered by its head alone was never decided.
        let decided = !matches!(id, "long" | "trace" | "no-host");
        assert_eq!(line["decision_us"].is_u64(), decided, "{line}");
    }
    let sizes = |id| {
        let line = with_id(&lines, id);
        (line["request_bytes"].as_u64().unwrap(), line["response_bytes"].as_u64().unwrap())
    };
    assert_eq!((sizes("plain"), sizes("with-token"), sizes("theirs")), ((0, 2), (4, 2), (0, 3)));
    assert_eq!((sizes("broken-off").1, sizes("left")), (4, (0, 0)));
    assert!(sizes("used-up").1 > 200 && sizes("trace").1 > 60);
    assert_eq!(with_id(&lines, "trace")["method"], "OTHER");
    assert!(with_id(&lines, "slow")["upstream_us"].as_u64().unwrap() >= 2_450_000);
    let refused = lines.iter().filter(|line| line["kind"] == "refused").count();
    assert_eq!(gateway.metric("tollgate_refused_requests_total", &[]), f64::from(u32::try_from(refused).unwrap()));
    assert_eq!(gateway.metric("tollgate_http_requests_total", &[]), 18.0);
    gateway.expect("tollgate_access_log_dropped_total", &[], 0.0);
}

/// The name under which a bucket stands, where the file has this key.
fn bucket(limit: &LimitIdentity<'_>, value: &str) -> String {
    let mut descriptor = Descriptor::default();
    descriptor.push(0, value.as_bytes());
    PseudonymKey::secret(SECRET.as_bytes()).bucket(&KeySeed::new(limit).key(&descriptor).0).to_string()
}

#[test]
fn a_line_names_every_limit_that_applied_and_the_strictest_first() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "
hash_key: {SECRET}
retry_after_jitter: {{share: 0, max: 0s}}
policies:
  - name: plan
    rules:
      - name: free
        limit_keys: [query:user]
        limits: {{second: {{rps: 0.05, burst: 4, fixed_cost: 1.5}}, day: {{rate: 100/day}}}}
  - name: next
    mode: shadow
    rules: [{{name: trial, match: {{path: /}}, limit_keys: [query:user], algorithm_config: {{rate: 1/day}}}}]
  - name: alone
    mode: shadow
    rules: [{{name: only, match: {{path: /shadow}}, limit_keys: [], algorithm_config: {{rate: 9/day}}}}]
{TO_FILE}"
        ),
    );
    let mut client = gateway.client();
    for (id, target, code) in [
        ("first", "/?user=ann", 200),
        ("second", "/?user=ann", 200),
        ("third", "/?user=ann", 429),
        ("fourth", "/shadow", 200),
        ("fifth", "/else", 200),
    ] {
        assert_eq!(client.get(target, &[("X-Request-Id", id)]).status, code, "{id}");
    }
    let lines = wait_for(&gateway, 5);
    let keys = ["query:user".to_owned()];
    let limit = |limit| LimitIdentity {
        policy: "plan",
        rule: "free",
        limit,
        mode: "enforce",
        algorithm: "token_bucket",
        keys: &keys,
    };
    let shadow = LimitIdentity { policy: "next", rule: "trial", limit: "", mode: "shadow", ..limit("") };
    let (second, day, trial) = (bucket(&limit("second"), "ann"), bucket(&limit("day"), "ann"), bucket(&shadow, "ann"));
    let of_rule = |line: &Value| {
        let fields = ["policy", "rule", "cost", "remaining", "bucket", "source", "retry_after"];
        Value::Array(fields.iter().map(|field| line[field].clone()).collect())
    };
    let limits_of = |line: &Value| -> Vec<Value> {
        let fields = ["policy", "rule", "mode", "verdict", "cost", "remaining", "bucket"];
        let limits = line["limits"].as_array().cloned().unwrap_or_default();
        limits.iter().map(|limit| fields.iter().map(|field| limit[field].clone()).collect()).collect()
    };
    let first = with_id(&lines, "first");
    assert_eq!(of_rule(first), json!(["plan", "free.second", 1.5, 2.5, second, "store", null]));
    let of_day = |left: u64| json!(["plan", "free.day", "enforce", "allow", 1, left, day]);
    assert_eq!(
        limits_of(first),
        [
            json!(["plan", "free.second", "enforce", "allow", 1.5, 2.5, second]),
            of_day(99),
            json!(["next", "trial", "shadow", "allow", 1, 0, trial]),
        ]
    );
    let second_line = with_id(&lines, "second");
    assert_eq!(limits_of(second_line)[2], json!(["next", "trial", "shadow", "deny", 1, 0, trial]));
    // Refused: the shadow was not asked, and what could have paid says so.
    let third = with_id(&lines, "third");
    // Half a token comes back in ten seconds.
    let retry_after = third["retry_after"].as_u64().unwrap();
    assert!(third["rule"] == "free.second" && (5..=10).contains(&retry_after), "{third}");
    assert!(third["remaining"].as_f64().unwrap() < 1.5, "{third}");
    let verdicts: Vec<_> = limits_of(third).iter().map(|limit| limit[3].clone()).collect();
    assert_eq!(verdicts, [json!("deny"), json!("allow")]);
    // A shadow alone decides nothing.
    let fourth = with_id(&lines, "fourth");
    assert!(fourth["rule"].is_null() && fourth["source"].is_null(), "{fourth}");
    assert_eq!(limits_of(fourth).len(), 1);
    assert_eq!(limits_of(fourth)[0][1], "only");
    let fifth = with_id(&lines, "fifth");
    assert!(fifth["rule"].is_null() && fifth["limits"].is_null() && fifth["kind"] == "allowed", "{fifth}");
}

#[test]
fn a_decision_without_the_store_names_its_source() {
    let (mut redis, upstream) = (Redis::start(), Upstream::start());
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "{}
rules:
  - {{name: strict, match: {{path: /strict}}, limit_keys: [header:x-user], on_store_failure: deny, algorithm_config: {{rate: 9/day}}}}
  - {{name: open, match: {{path: /open}}, limit_keys: [header:x-user], on_store_failure: allow, algorithm_config: {{rate: 9/day}}}}
  - {{name: one, limit_keys: [header:x-user], algorithm_config: {{rate: 1/day}}}}
{TO_FILE}",
            redis.patient_store().replace("deny", "local")
        ),
    );
    let (mut client, mut asked) = (gateway.client(), 1);
    let mut ask = |id: &str, target: &str, code: u16| {
        assert_eq!(client.get(target, &[("X-User", "a"), ("X-Request-Id", id)]).status, code, "{id}");
    };
    ask("asked", "/", 200);
    // What is known of a bucket counts for a second: on a busy machine the first may come later.
    let known = (0..20).map(|number| format!("known-{number}")).find(|id| {
        ask(id, "/", 429);
        asked += 1;
        with_id(&wait_for(&gateway, asked), id)["source"] == "cached"
    });
    let known = known.expect("each was asked for");
    redis.kill();
    ask("denied", "/strict", 503);
    ask("open", "/open", 200);
    ask("local", "/", 429);
    let lines = wait_for(&gateway, asked + 3);
    for (id, rule, source, remaining) in [
        ("asked", "one", "store", json!(0)),
        (&known, "one", "cached", json!(0)),
        ("denied", "strict", "fallback", json!(null)),
        ("open", "open", "fallback", json!(null)),
        ("local", "one", "fallback", json!(0)),
    ] {
        let line = with_id(&lines, id);
        assert_eq!((&line["rule"], &line["source"]), (&json!(rule), &json!(source)), "{line}");
        // Whatever came back meanwhile is less than a thousandth of a second's worth.
        let left = line["remaining"].as_f64().unwrap_or_default();
        assert!(line["remaining"].is_null() == remaining.is_null() && left < 0.01, "{line}");
    }
}

#[test]
fn attribute_values_are_logged_as_pseudonyms_of_the_key() {
    let upstream = Upstream::start();
    let text = |key: &str| {
        format!(
            "{key}
jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}
access_log: {{to: access.jsonl, attributes: [jwt:plan, jwt:sub, header:X-Team, ip:address, path, method]}}\n"
        )
    };
    let gateway = Gateway::start(&upstream, &text(&format!("hash_key: {SECRET}")));
    let authorization = token(&json!({"sub": "ann", "plan": "free", "exp": epoch() + 600}));
    let fields = [("Authorization", &*authorization), ("X-Team", "red")];
    let names = |key: &PseudonymKey, pairs: &[(&str, &str)]| -> Value {
        pairs.iter().map(|(name, value)| (*name, key.value(name, value.as_bytes()).to_string())).collect()
    };
    let all = [
        ("jwt:plan", "free"),
        ("jwt:sub", "ann"),
        ("header:x-team", "red"),
        ("ip:address", "127.0.0.1"),
        ("path", "/a/b"),
        ("method", "GET"),
    ];
    // On one connection, whose lines have its order.
    let mut client = gateway.client();
    client.get("/a/./b?c=d", &fields);
    client.get("/a/b", &[]);
    let lines = wait_for(&gateway, 2);
    let key = PseudonymKey::secret(SECRET.as_bytes());
    assert_eq!(lines[0]["attributes"], names(&key, &all));
    assert_eq!(lines[1]["attributes"], names(&key, &all[3..]));
    // Another key makes other names.
    gateway.reload(&upstream, &text(""));
    gateway.client().get("/a/b", &fields);
    assert_eq!(wait_for(&gateway, 3)[2]["attributes"], names(&PseudonymKey::default(), &all));
}

#[test]
fn only_the_kinds_that_are_asked_for_are_written() {
    let upstream = Upstream::answering(|seen, stream| match seen.line.contains("/closed") {
        true => drop(stream.shutdown(Shutdown::Both)),
        false => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")),
    });
    let text = |log: &str| format!("rules: [{{name: shut, match: {{path: /shut}}, action: deny}}]\n{log}");
    let gateway = Gateway::start(&upstream, &text(""));
    let round = |code: u16| {
        for (target, status) in [("/", 200), ("/shut", 403), ("/closed", 502)] {
            assert_eq!(gateway.client().send("POST", target, &[], "x").status, status);
        }
        let mut bad = gateway.client();
        bad.write("GARBAGE\r\n\r\n");
        assert_eq!(bad.response("GET").unwrap().status, code);
    };
    round(400);
    let mut before = 0;
    for (when, kinds) in [
        ("refused", &["refused", "refused"][..]),
        ("[error]", &["error"]),
        ("[error, allowed]", &["allowed", "error"]),
        ("all", &["allowed", "error", "refused", "refused"]),
    ] {
        gateway.reload(&upstream, &text(&format!("access_log: {{to: access.jsonl, when: {when}}}")));
        round(400);
        let lines = wait_for(&gateway, before + kinds.len());
        // A line is written after its answer: two connections may come in any order.
        let mut found: Vec<_> = lines[before..].iter().map(|line| line["kind"].as_str().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, kinds, "{when}");
        before = lines.len();
    }
    gateway.reload(&upstream, &text(""));
    round(400);
    gateway.reload(&upstream, &text("access_log: {to: other.jsonl}"));
    round(400);
    eventually("the other file has them", || read(&gateway.file("other.jsonl")).len() == 4);
    assert_eq!(lines(&gateway).len(), before);
}

#[test]
fn nothing_that_a_client_sends_is_in_the_log() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
log: {level: debug}
rules:
  - {name: user, limit_keys: [\"header:x-user|query:canary|cookie:canary|ip:address\"], algorithm_config: {rate: 2/day}}
access_log: {to: access.jsonl, attributes: [header:x-user, query:canary, cookie:canary, path, host, header:authorization]}",
    );
    const CANARY: &str = "canary-7f3a";
    let hostile =
        [CANARY.to_owned(), format!("{CANARY}\x1b[31m"), format!("\"{CANARY}\\"), format!("{CANARY}\u{9b}2J\u{2028}")];
    let mut sent = 0;
    for value in &hostile {
        for field in
            ["X-User", "Authorization", "Cookie", "X-API-Key", "User-Agent", "X-Request-Id", "Host", "X-Forwarded-For"]
        {
            for repeat in 0..3 {
                let id = format!("{CANARY}-{repeat} {value}");
                let value = if field == "Cookie" { format!("canary={value}") } else { value.clone() };
                let target = format!("/{CANARY}/{repeat}?canary={CANARY}");
                let mut client = gateway.client();
                let fields = [(field, &*value), ("X-Request-Id", &*id)];
                client.get(&target, if field == "X-Request-Id" { &fields[..1] } else { &fields });
                sent += 1;
            }
        }
    }
    for head in [
        format!("{CANARY} / HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET /{CANARY}\r\nHost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{CANARY}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: a\r\n {CANARY}\r\n\r\n"),
        format!("GET / HTTP/1.1\nHost: a\nX-User: {CANARY}\r{{\"time\":1}}\n\n"),
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\nContent-Length: 9\r\nX-User: {CANARY}\r\n\r\n{CANARY}"
        ),
    ] {
        let mut client = gateway.client();
        client.write(&head);
        let _ = client.response("GET");
        sent += 1;
    }
    // The first id is one that anybody may send.
    let harmless = |line: &Value| line["request_id"] == CANARY;
    let lines = wait_for(&gateway, sent);
    assert_eq!(lines.iter().filter(|line| harmless(line)).count(), 3);
    for line in lines.iter().filter(|line| !harmless(line)) {
        assert!(!line.to_string().contains("canary-"), "{line}");
    }
    let text = std::fs::read(gateway.file("access.jsonl")).unwrap();
    assert!(text.iter().all(|byte| *byte == b'\n' || (b' '..=b'~').contains(byte)), "a byte that a terminal obeys");
    assert!(!gateway.errors().lines().any(|line| line.contains(CANARY) && !line.contains("request_id=canary-7f3a ")));
}
