//! The path of `usage`, from outside: its answers, the requests that they are about, its refusals and every store.

mod answers;
mod asked;
mod page;
mod refusals;
mod stores;

use serde_json::Value;

use crate::support::{Gateway, Response};

const PATH: &str = "/.well-known/ratelimit";

/// The key `usage`, with a limit that no test reaches.
const USAGE: &str = "usage: {path: /.well-known/ratelimit, limit: {rate: 100000/s}}\n";

fn ask_with(gateway: &Gateway, query: &str, fields: &[(&str, &str)]) -> Response {
    gateway.client().get(&format!("{PATH}{query}"), fields)
}

/// Asks for a user.
fn ask(gateway: &Gateway, query: &str, user: &str) -> Response {
    ask_with(gateway, query, &[("X-User", user)])
}

/// Returns the limits of an answer.
#[track_caller]
fn limits(response: &Response) -> Vec<Value> {
    assert_eq!(
        (response.status, response.field("content-type").as_deref()),
        (200, Some("application/json")),
        "{response:?}"
    );
    assert_eq!(response.field("cache-control").as_deref(), Some("no-store"));
    response.json()["limits"].as_array().unwrap().clone()
}

/// Returns the names of the limits of an answer.
#[track_caller]
fn names(response: &Response) -> Vec<String> {
    limits(response).iter().map(|limit| limit["name"].as_str().unwrap().to_owned()).collect()
}

/// Returns what is used, held and left of the only limit.
#[track_caller]
fn books(response: &Response) -> (u64, u64, u64) {
    let limits = limits(response);
    assert_eq!(limits.len(), 1, "{limits:?}");
    let number = |name: &str| limits[0][name].as_u64().unwrap_or_else(|| panic!("{name} in {limits:?}"));
    (number("used"), number("held"), number("remaining"))
}

/// Sends requests of a user to this path. Returns their statuses.
fn send(gateway: &Gateway, times: usize, path: &str, user: &str) -> Vec<u16> {
    let mut client = gateway.client();
    (0..times).map(|_| client.get(path, &[("X-User", user)]).status).collect()
}
