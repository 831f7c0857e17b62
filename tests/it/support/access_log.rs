//! Reads an access log. All of its lines must be valid.

use std::path::Path;

use decision::access_log_line::Line;
use serde_json::{Value, json};

use super::mint::Signer;
use super::{Gateway, eventually};

/// The secret key for tokens and for pseudonyms.
pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const TO_FILE: &str = "access_log: {to: access.jsonl}\n";

/// Returns the lines of a log. Every line must be complete.
#[track_caller]
pub(crate) fn lines(gateway: &Gateway) -> Vec<Value> {
    read(&gateway.file("access.jsonl"))
}

/// Reads a log. A line that is being written may be incomplete for a moment, so it is read again.
#[track_caller]
pub(crate) fn read(file: &Path) -> Vec<Value> {
    let mut text = String::new();
    eventually("the last line is whole", || {
        text = std::fs::read_to_string(file).unwrap_or_default();
        text.is_empty() || text.ends_with('\n')
    });
    text.lines().map(parse).collect()
}

#[track_caller]
pub(crate) fn parse(line: &str) -> Value {
    if let Err(error) = Line::read(line.as_bytes()) {
        panic!("{error}: {line}");
    }
    serde_json::from_str(line).unwrap()
}

/// Waits until the log has this many lines, and returns them.
#[track_caller]
pub(crate) fn wait_for(gateway: &Gateway, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    eventually("the lines are written", || {
        found = lines(gateway);
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:#?}");
    found
}

pub(crate) fn with_id<'l>(lines: &'l [Value], id: &str) -> &'l Value {
    let mut found = lines.iter().filter(|line| line["request_id"] == id);
    let line = found.next().unwrap_or_else(|| panic!("no line of {id}"));
    assert!(found.next().is_none(), "two lines of {id}");
    line
}

pub(crate) fn token(claims: &Value) -> String {
    format!("Bearer {}", Signer::hs256(SECRET).token(&json!({"alg": "HS256"}), claims))
}
