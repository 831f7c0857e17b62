//! PROXY protocol headers that name a client, and headers without a client.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::{PROXIED, TWO_A_DAY, proxied, v1, v2, v2_of};
use crate::support::{Client, Gateway, Lateness, Upstream, eventually, now, shortened_or_real};

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
    let late = Lateness::measure();
    let start = now();
    for bytes in bad {
        let mut client = proxied(&gateway, bytes);
        assert!(client.response("GET").is_err(), "{}", bytes.escape_ascii());
    }
    assert!(start.elapsed() < Duration::from_secs(3) + late.of_a_request(), "{:?}", start.elapsed());
    assert_eq!(upstream.count(), 0);
    gateway.expect("tollgate_proxy_protocol_errors_total", &["listener=\"http\"", "kind=\"malformed\""], 7.0);
    eventually("it is logged", || gateway.has_logged("PROXY protocol header refused"));
    // At most one line a second of each kind.
    let lines = gateway.errors().matches("PROXY protocol header refused").count();
    let most = 4 + start.elapsed().as_secs();
    assert!(u64::try_from(lines).unwrap() <= most, "{lines} lines");
    // One header is enough: a second is no request.
    let mut twice = proxied(&gateway, &[v1("203.0.113.1"), v1("203.0.113.2")].concat());
    twice.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(twice.response("GET").unwrap().status, 400);
    assert_eq!(upstream.count(), 0);
}

/// Opens a connection from this address of the machine.
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
        let start = now();
        for source in ["127.0.0.1", "127.0.0.3", "127.9.0.1"] {
            // No byte is sent: the peer alone decides.
            assert!(connect(source).is_closed(), "{source}");
        }
        gateway.expect("tollgate_proxy_protocol_errors_total", &["kind=\"peer\""], 3.0);
        gateway.expect("tollgate_proxy_protocol_errors_total", &["kind=\"malformed\""], 0.0);
        gateway.expect("tollgate_http_connections", &[], 0.0);
        let line = "its peer is not in proxy_protocol.from";
        eventually("it is logged", || gateway.has_logged(line));
        let lines = gateway.errors().matches(line).count();
        let most = 2 + start.elapsed().as_secs();
        assert!(u64::try_from(lines).unwrap() <= most, "{lines} lines");
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
    let (mut gateway, late) = (Gateway::start(&Upstream::start(), PROXIED), Lateness::measure());
    let _stalled = proxied(&gateway, b"PROXY TCP4 ");
    gateway.expect("tollgate_http_connections", &[], 1.0);
    gateway.signal("TERM");
    let (status, after) = gateway.wait();
    assert!(status.success() && after < Duration::from_secs(4) + late.of_a_request(), "{status} after {after:?}");
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
