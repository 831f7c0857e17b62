//! The answers of a concurrency limit, alone and beside other limits.

use super::upstream::SlowUpstream;
use super::{begin, get, slots, slots_with};
use crate::support::{Gateway, eventually};

#[test]
fn eight_requests_of_a_user_run_at_once_and_the_ninth_is_refused() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(8));
    let mut running: Vec<_> = (0..8).map(|_| begin(&gateway, "/hold", "ann")).collect();
    slow.expect_running(8);
    let refused = get(&gateway, "/", "ann");
    assert_eq!(refused.status, 429);
    let field = |name: &str| refused.field(name).unwrap_or_default();
    assert_eq!(field("ratelimit-policy"), "\"in-flight\";q=8;qu=\"concurrent-requests\"");
    assert_eq!(field("ratelimit"), "\"in-flight\";r=0");
    let triple = ["limit", "remaining", "reset"].map(|name| refused.number(&format!("ratelimit-{name}")));
    assert_eq!(triple, [8, 0, 1]);
    assert!((1..=2).contains(&refused.number("retry-after")), "{refused:?}");
    assert_eq!(field("x-tollgate-reason"), "concurrency_exceeded");
    assert_eq!(refused.json()["violated-policies"][0], "in-flight");
    gateway.expect("rate_limiter_rejected_total", &["in-flight", "concurrency_exceeded"], 1.0);
    gateway.expect("rate_limiter_in_flight", &["in-flight"], 8.0);
    // Others have slots of their own, and what has no window has no triple either.
    let other = get(&gateway, "/", "bob");
    assert_eq!((other.status, other.field("ratelimit").as_deref()), (200, Some("\"in-flight\";r=7")));
    assert_eq!(other.field("ratelimit-limit"), None);
    slow.finish(1);
    eventually("a slot is free again", || get(&gateway, "/", "ann").status == 200);
    slow.finish(7);
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    assert_eq!(slow.most(), 8);
    gateway.expect("rate_limiter_in_flight", &["in-flight"], 0.0);
}

#[test]
fn a_refused_slot_spends_no_rate_and_a_refused_rate_takes_no_slot() {
    let slow = SlowUpstream::start();
    let rules = "
rules:
  - name: both
    limit_keys: [header:x-user]
    limits:
      day: {rate: 3/day}
      slots: {algorithm: concurrency, limit: 1}";
    let gateway = Gateway::start(&slow.upstream, rules);
    let mut running = begin(&gateway, "/hold", "ann");
    slow.expect_running(1);
    let refused = get(&gateway, "/", "ann");
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("concurrency_exceeded"));
    assert_eq!(refused.field("ratelimit").unwrap().split(", ").next(), Some("\"both.day\";r=2;t=28800"));
    // Only the slots have refused, so the triple is theirs.
    assert_eq!((refused.number("ratelimit-limit"), refused.number("ratelimit-reset")), (1, 1));
    slow.finish(1);
    assert_eq!(running.response("GET").unwrap().number("ratelimit-remaining"), 2);
    // A response arrives a moment before its slot is free.
    let all_free = || gateway.expect("rate_limiter_in_flight", &[], 0.0);
    for left in [1, 0] {
        all_free();
        let response = get(&gateway, "/", "ann");
        assert_eq!((response.status, response.number("ratelimit-remaining")), (200, left), "{response:?}");
    }
    for _ in 0..3 {
        all_free();
        let refused = get(&gateway, "/", "ann");
        assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"));
        assert!(refused.field("ratelimit").unwrap().ends_with("\"both.slots\";r=1"), "{refused:?}");
    }
}

#[test]
fn where_a_rate_refuses_too_it_speaks() {
    let slow = SlowUpstream::start();
    let rules = "
rules:
  - name: both
    limit_keys: [header:x-user]
    limits:
      slots: {algorithm: concurrency, limit: 1}
      burst: {rps: 5, burst: 5, fixed_cost: 5}";
    let gateway = Gateway::start(&slow.upstream, rules);
    let _running = begin(&gateway, "/hold", "ann");
    slow.expect_running(1);
    // Whatever its wait is: that of the slots is a guess.
    let refused = get(&gateway, "/", "ann");
    assert_eq!(refused.field("x-tollgate-reason").as_deref(), Some("token_bucket_exceeded"), "{refused:?}");
    assert_eq!(refused.number("ratelimit-limit"), 5);
    assert_eq!(refused.json()["violated-policies"], serde_json::json!(["both.slots", "both.burst"]));
    slow.finish(1);
}

#[test]
fn after_max_hold_a_slot_is_free_and_its_request_goes_on() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots_with("limit: 1, max_hold: 1s"));
    let mut first = begin(&gateway, "/hold", "ann");
    slow.expect_running(1);
    assert_eq!(get(&gateway, "/", "ann").status, 429);
    eventually("the slot is free", || get(&gateway, "/", "ann").status == 200);
    gateway.expect("rate_limiter_in_flight", &[], 1.0);
    // The end of the first request gives nothing back that another holds.
    let _second = begin(&gateway, "/hold", "ann");
    slow.expect_running(2);
    slow.finish(2);
    assert_eq!(first.response("GET").unwrap().status, 200);
}

#[test]
fn a_shadow_holds_slots_of_its_own_and_refuses_nobody() {
    let slow = SlowUpstream::start();
    let rules = slots_with("limit: 2, shadow: {limit: 1}");
    let gateway = Gateway::start(&slow.upstream, &rules);
    let mut running = [(); 2].map(|()| begin(&gateway, "/hold", "ann"));
    slow.expect_running(2);
    gateway.expect("rate_limiter_allowed_total", &["in-flight", "shadow"], 1.0);
    gateway.expect("rate_limiter_rejected_total", &["in-flight", "shadow"], 1.0);
    slow.finish(2);
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    gateway.expect("rate_limiter_in_flight", &[], 0.0);
    assert_eq!(get(&gateway, "/", "ann").status, 200);
    gateway.expect("rate_limiter_allowed_total", &["in-flight", "shadow"], 2.0);
}

#[test]
fn overrides_give_some_users_other_numbers() {
    let slow = SlowUpstream::start();
    let rules = format!("{SLOTS_OF_USERS}\n    overrides: {{acme: {{limit: 2}}, ours: {{limit: unlimited}}}}");
    let gateway = Gateway::start(&slow.upstream, &rules);
    let mut running: Vec<_> = ["ann", "acme", "acme", "ours", "ours", "ours"]
        .into_iter()
        .enumerate()
        .map(|(before, user)| {
            let client = begin(&gateway, "/hold", user);
            slow.expect_running(before + 1);
            client
        })
        .collect();
    assert_eq!(["ann", "acme", "ours"].map(|user| get(&gateway, "/", user).status), [429, 429, 200]);
    slow.finish(6);
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
}

const SLOTS_OF_USERS: &str = "
rules:
  - name: in-flight
    limit_keys: [header:x-user]
    algorithm: concurrency
    algorithm_config: {limit: 1}";

#[test]
fn rules_of_one_meter_share_slots_each_with_its_own_number() {
    let slow = SlowUpstream::start();
    let rules = "
rules:
  - {name: paid, match: {header:x-plan: paid}, limit_keys: [], expose: true, algorithm: concurrency, algorithm_config: {limit: 3}, meter: pool}
  - {name: free, limit_keys: [], expose: true, algorithm: concurrency, algorithm_config: {limit: 2}, meter: pool}";
    let gateway = Gateway::start(&slow.upstream, rules);
    let as_plan = |plan: &str| gateway.client().get("/", &[("X-Plan", plan)]).status;
    let mut running = [(); 2].map(|()| begin(&gateway, "/hold", "ann"));
    slow.expect_running(2);
    assert_eq!([as_plan("free"), as_plan("paid")], [429, 200]);
    slow.finish(2);
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    gateway.expect("rate_limiter_in_flight", &[], 0.0);
    assert_eq!(as_plan("free"), 200);
}

#[test]
fn a_request_about_which_another_proxy_asks_holds_no_slot() {
    let listener = "listeners: [{name: edge, address: 127.0.0.1:0, decide: [http], clients: [127.0.0.0/8], original_request: path}]";
    let rules = "rules: [{name: in-flight, limit_keys: [], algorithm: concurrency, algorithm_config: {limit: 1}}]";
    let gateway = Gateway::deciding().with(listener).with(rules).start();
    for _ in 0..3 {
        let fields = [("X-Forwarded-Proto", "http"), ("X-Forwarded-For", "203.0.113.7")];
        assert_eq!(gateway.client().get("/decide/a", &fields).status, 200);
    }
    gateway.expect("rate_limiter_not_at_door_total", &["in-flight"], 3.0);
    gateway.expect("rate_limiter_requests_total", &["in-flight"], 0.0);
}
