//! Records are written at every way out: drain, interrupt, upgrade, and a reload that changes or removes them.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{RULES, after_drain, read, records, send, sum, wait_for};
use crate::support::{Client, Gateway, Orphan, Redis, Upstream, eventually};

#[test]
fn an_interrupt_and_a_second_signal_write_the_interval() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}drain: {{delay: 1h}}\n", records("1d")));
    send(&gateway, 3, "ann", "pro");
    gateway.signal("INT");
    assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
    assert_eq!(sum(&read(&gateway.file("records.jsonl")), "ann", "quantity"), 3);

    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}drain: {{delay: 1h}}\n", records("1d")));
    send(&gateway, 5, "ann", "pro");
    gateway.drain();
    gateway.signal("TERM");
    gateway.wait();
    assert_eq!(sum(&read(&gateway.file("records.jsonl")), "ann", "quantity"), 5);
}

#[test]
fn what_is_answered_until_the_process_leaves_at_a_second_signal_is_recorded() {
    let upstream = Upstream::start();
    let rules = "
rules:
  - name: all
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 1000000, window: month}
    meter: api-month
drain: {delay: 1h}
";
    let mut gateway = Gateway::start(&upstream, &format!("{rules}{}", records("1d")));
    let address = gateway.http;
    let client = std::thread::spawn(move || {
        let mut answered = 0;
        while let Ok(mut stream) = TcpStream::connect(address) {
            let mut answer = String::new();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nConnection: close\r\n\r\n");
            let _ = stream.read_to_string(&mut answer);
            answered += u64::from(answer.starts_with("HTTP/1.1 200"));
        }
        answered
    });
    eventually("requests are answered", || upstream.count() > 20);
    gateway.drain();
    gateway.signal("TERM");
    gateway.wait();
    let answered = client.join().unwrap();
    let recorded = sum(&read(&gateway.file("records.jsonl")), "ann", "quantity");
    // The last request can be charged and not answered.
    assert!((answered..=answered + 1).contains(&recorded), "{answered} answered, {recorded} recorded");
}

#[test]
fn a_cost_that_settles_while_the_process_drains_is_recorded() {
    let (upstream, answer) = Upstream::answering_when_told();
    let rules = "
rules:
  - {name: wrong, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 9, window: month, count_on: [2xx]}, meter: api-month}
";
    let mut gateway = Gateway::start(&upstream, &format!("{rules}{}", records("1d")));
    let mut client = gateway.client();
    client.write("GET / HTTP/1.1\r\nHost: a\r\nX-User: ann\r\n\r\n");
    eventually("the request is under way", || upstream.count() == 1);
    gateway.drain();
    answer.send(()).unwrap();
    assert_eq!(client.response("GET").unwrap().status, 200);
    gateway.wait();
    assert_eq!(sum(&read(&gateway.file("records.jsonl")), "ann", "quantity"), 1);
}

#[test]
fn thresholds_of_costs_that_settle_while_the_process_drains_are_reported() {
    let rules = "
rules:
  - {name: answered, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 1, window: 366d, count_on: [2xx]}, meter: api-month}
";
    let redis = Redis::start();
    let records = records("1d").replace("}", ", thresholds: [100%]}");
    for store in [String::new(), redis.patient_store() + "\n"] {
        let (upstream, answer) = Upstream::answering_when_told();
        let mut gateway = Gateway::start(&upstream, &format!("{store}{rules}{records}"));
        if !store.is_empty() {
            eventually("no older gateway runs", || gateway.metric("rate_limiter_live_gateways", &[]) == 1.0);
        }
        let mut clients = ["ann", "bob"].map(|user| {
            let mut client = gateway.client();
            client.write(&format!("GET /slow HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n"));
            client
        });
        eventually("the requests are under way", || upstream.count() == 2);
        gateway.drain();
        let told = || {
            let lines = read(&gateway.file("records.jsonl")).into_iter();
            lines.filter(|line| line["type"] == "tollgate.threshold").count()
        };
        // The first one while another request still runs, the second one at the exit.
        answer.send(()).unwrap();
        eventually("the first threshold is reported during the drain", || told() == 1);
        answer.send(()).unwrap();
        for client in &mut clients {
            assert_eq!(client.response("GET").unwrap().status, 200);
        }
        assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
        let lines = read(&gateway.file("records.jsonl"));
        let mut told: Vec<&str> = lines
            .iter()
            .filter(|line| line["type"] == "tollgate.threshold")
            .map(|line| line["data"]["subject"].as_str().unwrap())
            .collect();
        told.sort_unstable();
        assert_eq!(told, ["ann", "bob"]);
    }
}

#[test]
fn both_processes_of_an_upgrade_write_what_they_have_charged() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1d")));
    send(&gateway, 3, "ann", "pro");
    gateway.signal("USR2");
    let next = Orphan::of(&gateway, 1);
    assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
    let file = gateway.file("records.jsonl");
    assert_eq!(sum(&read(&file), "ann", "quantity"), 3);
    let mut client = Client::connect(gateway.http);
    for _ in 0..4 {
        assert_eq!(client.get("/", &[("X-User", "ann"), ("X-Plan", "pro")]).status, 200);
    }
    next.signal("TERM");
    eventually("the next process leaves", || !next.is_running());
    let records = read(&file);
    assert_eq!((records.len(), sum(&records, "ann", "quantity")), (2, 7));
    assert_ne!(records[0]["id"], records[1]["id"]);
}

#[test]
fn a_reload_keeps_the_sums_of_an_interval_or_writes_them() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1d")));
    send(&gateway, 3, "ann", "pro");
    // The same destination: the interval goes on, with another subject from now on.
    let other = records("1d").replace("[header:x-user]", "[header:x-plan]");
    gateway.reload(&upstream, &format!("{RULES}{other}"));
    send(&gateway, 2, "ann", "pro");
    assert_eq!(read(&gateway.file("records.jsonl")).len(), 0);
    // Another destination: what was used until then stays where it belongs.
    let moved = records("1d").replace("records.jsonl", "moved.jsonl");
    gateway.reload(&upstream, &format!("{RULES}{moved}"));
    let written = wait_for(&gateway.file("records.jsonl"), 2);
    assert_eq!((sum(&written, "ann", "quantity"), sum(&written, "pro", "quantity")), (3, 2));
    send(&gateway, 4, "ann", "pro");
    gateway.reload(&upstream, RULES);
    let written = wait_for(&gateway.file("moved.jsonl"), 1);
    assert_eq!(sum(&written, "ann", "quantity"), 4);
    assert_eq!(after_drain(&mut gateway).len(), 2);
}

#[test]
fn a_renamed_file_is_created_again_by_a_signal() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1d")));
    let (file, old) = (gateway.file("records.jsonl"), gateway.file("records.jsonl.1"));
    send(&gateway, 3, "ann", "pro");
    std::fs::rename(&file, &old).unwrap();
    gateway.signal("USR1");
    eventually("the file is there", || file.exists());
    let records = after_drain(&mut gateway);
    assert_eq!((sum(&records, "ann", "quantity"), read(&old).len()), (3, 0));
    gateway.expect_logged("SIGUSR1: reopening the access log and the records");
}
