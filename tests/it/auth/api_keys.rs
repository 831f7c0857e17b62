//! API keys: known, unknown and missing keys.

use identity::api_key_file;
use request::identity::KnownKey;

use crate::support::{Client, Gateway, GatewayBuilder, Upstream, eventually};

pub(super) const GOLD: &str = "gold-3fQk0bCz7LrYw1xA";
pub(super) const OLD_GOLD: &str = "gold-pV9sTn2mXe8uHd4J";
pub(super) const SILVER: &str = "silver-Zc5Gy6RtKo0iWq1";
pub(super) const UNKNOWN: &str = "nobody-8aJd2LmPq7sVx4Bn";

pub(super) const RULES: &str = "
rules:
  - {name: gold, match: {key:plan: gold}, limit_keys: [key:id], algorithm_config: {rate: 3/day}}
  - {name: silver, match: {key:plan: silver}, limit_keys: [key:id], algorithm_config: {rate: 1/day}}
  - {name: anonymous, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}";

type Fields<'f> = &'f [(&'f str, &'f str)];

pub(super) fn line(key: &[u8], id: &str, plan: &str) -> String {
    api_key_file::line(key, &KnownKey::new(id, plan)) + "\n"
}

pub(super) fn keys() -> String {
    let remark = "# Keys of our friends.\n\n";
    let lines = [(GOLD, "acme", "gold"), (OLD_GOLD, "acme", "gold"), (SILVER, "initech", "silver")];
    lines.iter().fold(remark.to_owned(), |text, (key, id, plan)| text + &line(key.as_bytes(), id, plan))
}

pub(super) fn before(upstream: &Upstream, api_keys: &str, rest: &str) -> GatewayBuilder {
    let text = format!("api_keys: {{{api_keys}, file: api-keys.txt}}\n{rest}");
    Gateway::before(upstream).with(&text).file("api-keys.txt", &keys())
}

pub(super) fn start(upstream: &Upstream, api_keys: &str, rest: &str) -> Gateway {
    before(upstream, api_keys, rest).start()
}

pub(super) fn start_by_header(upstream: &Upstream) -> Gateway {
    start(upstream, "from: header:x-api-key", RULES)
}

pub(super) fn status(gateway: &Gateway, key: &str) -> u16 {
    gateway.client().get("/", &[("X-API-Key", key)]).status
}

#[test]
fn a_known_key_has_the_limit_of_its_plan() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let mut client = gateway.client();
    for _ in 0..3 {
        let granted = client.get("/", &[("x-api-key", GOLD)]);
        assert_eq!(granted.status, 200);
        assert_eq!(granted.field("ratelimit-policy").as_deref(), Some("\"gold\";q=3;w=86400"));
    }
    // The key goes on as it was sent.
    assert_eq!(upstream.last().field("x-api-key"), Some(GOLD));
    assert_eq!(client.get("/", &[("x-api-key", GOLD)]).status, 429);
    assert_eq!(client.get("/", &[("x-api-key", SILVER)]).status, 200);
    assert_eq!(client.get("/", &[("x-api-key", SILVER)]).status, 429);
}

#[test]
fn keys_of_one_id_share_a_bucket() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let answers = [GOLD, OLD_GOLD, GOLD, OLD_GOLD, GOLD].map(|key| status(&gateway, key));
    assert_eq!(answers, [200, 200, 200, 429, 429]);
}

#[test]
fn a_key_that_is_not_known_is_refused_and_charges_nothing() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let mut client = gateway.client();
    let refused = client.get("/", &[("X-API-Key", UNKNOWN), ("X-Request-Id", "abc-1")]);
    assert_eq!(refused.status, 401);
    for (name, value) in [
        ("x-tollgate-reason", "key_invalid"),
        ("www-authenticate", "ApiKey"),
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(refused.field(name).as_deref(), Some(value));
    }
    for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
        assert_eq!(refused.field(name), None);
    }
    let problem = serde_json::json!({
        "type": "about:blank", "title": "Unauthorized", "status": 401, "request_id": "abc-1",
    });
    assert_eq!(refused.json(), problem);
    assert_eq!((upstream.count(), gateway.metric("rate_limiter_requests_total", &[])), (0, 0.0));
    gateway.expect("tollgate_refused_requests_total", &["reason=\"key_invalid\""], 1.0);
    gateway.expect("rate_limiter_decisions_total", &["refused"], 1.0);
    gateway.expect("rate_limiter_decisions_total", &[], 1.0);
    // The connection goes on, and nobody else has paid.
    assert_eq!([(); 3].map(|()| client.get("/", &[]).status), [200, 200, 429]);
}

#[test]
fn a_key_that_is_not_known_is_refused_to_grpc_in_its_own_way() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let refused = gateway.client().get("/", &[("X-API-Key", UNKNOWN), ("Content-Type", "application/grpc")]);
    let fields = ["grpc-status", "grpc-message"].map(|name| refused.field(name).unwrap());
    assert_eq!((refused.status, fields), (200, ["16".to_owned(), "key_invalid".to_owned()]));
}

#[test]
fn a_request_without_a_key_is_anonymous() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let mut client = gateway.client();
    for fields in [&[][..], &[("x-api-key", "")], &[("x-api-key", "  ")]] {
        let answer = client.get("/", fields);
        let policy = answer.field("ratelimit-policy");
        assert_eq!(policy.as_deref(), Some("\"anonymous\";q=2;w=86400"), "{fields:?}");
    }
}

#[test]
fn an_unknown_key_counts_as_missing_if_configured() {
    let upstream = Upstream::start();
    let gateway = start(&upstream, "from: header:x-api-key, on_invalid: anonymous", RULES);
    let mut client = gateway.client();
    assert_eq!([(); 3].map(|()| client.get("/", &[("X-API-Key", UNKNOWN)]).status), [200, 200, 429]);
    assert_eq!(upstream.last().field("x-api-key"), Some(UNKNOWN));
    assert_eq!(client.get("/", &[("X-API-Key", GOLD)]).status, 200);
    // Only a request that can be read in one way has an identity, or none.
    assert_eq!(client.get("/", &[("X-API-Key", GOLD), ("X-API-Key", GOLD)]).status, 400);
}

#[test]
fn a_key_with_several_readings_is_refused() {
    let upstream = Upstream::start();
    let cases: [(&str, &str, Fields<'_>); 6] = [
        ("header:x-api-key", "/", &[("X-API-Key", GOLD), ("x-api-key", GOLD)]),
        ("header:x-api-key", "/", &[("X-API-Key", UNKNOWN), ("x-api-key", GOLD)]),
        ("header:x-api-key", "/", &[("X-API-Key", GOLD), ("Connection", "X-API-Key")]),
        ("query:key", "/?key=a&k%65y=b", &[]),
        ("cookie:key", "/", &[("Cookie", "key=a; key=b")]),
        ("cookie:key", "/", &[("Cookie", "key=a"), ("Connection", "cookie")]),
    ];
    for (from, target, fields) in cases {
        // Also without any rule: that a key is read is enough.
        let gateway = start(&upstream, &format!("from: \"{from}\""), "");
        let refused = gateway.client().get(target, fields);
        let reason = refused.field("x-tollgate-reason");
        assert_eq!((refused.status, reason.as_deref()), (400, Some("ambiguous_request")), "{from} {target} {fields:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn ambiguity_is_checked_before_the_key_and_deny_after_it() {
    let upstream = Upstream::start();
    let gateway = start(
        &upstream,
        "from: header:x-api-key",
        "
exempt: [{method: HEAD}]
rules:
  - {name: no, match: {path: /no}, action: deny}
  - {name: user, limit_keys: [header:x-user], algorithm_config: {rate: 1/day}}",
    );
    let mut client = gateway.client();
    let mut reason = |target: &str, fields: &[(&str, &str)]| {
        let answer = client.get(target, &[&[("X-API-Key", UNKNOWN)], fields].concat());
        answer.field("x-tollgate-reason").unwrap()
    };
    assert_eq!(reason("/", &[("X-User", "a"), ("X-User", "b")]), "ambiguous_request");
    assert_eq!(reason("/%2f", &[]), "bad_request");
    assert_eq!(reason("/no", &[]), "key_invalid");
    assert_eq!(client.send("HEAD", "/", &[("X-API-Key", UNKNOWN)], "").status, 401);
}

#[test]
fn a_key_may_be_in_a_query_parameter_or_a_cookie() {
    let upstream = Upstream::start();
    let odd = "a+b/c=d&e f;0123";
    let text = keys() + &line(odd.as_bytes(), "odd", "silver");
    let start = |from: &str| {
        let rest = format!("api_keys: {{from: \"{from}\", file: api-keys.txt}}\n{RULES}");
        Gateway::before(&upstream).with(&rest).file("api-keys.txt", &text).start()
    };
    let gateway = start("query:api_key");
    let mut client = gateway.client();
    let granted = client.get(&format!("/?a=b&api_key={GOLD}"), &[]);
    assert_eq!(granted.field("ratelimit").as_deref(), Some("\"gold\";r=2;t=28800"));
    assert_eq!(upstream.last().line, format!("GET /?a=b&api_key={GOLD} HTTP/1.1"));
    assert_eq!(client.get("/?api_key=a%2Bb/c%3Dd%26e+f%3B0123", &[]).status, 200);
    // To some upstreams the key ends at the semicolon.
    assert_eq!(client.get("/?api_key=a%2Bb/c%3Dd%26e+f;0123", &[]).status, 400);
    assert_eq!(client.get(&format!("/?api_key={UNKNOWN}"), &[]).status, 401);
    assert_eq!(client.get(&format!("/?API_KEY={UNKNOWN}"), &[]).status, 200);
    let gateway = start("cookie:key");
    let mut client = gateway.client();
    let granted = client.get("/", &[("Cookie", &format!("a=b; key={GOLD}"))]);
    assert_eq!(granted.field("ratelimit").as_deref(), Some("\"gold\";r=2;t=28800"));
    assert_eq!(client.get("/", &[("Cookie", &format!("key={UNKNOWN}"))]).status, 401);
}

#[test]
fn a_key_is_any_bytes_up_to_a_maximum_length() {
    let upstream = Upstream::start();
    let gateway = start_by_header(&upstream);
    let bytes = b"k\xe9y-\xff-0123456789abcdef";
    let longest = "k".repeat(1024);
    let text = keys() + &line(bytes, "bytes", "gold") + &line(longest.as_bytes(), "long", "gold");
    std::fs::write(gateway.file("api-keys.txt"), text).unwrap();
    eventually("the keys are in force", || gateway.has_logged("keys=5"));
    let ask = |key: &[u8]| {
        let mut client = gateway.client();
        // The gateway may not read a head to its end.
        let request = [b"GET / HTTP/1.1\r\nHost: a\r\nX-API-Key: ", key, b"\r\n\r\n"].concat();
        let sent = client.write_bytes(&request);
        client.response("GET").map(|answer| answer.status).or(sent.map(|()| 0)).unwrap_or(0)
    };
    assert_eq!(ask(bytes), 200);
    assert_eq!(ask(b"k\xef\xbf\xbdy-\xff-0123456789abcdef"), 401);
    assert_eq!(ask(longest.as_bytes()), 200);
    assert_eq!(ask("k".repeat(1025).as_bytes()), 401);
    assert_eq!(ask("k".repeat(10_000).as_bytes()), 401);
    // No head at all, long before it is a key.
    let huge = ask("k".repeat(1 << 20).as_bytes());
    assert!(matches!(huge, 0 | 400 | 431), "{huge}");
    assert_eq!((ask(GOLD.as_bytes()), upstream.count()), (200, 3));
}

#[test]
fn a_key_is_never_logged_or_counted_by_its_value() {
    let upstream = Upstream::start();
    for from in ["header:x-api-key", "query:key", "cookie:key"] {
        let gateway = start(&upstream, &format!("from: \"{from}\""), &format!("{RULES}\nlog: {{level: trace}}"));
        for key in [GOLD, UNKNOWN] {
            let (target, cookie) = (format!("/?key={key}"), format!("key={key}"));
            let (target, field) = match from {
                "query:key" => (&*target, ("X-Other", "a")),
                "cookie:key" => ("/", ("Cookie", &*cookie)),
                _ => ("/", ("X-API-Key", key)),
            };
            let answers = [(); 5].map(|()| gateway.client().get(target, &[field]).status);
            assert!(answers.iter().all(|status| matches!(status, 200 | 401 | 429)), "{answers:?}");
        }
        let metrics = Client::connect(gateway.admin).get("/metrics", &[]).body;
        for written in [gateway.errors(), metrics] {
            assert!(!written.is_empty());
            for secret in [GOLD, UNKNOWN, line(GOLD.as_bytes(), "", "").split(' ').next().unwrap(), "acme"] {
                assert!(!written.contains(secret), "{from}: {secret} in {written}");
            }
        }
    }
}
