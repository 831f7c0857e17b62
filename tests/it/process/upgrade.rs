//! Upgrades: the next process takes over the sockets, and no request is lost.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::slots::EndOfLoad;
use crate::support::{Answers, Client, ConfigDirectory, Gateway, Load, Orphan, Redis, Relay, Upstream, eventually};

#[test]
fn an_upgrade_under_load_loses_no_request() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    let http = gateway.http;
    let load = Load::on(move || http);
    load.await_answers();
    gateway.signal("USR2");
    let second = Orphan::of(&gateway, 1);
    let (status, _) = gateway.wait();
    assert_eq!(status.code(), Some(0), "{}", gateway.errors());
    load.await_answers();

    // And once more: what was taken over can be handed over.
    second.signal("USR2");
    let third = Orphan::of(&gateway, 2);
    eventually("the second leaves", || !second.is_running());
    load.await_answers();
    let answered = load.end();
    assert_eq!(upstream.seen().len(), answered);
    assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 200);
    assert!(third.is_running());
    third.signal("TERM");
    eventually("the third leaves", || !third.is_running());
    eventually("nobody listens any more", || std::net::TcpStream::connect(gateway.http).is_err());
}

#[test]
fn during_an_upgrade_the_address_stays_ready() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "drain: {delay: 2s}");
    gateway.signal("USR2");
    Orphan::of(&gateway, 1);
    // Both take connections from one queue: some of these are answered by the one that leaves.
    for _ in 0..20 {
        assert_eq!(Client::connect(gateway.admin).get("/readyz", &[("Connection", "close")]).status, 200);
    }
}

#[test]
fn the_next_process_accepts_nothing_before_it_has_reached_the_store() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let relay = Relay::start(redis.port);
    let store = redis.patient_store().replace(&redis.port.to_string(), &relay.port.to_string());
    let rule = "rules: [{name: r, limit_keys: [path], algorithm_config: {rps: 1000, burst: 100000}}]";
    let mut gateway = Gateway::start(&upstream, &format!("{store}\n{rule}"));
    gateway.expect("rate_limiter_store_up", &[], 1.0);
    // A connection takes several round trips until it can be used.
    relay.set(Answers::Late(Duration::from_millis(100)));
    let is_over = Arc::new(AtomicBool::new(false));
    let call = || {
        let mut answered = 0;
        while !is_over.load(Ordering::Relaxed) {
            let response = Client::connect(gateway.http).get("/", &[("Connection", "close")]);
            assert_eq!(response.status, 200, "{response:?}");
            answered += 1;
        }
        answered
    };
    let answered: usize = std::thread::scope(|scope| {
        let end = EndOfLoad(Arc::clone(&is_over));
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
        std::thread::sleep(Duration::from_millis(200));
        gateway.signal("USR2");
        Orphan::of(&gateway, 1);
        eventually("the first process leaves", || gateway.errors().contains("drained"));
        drop(end);
        callers.into_iter().map(|caller| caller.join().expect("a call failed")).sum()
    });
    assert_eq!((gateway.wait().0.code(), upstream.seen().len()), (Some(0), answered), "{}", gateway.errors());
}

#[test]
fn a_next_process_that_cannot_start_changes_nothing() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    let mut client = gateway.client();
    assert_eq!(client.get("/", &[]).status, 200);
    std::fs::write(gateway.file("gateway.yaml"), "upstream: nowhere\n").unwrap();
    for times in 1..=2 {
        gateway.signal("USR2");
        eventually("it gives up", || gateway.errors().matches("the next process gave up").count() == times);
    }
    gateway.expect_logged("exit status: 1");
    // The connection has not been touched either.
    let response = client.get("/", &[]);
    assert_eq!((response.status, response.field("connection").as_deref()), (200, Some("keep-alive")));
    assert!(gateway.is_running());
}

#[test]
fn systemd_is_notified_of_the_main_process() {
    let upstream = Upstream::start();
    let directory = ConfigDirectory::new();
    let (file, socket) = (directory.path().join("gateway.yaml"), directory.path().join("notify"));
    std::fs::write(&file, Gateway::text(&format!("http://{}", upstream.address), "")).unwrap();
    let notified = UnixDatagram::bind(&socket).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = Gateway::command(&file);
    command.env("NOTIFY_SOCKET", &socket).stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = command.spawn().unwrap();
    let main_process = || {
        let mut message = [0; 256];
        let length = notified.recv(&mut message).expect("a message");
        let message = String::from_utf8_lossy(&message[..length]).into_owned();
        let mut lines = message.lines();
        assert!(lines.any(|line| line == "READY=1"), "{message}");
        message.lines().find_map(|line| line.strip_prefix("MAINPID=")).expect("a process").to_owned()
    };
    assert_eq!(main_process(), first.id().to_string());
    assert!(Command::new("kill").arg("-USR2").arg(first.id().to_string()).status().unwrap().success());
    let next = Orphan::new(main_process());
    assert_ne!(next.id(), first.id().to_string());
    assert_eq!(first.wait().unwrap().code(), Some(0));
    assert!(next.is_running());
}

#[test]
fn nothing_that_was_handed_over_outlives_its_test() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    gateway.signal("USR2");
    let second = Orphan::of(&gateway, 1);
    second.signal("USR2");
    let third = Orphan::of(&gateway, 2);
    assert!(third.is_running());
    drop(gateway);
    eventually("all have ended", || !second.is_running() && !third.is_running());
}
