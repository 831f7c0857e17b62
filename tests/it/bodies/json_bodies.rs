//! Uploads of JSON bodies by users, and the rule that limits each user.

use crate::support::{Client, Gateway, GatewayBuilder, Response, Upstream};

/// A rule that limits each user that a JSON body names to two requests a day.
pub(super) const PER_USER: &str =
    "rules: [{name: per-user, limit_keys: [\"request_json:/user\"], algorithm_config: {rate: 2/day}}]";

pub(super) const JSON: (&str, &str) = ("Content-Type", "application/json");
pub(super) const FORM: (&str, &str) = ("Content-Type", "application/x-www-form-urlencoded");

/// Returns a gateway with the rule [`PER_USER`], whose only listener speaks HTTP/1.1 and HTTP/2 without TLS.
pub(super) fn per_user(upstream: &Upstream) -> GatewayBuilder {
    Gateway::before(upstream).with("listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]").with(PER_USER)
}

/// Sends a JSON body on a connection of its own.
pub(super) fn post_json(gateway: &Gateway, body: &str) -> Response {
    gateway.client().send("POST", "/", &[JSON], body)
}

/// Returns a JSON body of exactly this many bytes that names this user.
pub(super) fn json_of_length(user: &str, length: usize) -> String {
    let (head, tail) = (format!("{{\"user\":\"{user}\",\"padding\":\""), "\"}");
    format!("{head}{}{tail}", "x".repeat(length - head.len() - tail.len()))
}

/// Sends the head of an upload of this length and a part of the body.
pub(super) fn begin_upload(client: &mut Client, length: usize, part: &str) {
    client.write(&format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{part}"
    ));
}
