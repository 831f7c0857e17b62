//! Slow clients: they are given up in time and do not slow down others.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Client, Gateway, Lateness, Upstream, eventually, now, print_measured};

/// Sends bytes at this pace until a response arrives or a write fails. Returns the status of the response.
fn drip(client: &mut Client, bytes: &[u8], pace: Duration) -> u16 {
    for byte in bytes {
        if client.receives_within(pace) || client.write_bytes(&[*byte]).is_err() {
            break;
        }
    }
    client.response("GET").unwrap().status
}

#[test]
fn a_head_has_one_deadline_however_steadily_it_arrives() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "limits: {header_timeout: 500ms, idle_timeout: 60s}");
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(500));
    for first in ["", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
        let mut client = gateway.client();
        if !first.is_empty() {
            client.write(first);
            assert_eq!(client.response("GET").unwrap().status, 200);
        }
        let start = now();
        assert_eq!(drip(&mut client, head.as_bytes(), Duration::from_millis(20)), 408);
        let took = start.elapsed();
        assert!((Duration::from_millis(450)..Duration::from_secs(5)).contains(&took), "{took:?}");
        assert!(client.is_closed());
    }
    gateway.expect("tollgate_http_requests_total", &["code=\"408\""], 2.0);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_refusal_does_not_wait_for_a_body_that_never_arrives() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "limits: {body_timeout: 60s}\nrules: [{name: no, action: deny}]");
    let half = ["Content-Length: 100\r\n\r\nten bytes.", "Transfer-Encoding: chunked\r\n\r\n64\r\nten bytes."];
    for fields in half {
        let start = now();
        let mut client = gateway.client();
        client.write(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}"));
        assert_eq!(client.response("POST").unwrap().status, 403, "{fields}");
        assert!(start.elapsed() < Duration::from_secs(5), "{fields}: {:?}", start.elapsed());
    }
    // What the client still sends is read for two seconds.
    let late = Lateness::measure();
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nten bytes.");
    let start = now();
    assert_eq!(client.response("POST").unwrap().status, 403);
    assert!(client.is_closed());
    assert!(start.elapsed() < Duration::from_secs(4) + late.of_a_request(), "{:?}", start.elapsed());
    gateway.expect("tollgate_http_connections", &[], 0.0);
    assert_eq!(upstream.count(), 0);
}

#[test]
fn an_idle_connection_is_closed_without_a_response() {
    let gateway = Gateway::start(&Upstream::start(), "limits: {idle_timeout: 3s, header_timeout: 60s}");
    // Unused, kept alive, and with an empty line after the request.
    let is_closed_in_time = |text: &str| {
        let start = now();
        let mut client = gateway.client();
        if !text.is_empty() {
            client.write(text);
            assert_eq!(client.response("GET").unwrap().status, 200);
        }
        assert!(client.is_closed_without_response(), "{text:?}");
        let took = start.elapsed();
        assert!((Duration::from_millis(2900)..Duration::from_secs(8)).contains(&took), "{text:?}: {took:?}");
    };
    std::thread::scope(|scope| {
        for text in ["", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n"] {
            scope.spawn(move || is_closed_in_time(text));
        }
    });
    gateway.expect("tollgate_http_requests_total", &["gateway"], 0.0);
}

#[test]
fn a_stalled_body_is_a_408_wherever_it_is_noticed() {
    let upstream = Upstream::start();
    let limits = [
        "limits: {body_timeout: 300ms}",
        "limits: {body_timeout: 300ms}\nupstream_timeouts: {read: 300ms}",
        "upstream_timeouts: {read: 300ms}",
    ];
    for limits in limits {
        let gateway = Gateway::start(&upstream, limits);
        for begin in ["Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"] {
            let mut client = gateway.client();
            let start = now();
            client.write(&format!("POST / HTTP/1.1\r\nHost: a\r\n{begin}"));
            let response = client.response("POST").unwrap();
            assert_eq!((response.status, response.field("connection").as_deref()), (408, Some("close")), "{limits}");
            assert_eq!(response.field("x-tollgate-reason").as_deref(), Some("bad_request"));
            let took = start.elapsed();
            assert!((Duration::from_millis(250)..Duration::from_secs(5)).contains(&took), "{limits}: {took:?}");
        }
        gateway.expect("tollgate_upstream_errors_total", &[], 0.0);
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_body_may_arrive_slowly_but_steadily() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "limits: {body_timeout: 3s, header_timeout: 3s}");
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n");
    assert_eq!(drip(&mut client, &[b'x'; 20], Duration::from_millis(175)), 200);
    assert_eq!(upstream.last().body, [b'x'; 20]);
}

#[test]
fn a_client_that_reads_nothing_of_its_response_is_given_up() {
    let late = Lateness::measure();
    let (sent, closed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (sending, closing) = (Arc::clone(&sent), Arc::clone(&closed));
    let upstream = Upstream::answering(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        while stream.write_all(&[b'x'; 16 << 10]).is_ok() {
            sending.store(true, Ordering::Relaxed);
        }
        closing.store(true, Ordering::Relaxed);
    });
    let gateway = Gateway::start(&upstream, "limits: {body_timeout: 500ms}");
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the upstream has sent something", || sent.load(Ordering::Relaxed));
    let start = now();
    eventually("the upstream's connection is closed", || closed.load(Ordering::Relaxed));
    assert!(start.elapsed() < Duration::from_secs(4) + late.of_a_request(), "{:?}", start.elapsed());
    gateway.expect("tollgate_http_connections", &[], 0.0);
}

/// Returns how many bytes of responses in the kernel clients have not acknowledged, by the client's port.
fn unacknowledged(gateway: &Gateway) -> HashMap<u16, u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let from = format!(":{:04X}", gateway.http.port());
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|fields| fields[1].ends_with(&from) && fields[3] == "01");
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let row = |fields: Vec<&str>| {
        let (port, held) = (fields[2].rsplit_once(':').unwrap().1, fields[4].split_once(':').unwrap().0);
        (u16::try_from(hexadecimal(port)).unwrap(), hexadecimal(held))
    };
    ours.map(row).collect()
}

#[test]
fn responses_that_no_client_reads_take_kilobytes() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        while stream.write_all(&[b'x'; 64 << 10]).is_ok() {}
    });
    let gateway = Gateway::start(&upstream, "limits: {body_timeout: 60s}");
    let ask = |number| {
        let clients: Vec<_> = (0..number)
            .map(|_| {
                let mut client = gateway.client();
                client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                assert!(client.receives_within(Duration::from_secs(10)));
                client
            })
            .collect();
        // Once the gateway is idle, it reads no more.
        let mut before = gateway.cpu_time();
        eventually("the gateway is idle", || {
            std::thread::sleep(Duration::from_millis(300));
            std::mem::replace(&mut before, gateway.cpu_time()) == before
        });
        clients
    };
    let first = ask(100);
    let before = gateway.resident_bytes();
    let more = ask(200);
    let each = (gateway.resident_bytes() - before) / 200;
    print_measured(&format!("{} KiB held for each response that no client reads", each >> 10));
    assert!(each < 192 << 10, "{each} bytes held for each");
    let held = unacknowledged(&gateway);
    for client in first.iter().chain(&more) {
        assert!(held[&client.port()] < 512 << 10, "{} bytes in the kernel", held[&client.port()]);
    }
}

#[test]
fn connections_beyond_the_limit_are_answered_503_and_others_are_served() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "limits: {connections: 3}");
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let mut beyond = gateway.client();
    let response = beyond.response("GET").unwrap();
    assert_eq!((response.status, response.field("x-tollgate-reason")), (503, None));
    assert_eq!(response.json()["type"], "about:blank");
    assert!(beyond.is_closed());
    eventually("the rejection is logged", || gateway.has_logged("connections turned away"));
    gateway.expect("tollgate_http_requests_total", &["code=\"503\"", "origin=\"gateway\""], 1.0);
    assert_eq!(clients[0].get("/", &[]).status, 200);
    drop((beyond, clients.pop()));
    gateway.expect("tollgate_http_connections", &[], 2.0);
    assert_eq!(gateway.client().get("/", &[]).status, 200);
}

/// The number of pairs of requests. Each pair has one request to each gateway, so the machine is equally busy for both.
const PAIRS: usize = 500;

/// Sends one request, and returns how long it took.
fn timed(client: &mut Client) -> Duration {
    let start = now();
    assert_eq!(client.get("/", &[]).status, 200);
    start.elapsed()
}

#[test]
fn hundreds_of_slow_clients_cost_the_others_nothing() {
    let upstream = Upstream::start();
    let [crowded, empty] = [(); 2].map(|()| Gateway::start(&upstream, ""));
    let beginnings =
        ["", "G", "GET / HTTP/1.1\r\nHost: a\r\nX: y", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"];
    let mut slow: Vec<_> = (0..400)
        .map(|number| {
            let mut client = crowded.client();
            client.write(beginnings[number % beginnings.len()]);
            client
        })
        .collect();
    crowded.expect("tollgate_http_connections", &[], 400.0);
    let cpu_time = || [&crowded, &empty].map(Gateway::cpu_time);
    let (mut among, mut alone) = (crowded.client(), empty.client());
    let before = cpu_time();
    let took: Vec<_> = (0..PAIRS).map(|_| (timed(&mut among), timed(&mut alone))).collect();
    let after = cpu_time();
    let sorted = |one: fn(&(Duration, Duration)) -> Duration| {
        let mut sorted: Vec<_> = took.iter().map(one).collect();
        sorted.sort();
        sorted
    };
    let (among, alone) = (sorted(|pair| pair.0), sorted(|pair| pair.1));
    for (what, rank) in [("half", PAIRS / 2), ("nine of ten", PAIRS * 9 / 10)] {
        let most = 2 * alone[rank] + Duration::from_millis(1);
        assert!(among[rank] <= most, "{what} took {:?} among slow clients, {:?} alone", among[rank], alone[rank]);
    }
    // Neither does the gateway look at them again and again: CPU time does not depend on what else the machine does.
    let [cpu_among, cpu_alone] = [after[0] - before[0], after[1] - before[1]];
    assert!(cpu_among <= 2 * cpu_alone + Duration::from_millis(100), "{cpu_among:?} among slow clients, {cpu_alone:?}");
    for client in &mut slow {
        client.write("\r");
    }
}
