//! Raises: an operator gives a client more until a moment, from outside.

mod callers;
mod document;
mod operator;
mod refused;

use crate::support::{Gateway, Response};

const RULES: &str = "
check: {allow: [unverified_key, open_policy, forgotten_period, double_first_period]}
usage: {path: /.well-known/ratelimit, limit: {rate: 100000/s}}
rules:
  - name: month
    match: {path: /month}
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {limit: 5, window: 366d}
  - {name: rate, match: {path: /rate}, limit_keys: [header:x-user], algorithm_config: {rate: 5/d}}
  - {name: log, match: {path: /log}, limit_keys: [header:x-user], algorithm: sliding_log, algorithm_config: {limit: 5, window: 1d}}
  - {name: slide, match: {path: /slide}, limit_keys: [header:x-user], algorithm: sliding_window, algorithm_config: {limit: 5, window: 1d}}
  - name: queue
    match: {path: /queue}
    limit_keys: [header:x-user]
    algorithm: leaky_bucket
    algorithm_config: {rps: 1, queue: 5, max_wait: 5s}
  - name: two
    match: {path: /two}
    limit_keys: [header:x-user]
    limits: {hour: {rate: 5/h}, day: {rate: 50/d}}
";

fn send(gateway: &Gateway, path: &str, user: &str) -> Response {
    gateway.client().get(path, &[("X-User", user)])
}

/// Counts how many of 20 requests are granted.
fn passing(gateway: &Gateway, path: &str, user: &str) -> usize {
    let mut client = gateway.client();
    (0..20).filter(|_| client.get(path, &[("X-User", user)]).status == 200).count()
}
