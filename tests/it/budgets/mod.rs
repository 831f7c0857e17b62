//! Budgets: limits whose costs the response tells, from outside.

mod counted_calls;
mod ends;
mod lost_gateways;
mod model_requests;
mod models;
mod money;
mod numbers;
mod recorded_money;
mod recordings;
mod refusals;
mod replay;
mod reserve_from;
mod reserve_learned;
mod reserve_worst;
mod settled_thresholds;
mod status;
mod stores;
mod two_gateways;
mod upstream;

use std::time::Duration;

use crate::support::{Client, Gateway, Response, now};

/// The limit of every budget of these tests.
const LIMIT: u64 = 1000;

/// What every request reserves.
const RESERVE: u64 = 5;

/// A budget of each user with these further keys, for any path but `/free`.
fn budget_with(keys: &str) -> String {
    let numbers = format!("limit: {LIMIT}, window: 366d, reserve: {RESERVE}, {keys}");
    format!(
        "
rules:
  - {{name: free, match: {{path: /free}}, action: allow}}
  - {{name: spend, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{{numbers}}}}}"
    )
}

/// A budget whose costs stand in the field `X-Cost`. Without the field, a request costs 3.
fn budget() -> String {
    budget_with("cost_source: \"response_header:x-cost\", default_cost: 3")
}

/// Sends a request of a user, and does not wait for its response.
fn begin(gateway: &Gateway, path: &str, user: &str) -> Client {
    let mut client = gateway.client();
    client.write(&format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n"));
    client
}

/// Sends a request of a user on a new connection, and returns its response.
fn get(gateway: &Gateway, path: &str, user: &str) -> Response {
    gateway.client().get(path, &[("X-User", user)])
}

/// Returns what is spent and held of the budget of a user. Sends a request that costs nothing.
#[track_caller]
fn used(gateway: &Gateway, user: &str) -> u64 {
    let response = get(gateway, "/cost/0", user);
    assert_eq!(response.status, 200, "{response:?}");
    LIMIT - RESERVE - response.number("ratelimit-remaining")
}

/// So much of the budget of a user is spent soon, and nothing is held.
#[track_caller]
fn becomes(gateway: &Gateway, user: &str, spent: u64) {
    shows(gateway, user, spent);
    // It stays so: nothing is settled twice.
    shows(gateway, user, spent);
}

/// So much of the budget of a user is spent and held soon. A request before may still hold its reservation for a moment after its
/// response.
#[track_caller]
fn shows(gateway: &Gateway, user: &str, spent_and_held: u64) {
    let begun = now();
    loop {
        let last = used(gateway, user);
        if last == spent_and_held {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "{last} is spent and held, not {spent_and_held}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
