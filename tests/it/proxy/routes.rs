//! Answers of routes, and the changes that routes make to forwarded requests.

use std::io::Write;
use std::net::TcpListener;

use serde_json::{Value, json};

use crate::support::mint::{Signer, epoch};
use crate::support::{Gateway, Upstream, eventually};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Starts a gateway with one upstream, `api`, and these routes.
fn start(api: &Upstream, routes: &str, rest: &str) -> Gateway {
    let upstreams = format!("upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}", api.address);
    Gateway::before_url("").with(&format!("{upstreams}\nroutes:\n{routes}\n{rest}\n")).start()
}

fn log(gateway: &Gateway) -> Vec<Value> {
    let text = std::fs::read_to_string(gateway.file("access.log")).unwrap_or_default();
    // The last line may be half written.
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn token(claims: &Value) -> String {
    let mut claims = claims.clone();
    claims["exp"] = json!(epoch() + 600);
    format!("Bearer {}", Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), &claims))
}

#[test]
fn a_route_may_redirect_or_answer_by_itself_within_limits() {
    let api = Upstream::start();
    let routes = "
  - {name: tls, match: {host: tls.example.com, scheme: http}, redirect: {scheme: https}}
  - {name: moved, match: {path: /old/*}, redirect: {code: 307, replace_prefix: /v1}, response_headers: {set: {X-Old: '1'}}}
  - {name: root, match: {path: /cut/*}, redirect: {code: 302, strip_prefix: /cut}}
  - {name: closed, match: {path: /admin/*}, respond: {status: 503, body: back soon, headers: {Retry-After: 60}}}
  - {name: empty, match: {path: /empty}, respond: {status: 204}}
  - {name: rest, upstream: api}";
    let rest = "access_log: {to: access.log, when: [allowed, refused, error]}
client_ip: {trusted_proxies: [127.0.0.1]}
rules:
  - {name: closed, match: {route: closed}, limit_keys: [ip:address], algorithm_config: {rps: 0.001, burst: 2}}
  - {name: upstreams, match: {upstream: {present: true}}, limit_keys: [upstream], algorithm_config: {rps: 0.001, burst: 2}}";
    let gateway = start(&api, routes, rest);
    let mut client = gateway.client();
    let location = |response: &crate::support::Response| response.field("location").unwrap_or_default();
    let host = ("Host", "tls.example.com:8080");
    let tls = client.send("GET", "/a%20b?c=d", &[host], "");
    assert_eq!((tls.status, &*location(&tls)), (308, "https://tls.example.com/a%20b?c=d"));
    // By https, from a proxy that is trusted, it goes to the upstream.
    assert_eq!(client.send("GET", "/", &[host, ("X-Forwarded-Proto", "https")], "").status, 200);
    // A body that is not read, and the next request on the same connection.
    let moved = client.send("POST", "/%6fld//evil.example/?q", &[], "body");
    assert_eq!((moved.status, &*location(&moved)), (307, "/v1//evil.example/?q"));
    assert_eq!((moved.field("x-old").as_deref(), moved.number("content-length")), (Some("1"), 0));
    assert!(moved.field("x-request-id").is_some());
    let root = client.get("/x/../cut//evil.example", &[]);
    assert_eq!((root.status, &*location(&root)), (302, "/evil.example"));
    let closed = client.get("/admin/x", &[]);
    assert_eq!((closed.status, &*closed.body, closed.number("retry-after")), (503, "back soon", 60));
    let content_type = closed.field("content-type");
    assert_eq!((content_type.as_deref(), closed.number("ratelimit-remaining")), (Some("text/plain; charset=utf-8"), 1));
    let head = client.send("HEAD", "/admin", &[], "");
    assert_eq!((head.status, head.number("content-length"), &*head.body), (503, 9, ""));
    let refused = client.get("/admin/x", &[]);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("token_bucket_exceeded")));
    let empty = client.get("/empty", &[]);
    assert_eq!((empty.status, &*empty.body, empty.field("content-length")), (204, "", None));
    // Only requests to an upstream have the attribute.
    assert_eq!([(); 2].map(|()| client.get("/", &[]).status), [200, 429]);
    assert_eq!(api.count(), 2);
    gateway.expect("tollgate_http_requests_total", &["route=\"moved\"", "307", "origin=\"gateway\""], 1.0);
    gateway.expect("tollgate_http_requests_total", &["route=\"closed\"", "503", "origin=\"gateway\""], 2.0);
    gateway.expect("tollgate_http_requests_total", &["origin=\"upstream\""], 2.0);
    eventually("the log is written", || log(&gateway).len() == 10);
    let kinds: Vec<_> = log(&gateway).iter().map(|line| line["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "refused").count(), 2);
    assert_eq!(kinds.iter().filter(|kind| *kind == "allowed").count(), 8);
}

#[test]
fn a_redirection_without_an_address_is_a_bad_request() {
    let api = Upstream::start();
    let routes = "
  - {name: tls, redirect: {scheme: https}}";
    let gateway = start(&api, routes, "");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.0\r\n\r\n");
    let response = client.response("GET").unwrap();
    assert_eq!((response.status, response.field("x-tollgate-reason").as_deref()), (400, Some("bad_request")));
}

#[test]
fn the_upstream_gets_another_path_and_host_and_rules_see_what_was_sent() {
    let api = Upstream::start();
    let routes = "
  - {name: cut, match: {path: /api/*}, upstream: api, rewrite: {strip_prefix: /api, host: 'api.internal:81'}}
  - {name: moved, match: {path: [/old/*, /older/*]}, upstream: api, rewrite: {replace_prefix: /v1}}
  - {name: rest, upstream: api}";
    let rest = "rules:
  - {name: secret, match: {path: /secret/*}, action: deny}
  - {name: api, match: {path: /api/x, host: example.com}, limit_keys: [], algorithm_config: {rps: 0.001, burst: 1}}";
    let gateway = start(&api, routes, rest);
    let mut client = gateway.client();
    let mut sent = |method: &str, target: &str, fields: &[(&str, &str)]| {
        let fields = [&[("Host", "example.com")], fields].concat();
        assert_eq!(client.send(method, target, &fields, "").status, 200, "{target}");
        let seen = api.last();
        let line = seen.line.strip_suffix(" HTTP/1.1").unwrap().to_owned();
        (line, seen.field("x-forwarded-prefix").map(str::to_owned), seen.field("host").unwrap().to_owned())
    };
    let cut = |line: &str| (line.to_owned(), Some("/api".to_owned()), "api.internal:81".to_owned());
    let other = |line: &str| (line.to_owned(), None, "example.com".to_owned());
    assert_eq!(sent("GET", "/api/x?a=/api&b", &[]), cut("GET /x?a=/api&b"));
    assert_eq!(api.last().field("x-forwarded-host"), Some("example.com"));
    for (target, expected) in [
        ("/api", "/"),
        ("/api/", "/"),
        ("/api?x", "/?x"),
        ("/%61pi/a%20b/%7e", "/a%20b/%7e"),
        ("/y/../api;v=1/./z", "/z"),
        ("/api//evil.example/a", "/evil.example/a"),
        ("/api/x/../../api/y", "/y"),
        ("http://example.com/api/q?r", "/q?r"),
        // The deny is for what was sent.
        ("/api/secret/a", "/secret/a"),
    ] {
        assert_eq!(sent("GET", target, &[("X-Forwarded-Prefix", "/evil")]), cut(&format!("GET {expected}")));
    }
    assert_eq!(sent("POST", "/older/a", &[]), other("POST /v1/a"));
    assert_eq!(sent("GET", "/old", &[]), other("GET /v1"));
    assert_eq!(sent("GET", "/apix", &[]), other("GET /apix"));
    assert_eq!(client.get("/secret/a", &[]).status, 403);
    assert_eq!(client.send("GET", "/api/x", &[("Host", "example.com")], "").status, 429);
    assert_eq!(client.get("/api/\u{e9}?\u{e9}", &[]).status, 200);
    assert_eq!(api.last().line, "GET /\u{e9}?\u{e9} HTTP/1.1");
}

#[test]
fn a_route_sets_and_removes_fields_that_no_client_can_forge() {
    let api = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nServer: x/1\r\nX-Kept: 1\r\n\r\n");
    });
    let routes = "
  - name: all
    upstream: api
    request_headers: {set: {X-Tenant: '{jwt:org}', X-Where: '{route}/{method}', X-Key: '${API_KEY:-k}'}, remove: [x-debug]}
    response_headers: {set: {X-Org: 'org={jwt:org}', Strict-Transport-Security: max-age=9}, remove: [server]}";
    let rest = format!("jwt: {{algorithms: [HS256], keys: {{secret: {SECRET}}}}}");
    let gateway = start(&api, routes, &rest);
    let mut client = gateway.client();
    let forged = [("X-Tenant", "evil"), ("X_Tenant", "evil"), ("X-Debug", "1"), ("X-Key", "evil")];
    let mut send = |claims: &Value| {
        let token = token(claims);
        let fields = [&forged[..], &[("Authorization", &*token)]].concat();
        let response = client.get("/", &fields);
        assert_eq!(response.status, 200);
        let seen = api.last();
        assert_eq!(
            (seen.field("x-where"), seen.field("x-key"), seen.field("x-debug")),
            (Some("all/GET"), Some("k"), None)
        );
        assert!(seen.field("x_tenant").is_none());
        assert_eq!((response.field("server"), response.field("x-kept").as_deref()), (None, Some("1")));
        assert_eq!(response.field("strict-transport-security").as_deref(), Some("max-age=9"));
        (seen.field("x-tenant").map(str::to_owned), response.field("x-org"))
    };
    let both = |tenant: &str| (Some(tenant.to_owned()), Some(format!("org={tenant}")));
    assert_eq!(send(&json!({"org": "acme"})), both("acme"));
    assert_eq!(send(&json!({"org": 7})), both("7"));
    // Neither does what cannot be a value, nor what would be read as another one.
    for claims in [json!({}), json!({"org": ["a"]}), json!({"org": "a\r\nX-Admin: 1"}), json!({"org": " acme"})] {
        assert_eq!(send(&claims), (None, None), "{claims}");
    }
}

#[test]
fn clients_stay_at_their_upstream_of_several_and_retries_stay_within_it() {
    let [api, canary] = [(); 2].map(|()| Upstream::start());
    // Nothing listens there, so that every second request to the canary is tried again.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = |weights: &str| {
        format!(
            "upstreams:
  api: {{endpoints: [\"http://{}\"]}}
  canary: {{endpoints: [\"http://{}\", \"http://{nobody}\"], ejection: false, retries: {{max: 1, budget: 100%}}}}
routes:
  - {{name: drawn, match: {{path: /drawn}}, upstream: {{api: 1, canary: 1}}}}
  - {{name: all, upstream: {weights}, split_by: header:x-user}}
access_log: {{to: access.log, when: [allowed]}}
rules: [{{name: canary, match: {{upstream: canary}}, limit_keys: [upstream], algorithm_config: {{rate: 100/day}}}}]
",
            api.address, canary.address
        )
    };
    let gateway = Gateway::before_url("").with(&file("{api: 80, canary: 20}")).start();
    let mut client = gateway.client();
    let mut users = || -> Vec<bool> {
        let ask = |user| {
            let before = canary.count();
            let response = client.get("/", &[("X-User", &format!("user-{user}"))]);
            let is_canary = canary.count() > before;
            // The rule sees the upstream that was chosen.
            assert_eq!((response.status, response.field("ratelimit").is_some()), (200, is_canary));
            is_canary
        };
        (0..40).map(ask).collect()
    };
    let first = users();
    assert_eq!(users(), first);
    let canaries = first.iter().filter(|is_canary| **is_canary).count();
    assert!((1..20).contains(&canaries), "{canaries}");
    gateway.reload_text(&file("{canary: 40, api: 60}"));
    let wider = users();
    assert!(first.iter().zip(&wider).all(|(before, after)| *after || !before) && first != wider);
    let mut client = gateway.client();
    let before = api.count();
    assert!((0..5).all(|_| client.get("/", &[]).status == 200));
    assert_eq!(api.count() - before, 5);
    let (before, drawn) = (canary.count(), 40);
    (0..drawn).for_each(|_| assert_eq!(client.get("/drawn", &[]).status, 200));
    assert!((1..drawn).contains(&(canary.count() - before)));
    gateway.expect(
        "tollgate_upstream_request_duration_seconds_count",
        &["upstream=\"canary\""],
        f64::from(u32::try_from(canary.count()).unwrap()),
    );
    eventually("the log is written", || log(&gateway).len() == api.count() + canary.count());
    let logged = log(&gateway).iter().filter(|line| line["upstream"] == "canary").count();
    assert_eq!(logged, canary.count());
    let retried = log(&gateway).iter().filter(|line| !line["failed_attempts"].is_null()).count();
    assert!(retried > 3, "{retried}");
}

#[test]
fn a_route_has_bounds_of_its_own() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let api = Upstream::start();
    let routes = "
  - {name: quick, match: {path: /quick}, upstream: silent, timeouts: {read: 2s}, retries: {max: 0}}
  - {name: again, match: {path: /again}, upstream: silent, timeouts: {read: 2s}}
  - {name: small, match: {path: /small}, upstream: api, body_bytes: 4B}
  - {name: rest, upstream: api}";
    let upstreams = format!(
        "upstreams:
  api: {{endpoints: [\"http://{0}\"]}}
  silent: {{endpoints: [\"http://{1}\", \"http://{0}\"], ejection: false}}",
        api.address,
        silent.local_addr().unwrap()
    );
    let rest =
        "rules: [{name: small, match: {route: small}, limit_keys: [route], algorithm_config: {rps: 0.001, burst: 4}}]";
    let gateway = Gateway::before_url("").with(&format!("{upstreams}\nroutes:{routes}\n{rest}\n")).start();
    // Every second one goes to the server that is silent. All at once, since they wait.
    let ask = |target: &'static str| {
        let clients = [(); 4].map(|()| {
            let mut client = gateway.client();
            std::thread::spawn(move || client.get(target, &[]).status)
        });
        clients.map(|client| client.join().unwrap())
    };
    let quick = ask("/quick");
    assert_eq!(quick.iter().filter(|status| **status == 504).count(), 2, "{quick:?}");
    assert_eq!(ask("/again"), [200; 4]);
    let mut client = gateway.client();
    let exact = client.send("POST", "/small", &[], "four");
    assert_eq!((exact.status, exact.number("ratelimit-remaining")), (200, 3));
    let before = api.count();
    let long = client.send("POST", "/small", &[], "fives");
    assert_eq!((long.status, long.field("x-tollgate-reason").as_deref()), (413, Some("bad_request")));
    let chunked = |body: &str| {
        let mut client = gateway.client();
        client.write(&format!("POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}0\r\n\r\n"));
        client.response("POST").unwrap().status
    };
    assert_eq!(api.count(), before);
    assert_eq!((chunked("2\r\nab\r\n2\r\ncd\r\n"), chunked("2\r\nab\r\n3\r\ncde\r\n")), (200, 413));
    // Only the one of unknown length was charged.
    assert_eq!(client.send("POST", "/small", &[], "").number("ratelimit-remaining"), 0);
    assert_eq!(client.send("POST", "/", &[], "more than four").status, 200);
}
