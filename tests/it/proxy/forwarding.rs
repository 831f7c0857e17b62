//! Requests and responses that are forwarded.

use std::io::Write;
use std::net::TcpListener;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::support::websocket::{SWITCHED, UPGRADE};
use crate::support::{Client, Gateway, Upstream, eventually};

#[test]
fn a_request_and_its_response_arrive_as_they_were_sent() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nX-Own: kept\r\n\r\nhello");
    });
    let gateway = Gateway::start(&upstream, "");
    let response =
        gateway.client().send("PUT", "/a%20b/../c?d=%ff&e", &[("Host", "api.example.com:81"), ("X-Mine", "v")], "body");
    assert_eq!((response.status, &*response.body), (201, "hello"));
    assert_eq!(response.field("x-own").as_deref(), Some("kept"));
    let seen = upstream.last();
    assert_eq!(seen.line, "PUT /a%20b/../c?d=%ff&e HTTP/1.1");
    assert_eq!((seen.field("host"), seen.field("x-mine")), (Some("api.example.com:81"), Some("v")));
    assert_eq!(seen.body, b"body");
}

#[test]
fn a_trace_context_is_forwarded_as_it_was_sent_and_none_is_made() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let trace = [
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "rojo=00f067aa0ba902b7,  congo=t61rcWkgMzE"),
        ("tracestate", "other@vendor=:=;x"),
        ("baggage", "userId=al%20ice;p=1 , serverNode=DF%2028"),
    ];
    let sent = |fields: &[(&str, &str)]| {
        assert_eq!(gateway.client().get("/", fields).status, 200);
        let of_trace =
            |name: &str| ["traceparent", "tracestate", "baggage"].iter().any(|one| name.eq_ignore_ascii_case(one));
        let mut seen = upstream.last().fields;
        seen.retain(|(name, _)| of_trace(name));
        seen
    };
    let expected = trace.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(sent(&trace), expected);
    // Also an invalid one: its meaning is for the upstream to decide.
    assert_eq!(sent(&[("traceparent", "00-0-0-00")]), [("traceparent".to_owned(), "00-0-0-00".to_owned())]);
    assert_eq!(sent(&[]), []);
}

#[test]
fn an_untrusted_client_cannot_choose_its_address() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}]");
    let mut client = gateway.client();
    let forged = [
        ("X-Forwarded-For", "198.51.100.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "evil"),
        ("X-Real-IP", "198.51.100.1"),
        ("Forwarded", "for=198.51.100.1"),
        ("X-Tollgate-Anything", "x"),
        ("RateLimit-Limit", "1"),
        ("RateLimit", "x"),
        // Where names become variables, these are the same name.
        ("X_Forwarded_For", "198.51.100.1"),
        ("X-Forwarded_Proto", "https"),
        ("X.Forwarded.Host", "evil"),
        ("X_Real_IP", "198.51.100.1"),
        ("X_Request_Id", "forged"),
        ("X_Tollgate_Anything", "x"),
        ("RateLimit_Limit", "1"),
        ("X_Other", "kept"),
    ];
    assert_eq!(client.get("/", &forged).status, 200);
    let seen = upstream.last();
    assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!((seen.field("x-forwarded-proto"), seen.field("x-forwarded-host")), (Some("http"), Some("test")));
    let folded = |name: &str| name.to_ascii_lowercase().replace(['_', '.'], "-");
    for name in ["x-real-ip", "forwarded", "x-tollgate-anything", "ratelimit-limit", "ratelimit"] {
        assert_eq!(seen.fields.iter().find(|(found, _)| folded(found) == name), None);
    }
    for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-request-id", "x-other"] {
        assert_eq!(seen.fields.iter().filter(|(found, _)| folded(found) == name).count(), 1, "{name}");
    }
    let other = [("X-Forwarded-For", "198.51.100.2")];
    assert_eq!([client.get("/", &other).status, client.get("/", &other).status], [200, 429]);
}

#[test]
fn hop_by_hop_fields_of_a_request_are_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let sent = [
        ("Connection", "keep-alive, X-Own, HTTP2-Settings, Upgrade"),
        ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic eA=="),
        ("Proxy-Connection", "keep-alive"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
        ("X-Own", "1"),
        ("X-End", "1"),
    ];
    assert_eq!(gateway.client().get("/", &sent).status, 200);
    let seen = upstream.last();
    for (name, _) in sent {
        assert_eq!(seen.field(name).is_some(), name == "X-End", "{name}: {seen:?}");
    }
}

#[test]
fn a_client_that_leaves_after_being_charged_has_paid() {
    let upstream = Upstream::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(300));
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let gateway =
        Gateway::start(&upstream, "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the request arrives", || upstream.count() == 1);
    drop(client);
    gateway.expect("tollgate_http_connections", &[], 0.0);
    assert_eq!(gateway.client().get("/", &[]).status, 429);
}

#[test]
fn a_trusted_proxy_names_the_client() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
client_ip: {trusted_proxies: [127.0.0.0/8]}
rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]",
    );
    let mut client = gateway.client();
    let mut code = |chain: &str| {
        client
            .get("/", &[("X-Forwarded-For", chain), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "public")])
            .status
    };
    assert_eq!([code("198.51.100.1"), code("203.0.113.9, 198.51.100.1"), code("198.51.100.2")], [200, 429, 200]);
    assert_eq!([code("2001:db8::1"), code("2001:db8::2"), code("2001:db8:0:1::1")], [200, 429, 200]);
    let seen = upstream.last();
    assert_eq!(seen.field("x-forwarded-for"), Some("2001:db8:0:1::1, 127.0.0.1"));
    assert_eq!((seen.field("x-forwarded-proto"), seen.field("x-forwarded-host")), (Some("https"), Some("public")));
}

#[test]
fn a_request_id_is_kept_or_made_forwarded_and_returned() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    let kept = client.get("/", &[("X-Request-Id", "mine-1.2_3")]);
    assert_eq!(kept.field("x-request-id").as_deref(), Some("mine-1.2_3"));
    assert_eq!(upstream.last().field("x-request-id"), Some("mine-1.2_3"));
    let made = client.get("/", &[("X-Request-Id", "not <harmless>")]).field("x-request-id").unwrap();
    assert_eq!((made.len(), upstream.last().field("x-request-id")), (32, Some(&*made)));
}

#[test]
fn connections_are_reused_on_both_sides() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert!(upstream.seen().iter().all(|seen| seen.connection == 0));
}

#[test]
fn pipelined_requests_are_answered_in_their_order_and_each_is_charged() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::start(&upstream, "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 3/day}}]");
    let mut client = gateway.client();
    client.write(&"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
    let codes: Vec<_> = (0..5).map(|_| client.response("GET").unwrap().status).collect();
    assert_eq!(codes, [200, 200, 200, 429, 429]);
    assert_eq!(upstream.seen().len(), 3);
}

#[test]
fn bodies_are_streamed_both_ways() {
    // Each side waits for the other's first part before it sends its second.
    let (first_came, go_on) = mpsc::channel::<()>();
    let go_on = Mutex::new(go_on);
    let upstream = Upstream::answering(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n");
        let _ = go_on.lock().unwrap().recv_timeout(Duration::from_secs(5));
        let _ = stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n");
    });
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let first = client.first_bytes();
    assert!(first.contains("one") && !first.contains("two"), "{first}");
    first_came.send(()).unwrap();
    client.until("two");

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Gateway::before_url(&format!("http://{}", listener.local_addr().unwrap())).start();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\none");
    let (stream, _) = listener.accept().unwrap();
    let mut upstream = Client::over(stream);
    assert!(upstream.until("one").contains("POST / HTTP/1.1"));
    client.write("two");
    upstream.until("two");
    upstream.write("HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(client.response("POST").unwrap().status, 204);
}

#[test]
fn a_large_body_arrives_whole_in_both_directions() {
    let upstream = Upstream::answering(|seen, stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", seen.body.len());
        let _ = stream.write_all(&seen.body);
    });
    let gateway = Gateway::start(&upstream, "");
    let body: String = (0..1_000_000u32).map(|number| char::from(b'a' + u8::try_from(number % 23).unwrap())).collect();
    let response = gateway.client().send("POST", "/", &[], &body);
    assert_eq!(response.status, 200);
    assert!(response.body == body);
}

#[test]
fn a_name_is_resolved_in_the_background_and_every_address_tried() {
    // `localhost` may resolve to ::1 first, on which nothing listens.
    let upstream = Upstream::start();
    let gateway = Gateway::before_url(&format!("http://localhost:{}", upstream.address.port())).start();
    let mut client = gateway.client();
    assert_eq!([client.get("/", &[]).status, client.get("/", &[]).status], [200, 200]);
    let gateway =
        Gateway::before_url("http://no-such-name.invalid:80").with("upstream_timeouts: {connect: 500ms}").start();
    assert_eq!(gateway.client().get("/", &[]).status, 502);
    gateway.expect("tollgate_upstream_errors_total", &["unresolved"], 1.0);
}

#[test]
fn a_client_that_wants_its_connection_closed_gets_that() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[("Connection", "close")]).status, 200);
    assert!(client.is_closed());
    let mut old = gateway.client();
    old.write("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!(old.response("GET").unwrap().status, 200);
    assert!(old.is_closed());
}

/// The request is forwarded as HTTP/1.1, which requires the field. The attribute `host` stays empty, as the client sent it.
#[test]
fn a_request_without_host_is_forwarded_with_that_of_the_upstream() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "
rules:
  - {name: named, match: {host: a}, limit_keys: [host], algorithm_config: {rate: 100/day}}
  - {name: nameless, limit_keys: [ip:address], algorithm_config: {rate: 5/day}}",
    );
    let authority = upstream.address.to_string();
    for (line, fields, host, quota) in [
        ("GET / HTTP/1.0", "", &*authority, 5),
        ("GET / HTTP/1.0", "X-Forwarded-Host: b\r\n", &*authority, 5),
        ("GET http://a:80/ HTTP/1.0", "Host: a:80\r\n", "a:80", 100),
        ("GET / HTTP/1.0", "Host: a\r\n", "a", 100),
        ("GET / HTTP/1.1", "Host: a\r\n", "a", 100),
    ] {
        let mut client = gateway.client();
        client.write(&format!("{line}\r\n{fields}\r\n"));
        let response = client.response("GET").unwrap();
        assert_eq!((response.status, response.number("ratelimit-limit")), (200, quota), "{line} {fields}");
        let seen = upstream.last();
        let hosts: Vec<_> = seen.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host")).collect();
        assert_eq!((hosts.len(), &*hosts[0].1), (1, host), "{line} {fields}: {seen:?}");
        assert!(seen.line.ends_with(" HTTP/1.1"), "{}", seen.line);
        let forwarded = fields.starts_with("Host").then_some(host);
        assert_eq!(seen.field("x-forwarded-host"), forwarded, "{line} {fields}");
    }
}

#[test]
fn an_upgrade_is_charged_and_then_a_tunnel() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(format!("{SWITCHED}hello").as_bytes());
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), stream);
    });
    let gateway =
        Gateway::start(&upstream, "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 1/day}}]");
    let mut client = gateway.client();
    let switched = client.get("/", &UPGRADE);
    assert_eq!((switched.status, switched.number("ratelimit-remaining")), (101, 0));
    client.until("hello");
    client.write("ping");
    client.until("ping");
    assert_eq!(gateway.client().get("/", &UPGRADE).status, 429);
}

#[test]
fn what_an_untrusted_peer_says_of_port_and_prefix_is_not_forwarded() {
    let upstream = Upstream::start();
    let sent = [
        ("X-Forwarded-Port", "81"),
        ("X-Forwarded-Prefix", "/evil"),
        ("X_Forwarded_Port", "82"),
        ("X.Forwarded.Prefix", "/worse"),
        ("X-Forwarded_Prefix", "/worst"),
    ];
    for (trusted, expected) in [("", None), ("client_ip: {trusted_proxies: [127.0.0.0/8]}", Some(("81", "/evil")))] {
        let gateway = Gateway::start(&upstream, trusted);
        assert_eq!(gateway.client().get("/", &sent).status, 200);
        let seen = upstream.last();
        let found = seen.field("x-forwarded-port").zip(seen.field("x-forwarded-prefix"));
        assert_eq!(found, expected, "{seen:?}");
        let others = seen.fields.iter().filter(|(name, _)| name.contains(['_', '.'])).count();
        assert_eq!(others, 0, "{seen:?}");
    }
}
