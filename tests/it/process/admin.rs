//! The admin listener: the host names that it accepts, and the limit of its connections.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::status::document::{BROWSER, RULES, document};
use crate::support::{Client, Gateway, Upstream, eventually, now, shortened_or_real};

const CLOSED: &str = "tollgate_admin_connections_closed_total";

#[test]
fn foreign_host_names_get_no_page_and_monitoring_may_use_any_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let host = document(&gateway)["host"].as_str().unwrap().to_owned();
    let ask = |target: &str, name: &str| Client::connect(gateway.admin).get(target, &[BROWSER, ("Host", name)]);
    let (address, named) = (gateway.admin.to_string(), format!("{host}:9901"));
    for name in [&*address, "localhost:9901", "[::1]:9901", "tollgate-a:9090", &named] {
        for target in ["/", "/status.json", "/history.json"] {
            assert_eq!(ask(target, name).status, 200, "{target} {name}");
        }
    }
    for name in ["evil.example", "127.0.0.1.evil.example:9901", "localhost.evil.example", ""] {
        for target in ["/", "/status.json", "/history.json"] {
            let refused = ask(target, name);
            assert_eq!(refused.status, 403, "{target} {name}");
            assert!(refused.body.contains(&format!("use an address, localhost or {host}")), "{}", refused.body);
        }
        assert_eq!(ask("/buckets?name=01234567", name).status, 403);
    }
    // By a name that only this network knows one may look, and change nothing.
    assert_eq!(ask("/buckets?name=01234567", "tollgate-a:9090").status, 403);
    // As Prometheus has it from its targets, kubelet from a probe's `host`, and a load balancer from anywhere.
    for name in ["tollgate-0.tollgate.default.svc:9901", "gateway.example.com", "10.1.2.3:9901", "tollgate-a:9090"] {
        for target in ["/metrics", "/livez", "/readyz"] {
            assert_eq!(ask(target, name).status, 200, "{target} {name}");
        }
    }
    // The list of paths is no secret.
    assert_eq!(Client::connect(gateway.admin).get("/", &[("Host", "gateway.example.com")]).status, 200);
}

/// Waits until the number of open files no longer changes, because threads open some files after the gateway is ready.
fn settled(files: impl Fn() -> usize) -> usize {
    let mut counts = vec![files()];
    eventually("no file is opened any more", || {
        std::thread::sleep(Duration::from_millis(50));
        counts.push(files());
        // One that is late to run opens its own later.
        counts.rchunks(8).next().is_some_and(|last| last.len() == 8 && last.iter().all(|count| *count == last[0]))
    });
    counts[counts.len() - 1]
}

#[test]
fn a_thousand_silent_connections_neither_exhaust_files_nor_block_others() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let files = || std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count();
    assert_eq!(gateway.client().get("/?user=a", &[]).status, 200);
    let before = settled(files);
    let silent: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(gateway.admin).unwrap()).collect();
    // Each look at it is one more.
    eventually("the others are closed", || gateway.metric(CLOSED, &[]) >= 1000.0 - 64.0 + 1.0);
    eventually("no more than 64 are open", || files() <= before + 64 + 2);
    // A client that sends a request is answered, every time.
    for target in ["/livez", "/readyz", "/metrics", "/status.json"] {
        assert_eq!(Client::connect(gateway.admin).get(target, &[]).status, 200, "{target}");
    }
    assert_eq!(gateway.client().get("/?user=a", &[]).status, 200);
    // It is said once, not a thousand times.
    gateway.expect_logged("admin listener has too many connections");
    assert_eq!(gateway.errors().matches("admin listener has too many connections").count(), 1);
    let events = document(&gateway)["events"].to_string();
    assert!(events.contains("admin listener has too many connections"), "{events}");
    drop(silent);
    eventually("the files are free again", || files() <= before + 2);
}

#[test]
fn a_probe_is_answered_while_other_clients_read_nothing() {
    let upstream = Upstream::start();
    let rule = |number: u32| {
        format!("  - {{name: rule-{number}, limit_keys: [query:user], algorithm_config: {{rate: 9/s}}}}\n")
    };
    let rules: String = (0..900).map(rule).collect();
    let gateway = Gateway::start(&upstream, &format!("rules:\n{rules}"));
    let files = || std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count();
    let before = files();
    let unread: Vec<TcpStream> = (0..64).map(|_| asks_and_does_not_read(gateway.admin)).collect();
    for stream in &unread {
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1, "its answer has begun");
    }
    eventually("all of them are open", || files() >= before + 64);
    // Each stays, so that it frees no seat for the next.
    let probe = |_| {
        let mut client = Client::connect(gateway.admin);
        assert_eq!(client.get("/livez", &[]).status, 200);
        client
    };
    let _kept: Vec<Client> = (0..100).map(probe).collect();
    assert_eq!(gateway.metric(CLOSED, &[]), 100.0 + 1.0);
}

/// Requests a document that is longer than all buffers between gateway and client, and does not read it.
fn asks_and_does_not_read(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.connect(&address.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"GET /status.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    stream
}

#[test]
fn an_unfinished_head_times_out() {
    let upstream = Upstream::start();
    let deadline = shortened_or_real(Duration::from_millis(500), Duration::from_secs(10));
    let gateway = Gateway::before(&upstream).short_interval("admin_head", deadline).start();
    let start = now();
    let mut slow = Client::connect(gateway.admin);
    slow.write("GET /livez HTTP/1.1\r\nHost: te");
    let mut kept = Client::connect(gateway.admin);
    assert_eq!(kept.get("/livez", &[]).status, 200);
    assert!(slow.is_closed());
    let took = start.elapsed();
    assert!((deadline.mul_f64(0.8)..deadline + Duration::from_secs(4)).contains(&took), "{took:?}");
    // One that was answered is kept for longer.
    assert_eq!(kept.get("/livez", &[]).status, 200);
    assert_eq!(gateway.metric(CLOSED, &[]), 0.0);
}

#[test]
fn an_invalid_request_is_closed_and_not_logged() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    for _ in 0..20 {
        let mut stream = TcpStream::connect(gateway.admin).unwrap();
        stream.write_all(b"\x16\x03\x01 the-words-of-a-stranger\r\n\r\n").unwrap();
        assert!(Client::over(stream).is_closed());
    }
    assert_eq!(Client::connect(gateway.admin).get("/livez", &[]).status, 200);
    let errors = gateway.errors();
    assert!(!errors.contains("stranger") && !errors.contains("error"), "{errors}");
}
