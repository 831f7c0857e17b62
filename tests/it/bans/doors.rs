//! Bans at a listener that decides for another proxy.

use super::{guess, limit, reason, send, upstream};
use crate::support::{Client, Gateway, Response};

/// A listener that proxies, and one that decides.
const LISTENERS: &str = "listeners:
  - {name: front, address: 127.0.0.1:0}
  - {name: edge, address: 127.0.0.1:0, decide: [http], clients: [127.0.0.0/8], original_request: path}";

/// Asks about a request of Ann.
fn ask(gateway: &Gateway) -> Response {
    let fields = [("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "203.0.113.7"), ("X-User", "ann")];
    Client::connect(gateway.listeners[1]).get("/decide/login", &fields)
}

#[test]
fn a_decision_is_refused_only_by_a_ban_if_responses_are_counted() {
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, &format!("{LISTENERS}{}", limit("for: [1h]")));
    for _ in 0..10 {
        assert_eq!(ask(&gateway).status, 200);
    }
    guess(&gateway, "ann");
    assert_eq!(ask(&gateway).status, 200);
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    let banned = ask(&gateway);
    assert_eq!((banned.status, reason(&banned).as_deref()), (429, Some("banned")));
    gateway.expect("rate_limiter_bans_total", &[], 1.0);
}

#[test]
fn a_decision_spends_and_begins_no_ban() {
    let upstream = upstream();
    let rules = limit("for: [1h]").replace(", count_on: [401]", "");
    let gateway = Gateway::start(&upstream, &format!("{LISTENERS}{rules}"));
    for _ in 0..3 {
        assert_eq!(ask(&gateway).status, 200);
    }
    for _ in 0..3 {
        assert_eq!(reason(&ask(&gateway)).as_deref(), Some("fixed_window_exceeded"));
    }
    gateway.expect("rate_limiter_bans_total", &[], 0.0);
    assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    assert_eq!(reason(&ask(&gateway)).as_deref(), Some("banned"));
}
