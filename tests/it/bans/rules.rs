//! Bans beside other rules: policies, `deny`, `exempt` and shadow mode.

use super::{guess, limit, reason, send, upstream};
use crate::support::Gateway;

/// A ban of a user's wrong answers, beside a limit of the address and rules that go before.
const TWO: &str = "
exempt: [{path: /exempt}]
policies:
  - name: guesses
    rules:
      - {name: closed, match: {path: /closed}, action: deny}
      - name: guesses
        limit_keys: [header:x-user]
        algorithm: fixed_window
        algorithm_config: {limit: 3, window: 366d, count_on: [401]}
        ban: {for: [30m]}
  - name: all
    rules:
      - {name: all, limit_keys: [ip:address], algorithm: fixed_window, algorithm_config: {limit: 10, window: 366d}, status: 503}";

#[test]
fn a_ban_spends_nothing_of_another_policy_and_ends_no_rule_that_goes_before() {
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, TWO);
    guess(&gateway, "ann");
    for _ in 0..20 {
        assert_eq!(reason(&send(&gateway, "ann", 200)).as_deref(), Some("banned"));
    }
    let mut client = gateway.client();
    let user = [("X-User", "ann")];
    assert_eq!(client.get("/exempt", &user).status, 200);
    assert_eq!(reason(&client.get("/closed", &user)).as_deref(), Some("denied"));
    // Three answers of the ten have been spent, and this is the fourth.
    let levels = send(&gateway, "bob", 200).field("ratelimit").unwrap();
    assert!(levels.starts_with("\"guesses\";r=2;") && levels.contains("\"all\";r=6;"), "{levels}");
    for _ in 0..6 {
        assert_eq!(send(&gateway, "bob", 200).status, 200);
    }
    // Both refuse: the ban goes first in the reason and the status, and the longest wait holds.
    let both = send(&gateway, "ann", 200);
    assert_eq!((both.status, reason(&both).as_deref()), (429, Some("banned")));
    assert!(both.number("retry-after") > 1800, "{both:?}");
    assert_eq!(both.json()["violated-policies"], serde_json::json!(["guesses", "all"]));
    assert_eq!(reason(&send(&gateway, "bob", 200)).as_deref(), Some("fixed_window_exceeded"));
}

#[test]
fn a_ban_in_shadow_mode_is_counted_and_refuses_nothing() {
    let upstream = upstream();
    let gateway = Gateway::start(&upstream, &limit("for: [1h, 2h]").replace("    ban:", "    mode: shadow\n    ban:"));
    guess(&gateway, "ann");
    for _ in 0..3 {
        let passed = send(&gateway, "ann", 401);
        assert_eq!((passed.status, passed.field("ratelimit")), (401, None));
    }
    gateway.expect("rate_limiter_bans_total", &["mode=\"shadow\"", "step=\"1\""], 1.0);
    gateway.expect("rate_limiter_rejected_total", &["mode=\"shadow\"", "reason=\"banned\""], 3.0);
}

#[test]
fn numbers_to_try_have_the_ban_of_their_limit() {
    let upstream = upstream();
    let config = limit("for: [1h]").replace("count_on: [401]", "count_on: [401], shadow: {limit: 1}");
    let gateway = Gateway::start(&upstream, &config);
    guess(&gateway, "ann");
    gateway.expect("rate_limiter_bans_total", &["mode=\"shadow\""], 1.0);
    gateway.expect("rate_limiter_bans_total", &["mode=\"enforce\""], 0.0);
}

#[test]
fn a_limit_without_counted_results_bans_too() {
    let upstream = upstream();
    let rules = "
rules:
  - name: pages
    limit_keys: [header:x-user]
    limits:
      hour: {rate: 5/h, ban: {for: [1h]}}
      day: {rate: 100/d}";
    let gateway = Gateway::start(&upstream, rules);
    for _ in 0..5 {
        assert_eq!(send(&gateway, "ann", 200).status, 200);
    }
    let banned = send(&gateway, "ann", 200);
    assert_eq!((banned.status, reason(&banned).as_deref(), banned.number("retry-after")), (429, Some("banned"), 3600));
    assert_eq!(banned.json()["violated-policies"], serde_json::json!(["pages.hour"]));
    gateway.expect("rate_limiter_bans_total", &["rule=\"pages.hour\"", "step=\"1\""], 1.0);
}
