//! A disk that is full or does not answer stops no request, and loses no record while there is memory.

use std::os::unix::fs::symlink;
use std::process::Command;

use super::{RULES, after_drain, records, send, sum, wait_for};
use crate::support::{Gateway, Upstream};

/// Makes the file of records one that is always full, beside gateway.yaml.
const FULL: &str = "ln -s /dev/full \"$(dirname \"$3\")/records.jsonl\"";

#[test]
fn a_full_disk_keeps_records_in_memory_until_it_has_room() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::before(&upstream).with(RULES).with(&records("1s")).shell(FULL).start();
    let file = gateway.file("records.jsonl");
    assert_eq!(send(&gateway, 20, "ann", "pro"), [200; 20]);
    gateway.expect_logged("records not written, kept in memory");
    gateway.expect("rate_limiter_records_written_total", &[], 0.0);
    let kept = gateway.metric("rate_limiter_records_kept", &[]);
    assert!(kept >= 1.0, "{kept}");
    assert_eq!(send(&gateway, 20, "ann", "pro"), [200; 20]);
    std::fs::remove_file(&file).unwrap();
    gateway.expect_logged("records written again");
    gateway.expect("rate_limiter_records_kept", &[], 0.0);
    wait_for(&file, 1);
    let records = after_drain(&mut gateway);
    assert_eq!(sum(&records, "ann", "quantity"), 40);
}

#[test]
fn what_a_full_disk_does_not_take_until_the_exit_is_reported() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::before(&upstream).with(RULES).with(&records("1d")).shell(FULL).start();
    send(&gateway, 3, "ann", "pro");
    gateway.signal("TERM");
    let (status, _) = gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert!(gateway.errors().contains("records lost at the exit records=1"), "{}", gateway.errors());
}

#[test]
fn a_pipe_that_nobody_reads_stops_no_request() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::before(&upstream)
        .with(RULES)
        .with(&records("1s"))
        .shell("mkfifo \"$(dirname \"$3\")/records.jsonl\"")
        .start();
    let user = "u".repeat(4000);
    for number in 0..40 {
        assert_eq!(send(&gateway, 1, &format!("{number}{user}"), "pro"), [200]);
    }
    // The exit does not wait for the pipe, in which only a part of the records fits.
    gateway.signal("TERM");
    gateway.wait();
}

#[test]
fn a_destination_that_cannot_be_opened_prevents_the_start() {
    let folder = tempfile::tempdir().unwrap();
    symlink("/nowhere/at/all", folder.path().join("records.jsonl")).unwrap();
    let file = folder.path().join("gateway.yaml");
    std::fs::write(&file, Gateway::text("http://127.0.0.1:9", &format!("{RULES}{}", records("1d")))).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("run").arg("-c").arg(&file).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("records.jsonl: cannot be opened for records: "), "{errors}");
    assert_eq!(output.status.code(), Some(1));
}
