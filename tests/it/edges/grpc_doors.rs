//! The doors `ext_authz` and `rls`, called by a gRPC client: the charges of a call, and its answer.

use std::io::BufRead;
use std::time::Duration;

use serde_json::{Value, json};

use super::grpc_caller::{Caller, descriptor, field, levels};
use crate::support::http2::Http2Client;
use crate::support::{Certificates, Gateway, Postgres, Redis, RedisCluster, Replicas, eventually, now, tollgate};

const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

const RULES: &str = r#"
policies:
  - name: edge
    match: {descriptor:domain: edge}
    rules:
      - {name: blocked, match: {descriptor:user: banned}, action: deny}
      - name: tenant
        match: {descriptor:entries: tenant}
        limit_keys: ["descriptor:tenant"]
        algorithm: fixed_window
        algorithm_config: {limit: 3, window: 365d}
      - {name: user, match: {descriptor:entries: user}, limit_keys: ["descriptor:user"], algorithm_config: {rps: 0.001, burst: 2}}
      - {name: hidden, match: {descriptor:entries: all}, limit_keys: [], algorithm_config: {rps: 0.001, burst: 2}}
"#;

fn config(rest: &str) -> String {
    config_with("answer_within: 10s", rest)
}

fn config_with(settings: &str, rest: &str) -> String {
    let listener = "name: teams, address: 127.0.0.1:0, decide: [ext_authz, rls], clients: [127.0.0.0/8]";
    format!("listeners: [{{{listener}, {settings}}}]\n{rest}")
}

fn gateway(rest: &str) -> (Gateway, Caller) {
    start(&config(rest))
}

fn start(config: &str) -> (Gateway, Caller) {
    let gateway = Gateway::before_url("").with(config).start();
    let caller = Caller::new(gateway.http);
    (gateway, caller)
}

#[test]
fn descriptors_of_one_call_are_charged_together_or_not_at_all() {
    let redis = Redis::start();
    for store in ["", &redis.patient_store()] {
        let (gateway, mut caller) = gateway(&format!("{RULES}{store}"));
        let one = caller.ask(&[("tenant=acme", None)]);
        let limit = json!({"requests_per_unit": 3, "unit": 6, "name": "tenant"});
        assert_eq!((&one["overall_code"], &one["statuses"][0]["current_limit"]), (&json!(OK), &limit));
        assert_eq!(levels(&one), [(OK, Some(2))]);
        assert!((1..=31_536_000).contains(&one["statuses"][0]["duration_until_reset"]["seconds"].as_u64().unwrap()));
        assert_eq!(field(&one["response_headers_to_add"], "ratelimit-limit"), Some("3"), "{one}");
        // What fits no unit has no limit, and its level all the same.
        let two = caller.ask(&[("user=ann", None), ("tenant=acme", Some(2))]);
        assert_eq!(levels(&two), [(OK, Some(1)), (OK, Some(0))]);
        assert!(two["statuses"][0]["current_limit"].is_null());
        // One is short: the other keeps what it has.
        for _ in 0..3 {
            let refused =
                caller.ask(&[("tenant=acme", None), ("user=ann", None), ("all=x", None), ("user=x,b=c", None)]);
            assert_eq!(refused["overall_code"], OVER_LIMIT);
            let found = levels(&refused);
            assert_eq!((found[0].0, &found[2..]), (OVER_LIMIT, &[(OK, None), (OK, None)][..]), "{refused}");
            assert!(matches!(found[1], (OK, Some(1) | None)), "{refused}");
            let headers = &refused["response_headers_to_add"];
            assert!(field(headers, "retry-after").unwrap().parse::<u64>().unwrap() >= 1);
            assert_eq!(field(headers, "x-tollgate-reason"), Some("fixed_window_exceeded"));
            assert_eq!(field(headers, "content-type"), Some("application/problem+json"));
            let body: Value = serde_json::from_str(refused["raw_body"].as_str().unwrap()).unwrap();
            assert_eq!((&body["violated-policies"], &body["status"]), (&json!(["tenant"]), &json!(429)));
        }
        assert_eq!(levels(&caller.ask(&[("user=ann", None)])), [(OK, Some(0))]);
        // Two of one bucket are one charge of their sum.
        assert_eq!(levels(&caller.ask(&[("user=bob", None), ("user=bob", None)])), [(OK, Some(0)), (OK, Some(0))]);
        gateway.expect("rate_limiter_decisions_total", &["door=\"rls\"", "allowed"], 4.0);
        gateway.expect("rate_limiter_decisions_total", &["door=\"rls\"", "refused"], 3.0);
        gateway.expect("tollgate_descriptors_total", &["unlimited"], 3.0);
    }
}

#[test]
fn no_hits_ask_and_take_nothing() {
    let (redis, cluster, postgres) = (Redis::start(), RedisCluster::start(Replicas::None), Postgres::start());
    postgres.settings();
    let spread = cluster.store("deny", "");
    for store in ["", &redis.patient_store(), &spread, &postgres.store_with(", timeout: 10s", "deny")] {
        let (gateway, mut caller) = gateway(&format!("{RULES}{store}"));
        for _ in 0..3 {
            assert_eq!(levels(&caller.ask(&[("user=ann", Some(0))])), [(OK, Some(2))]);
        }
        assert_eq!(levels(&caller.ask(&[("user=ann", Some(2))])), [(OK, Some(0))]);
        // It asks whether one would pass, also beside a charge.
        let refused = caller.ask(&[("user=ann", Some(0)), ("tenant=acme", None)]);
        assert_eq!((&refused["overall_code"], levels(&refused)[0].0), (&json!(OVER_LIMIT), OVER_LIMIT));
        // Of a cluster, what another node has charged before it was refused is given back after the answer.
        eventually("nothing is spent", || levels(&caller.ask(&[("tenant=acme", Some(0))])) == [(OK, Some(3))]);
        let both = caller.ask(&[("tenant=acme", None), ("user=bob", Some(0))]);
        assert_eq!(levels(&both), [(OK, Some(2)), (OK, Some(2))]);
        // Of the call's own, none is one.
        let message = json!({"domain": "edge", "descriptors": [descriptor("tenant=acme", None)], "hits_addend": 2});
        assert_eq!(levels(&caller.message("ShouldRateLimit", &message)), [(OK, Some(0))]);
        // More than a limit can ever hold.
        let never = caller.ask(&[("tenant=other", Some(u64::MAX)), ("user=carl", None)]);
        assert_eq!(levels(&never), [(OVER_LIMIT, None), (OK, None)]);
        gateway.expect("rate_limiter_allowed_total", &["rule=\"user\""], 1.0);
    }
}

#[test]
fn what_has_no_limit_passes_and_what_is_denied_does_not() {
    let (gateway, mut caller) = gateway(RULES);
    for answer in [caller.ask_in("elsewhere", &[("tenant=a", None)]), caller.ask(&[("what=ever", None)])] {
        assert_eq!((&answer["overall_code"], levels(&answer)), (&json!(OK), vec![(OK, None)]));
    }
    assert_eq!(caller.ask(&[])["overall_code"], OK);
    gateway.expect("tollgate_descriptors_total", &["unlimited"], 2.0);
    let denied = caller.ask(&[("tenant=a", None), ("user=banned", None)]);
    assert_eq!((&denied["overall_code"], levels(&denied)), (&json!(OVER_LIMIT), vec![(OK, None), (OVER_LIMIT, None)]));
    assert_eq!(levels(&caller.ask(&[("tenant=a", None)])), [(OK, Some(2))]);
    // A limit of the caller's own does not count.
    let mut own = descriptor("tenant=a", None);
    own["limit"] = json!({"requests_per_unit": 1000, "unit": 1});
    let answer = caller.message("ShouldRateLimit", &json!({"domain": "edge", "descriptors": [own]}));
    assert_eq!(answer["statuses"][0]["current_limit"]["requests_per_unit"], 3);
    gateway.expect("tollgate_descriptors_ignored_total", &["limit"], 1.0);
    // What cannot be read is an error, for which the caller has a mode of its own.
    let many = vec![descriptor("a=b", None); 129];
    let entries: Vec<String> = (0..65).map(|number| format!("a{number}=b")).collect();
    let entries = entries.join(",");
    for (call, code) in [
        (json!({"method": "ShouldRateLimit", "message": {"descriptors": many}}), "INVALID_ARGUMENT"),
        (json!({"method": "ShouldRateLimit", "raw": "ff"}), "INVALID_ARGUMENT"),
        (
            json!({"method": "ShouldRateLimit", "message": {"descriptors": [descriptor(&entries, None)]}}),
            "INVALID_ARGUMENT",
        ),
        (json!({"method": "AuthorizationCheck", "message": {}}), "INVALID_ARGUMENT"),
        (json!({"method": "HealthCheck", "message": {"service": "other"}}), "NOT_FOUND"),
        (json!({"method": "Unknown", "message": {}}), "UNIMPLEMENTED"),
    ] {
        let answer = caller.call(&call);
        assert_eq!(answer["code"], code, "{answer}");
    }
    // The client's own fields may make a call too long.
    let long = caller.call(&json!({"method": "ShouldRateLimit", "raw": "00".repeat((1 << 20) + 1)}));
    assert_eq!(long["message"]["overall_code"], OVER_LIMIT, "{long}");
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "envoy.service.auth.v3.Authorization"] {
        assert_eq!(caller.message("HealthCheck", &json!({"service": service}))["status"], 1);
    }
    // Other requests find nothing here.
    assert_eq!(gateway.client().get("/decide", &[]).status, 404);
}

/// Envoy sends this for two `generic_key` actions of one limit.
#[test]
fn entries_that_repeat_a_key_are_attributes_each() {
    let rules = r#"
access_log: {to: stdout, when: [refused], values: ["descriptor:generic_key#2"]}
policies:
  - name: edge
    rules:
      - {name: free, match: {descriptor:generic_key: free}, action: allow}
      - name: pair
        match: {descriptor:entries: generic_key/generic_key, descriptor:generic_key: slow}
        limit_keys: ["descriptor:generic_key#2"]
        algorithm: fixed_window
        algorithm_config: {limit: 1, window: 365d}
"#;
    let (mut gateway, mut caller) = gateway(rules);
    let pair = |second: &str| format!("generic_key=slow,generic_key={second}");
    for (second, level) in [("one", (OK, Some(0))), ("two", (OK, Some(0))), ("two", (OVER_LIMIT, Some(0)))] {
        assert_eq!(levels(&caller.ask(&[(&pair(second), None)])), [level], "{second}");
    }
    // No entry of one descriptor makes an error of a whole call, for which Envoy would let the request pass.
    let both = caller.ask(&[("a=1,a=1,a=1", None), (&pair("one"), None)]);
    assert_eq!((&both["overall_code"], levels(&both)[0].0), (&json!(OVER_LIMIT), OK), "{both}");
    // What is free has everything left, and what no rule knows has no level.
    let free = caller.ask(&[("generic_key=free,generic_key=x", None), ("what=ever", None)]);
    let statuses = free["statuses"].as_array().unwrap();
    assert_eq!((&statuses[0], &statuses[1]), (&json!({"code": OK, "limit_remaining": u32::MAX}), &json!({"code": OK})));
    let mut line = String::new();
    gateway.output().read_line(&mut line).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["values"]["descriptor:generic_key#2"], "two");
    let checked = gateway.file("gateway.yaml");
    let explained = tollgate(&[
        "explain",
        "-c",
        checked.to_str().unwrap(),
        "--descriptor",
        "generic_key=slow",
        "--descriptor",
        "generic_key=one",
    ]);
    assert!(explained.out.contains("pair"), "{explained:?}");
}

pub(super) fn check(headers: &[(&str, &str)], more: &Value) -> Value {
    let headers: Vec<Value> = headers.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    let mut http = json!({"method": "POST", "path": "/login?a=b", "host": "api.example.com", "scheme": "https"});
    http["headers"] = json!(headers);
    for (name, value) in more.as_object().unwrap() {
        http[name] = value.clone();
    }
    let source = json!({"address": {"socket_address": {"address": "203.0.113.7", "port_value": 9}}});
    let extensions = json!([{"key": "tenant", "value": "acme"}]);
    json!({"attributes": {"source": source, "request": {"http": http}, "context_extensions": extensions}})
}

#[test]
fn a_request_is_decided_as_it_would_be_here() {
    let rules = r#"
hash_key: 0123456789abcdef
access_log: {to: stdout, when: [refused], values: [path, door, listener, "ip:address", "descriptor:tenant"]}
rules:
  - {name: keyed, match: {header:x-key: {present: true}}, limit_keys: [header:x-key], algorithm_config: {rps: 0.001, burst: 1}}
  - name: logins
    match: {method: POST, path: /login, query:a: b, host: api.example.com, scheme: https, descriptor:tenant: acme, door: ext_authz}
    limit_keys: [ip:address]
    algorithm_config: {rps: 0.001, burst: 1}
"#;
    let (mut gateway, mut caller) = gateway(rules);
    let granted = caller.message("AuthorizationCheck", &check(&[("x-request-id", "mine")], &json!({})));
    let headers = &granted["ok_response"]["response_headers_to_add"];
    assert_eq!((granted["status"]["code"].as_u64().unwrap_or(0), field(headers, "ratelimit-limit")), (0, Some("1")));
    assert_eq!(field(headers, "x-request-id"), None);
    let refused = caller.message("AuthorizationCheck", &check(&[("x-request-id", "mine")], &json!({})));
    let denied = &refused["denied_response"];
    assert_eq!((&denied["status"]["code"], refused["status"]["code"] == 0), (&json!(429), false), "{refused}");
    assert_eq!(field(&denied["headers"], "x-tollgate-reason"), Some("token_bucket_exceeded"));
    let body: Value = serde_json::from_str(denied["body"].as_str().unwrap()).unwrap();
    assert_eq!((&body["violated-policies"][0], &body["request_id"]), (&json!("logins"), &json!("mine")));
    // Which of the commas the client has sent is not known, unless the fields come as they were sent.
    let joined = caller.message("AuthorizationCheck", &check(&[("x-key", "a,b")], &json!({})));
    assert_eq!(joined["denied_response"]["status"]["code"], 400);
    let raw = |name: &str, value: &str| json!({"key": name, "raw_value": value.bytes().map(|b| format!("{b:02x}")).collect::<String>()});
    let raw = json!({"header_map": {"headers": [raw(":path", "/"), raw("x-key", "a,b")]}});
    let raw = caller.message("AuthorizationCheck", &check(&[], &raw));
    assert!(raw["denied_response"].is_null(), "{raw}");
    let refused = caller.message("AuthorizationCheck", &check(&[], &json!({"path": "/../%2e%2e/x y"})));
    assert_eq!(refused["denied_response"]["status"]["code"], 400);
    gateway.expect("rate_limiter_decisions_total", &["door=\"ext_authz\"", "allowed"], 2.0);
    let mut line = String::new();
    gateway.output().read_line(&mut line).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&line["door"], &line["request_id"], &line["rule"]),
        (&json!("ext_authz"), &json!("mine"), &json!("logins"))
    );
    assert_eq!(line["values"]["ip:address"], "203.0.113.7");
    assert_eq!(line["values"]["descriptor:tenant"], "acme");
}

#[test]
fn the_head_of_a_request_has_the_bounds_of_a_request_here() {
    let rules = "limits: {header_bytes: 2KiB, headers: 8, target_bytes: 64B}";
    let (gateway, mut caller) = gateway(rules);
    let mut answer = |headers: &[(&str, &str)], more: Value| {
        let answer = caller.message("AuthorizationCheck", &check(headers, &more));
        answer["denied_response"]["status"]["code"].as_u64().unwrap_or(200)
    };
    let raw = |name: &str, value: &str| json!({"key": name, "raw_value": value.bytes().map(|b| format!("{b:02x}")).collect::<String>()});
    let (long, seven) = ("x".repeat(2000), ["a", "b", "c", "d", "e", "f", "g"].map(|name| (name, "1")));
    assert_eq!(answer(&seven, json!({})), 200);
    assert_eq!(answer(&[("x-long", &long[..1800])], json!({})), 200);
    // What Envoy has joined is one field, as it was sent or not.
    assert_eq!(answer(&[("accept", "a,b,c,d,e,f,g,h,i,j,k,l")], json!({})), 200);
    let raw_fields = |count: usize| {
        let pseudo = [":method", ":path", ":authority", ":scheme"].map(|name| raw(name, "a"));
        let fields: Vec<Value> = pseudo.into_iter().chain((0..count).map(|_| raw("x-many", "1"))).collect();
        json!({"header_map": {"headers": fields}})
    };
    assert_eq!(answer(&[], raw_fields(7)), 200);
    assert_eq!(answer(&[], raw_fields(8)), 431);
    assert_eq!(answer(&[&seven[..], &[("h", "1")]].concat(), json!({})), 431);
    assert_eq!(answer(&[("x-long", &long)], json!({})), 431);
    assert_eq!(answer(&[], json!({"header_map": {"headers": [raw("x-long", &long)]}})), 431);
    assert_eq!(answer(&[(&long[..1100], "1")], json!({})), 431);
    assert_eq!(answer(&[("content_length", "1")], json!({})), 400);
    assert_eq!(answer(&[], json!({"path": format!("/{}", "x".repeat(64))})), 414);
    assert_eq!(answer(&[], json!({"method": "TRACE"})), 405);
    gateway.expect("tollgate_refused_requests_total", &["bad_request"], 8.0);
}

#[test]
fn a_store_that_gives_no_answer_is_not_waited_for() {
    let redis = Redis::start();
    // The store itself may take far longer.
    let with = |word: &str| {
        let store = redis.patient_store().replace("deny", word);
        config_with("answer_within: 2s", &format!("{RULES}{store}"))
    };
    let (gateway, mut local) = start(&with("local"));
    let (_other, mut deny) = start(&with("deny"));
    assert_eq!(levels(&local.ask(&[("tenant=acme", None)])), [(OK, Some(2))]);
    assert_eq!(levels(&deny.ask(&[("tenant=acme", None)])), [(OK, Some(1))]);
    redis.signal("STOP");
    // Its share.
    let asked = now();
    assert_eq!(local.ask(&[("tenant=acme", None)])["overall_code"], OK);
    assert!(now() - asked < Duration::from_secs(6));
    gateway.expect("rate_limiter_fallback_decisions_total", &["local", "tenant"], 1.0);
    // No failure of the store, which may still answer.
    gateway.expect("rate_limiter_breaker_open", &[], 0.0);
    let refused = deny.ask(&[("tenant=acme", None), ("what=ever", None)]);
    assert_eq!(
        (&refused["overall_code"], levels(&refused)),
        (&json!(OVER_LIMIT), vec![(OVER_LIMIT, None), (OK, None)])
    );
    assert_eq!(field(&refused["response_headers_to_add"], "x-tollgate-reason"), Some("store_unavailable"));
    redis.signal("CONT");
}

#[test]
fn a_call_that_does_not_arrive_in_time_is_given_up_although_it_never_pauses() {
    let (gateway, _caller) = gateway(&format!("limits: {{body_timeout: 1s}}\n{RULES}"));
    let mut client = Http2Client::connect(gateway.http);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let mut call = client.begin("POST", path, &[("content-type", "application/grpc"), ("te", "trailers")], false);
    // The head of a message of 255 bytes, and some of them.
    let mut part: &[u8] = &[0, 0, 0, 0, 255];
    for _ in 0..12 {
        // It may have been answered already.
        let _ = call.write(part, false);
        part = b"x";
        std::thread::sleep(Duration::from_millis(100));
    }
    let response = call.response().unwrap();
    let trailers = response.trailers.unwrap();
    assert_eq!((response.status, trailers["grpc-status"].to_str().unwrap()), (200, "4"), "{trailers:?}");
}

#[test]
fn a_call_that_is_too_long_is_refused_and_one_that_stops_is_answered() {
    let (gateway, _caller) = gateway(&format!("limits: {{body_timeout: 1s, body_bytes: 64B}}\n{RULES}"));
    let mut client = Http2Client::connect(gateway.http);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // The head of a message of 255 bytes, and so many of them.
    for (length, status) in [(100, "0"), (10, "4")] {
        let mut call = client.begin("POST", path, &[("content-type", "application/grpc"), ("te", "trailers")], false);
        call.write(&[&[0, 0, 0, 0, 255][..], &vec![b'x'; length]].concat(), false).unwrap();
        let response = call.response().unwrap();
        let trailers = response.trailers.unwrap();
        assert_eq!((response.status, trailers["grpc-status"].to_str().unwrap()), (200, status), "{trailers:?}");
    }
}

#[test]
fn explain_knows_the_door_of_a_descriptor() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("gateway.yaml");
    std::fs::write(&file, config(RULES).replace("address: 127.0.0.1:0", "address: 127.0.0.1:9100")).unwrap();
    let file = file.to_str().unwrap();
    let checked = tollgate(&["check", file]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
    let told = tollgate(&["explain", "-c", file, "--domain", "edge", "--descriptor", "tenant=acme"]);
    assert!(told.out.contains("YES  tenant   key descriptor:tenant \"acme\"  cost 1"), "{}", told.out);
}

#[test]
fn a_certificate_lets_a_proxy_ask_by_grpc_whatever_its_address() {
    let certificates = Certificates::shared();
    let stranger = Certificates::new().client;
    let config = "\
listeners:
  - address: 127.0.0.1:0
    decide: [ext_authz, rls]
    answer_within: 10s
    tls: {certificates: [{cert_file: s.pem, key_file: s.key, client_ca_file: ca.pem, client_auth: required}]}
";
    let (server, client) = (&certificates.server, &certificates.client);
    let files = [("s.pem", &*server.0), ("s.key", &*server.1), ("ca.pem", &*certificates.authority)];
    let clients = [("c.pem", &*client.0), ("c.key", &*client.1), ("d.pem", &*stranger.0), ("d.key", &*stranger.1)];
    let gateway = Gateway::deciding().with(config).with(RULES).files(&[&files[..], &clients].concat()).start();
    let file = |name: &str| gateway.file(name);
    let caller = |certificate: Option<&str>| {
        let own = certificate.map(|name| (file(&format!("{name}.pem")), file(&format!("{name}.key"))));
        let own = own.as_ref().map(|(certificate, key)| (&**certificate, &**key));
        Caller::over_tls(gateway.http, &file("ca.pem"), own)
    };
    let mut known = caller(Some("c"));
    assert_eq!(levels(&known.ask(&[("tenant=acme", None)])), [(OK, Some(2))]);
    let one = json!({"method": "ShouldRateLimit", "message": {"domain": "edge", "descriptors": [descriptor("tenant=acme", None)]}});
    for certificate in [Some("d"), None] {
        let answer = caller(certificate).call(&one);
        assert_eq!(answer["code"], "UNAVAILABLE", "{certificate:?}: {answer}");
    }
    // Neither of them has charged anything.
    assert_eq!(levels(&known.ask(&[("tenant=acme", None)])), [(OK, Some(1))]);
    let authorized = known.message("AuthorizationCheck", &check(&[], &json!({})));
    assert!(authorized["denied_response"].is_null(), "{authorized}");
}

#[test]
fn the_log_has_what_descriptors_say_where_the_file_lists_it() {
    let log = r#"
hash_key: 0123456789abcdef
access_log: {to: log, values: ["descriptor:tenant", "descriptor:entries", "descriptor:domain"], attributes: ["descriptor:user"]}
"#;
    let (gateway, mut caller) = gateway(&format!("{RULES}{log}"));
    caller.ask(&[("tenant=acme", None)]);
    caller.ask(&[("tenant=a", None), ("user=ann", None), ("tenant=b", None), ("tenant=a,x=y", None)]);
    caller.ask(&[("what=ever", None), ("user=ann", None)]);
    caller.ask(&[("user=ann", None)]);
    let file = gateway.file("log");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    eventually("four lines", || lines().len() == 4);
    let lines = lines();
    let values: Vec<&Value> = lines.iter().map(|line| &line["values"]).collect();
    let expected = [
        json!({"descriptor:tenant": "acme", "descriptor:entries": "tenant", "descriptor:domain": "edge"}),
        // A call with several descriptors has lists, each value once.
        json!({"descriptor:tenant": ["a", "b"], "descriptor:entries": ["tenant", "user", "tenant/x"], "descriptor:domain": ["edge"]}),
        json!({"descriptor:entries": ["what", "user"], "descriptor:domain": ["edge"]}),
        json!({"descriptor:entries": "user", "descriptor:domain": "edge"}),
    ];
    assert_eq!(values, expected.iter().collect::<Vec<_>>());
    // Of these it has pseudonyms.
    let user = |line: &Value| line["attributes"]["descriptor:user"].clone();
    assert!(user(&lines[0]).is_null());
    assert_eq!(user(&lines[1]), json!([user(&lines[3])]));
    assert!(lines[3]["kind"] == "refused" && user(&lines[3]).as_str().is_some_and(|name| name != "ann"), "{lines:?}");
    let explained = |line: &Value| {
        let (config, log) = (gateway.file("gateway.yaml"), file.to_str().unwrap());
        let id = line["request_id"].as_str().unwrap();
        let found = tollgate(&["explain", "-c", config.to_str().unwrap(), "--id", id, "--log", log]);
        assert_eq!(found.code, Some(0), "{}", found.err);
        found.out
    };
    let several = explained(&lines[1]);
    for words in ["PASSED; asked about at the door rls", "descriptor:tenant  \"a\"\ndescriptor:tenant  \"b\"\n"] {
        assert!(several.contains(words), "{words} is not in {several}");
    }
    let refused = explained(&lines[3]);
    assert!(refused.contains("REFUSED token_bucket_exceeded; asked about at the door rls"), "{refused}");
}
