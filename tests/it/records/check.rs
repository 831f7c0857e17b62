//! `tollgate records check`: the records of several gateways are compared with the buckets of the store.

use std::io::Write;

use super::{RULES, after_drain, read, records, send, sum};
use crate::support::{Gateway, Redis, Upstream, eventually, tollgate};

/// Checks these files with a gateway's configuration. Returns the exit code and the output.
fn check(gateway: &Gateway, files: &[&std::path::Path]) -> (Option<i32>, String) {
    let config = gateway.file("gateway.yaml").display().to_string();
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let arguments: Vec<&str> = ["records", "check"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let output = tollgate(&[&arguments[..], &["-c", &config]].concat());
    assert!(output.err.is_empty(), "{output:?}");
    (output.code, output.out)
}

#[test]
fn a_killed_gateway_is_what_the_bucket_has_more_than_the_records() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let config = |every: &str| format!("{RULES}{}{}", records(every), redis.patient_store());
    let mut one = Gateway::start(&upstream, &config("1d"));
    let mut other = Gateway::start(&upstream, &config("1s"));
    send(&one, 7, "ann", "pro");
    send(&one, 2, "bob", "free");
    send(&other, 5, "ann", "pro");
    let other_file = other.file("records.jsonl");
    eventually("its first interval is written", || sum(&read(&other_file), "ann", "quantity") == 5);
    let one_file = one.file("records.jsonl");
    assert_eq!(after_drain(&mut one).len(), 2);
    let (code, out) = check(&one, &[&one_file, &other_file]);
    assert_eq!((code, out.matches(": equal").count()), (Some(0), 2), "{out}");
    assert!(out.contains("api-month header:x-user=ann, 2") && out.contains("12 requests recorded"), "{out}");
    assert!(out.ends_with("2 equal, 0 different, 0 not compared\n"), "{out}");

    // The killed gateway loses its interval, and its last line may be torn.
    let written = std::fs::read_to_string(&other_file).unwrap();
    let mut killed = Gateway::start(&upstream, &config("1d"));
    send(&killed, 3, "ann", "pro");
    killed.signal("KILL");
    killed.wait();
    other.signal("KILL");
    other.wait();
    let mut file = std::fs::OpenOptions::new().append(true).open(&other_file).unwrap();
    file.write_all(&written.as_bytes()[..100]).unwrap();
    let (code, out) = check(&one, &[&one_file, &other_file, &other_file]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("12 requests recorded (12 requests, 0 refused), 15 spent: 3 more spent"), "{out}");
    assert!(out.contains("the last line is not whole, as after a gateway was killed"), "{out}");
    assert!(out.contains("have the id of an earlier line, each counted once"), "{out}");
    assert!(out.contains("more spent than recorded: an interval that has not ended"), "{out}");
    assert!(out.ends_with("1 equal, 1 different, 0 not compared\n"), "{out}");

    // An operator gives some back: then less is spent than was recorded.
    let config = one.file("gateway.yaml").display().to_string();
    let granted = tollgate(&["bucket", "grant", "api-month", "header:x-user=bob", "1", "-c", &config]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let (_, out) = check(&one, &[&one_file, &other_file]);
    assert!(out.contains("1 spent: 1 less spent") && out.contains("less spent than recorded: `bucket reset`"), "{out}");
}

#[test]
fn the_buckets_of_a_gateway_in_memory_are_read_through_its_admin_listener() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, &format!("{RULES}{}", records("1s")));
    send(&gateway, 4, "ann", "pro");
    let file = gateway.file("records.jsonl");
    eventually("it is written", || sum(&read(&file), "ann", "quantity") == 4);
    let config = gateway.file("gateway.yaml").display().to_string();
    let admin = gateway.admin.to_string();
    let output = tollgate(&["records", "check", &file.display().to_string(), "-c", &config, "--admin", &admin]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("4 spent: equal"), "{output:?}");
}

#[test]
fn what_cannot_be_compared_says_why() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let rules = "
policies:
  - name: one
    rules: [{name: shared, limit_keys: [], algorithm: fixed_window, algorithm_config: {limit: 100, window: month}, meter: shared}]
  - name: two
    rules: [{name: rate, limit_keys: [header:x-user], algorithm_config: {rps: 100, burst: 100}, meter: rate}]
  - name: three
    rules: [{name: plan, limit_keys: [header:x-plan], algorithm: fixed_window, algorithm_config: {limit: 100, window: month}, meter: plan}]
  - name: four
    rules: [{name: short, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {limit: 100, window: 1s}, meter: short}]
records: {to: records.jsonl, every: 1d, meters: [shared, rate, plan, short], subject: [header:x-user]}
";
    let mut gateway = Gateway::start(&upstream, &format!("{rules}{}", redis.patient_store()));
    send(&gateway, 2, "ann", "free");
    send(&gateway, 3, "bob", "free");
    after_drain(&mut gateway);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let (code, out) = check(&gateway, &[&gateway.file("records.jsonl")]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("shared all, 2") && out.contains("5 requests recorded (5 requests, 0 refused), 5 spent: equal"),
        "{out}"
    );
    assert!(out.contains("rate header:x-user=ann: 2 requests recorded (2 requests, 0 refused), not compared: a token_bucket has no periods"), "{out}");
    assert!(out.contains("not compared: its limits count by header:x-plan, and the records by header:x-user"), "{out}");
    assert!(out.contains("not compared: the period has ended"), "{out}");
}

#[test]
fn a_file_that_is_missing_is_an_error() {
    let output = tollgate(&["records", "check", "/nowhere/records.jsonl"]);
    assert_eq!(output.code, Some(1));
    assert!(output.err.contains("/nowhere/records.jsonl: No such file"), "{output:?}");
}
