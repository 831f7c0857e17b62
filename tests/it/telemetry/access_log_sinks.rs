//! The destinations of the access log: blocked, closed, full, renamed, and under load. No request waits for them.

use std::io::{BufRead, Read};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::access_log::{TO_FILE, lines, parse, read, wait_for, with_id};
use crate::support::{Client, Gateway, Lateness, Upstream, eventually, now};

fn ask(gateway: &Gateway, requests: usize) {
    let mut client = gateway.client();
    for _ in 0..requests {
        assert_eq!(client.get("/", &[]).status, 200);
    }
}

fn dropped(gateway: &Gateway) -> usize {
    gateway.metric("tollgate_access_log_dropped_total", &[]).to_string().parse().unwrap()
}

#[test]
fn standard_output_has_the_log_after_the_announcement() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "access_log: {to: stdout}");
    ask(&gateway, 3);
    let mut output = gateway.output();
    for _ in 0..3 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(parse(&line)["kind"], "allowed");
    }
}

#[test]
fn standard_error_has_the_log_between_the_diagnostics() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "access_log: {to: stderr}\nlog: {format: json}");
    ask(&gateway, 3);
    let logged = || gateway.errors().lines().filter(|line| line.contains("\"kind\":")).map(parse).count();
    eventually("the lines are there", || logged() == 3);
}

#[test]
fn a_reader_that_has_stopped_costs_lines_and_nothing_else() {
    let upstream = Upstream::start();
    // Long lines: each names twenty limits.
    let shadow = |number| {
        format!(
            "  - {{name: p{number}, mode: shadow, rules: [{{name: r{number}, limit_keys: [], algorithm_config: {{rate: 1/s}}}}]}}\n"
        )
    };
    let policies: String = (0..20).map(shadow).collect();
    let mut gateway = Gateway::start(&upstream, &format!("policies:\n{policies}access_log: {{to: stdout}}"));
    let mut output = gateway.output();
    // 64 KiB fit into the pipe and 4 MiB into the queue.
    let (mut requests, mut slowest) = (0, Duration::ZERO);
    let mut client = gateway.client();
    while dropped(&gateway) == 0 {
        for _ in 0..200 {
            let start = now();
            assert_eq!(client.get("/", &[]).status, 200);
            slowest = slowest.max(start.elapsed());
            requests += 1;
        }
        assert!(requests < 50_000, "nothing is ever dropped");
    }
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    let reported = || gateway.has_logged("access log not written") && gateway.errors().contains("the queue is full");
    eventually("it is reported", reported);
    // A reader that goes on finds whole lines, as many as were not dropped.
    let kept = requests - dropped(&gateway);
    assert!(kept > 1000, "{kept}");
    let mut line = String::new();
    for _ in 0..kept {
        line.clear();
        output.read_line(&mut line).unwrap();
        parse(&line);
    }
    ask(&gateway, 1);
    line.clear();
    output.read_line(&mut line).unwrap();
    parse(&line);
    gateway.signal("TERM");
    gateway.wait();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn a_closed_standard_output_blocks_nothing() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "access_log: {to: stdout}");
    drop(gateway.output());
    ask(&gateway, 10);
    gateway.expect("tollgate_access_log_dropped_total", &[], 10.0);
    eventually("it is reported", || gateway.has_logged("error=\"Broken pipe (os error 32)\""));
    ask(&gateway, 10);
    gateway.expect("tollgate_access_log_dropped_total", &[], 20.0);
    assert!(gateway.is_running());
}

#[test]
fn a_file_that_is_renamed_or_deleted_is_created_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "access_log: {to: access.jsonl}");
    assert_eq!(std::fs::metadata(gateway.file("access.jsonl")).unwrap().mode() & 0o137, 0);
    ask(&gateway, 3);
    eventually("they are written", || lines(&gateway).len() == 3);
    std::fs::rename(gateway.file("access.jsonl"), gateway.file("access.jsonl.1")).unwrap();
    // As logrotate does it: without another line the new file is there as well.
    gateway.signal("HUP");
    eventually("the file is there", || gateway.file("access.jsonl").exists());
    ask(&gateway, 2);
    eventually("they are written", || lines(&gateway).len() == 2);
    assert_eq!(read(&gateway.file("access.jsonl.1")).len(), 3);
    std::fs::remove_file(gateway.file("access.jsonl")).unwrap();
    ask(&gateway, 1);
    eventually("they are written", || lines(&gateway).len() == 1);
    // As copytruncate does it.
    std::fs::write(gateway.file("access.jsonl"), "").unwrap();
    ask(&gateway, 4);
    eventually("they are written", || lines(&gateway).len() == 4);
    gateway.expect("tollgate_access_log_dropped_total", &[], 0.0);
}

#[test]
fn a_full_disk_costs_lines_and_a_partial_line_is_completed_later() {
    let upstream = Upstream::start();
    // A file may have this many blocks: a longer write fails as on a full disk.
    let gateway =
        Gateway::before(&upstream).with("access_log: {to: access.jsonl}").shell("trap '' XFSZ; ulimit -S -f 9").start();
    let mut requests = 0;
    while dropped(&gateway) == 0 {
        ask(&gateway, 50);
        requests += 50;
        assert!(requests < 5000, "it is never full");
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = || std::fs::read_to_string(gateway.file("access.jsonl")).unwrap();
    assert!(!text().ends_with('\n'), "no line was torn: the bound falls on the end of one");
    let reported = || gateway.has_logged("access log not written");
    eventually("it is reported", reported);
    let done = Command::new("prlimit").args(["--pid", &gateway.id().to_string(), "--fsize=unlimited"]).status();
    assert!(done.unwrap().success());
    ask(&gateway, 7);
    requests += 7;
    eventually("all that was not dropped is there", || {
        text().ends_with('\n') && lines(&gateway).len() + dropped(&gateway) == requests
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_at_the_start_and_a_warning_later() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let file = gateway.file("wrong.yaml");
    std::fs::write(&file, Gateway::text("http://127.0.0.1:9", "access_log: {to: none/access.jsonl}")).unwrap();
    let output = Gateway::command(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let expected = "none/access.jsonl: cannot be opened for the access log: No such file or directory (os error 2)\n";
    let errors = String::from_utf8(output.stderr).unwrap();
    // The log is written by a thread of its own, and may say something after it.
    assert!(errors.contains(expected), "{errors}");

    gateway.reload(&upstream, "access_log: {to: none/access.jsonl}");
    eventually("it is reported", || gateway.has_logged("access log not written dropped=0"));
    ask(&gateway, 5);
    gateway.expect("tollgate_access_log_dropped_total", &[], 5.0);
    std::fs::create_dir(gateway.file("none")).unwrap();
    ask(&gateway, 2);
    eventually("they are written", || read(&gateway.file("none/access.jsonl")).len() == 2);
}

#[test]
fn a_process_that_exits_writes_its_queued_lines() {
    let upstream = Upstream::start();
    for (signals, drain) in [(1, "0s"), (2, "60s")] {
        let text = format!("access_log: {{to: access.jsonl}}\ndrain: {{delay: {drain}, timeout: 20s}}");
        let mut gateway = Gateway::start(&upstream, &text);
        ask(&gateway, 100);
        for _ in 0..signals {
            gateway.signal("TERM");
            if signals > 1 {
                eventually("it drains", || gateway.has_logged("draining"));
            }
        }
        gateway.wait();
        assert_eq!(lines(&gateway).len(), 100, "{signals} signals");
    }
}

#[test]
fn an_unread_pipe_blocks_neither_a_reload_nor_the_exit() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "");
    assert!(Command::new("mkfifo").arg(gateway.file("pipe")).status().unwrap().success());
    gateway.reload(&upstream, "access_log: {to: pipe}");
    // More than fits into it.
    ask(&gateway, 400);
    gateway.reload(&upstream, "access_log: {to: access.jsonl}");
    ask(&gateway, 5);
    eventually("the file has its lines", || lines(&gateway).len() == 5);
    let late = Lateness::measure();
    gateway.signal("TERM");
    let (status, took) = gateway.wait();
    assert!(status.success() && took < Duration::from_secs(3) + late.of_a_request(), "{status}, {took:?}");
}

#[test]
fn a_reload_moves_the_log_and_loses_nothing() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "access_log: {to: access.jsonl}");
    ask(&gateway, 20);
    gateway.reload(&upstream, "access_log: {to: stdout}");
    ask(&gateway, 20);
    gateway.reload(&upstream, "access_log: {to: other.jsonl}");
    ask(&gateway, 20);
    gateway.reload(&upstream, "");
    ask(&gateway, 20);
    let mut output = gateway.output();
    eventually("both files have their lines", || {
        lines(&gateway).len() == 20 && read(&gateway.file("other.jsonl")).len() == 20
    });
    gateway.signal("TERM");
    gateway.wait();
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().map(parse).count(), 20);
}

#[test]
fn a_connection_over_the_limit_has_a_line() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("limits: {{connections: 1}}\n{TO_FILE}"));
    let mut first = gateway.client();
    assert_eq!(first.get("/", &[]).status, 200);
    let reported = gateway.client().response("GET").unwrap();
    assert_eq!(reported.status, 503);
    let lines = wait_for(&gateway, 2);
    let line = with_id(&lines, &reported.field("X-Request-Id").unwrap());
    assert_eq!((&line["kind"], &line["code"], &line["method"]), (&json!("error"), &json!(503), &json!("OTHER")));
}

#[test]
fn under_load_every_request_has_one_whole_line() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(
        &upstream,
        &format!(
            "
policies:
  - name: users
    rules: [{{name: user, limit_keys: [query:user], algorithm_config: {{rate: 300/day}}}}]
  - name: everybody
    rules: [{{name: all, limit_keys: [], algorithm_config: {{rate: 100000/day}}}}]
{TO_FILE}"
        ),
    );
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 500;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut connection: Client = gateway.client();
                for number in 0..REQUESTS {
                    let id = format!("{client}.{number}");
                    connection.get(&format!("/?user={}", client % 4), &[("X-Request-Id", &id)]);
                }
            });
        }
    });
    let lines = wait_for(&gateway, CLIENTS * REQUESTS);
    let mut ids: Vec<&str> = lines.iter().map(|line| line["request_id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), lines.len());
    let allowed: Vec<_> = lines.iter().filter(|line| line["kind"] == "allowed").collect();
    assert_eq!(allowed.len(), upstream.count());
    assert_eq!(allowed.len(), 4 * 300);
    // The lines have the exact level of a bucket: each of 300 levels once, for any client.
    for user in 0..4 {
        let mine = |line: &&&Value| {
            line["request_id"].as_str().unwrap().split('.').next().unwrap().parse::<usize>().unwrap() % 4 == user
        };
        let mut left: Vec<u64> = allowed
            .iter()
            .filter(mine)
            .map(|line| line["limits"][0]["remaining"].to_string().split('.').next().unwrap().parse().unwrap())
            .collect();
        left.sort_unstable();
        left.dedup();
        assert!(left.len() >= 299, "{} levels", left.len());
    }
    gateway.expect("tollgate_access_log_dropped_total", &[], 0.0);
}
