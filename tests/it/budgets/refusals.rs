//! The refusals of a budget: one for what is spent, and one for what requests in flight hold.

use super::{begin, budget, get, upstream};
use crate::support::{Gateway, eventually};

/// A budget of 12 with a reservation of 5, and errors in the format of OpenAI.
pub(super) const SMALL: &str = "
llm: {error_format: openai}
rules:
  - name: spend
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config:
      {limit: 12, window: 366d, cost_source: \"response_header:x-cost\", reserve: 5, default_cost: 3}";

#[test]
fn what_is_held_refuses_for_a_short_time() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, SMALL);
    let mut running = [begin(&gateway, "/hold/cost/1", "ann"), begin(&gateway, "/hold/cost/1", "ann")];
    eventually("the requests run", || upstream.count() == 2);
    let held = get(&gateway, "/", "ann");
    assert_eq!((held.status, held.field("x-tollgate-reason").as_deref()), (429, Some("budget_held")));
    let wait = held.number("retry-after");
    assert!((1..=5).contains(&wait), "{wait}");
    assert_eq!(held.number("retry-after-ms"), wait * 1000);
    assert_eq!(held.field("x-should-retry").as_deref(), Some("true"));
    let error = &held.json()["error"];
    assert_eq!(
        (error["type"].as_str(), error["code"].as_str()),
        (Some("rate_limit_error"), Some("rate_limit_exceeded"))
    );
    let message = error["message"].as_str().unwrap();
    let expected =
        "Requests in flight hold too much of the limit spend. Limit 12, spent 0, held 10. Please try again in ";
    assert!(message.starts_with(expected), "{message}");
    // The same client gets the same wait.
    assert_eq!(get(&gateway, "/", "ann").number("retry-after"), wait);
    gateway.expect("rate_limiter_refused_by_holds_total", &["rule=\"spend\""], 2.0);
    gateway.expect("rate_limiter_rejected_total", &["reason=\"budget_held\""], 2.0);
    gateway.expect("tollgate_refused_requests_total", &["reason=\"budget_held\""], 2.0);
    (0..2).for_each(|_| finish.send(()).unwrap());
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    eventually("what was held is free", || get(&gateway, "/cost/0", "ann").status == 200);
}

#[test]
fn what_is_spent_refuses_until_the_period_ends() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, SMALL);
    assert_eq!(get(&gateway, "/cost/11", "ann").status, 200);
    // A cost is settled a moment after the response.
    gateway.expect("rate_limiter_held", &["rule=\"spend\""], 0.0);
    let spent = get(&gateway, "/", "ann");
    assert_eq!((spent.status, spent.field("x-tollgate-reason").as_deref()), (429, Some("fixed_window_exceeded")));
    assert_eq!(spent.field("x-should-retry").as_deref(), Some("false"));
    let error = &spent.json()["error"];
    assert_eq!(
        (error["type"].as_str(), error["code"].as_str()),
        (Some("insufficient_quota"), Some("insufficient_quota"))
    );
    let message = error["message"].as_str().unwrap();
    let expected = "The limit spend is used up. Limit 12, spent 11, held 0, reset in ";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(upstream.count(), 1);
}

/// More than was reserved is spent all the same, and refuses until the period has ended.
#[test]
fn a_debt_refuses_later_requests() {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, SMALL);
    assert_eq!(get(&gateway, "/cost/500", "ann").status, 200);
    eventually("the debt refuses", || {
        let response = get(&gateway, "/cost/0", "ann");
        (response.status, response.number("ratelimit-remaining")) == (429, 0)
    });
    gateway.expect("rate_limiter_overrun_total", &["rule=\"spend\""], 1.0);
}

/// 64 callers at once on a budget for 2 of them.
#[test]
fn parallel_requests_never_pass_what_is_reserved() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, SMALL);
    let mut clients: Vec<_> = (0..64).map(|_| begin(&gateway, "/hold/cost/5", "ann")).collect();
    gateway.expect("rate_limiter_refused_by_holds_total", &["rule=\"spend\""], 62.0);
    assert_eq!(upstream.count(), 2);
    for _ in 0..2 {
        finish.send(()).unwrap();
    }
    let statuses = clients.iter_mut().map(|client| client.response("GET").unwrap().status);
    assert_eq!(statuses.filter(|status| *status == 200).count(), 2);
    eventually("the costs are settled", || {
        get(&gateway, "/", "ann").field("x-tollgate-reason").as_deref() == Some("fixed_window_exceeded")
    });
}

#[test]
fn a_problem_document_names_no_end_for_what_is_held() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget().replace("limit: 1000", "limit: 9"));
    let mut running = begin(&gateway, "/hold/cost/1", "ann");
    eventually("the request runs", || upstream.count() == 1);
    let held = get(&gateway, "/", "ann");
    assert_eq!(held.field("x-tollgate-reason").as_deref(), Some("budget_held"));
    let problem = held.json();
    assert_eq!(problem["violated-policies"][0].as_str(), Some("spend"));
    assert!(problem.get("resets_at").is_none(), "{problem}");
    assert_eq!(held.number("retry-after-ms"), held.number("retry-after") * 1000);
    finish.send(()).unwrap();
    assert_eq!(running.response("GET").unwrap().status, 200);
}
