//! The client to which a request is charged: the peer address, PROXY protocol headers and forwarding fields.

use std::time::Duration;

use super::{PROXIED, TWO_A_DAY, proxied, v1, v2_of};
use crate::support::{Client, Gateway, Lateness, Upstream, eventually};

#[test]
fn several_listeners_are_one_gateway() {
    let upstream = Upstream::start();
    let listeners = "listeners: [{address: 127.0.0.1:0}, {address: \"[::1]:0\"}, {address: 127.0.0.1:0}]";
    let gateway = Gateway::start(&upstream, &format!("{listeners}\n{TWO_A_DAY}"));
    assert_eq!(gateway.listeners.len(), 3);
    assert_eq!(gateway.listeners.iter().map(|address| address.is_ipv6()).collect::<Vec<_>>(), [false, true, false]);
    let mut clients: Vec<_> = gateway.listeners.iter().map(|address| Client::connect(*address)).collect();
    let mut code = |listener: usize| clients[listener].get("/", &[]).status;
    assert_eq!([code(0), code(1), code(2), code(0), code(2), code(1), code(1)], [200, 200, 200, 429, 429, 200, 429]);
    for address in &gateway.listeners {
        gateway.expect("tollgate_http_connections", &[&format!("listener=\"{address}\"")], 1.0);
    }
}

#[test]
fn the_connections_of_an_only_listener_are_counted_under_one_name() {
    let gateway = Gateway::start(&Upstream::start(), "listeners: [{address: 127.0.0.1:0}]");
    let _client = gateway.client();
    gateway.expect("tollgate_http_connections", &["listener=\"http\""], 1.0);
}

#[test]
fn rules_routes_logs_and_metrics_know_the_name_of_a_listener() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        "listeners: [{name: edge, address: 127.0.0.1:0}, {name: inner, address: 127.0.0.1:0}]
rules:
  - {name: outside, match: {listener: edge}, limit_keys: [listener], algorithm_config: {rate: 1/day}}
access_log: {to: log, values: [listener]}",
    );
    let mut clients: Vec<_> = gateway.listeners.iter().map(|address| Client::connect(*address)).collect();
    let mut code = |listener: usize| clients[listener].get("/", &[]).status;
    assert_eq!([code(0), code(0), code(1), code(1)], [200, 429, 200, 200]);
    for name in ["edge", "inner"] {
        gateway.expect("tollgate_http_connections", &[&format!("listener=\"{name}\"")], 1.0);
        let log = || std::fs::read_to_string(gateway.file("log")).unwrap_or_default();
        eventually("both requests are logged", || log().matches(&format!("\"listener\":\"{name}\"")).count() == 2);
    }
    // Other names would need other series.
    gateway.reload(&upstream, "listeners: [{name: other, address: 127.0.0.1:0}, {name: inner, address: 127.0.0.1:0}]");
    eventually("it is logged", || gateway.has_logged("take effect only after a restart"));
}

#[test]
fn a_peer_that_keeps_sending_an_ignored_field_is_named_once() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, PROXIED);
    let hints = || {
        let errors = gateway.errors();
        let lines = errors.lines().filter(|line| line.contains("X-Forwarded-For of an untrusted peer is ignored"));
        lines.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let forwarded = [("X-Forwarded-For", "198.51.100.1")];
    let mut proxy = proxied(&gateway, &v1("192.0.2.7"));
    for _ in 0..5 {
        assert_eq!(proxy.get("/", &[]).status, 200);
    }
    // One may be anybody's idea, also one from each of many.
    assert_eq!(proxy.get("/", &forwarded).status, 200);
    assert_eq!(proxied(&gateway, &v1("192.0.2.8")).get("/", &forwarded).status, 200);
    assert!(hints().is_empty(), "{:?}", hints());
    for _ in 0..5 {
        assert_eq!(proxy.get("/", &forwarded).status, 200);
    }
    assert_eq!(proxied(&gateway, &v2_of("::ffff:192.0.2.7")).get("/", &forwarded).status, 200);
    eventually("it is logged", || !hints().is_empty());
    let [hint] = &hints()[..] else { panic!("{:?}", hints()) };
    assert!(hint.contains("INFO") && hint.contains("peer=192.0.2.7") && hint.contains("client_ip.trusted_proxies"));
    assert!(!gateway.errors().contains("198.51.100.1"));
    for _ in 0..2 {
        assert_eq!(proxied(&gateway, &v1("2001:db8::7")).get("/", &forwarded).status, 200);
    }
    eventually("it is logged", || hints().len() == 2);
}

#[test]
fn a_trusted_peer_is_not_named() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "client_ip: {trusted_proxies: [127.0.0.1]}");
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/", &[("X-Forwarded-For", "198.51.100.1")]).status, 200);
    }
    assert!(!gateway.errors().contains("X-Forwarded-For"), "{}", gateway.errors());
}

#[test]
fn several_listeners_close_together() {
    let mut gateway = Gateway::start(&Upstream::start(), "listeners: [{address: 127.0.0.1:0}, {address: 127.0.0.1:0}]");
    let mut clients: Vec<_> = gateway.listeners.iter().map(|address| Client::connect(*address)).collect();
    for client in &mut clients {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let late = Lateness::measure();
    gateway.signal("TERM");
    let (status, after) = gateway.wait();
    assert!(status.success() && after < Duration::from_secs(4) + late.of_a_request(), "{status} after {after:?}");
}

#[test]
fn a_client_that_is_rejected_repeatedly_blocks_no_other_client() {
    let bounds = "limits: {connections: 20, connections_per_client: 5}";
    let gateway = Gateway::start(&Upstream::start(), &format!("{PROXIED}\n{bounds}"));
    // Each gets a response and sends nothing: it is read for two more seconds.
    let flood: Vec<_> = (0..60).map(|_| proxied(&gateway, &v1("203.0.113.1"))).collect();
    eventually("they are turned away", || gateway.has_logged("connections_per_client is reached"));
    gateway.expect("tollgate_http_connections", &[], 5.0);
    for number in 0..15 {
        assert_eq!(proxied(&gateway, &v1(&format!("203.0.113.{}", 100 + number))).get("/", &[]).status, 200);
    }
    assert!(!gateway.errors().contains("limits.connections, or"), "{}", gateway.errors());
    drop(flood);
}

#[test]
fn a_client_with_too_many_connections_is_answered_and_others_are_served() {
    let upstream = Upstream::start();
    let listening =
        "listeners: [{address: 127.0.0.1:0, proxy_protocol: true}, {address: 127.0.0.1:0, proxy_protocol: true}]";
    let file =
        |bound: &str| format!("{listening}\nlimits: {{{bound}}}\nclient_ip: {{trusted_proxies: [192.0.2.0/24]}}");
    let gateway = Gateway::start(&upstream, &file("connections_per_client: 2"));
    let open = |number: usize, source: &str| {
        let mut client = Client::connect(gateway.listeners[number]);
        client.write_bytes(&v1(source)).unwrap();
        let status = client.get("/", &[]).status;
        (client, status)
    };
    // On whichever listener, and from wherever in its network.
    let (first, second) = (open(0, "2001:db8::1"), open(1, "2001:db8::2"));
    assert_eq!((first.1, second.1), (200, 200));
    let mut beyond = Client::connect(gateway.listeners[0]);
    beyond.write_bytes(&v1("2001:db8::3")).unwrap();
    let reported = beyond.response("GET").unwrap();
    assert_eq!((reported.status, reported.field("x-tollgate-reason")), (503, None));
    assert!(beyond.is_closed());
    eventually("it says so", || gateway.has_logged("connections_per_client is reached by some client"));
    assert!(!gateway.errors().contains("2001:db8"), "{}", gateway.errors());
    // Other clients are unaffected, and a trusted proxy has no such bound.
    for other in ["2001:db8:0:1::1", "203.0.113.1"] {
        assert_eq!(open(0, other).1, 200, "{other}");
    }
    let proxies: Vec<_> = (0..5).map(|_| open(1, "192.0.2.7")).collect();
    assert_eq!(proxies.iter().map(|proxy| proxy.1).collect::<Vec<_>>(), [200; 5]);
    // Room for one is room for one.
    drop(first);
    gateway.expect("tollgate_http_connections", &[], 6.0);
    let mut third = open(0, "2001:db8::1");
    assert_eq!((third.1, open(0, "2001:db8::1").1), (200, 503));
    // Connections beyond a bound that was lowered later stay open.
    gateway.reload(&upstream, &file("connections_per_client: 1"));
    assert_eq!(third.0.get("/", &[]).status, 200);
    drop(third);
    gateway.expect("tollgate_http_connections", &[], 6.0);
    assert_eq!(open(0, "2001:db8::1").1, 503, "the second is still open");
    drop(second);
    gateway.expect("tollgate_http_connections", &[], 5.0);
    assert_eq!(open(0, "2001:db8::1").1, 200);
}
