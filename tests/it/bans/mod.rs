//! Bans: limits that refuse every request for a while after one that was beyond them, from outside.

mod commands;
mod doors;
mod login;
mod operator;
mod outage;
mod process;
mod refusals;
mod resets;
mod rules;
mod stores;

use std::io::Write;

use crate::support::{Gateway, Response, Upstream, eventually};

/// Starts an upstream that answers with the status in the field `X-Answer`.
fn upstream() -> Upstream {
    Upstream::answering(|request, stream| {
        let status = request.field("X-Answer").unwrap_or("200");
        // The gateway may have left.
        let _ = write!(stream, "HTTP/1.1 {status} Some\r\nContent-Length: 2\r\n\r\nok");
    })
}

/// A limit of three wrong answers for each user, with these keys of `ban`.
fn limit(ban: &str) -> String {
    format!(
        "
rules:
  - name: guesses
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {{limit: 3, window: 366d, count_on: [401]}}
    ban: {{{ban}}}"
    )
}

/// Sends a request of a user, which the upstream answers with this status.
fn send(gateway: &Gateway, user: &str, answer: u16) -> Response {
    gateway.client().get("/login", &[("X-User", user), ("X-Answer", &answer.to_string())])
}

/// Sends the user's three wrong passwords, and waits until they are spent.
fn guess(gateway: &Gateway, user: &str) {
    for _ in 0..3 {
        assert_eq!(send(gateway, user, 401).status, 401);
    }
    eventually("the answers are counted", || gateway.metric("rate_limiter_settled_total", &[]) >= 3.0);
}

fn reason(response: &Response) -> Option<String> {
    response.field("x-tollgate-reason")
}
