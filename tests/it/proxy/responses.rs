//! The fields and bodies of responses to clients.

use std::io::Write;

use crate::support::websocket::{SWITCHED, upgrade};
use crate::support::{Gateway, Upstream};

const ONE_A_DAY: &str = "
rules:
  - {name: free, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}";

#[test]
fn hop_by_hop_fields_of_a_response_are_not_forwarded() {
    let upstream = Upstream::answering(|seen, stream| {
        let fields: &[u8] = match seen.line.split(' ').nth(1) {
            Some("/plain") => b"Connection: keep-alive\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok",
            Some("/named") => {
                b"X-Own: 1\r\nConnection: Upgrade, x-own\r\nUpgrade: h2c\r\nX-End: 1\r\nContent-Length: 2\r\n\r\nok"
            }
            Some("/twice") => b"X-Own: 1\r\nConnection: a\r\nConnection: X-OWN ,close\r\nContent-Length: 2\r\n\r\nok",
            _ => b"Connection: content-length, \xff, ,\r\nProxy-Connection: close\r\nContent-Length: 2\r\n\r\nok",
        };
        let _ = stream.write_all(&[b"HTTP/1.1 200 OK\r\n", fields].concat());
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    for target in ["/plain", "/named", "/twice", "/end"] {
        let response = client.get(target, &[]);
        assert_eq!((response.status, &*response.body), (200, "ok"), "{target}");
        assert_eq!(response.field("connection").as_deref(), Some("keep-alive"), "{target}");
        for name in ["keep-alive", "proxy-connection", "upgrade", "x-own"] {
            assert_eq!(response.field(name), None, "{target}");
        }
        assert_eq!(response.field("x-end").is_some(), target == "/named", "{target}");
    }
}

/// A client could not distinguish such fields from the gateway's own.
#[test]
fn fields_of_an_upstream_under_our_names_never_reach_the_client() {
    const OURS: &str = "X-Tollgate-Reason: denied\r\nx-tollgate-other: a\r\nX-Tollgate-Reason: b\r\nX-Own: c\r\n";
    let upstream = Upstream::answering(|seen, stream| {
        let head = match seen.line.split(' ').nth(1) {
            Some("/upgrade") => {
                let head = SWITCHED.strip_prefix("HTTP/1.1 ").and_then(|head| head.strip_suffix("\r\n")).unwrap();
                format!("{head}{OURS}\r\n")
            }
            Some("/hints") => format!("103 Early Hints\r\n{OURS}\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            _ => format!("200 OK\r\nContent-Length: 0\r\n{OURS}\r\n"),
        };
        let _ = stream.write_all(format!("HTTP/1.1 {head}").as_bytes());
    });
    let gateway = Gateway::start(&upstream, "");
    for target in ["/", "/hints", "/upgrade"] {
        let mut client = gateway.client();
        client.write(&match target {
            "/upgrade" => upgrade(target),
            _ => format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"),
        });
        let head = client.until("\r\n\r\n").to_lowercase();
        assert!(head.contains("\r\nx-own: c\r\n") && !head.contains("x-tollgate"), "{target}: {head}");
    }
}

#[test]
fn a_granted_request_shows_its_limit() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, ONE_A_DAY);
    let response = gateway.client().get("/", &[]);
    assert_eq!(response.status, 200);
    assert_eq!(response.field("ratelimit-policy").as_deref(), Some("\"free\";q=2;w=86400"));
    assert_eq!(response.field("ratelimit").as_deref(), Some("\"free\";r=1;t=43200"));
    let legacy = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"].map(|name| response.number(name));
    assert_eq!(legacy, [2, 1, 43200]);
    assert_eq!(response.field("x-ratelimit-limit"), None);
}

#[test]
fn a_refusal_names_the_limit_the_reason_and_the_wait() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{ONE_A_DAY}\nretry_after_jitter: {{share: 0.5, max: 30s}}"));
    let mut client = gateway.client();
    client.get("/", &[]);
    client.get("/", &[]);
    let refused = client.get("/", &[("X-Request-Id", "abc-1")]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"));
    assert_eq!(refused.field("content-type").as_deref(), Some("application/problem+json"));
    assert_eq!(refused.field("cache-control").as_deref(), Some("no-store"));
    assert_eq!(refused.field("x-request-id").as_deref(), Some("abc-1"));
    assert_eq!(
        refused.json(),
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429, "violated-policies": ["free"], "request_id": "abc-1",
        })
    );
    // The wait itself in the fields, the wait and its spread in Retry-After.
    let wait = refused.number("ratelimit-reset");
    assert!((43190..=43200).contains(&wait), "{wait}");
    assert_eq!(refused.field("ratelimit"), Some(format!("\"free\";r=0;t={wait}")));
    let retry = refused.number("retry-after");
    assert!((wait..=wait + 30).contains(&retry), "{retry}");
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn retry_after_is_spread_and_the_same_for_the_same_client() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
retry_after_jitter: {share: 1, max: 1d}
rules:
  - {name: user, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let mut waits = |user: &str| {
        client.get("/", &[("X-User", user)]);
        [client.get("/", &[("X-User", user)]), client.get("/", &[("X-User", user)])].map(|r| r.number("retry-after"))
    };
    let spread: Vec<u64> = (0..20)
        .map(|user| {
            let [first, second] = waits(&user.to_string());
            assert!(first.abs_diff(second) <= 40, "{first} and {second}");
            assert!((86_390..=2 * 86_400).contains(&first), "{first}");
            first
        })
        .collect();
    let (least, most) = (spread.iter().min().unwrap(), spread.iter().max().unwrap());
    assert!(most - least > 20_000, "{spread:?}");
}

#[test]
fn the_configuration_chooses_the_formats() {
    let upstream = Upstream::start();
    let names = |headers: &str| {
        let gateway = Gateway::start(&upstream, &format!("{ONE_A_DAY}\nheaders: {headers}"));
        let response = gateway.client().get("/", &[]);
        let ours =
            response.fields.iter().map(|(name, _)| name.to_lowercase()).filter(|name| name.contains("ratelimit"));
        let mut ours: Vec<_> = ours.collect();
        ours.sort();
        ours.join(" ")
    };
    assert_eq!(names("[]"), "");
    assert_eq!(names("[ratelimit-11]"), "ratelimit ratelimit-policy");
    assert_eq!(names("[x-ratelimit]"), "x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset");
    assert_eq!(names("[legacy]"), "ratelimit-limit ratelimit-remaining ratelimit-reset");
}

#[test]
fn the_upstreams_own_limits_are_never_loosened() {
    let upstream = Upstream::answering(|seen, stream| {
        let remaining = seen.field("x-theirs").unwrap();
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nRateLimit-Policy: \"theirs\";q=10;w=1\r\nRateLimit-Limit: 10\r\n\
             RateLimit-Remaining: {remaining}\r\nRateLimit-Reset: 7\r\n\r\n"
        );
    });
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: ours, limit_keys: [ip:address], algorithm_config: {rate: 4/day}}",
    );
    let mut client = gateway.client();
    let mut triple = |theirs: &str| {
        let response = client.get("/", &[("X-Theirs", theirs)]);
        let list = response.field("ratelimit-policy");
        assert_eq!(list.as_deref(), Some("\"theirs\";q=10;w=1, \"ours\";q=4;w=86400"));
        ["ratelimit-limit", "ratelimit-remaining"].map(|name| response.field(name).unwrap())
    };
    assert_eq!(triple("1"), ["10", "1"]);
    assert_eq!(triple("9"), ["4", "2"]);
    assert_eq!(triple("unknown"), ["10", "unknown"]);
    assert_eq!(triple("0, 10;w=1"), ["10", "0, 10;w=1"]);
}

#[test]
fn a_limit_that_is_not_exposed_is_hidden_and_a_shared_one_is_a_503() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: everybody, limit_keys: [], status: 503, algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let granted = client.get("/", &[]);
    assert_eq!((granted.status, granted.field("ratelimit-policy")), (200, None));
    let refused = client.get("/", &[]);
    assert_eq!((refused.status, refused.field("ratelimit")), (503, None));
    assert_eq!(refused.json()["violated-policies"], serde_json::json!([]));
    let kind = refused.json()["type"].as_str().unwrap().to_owned();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
    assert!(refused.number("retry-after") > 0);
}

#[test]
fn a_cost_that_can_never_be_met_has_no_retry_after_and_shows_no_level() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: weighed, limit_keys: [ip:address], algorithm_config: {rate: 5/day, cost_source: query:cost}}",
    );
    let refused = gateway.client().get("/?cost=6", &[]);
    assert_eq!(refused.status, 429);
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("cost_too_large"));
    assert_eq!(refused.field("retry-after"), None);
    assert_eq!(refused.field("ratelimit-policy").as_deref(), Some("\"weighed\";q=5;w=86400"));
    assert_eq!((refused.field("ratelimit"), refused.field("ratelimit-limit")), (None, None));
    assert_eq!(refused.json()["type"], "about:blank");
    gateway.expect("rate_limiter_rejected_total", &["cost_too_large"], 1.0);
}

#[test]
fn grpc_is_refused_in_its_own_way() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: no, match: {path: /denied}, action: deny}
  - {name: free, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    client.get("/", &[]);
    for (target, kind, status) in
        [("/", "application/grpc", "8"), ("/", "application/grpc+proto", "8"), ("/denied", "Application/gRPC", "7")]
    {
        let refused = client.get(target, &[("Content-Type", kind)]);
        assert_eq!((refused.status, refused.field("grpc-status").as_deref()), (200, Some(status)), "{kind}");
        assert!(refused.field("grpc-message").is_some() && refused.body.is_empty());
        assert_eq!(refused.field("content-type").as_deref(), Some("application/grpc"));
    }
    assert_eq!(client.get("/", &[("Content-Type", "application/grpcx")]).status, 429);
}

#[test]
fn a_refusal_keeps_the_connection_also_with_an_unread_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "rules: [{name: no, match: {method: POST}, action: deny}]");
    let mut client = gateway.client();
    let body = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500);
    assert_eq!(client.send("POST", "/", &[], &body).status, 403);
    client.write("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(client.response("POST").unwrap().status, 403);
    client.write("5\r\nhello\r\n0\r\n\r\n");
    assert_eq!(client.get("/after", &[]).status, 200);
    assert_eq!(upstream.seen().len(), 1);
    assert_eq!(upstream.last().line, "GET /after HTTP/1.1");
}

#[test]
fn a_client_that_expects_100_continue_is_refused_at_once_and_closed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "rules: [{name: no, match: {method: POST}, action: deny}]");
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let refused = client.response("POST").unwrap();
    assert_eq!((refused.status, refused.field("connection").as_deref()), (403, Some("close")));
    assert!(client.is_closed());
}

#[test]
fn a_refused_head_request_has_no_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "rules: [{name: no, match: {path: /no}, action: deny}]");
    let mut client = gateway.client();
    assert_eq!(client.send("HEAD", "/no", &[], "").status, 403);
    assert_eq!(client.get("/", &[]).status, 200);
}
