//! Files run out, and come back: nothing spins, nothing ends, and who comes then is served.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::support::{Gateway, Upstream, eventually, now};

/// Opens so many connections, on which nothing is said.
fn open(address: SocketAddr, number: usize) -> Vec<TcpStream> {
    (0..number).map(|_| TcpStream::connect(address).unwrap()).collect()
}

/// Whether this goes on without much to compute.
#[track_caller]
fn rests(gateway: &Gateway) {
    let (start, before) = (now(), gateway.computed());
    std::thread::sleep(Duration::from_secs(1));
    let took = gateway.computed() - before;
    assert!(took < start.elapsed() / 4, "{took:?} computed in {:?}", start.elapsed());
}

#[test]
fn more_connections_than_files_are_cut_to_what_there_is_room_for() {
    let upstream = Upstream::start();
    let limits = "limits: {connections: 1000, idle_timeout: 60s}";
    let gateway = Gateway::start_after(&upstream, limits, "ulimit -n 256");
    let said = "WARN open files limit the connections wanted=1000 connections=72";
    assert!(gateway.errors().contains(said), "{}", gateway.errors());
    let mut first = gateway.client();
    assert_eq!(first.get("/", &[]).status, 200);
    let many = open(gateway.http, 400);
    eventually("the rest is turned away", || gateway.has_logged("connections turned away"));
    gateway.expect("tollgate_http_connections", &[], 72.0);
    rests(&gateway);
    // There are files left for the way to the upstream.
    assert_eq!(first.get("/", &[("Connection", "close")]).status, 200);
    let closed = now();
    drop(many);
    eventually("the next is served", || gateway.client().get("/", &[]).status == 200);
    assert!(closed.elapsed() < Duration::from_secs(2), "{:?}", closed.elapsed());
    let errors = gateway.errors();
    // So many at once may take the last file before any was turned away, for a moment.
    assert!(errors.matches("Too many open files").count() <= 4 && !errors.contains("panicked"), "{errors}");
}

#[test]
fn there_is_room_for_all_files_before_anybody_comes() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_after(&upstream, "limits: {connections: 500}", "ulimit -n 2048");
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.id())).unwrap();
    let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    assert!(room.trim().parse::<usize>().unwrap() > 2 * 500, "{room}");
}

#[test]
fn without_any_file_left_it_waits_and_says_so() {
    let upstream = Upstream::start();
    let gateway = Gateway::start_after(&upstream, "", "ulimit -n 256");
    let mut first = gateway.client();
    assert_eq!(first.get("/", &[]).status, 200);
    // Fewer files than there were when room was found for so many connections.
    let files = std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count() + 10;
    let limit = ["--pid", &gateway.id().to_string(), &format!("--nofile={files}:256")];
    assert!(Command::new("prlimit").args(limit).status().unwrap().success());
    // Of those that wait, a thread takes as many as there are files for, and then rests for a second. So the wait at the end is
    // as long as there were more of them, and here there are few.
    let many = open(gateway.http, 16);
    eventually("files run out", || gateway.has_logged("Too many open files"));
    let beyond = open(gateway.http, 6);
    rests(&gateway);
    // What is open goes on.
    assert_eq!(first.get("/", &[]).status, 200);
    let closed = now();
    drop((many, beyond));
    let mut next = gateway.client();
    assert_eq!(next.get("/", &[]).status, 200);
    assert!(closed.elapsed() < Duration::from_secs(3), "{:?}", closed.elapsed());
    gateway.expect("tollgate_http_connections", &[], 2.0);
    let errors = gateway.errors();
    assert!(!errors.contains("panicked"), "{errors}");
    assert!(errors.matches("Too many open files").count() < 20, "{errors}");
}
