//! Whom a request is charged to: what listeners, PROXY protocol and forwarding fields say of the client.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::support::{Client, Gateway, Upstream, eventually, now, shortened_or_real};

/// Two requests a day for each client address.
const TWO_A_DAY: &str = "rules: [{name: ip, limit_keys: [ip:address], algorithm_config: {rate: 2/day}}]";

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

const PROXIED: &str = "listeners: [{address: 127.0.0.1:0, proxy_protocol: true}]";

/// A header of version 1.
fn v1(source: &str) -> Vec<u8> {
    let (family, destination) = if source.contains(':') { ("TCP6", "::1") } else { ("TCP4", "192.0.2.1") };
    format!("PROXY {family} {source} {destination} 56324 443\r\n").into_bytes()
}

/// A header of version 2.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, rest].concat()
}

/// One for an IPv4 or IPv6 client, as load balancers send it: with something behind the addresses.
fn v2_of(source: &str) -> Vec<u8> {
    let ports_and_more = [0xdc, 0x04, 0x01, 0xbb, 0x03, 0x00, 0x04, 1, 2, 3, 4];
    match source.parse().unwrap() {
        std::net::IpAddr::V4(source) => {
            v2(0x21, 0x11, &[&source.octets()[..], &[192, 0, 2, 1], &ports_and_more].concat())
        }
        std::net::IpAddr::V6(source) => v2(0x21, 0x21, &[&source.octets()[..], &[0; 16], &ports_and_more].concat()),
    }
}

/// A connection that a load balancer opened.
fn proxied(gateway: &Gateway, header: &[u8]) -> Client {
    let mut client = gateway.client();
    client.write_bytes(header).unwrap();
    client
}

#[test]
fn the_source_in_a_header_is_the_client() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{PROXIED}\n{TWO_A_DAY}"));
    // Each header, and whom it charges.
    for (header, client) in [
        (v1("203.0.113.1"), "203.0.113.1"),
        (v2_of("203.0.113.1"), "203.0.113.1"),
        (v2_of("203.0.113.2"), "203.0.113.2"),
        (v1("::ffff:203.0.113.2"), "203.0.113.2"),
        (v2_of("::ffff:203.0.113.3"), "203.0.113.3"),
        (v1("::ffff:cb00:7103"), "203.0.113.3"),
        (v1("2001:db8::1"), "2001:db8::1"),
        (v2_of("2001:db8::2"), "2001:db8::2"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (v2(0x20, 0x00, &[]), "127.0.0.1"),
    ] {
        let shown = header.escape_ascii().to_string();
        assert_eq!(proxied(&gateway, &header).get("/", &[]).status, 200, "{shown}");
        assert_eq!(upstream.last().field("x-forwarded-for"), Some(client), "{shown}");
    }
    // Each of them has been charged twice by now.
    for header in [
        v1("203.0.113.1"),
        v2_of("::ffff:203.0.113.2"),
        v2_of("203.0.113.3"),
        v2_of("2001:db8::3"),
        v2(0x21, 0x00, &[]),
        v2(0x21, 0x31, &[0; 216]),
        b"PROXY UNKNOWN whatever this is\r\n".to_vec(),
    ] {
        let shown = header.escape_ascii().to_string();
        assert_eq!(proxied(&gateway, &header).get("/", &[]).status, 429, "{shown}");
    }
    assert_eq!(proxied(&gateway, &v2_of("203.0.113.4")).get("/", &[]).status, 200);
}

#[test]
fn a_connection_keeps_its_source_for_all_of_its_requests() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{PROXIED}\n{TWO_A_DAY}"));
    let mut first = proxied(&gateway, &v2_of("203.0.113.1"));
    let mut second = proxied(&gateway, &v1("203.0.113.2"));
    for code in [200, 200, 429] {
        assert_eq!([first.get("/", &[]).status, second.get("/", &[]).status], [code; 2]);
    }
    let sources: Vec<_> =
        upstream.seen().iter().map(|seen| seen.field("x-forwarded-for").unwrap().to_owned()).collect();
    assert_eq!(sources, ["203.0.113.1", "203.0.113.2", "203.0.113.1", "203.0.113.2"]);
}

#[test]
fn a_header_may_come_with_its_requests_or_byte_by_byte() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, PROXIED);
    for (number, header) in [v1("203.0.113.1"), v2_of("203.0.113.2"), v2_of("2001:db8::3")].into_iter().enumerate() {
        let request = format!("POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        let mut client = gateway.client();
        client.write_bytes(&[&header[..], request.as_bytes(), request.as_bytes()].concat()).unwrap();
        assert_eq!([client.response("POST").unwrap().status, client.response("POST").unwrap().status], [200, 200]);
        assert_eq!(
            (&*upstream.last().line, &*upstream.last().body),
            (&*format!("POST /{number} HTTP/1.1"), &b"body"[..])
        );

        let mut slow = gateway.client();
        for byte in [&header[..], request.as_bytes()].concat() {
            slow.write_bytes(&[byte]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(slow.response("POST").unwrap().status, 200);
    }
    assert_eq!(upstream.count(), 9);
    // Larger than what is read at once.
    let mut header = v2_of("203.0.113.9");
    let rest = 4096 - (header.len() - 16);
    header.extend(std::iter::repeat_n(0, rest));
    header[14..16].copy_from_slice(&4096u16.to_be_bytes());
    let body = "x".repeat(100_000);
    assert_eq!(proxied(&gateway, &header).send("POST", "/", &[], &body).status, 200);
    assert_eq!((upstream.last().body.len(), upstream.last().field("x-forwarded-for")), (100_000, Some("203.0.113.9")));
}

#[test]
fn without_a_good_header_a_connection_is_closed_without_an_answer() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{PROXIED}\nlog: {{level: debug}}"));
    let too_long = v2(0x21, 0x11, &[0; 4097]);
    let bad: [&[u8]; 7] = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"G",
        b"PROXY TCP4 somebody 192.0.2.1 1 2\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\r\n\r\n\0\r\nquit\n",
        &too_long[..16],
        &v2(0x31, 0x11, &[0; 12]),
        &[0xff; 200],
    ];
    let start = now();
    for bytes in bad {
        let mut client = proxied(&gateway, bytes);
        assert!(client.response("GET").is_err(), "{}", bytes.escape_ascii());
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(upstream.count(), 0);
    gateway.expect("tollgate_proxy_protocol_errors_total", &["listener=\"http\"", "kind=\"malformed\""], 7.0);
    let lines = gateway.errors().matches("PROXY protocol header refused").count();
    assert!((1..=4).contains(&lines), "{lines} lines");
    // One header is enough: a second is no request.
    let mut twice = proxied(&gateway, &[v1("203.0.113.1"), v1("203.0.113.2")].concat());
    twice.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(twice.response("GET").unwrap().status, 400);
    assert_eq!(upstream.count(), 0);
}

/// A connection from this address of the machine.
fn connect_from(source: &str, address: SocketAddr) -> Client {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(source.parse().unwrap(), 0).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    Client::over(socket.into())
}

#[test]
fn only_named_peers_may_send_a_header() {
    let upstream = Upstream::start();
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]"] {
        let from = "{from: [127.0.0.2, 127.8.0.0/16]}";
        let gateway = Gateway::start(
            &upstream,
            &format!("listeners: [{{address: \"{host}:0\", proxy_protocol: {from}}}]\n{TWO_A_DAY}"),
        );
        let port = gateway.listeners[0].port();
        let connect = |source: &str| connect_from(source, SocketAddr::new([127, 0, 0, 1].into(), port));
        for source in ["127.0.0.2", "127.8.9.10"] {
            let mut client = connect(source);
            client.write_bytes(&v1("203.0.113.1")).unwrap();
            assert_eq!(client.get("/", &[]).status, 200, "{source}");
        }
        for source in ["127.0.0.1", "127.0.0.3", "127.9.0.1"] {
            // No byte is sent: the peer alone decides.
            assert!(connect(source).is_closed(), "{source}");
        }
        gateway.expect("tollgate_proxy_protocol_errors_total", &["kind=\"peer\""], 3.0);
        gateway.expect("tollgate_proxy_protocol_errors_total", &["kind=\"malformed\""], 0.0);
        gateway.expect("tollgate_http_connections", &[], 0.0);
        let lines = gateway.errors().matches("its peer is not in proxy_protocol.from").count();
        assert!((1..=2).contains(&lines), "{lines} lines");
    }
}

#[test]
fn a_connection_that_closes_without_a_header_is_no_error() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, PROXIED);
    drop(gateway.client());
    let mut cut = proxied(&gateway, b"PROXY TCP4 203.0.113.1");
    cut.finish();
    assert!(cut.is_closed());
    let mut check = proxied(&gateway, &v2(0x20, 0x00, &[]));
    check.finish();
    assert!(check.is_closed());
    gateway.expect("tollgate_proxy_protocol_errors_total", &["kind=\"closed\""], 1.0);
    gateway.expect("tollgate_proxy_protocol_errors_total", &[], 1.0);
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

#[test]
fn a_missing_header_times_out_after_a_few_seconds() {
    let deadline = shortened_or_real(Duration::from_millis(400), Duration::from_secs(5));
    let builder = Gateway::before(&Upstream::start()).with(PROXIED).short_interval("proxy_protocol", deadline);
    let gateway = builder.start();
    let start = now();
    let mut silent = gateway.client();
    let mut stalled = proxied(&gateway, b"PROXY TCP4 203.0.113.1 192");
    let mut headless = proxied(&gateway, &v2_of("203.0.113.1")[..20]);
    assert!(silent.is_closed() && stalled.is_closed() && headless.is_closed());
    let waited = start.elapsed();
    assert!(waited > deadline.mul_f64(0.8) && waited < deadline + Duration::from_secs(6), "{waited:?}");
    gateway.expect("tollgate_proxy_protocol_errors_total", &["kind=\"timeout\""], 3.0);
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

#[test]
fn a_connection_without_a_header_does_not_delay_the_exit() {
    let mut gateway = Gateway::start(&Upstream::start(), PROXIED);
    let _stalled = proxied(&gateway, b"PROXY TCP4 ");
    gateway.expect("tollgate_http_connections", &[], 1.0);
    gateway.signal("TERM");
    let (status, after) = gateway.wait();
    assert!(status.success() && after < Duration::from_secs(4), "{status} after {after:?}");
}

#[test]
fn each_listener_has_its_own_proxy_protocol_setting() {
    let upstream = Upstream::start();
    let listeners = "listeners: [{address: 127.0.0.1:0}, {address: 127.0.0.1:0, proxy_protocol: true}]";
    let gateway = Gateway::start(&upstream, &format!("{listeners}\n{TWO_A_DAY}"));
    let [plain, asking] = gateway.listeners[..] else { panic!("{:?}", gateway.listeners) };
    let with_header = |address, header: &[u8]| {
        let mut client = Client::connect(address);
        client.write_bytes(header).unwrap();
        client
    };
    // Where it was not asked for, a header is not believed: it is a bad request line.
    for header in [v1("203.0.113.1"), v2_of("203.0.113.1")] {
        let mut client = with_header(plain, &header);
        client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response("GET").unwrap().status, 400);
    }
    assert!(with_header(asking, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_closed());
    assert_eq!(upstream.count(), 0);
    let mut plainly = Client::connect(plain);
    assert_eq!(
        [plainly.get("/", &[]).status, plainly.get("/", &[]).status, plainly.get("/", &[]).status],
        [200, 200, 429]
    );
    // The same client by the other way, and another one.
    assert_eq!(with_header(asking, &v1("127.0.0.1")).get("/", &[]).status, 429);
    assert_eq!(with_header(asking, &v1("203.0.113.1")).get("/", &[]).status, 200);
    let label = format!("listener=\"{asking}\"");
    gateway.expect("tollgate_proxy_protocol_errors_total", &[&label, "malformed"], 1.0);
}

#[test]
fn forwarding_fields_are_trusted_by_source_and_not_by_load_balancer() {
    let upstream = Upstream::start();
    let trusted = "client_ip: {trusted_proxies: [10.0.0.0/8, 127.0.0.1]}";
    let gateway = Gateway::start(&upstream, &format!("{PROXIED}\n{trusted}\n{TWO_A_DAY}"));
    let forwarded = [("X-Forwarded-For", "198.51.100.9, 203.0.113.1"), ("X-Forwarded-Proto", "https")];
    let mut trusted = proxied(&gateway, &v2_of("10.0.0.7"));
    assert_eq!(trusted.get("/", &forwarded).status, 200);
    let seen = upstream.last();
    assert_eq!(seen.field("x-forwarded-for"), Some("198.51.100.9, 203.0.113.1, 10.0.0.7"));
    assert_eq!(seen.field("x-forwarded-proto"), Some("https"));
    // Through a mapped source the same, and that client has now had its two requests.
    let mut mapped = proxied(&gateway, &v1("::ffff:10.0.0.8"));
    let port = [("X-Forwarded-For", "::ffff:203.0.113.1, 10.0.0.7:443")];
    assert_eq!([mapped.get("/", &port).status, mapped.get("/", &port).status], [200, 429]);
    // The load balancer's own address is trusted, but it spoke for another one, which is not.
    let mut stranger = proxied(&gateway, &v2_of("192.0.2.44"));
    assert_eq!(stranger.get("/", &forwarded).status, 200);
    let seen = upstream.last();
    assert_eq!((seen.field("x-forwarded-for"), seen.field("x-forwarded-proto")), (Some("192.0.2.44"), Some("http")));
    // When it speaks for itself, it is believed.
    let mut itself = proxied(&gateway, b"PROXY UNKNOWN\r\n");
    assert_eq!(itself.get("/", &forwarded).status, 429);
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
    let [hint] = &hints()[..] else { panic!("{:?}", hints()) };
    assert!(hint.contains("INFO") && hint.contains("peer=192.0.2.7") && hint.contains("client_ip.trusted_proxies"));
    assert!(!gateway.errors().contains("198.51.100.1"));
    for _ in 0..2 {
        assert_eq!(proxied(&gateway, &v1("2001:db8::7")).get("/", &forwarded).status, 200);
    }
    assert_eq!(hints().len(), 2, "{:?}", hints());
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
    gateway.signal("TERM");
    let (status, after) = gateway.wait();
    assert!(status.success() && after < Duration::from_secs(4), "{status} after {after:?}");
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
