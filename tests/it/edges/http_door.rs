//! The door `http`, called directly: the described request, the permitted peers, and the answers.

use std::io::{BufRead, Read};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::authority::Authority;
use crate::support::curl::curl;
use crate::support::{Certificates, Client, Gateway, Redis, Response, Upstream, eventually, tollgate};

const X_FORWARDED: &str = "original_request: x-forwarded";
const X_ORIGINAL: &str = "original_request: x-original";
const PATH: &str = "original_request: path";

/// Starts a gateway with one listener, which decides for proxies on this host.
fn gateway(settings: &str, rest: &str) -> Gateway {
    Gateway::deciding().with(&config(settings, rest)).start()
}

fn config(settings: &str, rest: &str) -> String {
    format!(
        "listeners: [{{name: teams, address: 127.0.0.1:0, decide: [http], clients: [127.0.0.0/8], {settings}}}]\n{rest}\n"
    )
}

/// Sends a call that describes a request in the fields of `x-forwarded`.
pub fn forwarded(client: &mut Client, method: &str, url: &str, more: &[(&str, &str)]) -> Response {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let own = [
        ("X-Forwarded-Method", method),
        ("X-Forwarded-Proto", scheme),
        ("X-Forwarded-Host", host),
        ("X-Forwarded-Uri", path),
    ];
    let address = [("X-Forwarded-For", "203.0.113.7")];
    let names_address = more.iter().any(|(name, _)| *name == "X-Forwarded-For");
    let fields = [&own[..], if names_address { &[] } else { &address[..] }, more].concat();
    client.send("GET", "/decide", &fields, "")
}

const ONE_EACH: &str = "\
rules:
  - {name: one, match: {path: /v1/*, host: api.example.com, scheme: https, method: POST, query:team: a}, limit_keys: [ip:address, header:x-key], algorithm_config: {rate: 6/min, burst: 1}}
  - {name: other, limit_keys: [ip:address], algorithm_config: {rps: 100, burst: 100}}
access_log: {to: stdout, when: [allowed, refused, error], values: [path, host, method, door, listener, ip:address, route]}
";

#[test]
fn a_call_in_each_form_is_decided_as_the_request_it_describes_would_be() {
    let key = ("X-Key", "k");
    let url = "https://api.example.com/v1/x?team=a";
    for form in [X_FORWARDED, X_ORIGINAL, PATH] {
        let mut gateway = gateway(form, ONE_EACH);
        let mut client = gateway.client();
        let mut ask = |address: &str| match form {
            X_FORWARDED => forwarded(&mut client, "POST", url, &[key, ("X-Forwarded-For", address)]),
            X_ORIGINAL => {
                let fields =
                    [("X-Original-Method", "POST"), ("X-Original-URL", url), ("X-Forwarded-For", address), key];
                // Neither the query nor the method of the call is that of the request.
                client.send("DELETE", "/decide?team=b", &fields, "")
            }
            _ => {
                let fields =
                    [("Host", "api.example.com"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-For", address), key];
                client.send("POST", "/decide/v1/x?team=a", &fields, "")
            }
        };
        let granted = ask("203.0.113.7");
        assert_eq!((granted.status, granted.body.as_str()), (200, ""), "{form}");
        assert_eq!(granted.field("ratelimit").as_deref(), Some("\"one\";r=0;t=10"), "{form}");
        let refused = ask("203.0.113.7");
        assert_eq!((refused.status, refused.field("ratelimit-limit").as_deref()), (429, Some("1")), "{form}");
        assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"));
        assert_eq!(refused.json()["violated-policies"][0], "one", "{form}");
        assert!(refused.number("retry-after") >= 1);
        assert_eq!(refused.field("x-tollgate-status"), None);
        // Another client, behind a hop that nobody trusts.
        assert_eq!(ask("203.0.113.7, 203.0.113.8").status, 200, "{form}");
        gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "allowed"], 2.0);
        gateway.expect("rate_limiter_decisions_total", &["door=\"http\"", "refused"], 1.0);
        gateway.expect("rate_limiter_decisions_total", &["door=\"proxy\""], 0.0);
        gateway.expect(
            "tollgate_http_requests_total",
            &["route=\"none\"", "method=\"POST\"", "origin=\"gateway\""],
            3.0,
        );
        let line = last_line(&mut gateway);
        assert_eq!(
            (line["door"].as_str(), line["code"].as_u64(), line["method"].as_str()),
            (Some("http"), Some(200), Some("POST"))
        );
        let values = &line["values"];
        assert_eq!(
            (values["path"].as_str(), values["host"].as_str()),
            (Some("/v1/x"), Some("api.example.com")),
            "{line}"
        );
        assert_eq!((values["door"].as_str(), values["listener"].as_str()), (Some("http"), Some("teams")), "{line}");
        assert_eq!((values["ip:address"].as_str(), values.get("route")), (Some("203.0.113.8"), None), "{line}");
    }
}

/// Returns the third line of the access log.
fn last_line(gateway: &mut Gateway) -> Value {
    let line = gateway.output().lines().nth(2).unwrap().unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_call_that_lacks_a_part_or_has_it_twice_is_400_and_charges_nothing() {
    let rest = "rules: [{name: one, limit_keys: [], expose: true, algorithm_config: {rate: 6/min, burst: 1}}]";
    let x_forwarded = [
        ("X-Forwarded-Method", "GET"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "a"),
        ("X-Forwarded-Uri", "/x"),
        ("X-Forwarded-For", "203.0.113.7"),
    ];
    let x_original =
        [("X-Original-Method", "GET"), ("X-Original-URL", "http://a/x"), ("X-Forwarded-For", "203.0.113.7")];
    for (form, whole, target) in [
        (X_FORWARDED, &x_forwarded[..], "/decide"),
        (X_ORIGINAL, &x_original, "/decide"),
        (PATH, &[x_forwarded[1], x_forwarded[4]], "/decide/x"),
    ] {
        let gateway = gateway(&format!("{form}, refuse_with: 403"), rest);
        let mut client = gateway.client();
        for (index, (name, value)) in whole.iter().enumerate() {
            let without = [&whole[..index], &whole[index + 1..]].concat();
            let empty = [&without[..], &[(name, "")]].concat();
            let twice = [whole, &[(*name, *value)]].concat();
            let wrong = if *name == "X-Forwarded-For" {
                // The chain of addresses may be in several lines; its end is who called the proxy.
                let ends = ["unknown", "203.0.113.7, unknown", "203.0.113.7,", "203.0.113", "203.0.113.7:x", "[::1"];
                let unreadable = ends.map(|chain| [&without[..], &[(*name, chain)]].concat());
                let last_line = [whole, &[(*name, "unknown")]].concat();
                [vec![without, empty, last_line], unreadable.to_vec()].concat()
            } else {
                vec![without, empty, twice]
            };
            for fields in wrong {
                let answer = client.send("GET", target, &fields, "");
                assert_eq!(answer.status, 400, "{form} {fields:?}");
                assert_eq!(answer.field("x-tollgate-reason").as_deref(), Some("bad_request"));
            }
        }
        // The fields of the other set are no help.
        let other = if form == X_FORWARDED { &x_original[..] } else { &x_forwarded[..4] };
        assert_eq!(client.send("GET", target.trim_end_matches("/x"), other, "").status, 400, "{form}");
        assert_eq!(client.send("GET", "/", whole, "").status, 404);
        assert_eq!(client.send("GET", "/decided", whole, "").status, 404);
        assert_eq!(client.send("GET", "/decide/../x", whole, "").status, if form == PATH { 200 } else { 404 });
        assert_eq!(client.send("GET", target, whole, "").status, if form == PATH { 403 } else { 200 });
        for chain in ["203.0.113.7:1234", "2001:db8::7", "[2001:db8::7]", "[2001:db8::7]:443", "unknown, 203.0.113.7"] {
            let fields = [&whole[..whole.len() - 1], &[("X-Forwarded-For", chain)]].concat();
            assert_ne!(client.send("GET", target, &fields, "").status, 400, "{form} {chain}");
        }
        gateway.expect_logged("call of /decide answered 400");
    }
}

#[test]
fn what_describes_the_request_is_no_field_of_it_and_what_a_proxy_would_refuse_is_refused() {
    let rest = "\
rules:
  - {name: spoofed, match: {header:x-original-url: {present: true}}, limit_keys: [], action: deny}
  - {name: forwarded, match: {header:x-forwarded-uri: {present: true}}, limit_keys: [], action: deny}
  - {name: queries, match: {query:q: {present: true}}, limit_keys: [query:q], algorithm_config: {rps: 1, burst: 1}}
  - {name: paths, match: {path: /admin/*}, limit_keys: [], action: deny}
";
    let gateway = gateway(X_FORWARDED, rest);
    let mut client = gateway.client();
    let mut ask = |method: &str, url: &str, more: &[(&str, &str)]| forwarded(&mut client, method, url, more);
    let spoofed = [("X-Original-URL", "http://a/x"), ("X-Original-Method", "GET")];
    assert_eq!(ask("GET", "http://a/x", &spoofed).status, 200);
    for (method, url, status, reason) in [
        ("GET", "http://a/admin/x", 403, "denied"),
        ("GET", "http://a/x/../admin", 403, "denied"),
        ("GET", "http://a/x?/../admin", 200, ""),
        ("GET", "http://a/x?q=1&q=2", 400, "ambiguous_request"),
        ("GET", "http://a/x%00", 400, "bad_request"),
        ("GET", "http://a/x y", 400, "bad_request"),
        ("GET", "http://a//x", 400, "bad_request"),
        ("GET", "http://u@a/x", 400, "bad_request"),
        ("get", "http://a/x", 400, "bad_request"),
        ("TRACE", "http://a/x", 405, "bad_request"),
        ("PROPFIND", "ws://a/x", 200, ""),
        ("GET", "ftp://a/x", 400, "bad_request"),
    ] {
        let answer = ask(method, url, &[]);
        let found = answer.field("x-tollgate-reason").unwrap_or_default();
        assert_eq!((answer.status, found.as_str()), (status, reason), "{method} {url}");
    }
    let long = format!("http://a/{}", "x".repeat(8192));
    assert_eq!(ask("GET", &long, &[]).status, 414);
}

#[test]
fn a_refusal_is_403_for_a_proxy_that_knows_no_other_and_says_what_it_is() {
    let rest = "\
api_keys: {from: header:x-key, file: keys.txt}
rules:
  - {name: gone, match: {path: /gone}, limit_keys: [], action: deny}
  - {name: one, limit_keys: [ip:address], algorithm_config: {rate: 6/min, burst: 1}}
error_pages: [{status: [429], body_file: page.txt, content_type: text/plain}]
cors: [{origins: [https://app.example]}]
";
    let builder = Gateway::deciding().with(&config(&format!("{X_FORWARDED}, refuse_with: 403"), rest));
    let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let gateway =
        builder.file("keys.txt", &format!("{hash} a gold\n")).file("page.txt", "wait {retry_after} s").start();
    let mut client = gateway.client();
    let mut ask = |path: &str, more: &[(&str, &str)]| forwarded(&mut client, "GET", &format!("http://a{path}"), more);
    assert_eq!(ask("/x", &[]).status, 200);
    let refused = ask("/x", &[("Origin", "https://app.example"), ("Content-Type", "application/grpc")]);
    assert_eq!((refused.status, refused.number("x-tollgate-status")), (403, 429));
    // A client of gRPC shows no page.
    assert_eq!(refused.field("content-type").as_deref(), Some("application/problem+json"));
    let shown = ask("/x", &[]);
    assert_eq!(shown.body, format!("wait {} s", shown.number("retry-after")));
    assert_eq!(refused.field("access-control-allow-origin").as_deref(), Some("https://app.example"));
    assert_eq!(refused.field("ratelimit-policy").as_deref(), Some("\"one\";q=1;w=10"));
    let denied = ask("/gone", &[]);
    assert_eq!((denied.status, denied.number("x-tollgate-status")), (403, 403));
    let unknown = ask("/x", &[("X-Key", "guess")]);
    assert_eq!((unknown.status, unknown.number("x-tollgate-status")), (401, 401));
    assert_eq!(unknown.field("www-authenticate").as_deref(), Some("ApiKey"));
    let explained = tollgate(&[
        "explain",
        "-c",
        gateway.file("gateway.yaml").to_str().unwrap(),
        "--listener",
        "teams",
        "https://a/gone",
    ]);
    for words in
        ["door     http", "REFUSED 403 denied", "client   127.0.0.1 (X-Forwarded-For, from the proxy that asks)"]
    {
        assert!(explained.out.contains(words), "{words} is not in {}", explained.out);
    }
}

#[test]
fn who_is_not_named_is_closed_before_a_byte_is_read_and_a_reload_changes_who_that_is() {
    let others = |clients: &str, form: &str| {
        format!(
            "listeners:\n  - {{name: shop, address: 127.0.0.1:0}}\n  - {{address: 127.0.0.1:0, decide: [http], clients: [{clients}], {form}}}\n"
        )
    };
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &others("10.0.0.0/8", X_FORWARDED));
    let door = gateway.listeners[1];
    let closed = || {
        let mut stream = TcpStream::connect(door).unwrap();
        let mut read = Vec::new();
        // Some kernels report the reset of a connection on which nothing was read.
        stream.read_to_end(&mut read).is_err() || read.is_empty()
    };
    assert!(closed());
    gateway.expect("tollgate_decision_connections_closed_total", &[&format!("listener=\"{door}\"")], 1.0);
    gateway.expect_logged("its peer is not in clients");
    // The other listener still proxies, and has no such path.
    let proxied = gateway.client().get("/decide", &[("X-Forwarded-Uri", "/x")]);
    assert_eq!((proxied.status, upstream.last().line.as_str()), (200, "GET /decide HTTP/1.1"));
    gateway.reload(&upstream, &others("127.0.0.1", X_FORWARDED));
    let mut client = Client::connect(door);
    assert_eq!(forwarded(&mut client, "GET", "http://a/x", &[]).status, 200);
    // An open connection is not asked by which file it was let in.
    gateway.reload(&upstream, &others("127.0.0.1", PATH));
    let address = [("X-Forwarded-For", "203.0.113.7"), ("X-Forwarded-Proto", "http")];
    assert_eq!(client.get("/decide/x", &address).status, 200);
    gateway.reload(&upstream, &others("10.0.0.0/8", PATH));
    client.write("GET /decide/x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n");
    assert!(client.response("GET").is_err());
    gateway.expect("rate_limiter_decisions_total", &["door=\"http\""], 2.0);
    gateway.expect("rate_limiter_decisions_total", &["door=\"proxy\""], 1.0);
}

#[test]
fn a_certificate_lets_a_proxy_ask_over_http_2_whatever_its_address() {
    let certificates = Certificates::shared();
    let config = "\
listeners:
  - address: 127.0.0.1:0
    decide: [http]
    original_request: path
    tls: {certificates: [{cert_file: s.pem, key_file: s.key, client_ca_file: ca.pem, client_auth: required}]}
rules: [{name: one, match: {host: api.example.com, scheme: https}, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]
";
    let (server, client) = (&certificates.server, &certificates.client);
    let files = [("s.pem", &*server.0), ("s.key", &*server.1), ("ca.pem", &*certificates.authority)];
    let files = [&files[..], &[("c.pem", &*client.0), ("c.key", &*client.1)]].concat();
    let gateway = Gateway::deciding().with(config).files(&files).start();
    let own = ["--http2", "--cert", "c.pem", "--key", "c.key", "--path-as-is", "--request-target", "/decide/x"];
    // The host of the request is not that of the certificate.
    let fields =
        ["-H", "Host: api.example.com", "-H", "X-Forwarded-For: 203.0.113.7", "-H", "X-Forwarded-Proto: https"];
    let asked = |own: &[&str]| curl(&gateway, "localhost", &[own, &fields[..]].concat());
    let (granted, refused) = (asked(&own), asked(&own));
    assert_eq!((granted.status, refused.status), (200, 429), "{granted:?} {refused:?}");
    assert!(granted.text.starts_with("HTTP/2 200"), "{granted:?}");
    assert!(refused.text.contains("retry-after: ") && refused.text.contains("violated-policies"), "{refused:?}");
    assert_eq!(asked(&own[5..]).status, 0);
}

/// Client certificates replace `clients`, but take effect only when the listener's new certificate is valid.
#[test]
fn a_reload_from_clients_to_a_certificate_that_has_expired_lets_nobody_else_ask() {
    let (authority, shared) = (Authority::new("ca"), Certificates::shared());
    let (first, expired) = (authority.issue(&["localhost"]), authority.issue_until(&["localhost"], 2020));
    let files = [
        ("ca.pem", &*authority.pem()),
        ("clients.pem", &*shared.authority),
        ("a.pem", &*first.certificate),
        ("a.key", &*first.key),
        ("b.pem", &*expired.certificate),
        ("b.key", &*expired.key),
        ("c.pem", &*shared.client.0),
        ("c.key", &*shared.client.1),
    ];
    let listener =
        |keys: &str| format!("listeners: [{{address: 127.0.0.1:0, decide: [http], original_request: path, {keys}}}]\n");
    let asking = "tls: {certificates: [{cert_file: b.pem, key_file: b.key, client_ca_file: clients.pem, client_auth: required}]}";
    for (clients, status) in [("127.0.0.0/8", 200), ("10.0.0.0/8", 0)] {
        let config =
            listener(&format!("clients: [{clients}], tls: {{certificates: [{{cert_file: a.pem, key_file: a.key}}]}}"));
        let gateway =
            Gateway::deciding().with(&config).files(&files).interval("watch", Duration::from_millis(50)).start();
        let call = ["--path-as-is", "--request-target", "/decide/x", "-H", "X-Forwarded-For: 203.0.113.7"];
        let call = [&call[..], &["-H", "X-Forwarded-Proto: https"]].concat();
        let known = ["--cert", "c.pem", "--key", "c.key"];
        let asked = |more: &[&str]| curl(&gateway, "localhost", &[&call[..], more].concat()).status;
        assert_eq!(asked(&[]), status);
        gateway.reload_text(&listener(asking));
        gateway.expect_logged("b.pem: has expired");
        assert_eq!(asked(&[]), status, "the former clients stay with the former certificate");
        gateway.replace("b.pem", &first.certificate);
        gateway.replace("b.key", &first.key);
        eventually("a certificate is asked for", || asked(&[]) == 0 && asked(&known) == status);
        gateway.expect("tollgate_config_last_reload_successful", &[], 1.0);
        // The next one finds a valid pair.
        gateway.reload_text(&(listener(asking) + "limits: {target_bytes: 100B}\n"));
        assert_eq!((asked(&[]), asked(&known)), (0, 200));
    }
}

#[test]
fn the_content_type_of_a_client_says_nothing_of_its_proxy() {
    let config = "\
listeners:
  - {address: 127.0.0.1:0, decide: [http, rls], clients: [127.0.0.1], original_request: path, protocols: [h2c, http/1.1]}
rules: [{name: one, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]
";
    let gateway = Gateway::deciding().with(config).start();
    let url = format!("http://{}/decide/x", gateway.http);
    // Sent to the proxy, and passed on by it: to gRPC, every answer is 200.
    let fields = ["Content-Type: application/grpc", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https"];
    let own = fields.iter().flat_map(|field| ["-H", field]);
    let asked = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", "--http2-prior-knowledge"]);
        let output = curl.args(own.clone()).args(more).arg(&url).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(asked(&[]), "2 200");
    assert_eq!(asked(&[]), "2 429");
    let fields: Vec<String> = (0..101).map(|number| format!("-Hx-{number}: a")).collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    assert_eq!(asked(&fields), "2 431");
}

#[test]
fn of_a_leaky_bucket_only_what_may_leave_at_once_is_granted() {
    let rest = "rules: [{name: queue, limit_keys: [], expose: true, algorithm: leaky_bucket, algorithm_config: {rate: 6/min, queue: 5, max_wait: 1m}}]";
    let gateway = gateway(X_FORWARDED, rest);
    let mut client = gateway.client();
    let mut ask = || forwarded(&mut client, "GET", "http://a/x", &[]);
    assert_eq!(ask().status, 200);
    let refused = ask();
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (429, Some("leaky_bucket_exceeded")));
}

#[test]
fn a_decision_waits_for_the_store_no_longer_than_it_may() {
    let redis = Redis::start();
    let rest = format!(
        "{}\nrules: [{{name: one, limit_keys: [ip:address], on_store_failure: allow, algorithm_config: {{rate: 1/hour, burst: 1}}}}]",
        redis.patient_store()
    );
    let gateway = gateway(&format!("{X_FORWARDED}, answer_within: 400ms"), &rest);
    let mut client = gateway.client();
    let mut ask = |address: &str| forwarded(&mut client, "GET", "http://a/x", &[("X-Forwarded-For", address)]).status;
    let fallbacks = ("rate_limiter_fallback_decisions_total", ["action=\"allow\"", "cause=\"timeout\""]);
    // That the first is short is known without the store, for a second: a busy machine may take longer.
    let mut others = (8..=255).map(|last| format!("203.0.113.{last}"));
    eventually("what is known is not asked for again", || {
        eventually("the store decides", || ask("203.0.113.7") == 429);
        let before = gateway.metric(fallbacks.0, &fallbacks.1);
        redis.signal("STOP");
        let known = ask("203.0.113.7") == 429;
        assert_eq!(ask(&others.next().unwrap()), 200);
        redis.signal("CONT");
        gateway.expect(fallbacks.0, &fallbacks.1, before + if known { 1.0 } else { 2.0 });
        known
    });
    // The store had 5 seconds.
    gateway.expect("rate_limiter_store_errors_total", &["kind=\"timeout\""], 0.0);
    gateway.expect("rate_limiter_breaker_open", &[], 0.0);
}

#[test]
fn two_gateways_on_one_redis_decide_exactly() {
    let redis = Redis::start();
    let rest = format!(
        "{}\nrules: [{{name: one, limit_keys: [ip:address], algorithm_config: {{rate: 1/hour, burst: 50}}}}]",
        redis.patient_store()
    );
    let gateways = [gateway(X_FORWARDED, &rest), gateway(X_FORWARDED, &rest)];
    let asked = gateways.iter().cycle().take(4).map(|gateway| {
        let mut client = gateway.client();
        std::thread::spawn(move || {
            (0..30).filter(|_| forwarded(&mut client, "GET", "http://a/x", &[]).status == 200).count()
        })
    });
    let granted: usize = asked.collect::<Vec<_>>().into_iter().map(|asking| asking.join().unwrap()).sum();
    assert_eq!(granted, 50);
}
