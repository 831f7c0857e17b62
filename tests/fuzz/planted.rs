//! Shows that each target would notice a mistake: its reader makes one on purpose, and the target has to fail.

use super::mutation::finds;
use super::{meaning, wire};

#[track_caller]
fn check(target: fn()) {
    assert!(finds(target), "the mistake was not found");
}

#[test]
fn of_a_head() {
    check(wire::head);
}

#[test]
fn of_chunks() {
    check(wire::chunks);
}

#[test]
fn of_forwarded_addresses() {
    check(wire::forwarded);
}

#[test]
fn of_a_proxy_header() {
    check(wire::proxy_header);
}

#[test]
fn of_a_path() {
    check(wire::path);
}

#[test]
fn of_a_file() {
    check(meaning::config);
}

#[test]
fn of_a_token() {
    check(meaning::token);
}

#[test]
fn of_a_cost() {
    check(meaning::cost);
}

#[test]
fn of_a_key() {
    check(meaning::key);
}

#[test]
fn of_a_reply() {
    check(meaning::reply);
}
