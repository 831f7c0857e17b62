//! Limits of how many requests are in flight at the same time, from outside.

mod aborts;
mod answers;
mod explain;
mod gateways;
mod holders;
#[cfg(feature = "test-hooks")]
mod hours;
mod lost_gateways;
mod lost_stores;
mod status;
mod timeline;
mod upgrades;
mod upstream;
mod ways_out;

use std::time::Duration;

use crate::support::{Client, Gateway, Response, eventually};
use upstream::SlowUpstream;

/// A rule of so many slots for each user, on any path but `/free`.
fn slots(limit: usize) -> String {
    slots_with(&format!("limit: {limit}"))
}

/// A rule with these numbers of a concurrency limit for each user, on any path but `/free`.
fn slots_with(numbers: &str) -> String {
    format!(
        "
rules:
  - {{name: free, match: {{path: /free}}, action: allow}}
  - {{name: in-flight, limit_keys: [header:x-user], algorithm: concurrency, algorithm_config: {{{numbers}}}}}"
    )
}

/// Sends a request of a user, and does not wait for its response.
fn begin(gateway: &Gateway, path: &str, user: &str) -> Client {
    let mut client = gateway.client();
    client.write(&format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n"));
    client
}

/// Sends a request of a user that waits at the upstream, again until it is not refused. Then so many requests run there.
#[track_caller]
fn hold(gateway: &Gateway, slow: &SlowUpstream, running: usize) -> Client {
    let mut client = begin(gateway, "/hold", "ann");
    eventually("the request runs", || {
        let is_refused = client.receives_within(Duration::from_millis(5));
        if is_refused {
            client = begin(gateway, "/hold", "ann");
        }
        slow.has_running(running)
    });
    client
}

/// Sends a request of a user on a new connection, and returns its response.
fn get(gateway: &Gateway, path: &str, user: &str) -> Response {
    gateway.client().get(path, &[("X-User", user)])
}
