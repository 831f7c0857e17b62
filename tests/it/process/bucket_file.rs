//! Buckets in memory are kept across a restart and a crash by their file, and across an upgrade without a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Client, Gateway, Orphan, Upstream, eventually, tollgate};

/// Spent amounts are not refilled during a test.
const FIVE: &str = "rules: [{name: a, limit_keys: [], algorithm_config: {rate: 5/day}}]";

const FILE: &str = "store: {memory: {file: buckets.tgb, save_every: 1s}}\n";

fn statuses(gateway: &Gateway, requests: usize) -> Vec<u16> {
    let mut client = gateway.client();
    (0..requests).map(|_| client.get("/", &[]).status).collect()
}

#[test]
fn a_quota_is_kept_over_a_restart() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("store: {{memory: {{file: buckets.tgb}}}}\n{FIVE}"));
    gateway.expect_logged("no buckets to load, the file does not exist yet");
    assert_eq!(statuses(&gateway, 3), [200; 3]);
    for _ in 0..2 {
        gateway.signal("TERM");
        assert_eq!(gateway.wait().0.code(), Some(0), "{}", gateway.errors());
        gateway.start_again();
        assert_eq!(gateway.metric("rate_limiter_buckets", &[]), 1.0);
    }
    assert_eq!(statuses(&gateway, 3), [200, 200, 429]);
    // Also with a signal that does not wait for the connection that is open.
    let _open = gateway.client();
    gateway.drain();
    gateway.signal("TERM");
    gateway.wait();
    gateway.start_again();
    assert_eq!(statuses(&gateway, 1), [429]);
}

#[test]
fn without_a_file_a_restart_begins_with_full_buckets() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, FIVE);
    assert_eq!(statuses(&gateway, 6), [200, 200, 200, 200, 200, 429]);
    gateway.signal("TERM");
    gateway.wait();
    gateway.start_again();
    assert_eq!(statuses(&gateway, 1), [200]);
}

#[test]
fn a_crash_forgets_what_was_granted_after_the_last_save() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, &format!("{FILE}{FIVE}"));
    assert_eq!(statuses(&gateway, 5), [200; 5]);
    // The second save from now on began after the last grant.
    let saves = |gateway: &Gateway| gateway.metric("rate_limiter_bucket_saves_total", &["success"]);
    let before = saves(&gateway);
    eventually("it saves twice", || saves(&gateway) >= before + 2.0);
    gateway.signal("KILL");
    gateway.wait();
    gateway.start_again();
    gateway.expect_logged("buckets loaded");
    assert_eq!(statuses(&gateway, 1), [429]);
}

#[test]
fn an_invalid_file_is_reported_and_replaced() {
    let upstream = Upstream::start();
    let config = format!("store: {{memory: {{file: buckets.tgb}}}}\n{FIVE}");
    let mut gateway = Gateway::before(&upstream).with(&config).file("buckets.tgb", "something else").start();
    gateway.expect_logged("buckets not loaded");
    let errors = gateway.errors();
    let line = errors.lines().find(|line| line.contains("buckets not loaded")).unwrap_or_else(|| panic!("{errors}"));
    assert!(line.contains("buckets.tgb") && line.contains("this is not a bucket file of Tollgate"), "{line}");
    assert_eq!(statuses(&gateway, 5), [200; 5]);
    gateway.signal("TERM");
    gateway.wait();
    // Half of a good one.
    let good = std::fs::read(gateway.file("buckets.tgb")).unwrap();
    std::fs::write(gateway.file("buckets.tgb"), &good[..good.len() / 2]).unwrap();
    gateway.start_again();
    gateway.expect_logged("it ends early");
    assert_eq!(statuses(&gateway, 1), [200]);
}

#[test]
fn two_gateways_never_use_one_file() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{FILE}{FIVE}"));
    let file = gateway.file("gateway.yaml");
    let other = tollgate(&["run", "-c", file.to_str().unwrap()]);
    assert_eq!(other.code, Some(1), "{other:?}");
    let expected = "buckets.tgb: cannot be used for buckets: another gateway uses this file; each must have its own";
    assert!(other.err.contains(expected), "{other:?}");
    assert_eq!(statuses(&gateway, 1), [200]);
}

#[test]
fn a_folder_that_does_not_exist_is_a_problem_of_the_file() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "");
    let file = gateway.file("wrong.yaml");
    std::fs::write(&file, "upstream: http://127.0.0.1:9\nstore: {memory: {file: nowhere/buckets.tgb}}\n").unwrap();
    for command in [&["check"][..], &["run", "-c"]] {
        let found = tollgate(&[command, &[file.to_str().unwrap()]].concat());
        assert_eq!(found.code, Some(1), "{found:?}");
        let expected = "wrong.yaml:2:24: store.memory.file: must be a file in a folder that exists (No such file or \
                        directory (os error 2)), is `nowhere/buckets.tgb`\n1 problem";
        assert!(found.err.contains(expected), "{found:?}");
    }
}

#[test]
fn a_save_that_fails_is_reported_and_changes_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{FILE}{FIVE}"));
    // Nobody, not even root, can replace a folder that is not empty by a file.
    eventually("the path is a folder", || {
        let _ = std::fs::remove_file(gateway.file("buckets.tgb"));
        std::fs::create_dir_all(gateway.file("buckets.tgb/folder")).is_ok()
    });
    eventually("a save fails", || gateway.metric("rate_limiter_bucket_saves_total", &["failure"]) >= 2.0);
    gateway.expect_logged("buckets not saved");
    let errors = gateway.errors();
    assert_eq!(errors.matches("buckets not saved").count(), 1, "{errors}");
    assert_eq!(statuses(&gateway, 6), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn an_upgrade_hands_buckets_over_with_a_file_and_without() {
    for config in [FIVE.to_owned(), format!("{FILE}{FIVE}")] {
        let upstream = Upstream::start();
        let mut gateway = Gateway::start(&upstream, &config);
        assert_eq!(statuses(&gateway, 3), [200; 3]);
        gateway.signal("USR2");
        let second = Orphan::of(&gateway, 1);
        gateway.wait();
        assert_eq!(statuses(&gateway, 1), [200]);
        second.signal("USR2");
        let third = Orphan::of(&gateway, 2);
        eventually("the second leaves", || !second.is_running());
        assert_eq!(statuses(&gateway, 2), [200, 429], "{}", gateway.errors());
        if !config.starts_with(FILE) {
            continue;
        }
        // The file has gone with the buckets.
        third.signal("TERM");
        eventually("the third leaves", || !third.is_running());
        gateway.start_again();
        assert_eq!(statuses(&gateway, 1), [429]);
        assert!(!gateway.errors().contains("not saved"), "{}", gateway.errors());
    }
}

#[test]
#[cfg(feature = "test-hooks")]
fn a_next_process_that_dies_before_it_has_the_buckets_changes_nothing() {
    for config in [FIVE.to_owned(), format!("{FILE}{FIVE}")] {
        let upstream = Upstream::start();
        let hold = tempfile::NamedTempFile::new().unwrap();
        let variable = format!("export TOLLGATE_TEST_HOLD_BUCKETS={}", hold.path().display());
        let mut gateway = Gateway::before(&upstream).with(&config).shell(&variable).start();
        assert_eq!(statuses(&gateway, 2), [200; 2]);
        for times in 1..=2 {
            gateway.signal("USR2");
            eventually("it holds", || gateway.errors().matches("the buckets are held").count() == times);
            // It is in the queue, where this process or the next one finds it.
            let mut waiting = gateway.client();
            let errors = gateway.errors();
            let next = errors.rsplit("starting the next process pid=").next().unwrap();
            let next = Orphan::new(next.chars().take_while(char::is_ascii_digit).collect());
            next.signal("KILL");
            assert_eq!(waiting.get("/", &[]).status, 200);
            let gave_up = || gateway.errors().matches("the next process gave up; this one goes on").count() == times;
            eventually("it goes on", gave_up);
            assert_eq!(Client::connect(gateway.admin).get("/readyz", &[]).status, 200);
        }
        assert_eq!(statuses(&gateway, 1), [200]);
        let mut client = gateway.client();
        let response = client.get("/", &[]);
        assert_eq!((response.status, response.field("connection").as_deref()), (429, Some("keep-alive")));
        assert!(gateway.is_running() && !gateway.has_logged("draining"), "{}", gateway.errors());
        drop(hold);
        gateway.signal("USR2");
        let next = Orphan::of(&gateway, 1);
        gateway.wait();
        gateway.expect_logged("buckets received from the previous process");
        assert!(next.is_running() && !gateway.errors().contains("not saved"), "{}", gateway.errors());
        assert_eq!(statuses(&gateway, 1), [429]);
    }
}

#[test]
fn an_upgrade_under_load_grants_at_most_one_request_more_for_each_connection() {
    const LIMIT: usize = 2000;
    const CLIENTS: usize = 8;
    let upstream = Upstream::start();
    let rules = format!("rules: [{{name: a, limit_keys: [], algorithm_config: {{rate: 1/day, burst: {LIMIT}}}}}]");
    let gateway = Gateway::start(&upstream, &rules);
    let granted = Arc::new(AtomicUsize::new(0));
    let client = |number: usize| {
        // Half of them open a connection for each request, so that some are accepted during the handover.
        let fields: &'static [(&str, &str)] = if number.is_multiple_of(2) { &[] } else { &[("Connection", "close")] };
        let (granted, address) = (Arc::clone(&granted), gateway.http);
        std::thread::spawn(move || {
            let mut client = Client::connect(address);
            loop {
                let response = client.get("/", fields);
                match response.status {
                    200 => granted.fetch_add(1, Ordering::Relaxed),
                    429 => return,
                    status => panic!("{status}"),
                };
                if response.field("connection").as_deref() == Some("close") {
                    client = Client::connect(address);
                }
            }
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    eventually("a part is granted", || granted.load(Ordering::Relaxed) > LIMIT / 20);
    gateway.signal("USR2");
    Orphan::of(&gateway, 1);
    clients.into_iter().for_each(|client| client.join().unwrap());
    // The previous process may have refused the last of them, although the next one has some left.
    let mut next = gateway.client();
    let more = (0..LIMIT).take_while(|_| next.get("/", &[]).status == 200).count();
    let total = granted.load(Ordering::Relaxed) + more;
    assert!((LIMIT..=LIMIT + CLIENTS).contains(&total), "{total}\n{}", gateway.errors());
}

#[test]
fn a_previous_process_of_an_older_version_hands_over_no_buckets() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::Stdio;

    let upstream = Upstream::start();
    // A gateway made this directory and its file, and has left.
    let mut gateway = Gateway::start(&upstream, FIVE);
    gateway.signal("TERM");
    gateway.wait();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Gateway::command(&gateway.file("gateway.yaml"));
    command.env("TOLLGATE_HANDOVER", "1").stdin(Stdio::from(OwnedFd::from(theirs)));
    let mut next = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    ours.write_all(b"e").unwrap();
    let mut report = [0];
    ours.read_exact(&mut report).unwrap();
    assert_eq!(report, *b"r");
    let expected = "the previous process is of an older version, which does not hand them over";
    let mut errors = String::new();
    for line in BufReader::new(next.stderr.take().unwrap()).lines().map_while(Result::ok) {
        errors += &line;
        if errors.contains(expected) {
            break;
        }
    }
    next.kill().unwrap();
    next.wait().unwrap();
    assert!(errors.contains(expected), "{errors}");
}
