//! Files run out and become free again: the gateway does not spin or exit, and later clients are served.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use crate::support::{Gateway, Lateness, Upstream, eventually, now, wait_for_nothing};

/// Opens this many connections, and sends nothing on them.
fn open(address: SocketAddr, number: usize) -> Vec<TcpStream> {
    (0..number).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Asserts that the gateway uses little CPU for a second.
#[track_caller]
fn check_idle(gateway: &Gateway) {
    let (start, before) = (now(), gateway.cpu_time());
    wait_for_nothing(Duration::from_secs(1));
    let took = gateway.cpu_time() - before;
    assert!(took < start.elapsed() / 4, "{took:?} computed in {:?}", start.elapsed());
}

#[test]
fn the_open_file_limit_bounds_the_connections() {
    let upstream = Upstream::start();
    let limits = "limits: {connections: 1000, idle_timeout: 60s}";
    let gateway = Gateway::before(&upstream).with(limits).shell("ulimit -n 256").start();
    let line = "WARN open files limit the connections wanted=1000 connections=72";
    gateway.expect_logged(line);
    let mut first = gateway.client();
    assert_eq!(first.get("/", &[]).status, 200);
    let many = open(gateway.http, 400);
    eventually("the rest is rejected", || gateway.has_logged("connections turned away"));
    gateway.expect("tollgate_http_connections", &[], 72.0);
    check_idle(&gateway);
    // Files are left for the connection to the upstream.
    assert_eq!(first.get("/", &[("Connection", "close")]).status, 200);
    let (closed, late) = (now(), Lateness::measure());
    drop(many);
    eventually("the next client is served", || gateway.client().get("/", &[]).status == 200);
    assert!(closed.elapsed() < Duration::from_secs(2) + late.of_a_request(), "{:?}", closed.elapsed());
    let errors = gateway.errors();
    assert!(!errors.contains("Too many open files") && !errors.contains("panicked"), "{errors}");
}

#[test]
fn idle_connections_to_upstreams_are_closed_before_files_run_out() {
    const CLIENTS: usize = 70;
    let upstreams: Vec<Upstream> = (0..3)
        .map(|_| {
            // All requests are under way at once, so each has a connection to the upstream.
            let all = Barrier::new(CLIENTS);
            Upstream::answering(move |_, stream| {
                all.wait();
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            })
        })
        .collect();
    let named = |number: usize| format!("u{number}: {{endpoints: [\"http://{}\"]}}", upstreams[number].address);
    let route = |number: usize| format!("{{name: r{number}, match: {{path: /{number}}}, upstream: u{number}}}");
    let [named, routes] =
        [(0..3).map(named).collect::<Vec<_>>(), (0..3).map(route).collect()].map(|all| all.join(", "));
    let config = format!(
        "upstreams: {{{named}}}\nroutes: [{routes}]\nupstream_timeouts: {{idle: 60s}}\nlimits: {{connections: 1000}}"
    );
    let gateway = Gateway::before(&upstreams[0]).with(&config).shell("ulimit -n 256").start();
    for number in 0..3 {
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| gateway.client()).collect();
        clients.iter_mut().for_each(|client| client.write(&format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")));
        for client in &mut clients {
            let response = client.response("GET").unwrap_or_else(|error| panic!("{error}: {}", gateway.errors()));
            assert_eq!(response.status, 200, "upstream {number}: {}", gateway.errors());
        }
        drop(clients);
        gateway.expect("tollgate_http_connections", &[], 0.0);
    }
    let errors = gateway.errors();
    assert!(!errors.contains("Too many open files") && !errors.contains("turned away"), "{errors}");
}

#[test]
fn the_table_of_files_is_large_enough_before_the_first_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with("limits: {connections: 500}").shell("ulimit -n 2048").start();
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.id())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    assert!(size.trim().parse::<usize>().unwrap() > 2 * 500, "{size}");
}

#[test]
fn without_a_file_left_the_gateway_waits_and_logs_it() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).shell("ulimit -n 256").start();
    let mut first = gateway.client();
    assert_eq!(first.get("/", &[]).status, 200);
    // Fewer files than there were when the limit of connections was derived from them.
    let files = std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count() + 10;
    let limit = ["--pid", &gateway.id().to_string(), &format!("--nofile={files}:256")];
    assert!(Command::new("prlimit").args(limit).status().unwrap().success());
    // A thread accepts as many waiting connections as there are files for, and then pauses for a second. So the wait at the end
    // grows with their number, and here there are few.
    let many = open(gateway.http, 16);
    eventually("files run out", || gateway.has_logged("Too many open files"));
    let beyond = open(gateway.http, 6);
    check_idle(&gateway);
    // Open connections are served.
    assert_eq!(first.get("/", &[]).status, 200);
    let (closed, late) = (now(), Lateness::measure());
    drop((many, beyond));
    let mut next = gateway.client();
    assert_eq!(next.get("/", &[]).status, 200);
    assert!(closed.elapsed() < Duration::from_secs(3) + late.of_a_request(), "{:?}", closed.elapsed());
    gateway.expect("tollgate_http_connections", &[], 2.0);
    let errors = gateway.errors();
    assert!(!errors.contains("panicked"), "{errors}");
    assert!(errors.matches("Too many open files").count() < 20, "{errors}");
}
