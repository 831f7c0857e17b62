//! Records for billing, from outside: their lines, when they are written, thresholds, a full disk, and `tollgate records check`.

#[cfg(feature = "test-hooks")]
mod balance;
mod check;
mod disk;
mod exits;
mod lines;
mod listed;
mod plans;
mod threshold_runs;
mod thresholds;

use std::path::Path;

use serde_json::Value;

use crate::support::{Gateway, eventually};

/// Two plans of one meter. `X-Plan` chooses the plan, and `X-User` is the customer.
const RULES: &str = "
rules:
  - name: pro
    match: {header:x-plan: pro}
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 1000, window: month, cost_source: header:x-cost, min_cost: 0.001}
    meter: api-month
  - name: free
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 3, window: month, cost_source: header:x-cost, min_cost: 0.001}
    meter: api-month
";

/// Records of that meter, with this interval.
fn records(every: &str) -> String {
    format!("records: {{to: records.jsonl, every: {every}, meters: [api-month], subject: [header:x-user]}}\n")
}

/// Sends requests of a user with a plan. Returns their statuses.
fn send(gateway: &Gateway, times: usize, user: &str, plan: &str) -> Vec<u16> {
    let mut client = gateway.client();
    (0..times).map(|_| client.get("/", &[("X-User", user), ("X-Plan", plan)]).status).collect()
}

/// Returns the records in a file. Every line must be whole.
#[track_caller]
fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Waits until a file has this many records, and returns them.
#[track_caller]
fn wait_for(file: &Path, count: usize) -> Vec<Value> {
    let is_whole = || std::fs::read_to_string(file).unwrap_or_default().lines().count() >= count;
    eventually("the records are written", is_whole);
    read(file)
}

/// Ends a gateway with SIGTERM, and returns its records.
#[track_caller]
fn after_drain(gateway: &mut Gateway) -> Vec<Value> {
    gateway.signal("TERM");
    let (status, _) = gateway.wait();
    assert_eq!(status.code(), Some(0), "{}", gateway.errors());
    read(&gateway.file("records.jsonl"))
}

/// Returns the sum of a number over the records of a user.
fn sum(records: &[Value], user: &str, number: &str) -> u64 {
    let of_user = records.iter().filter(|record| record["data"]["subject"] == user);
    of_user.map(|record| record["data"][number].as_u64().unwrap()).sum()
}
