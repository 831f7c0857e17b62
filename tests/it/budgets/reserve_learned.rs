//! Budgets that hold what most requests before have cost.

use super::upstream;
use crate::support::{Gateway, Upstream, eventually};

const LIMIT: u64 = 1_000_000;

fn budget(limit: u64, reserve: &str) -> String {
    let numbers = format!("limit: {limit}, window: 366d, cost_source: \"response_header:x-cost\", default_cost: 0");
    format!(
        "
rules:
  - {{name: spend, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{{numbers}, reserve: {{{reserve}}}}}}}"
    )
}

fn start(reserve: &str) -> (Upstream, Gateway) {
    let (upstream, _finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget(LIMIT, reserve));
    (upstream, gateway)
}

/// Sends requests with these costs.
fn spend(gateway: &Gateway, model: &str, costs: impl Iterator<Item = u64>) -> u64 {
    let mut client = gateway.client();
    let request = |cost: &u64| {
        let response = client.get(&format!("/cost/{cost}"), &[("X-User", "ann"), ("X-Model", model)]);
        assert_eq!(response.status, 200);
    };
    costs.inspect(request).sum()
}

/// A request of this model reserves so much soon, when so much is spent. The response of this request names no cost, so nothing is
/// learned from it.
#[track_caller]
fn reserves(gateway: &Gateway, model: &str, spent: u64, reserved: u64) {
    eventually(&format!("{reserved} is reserved for {model}"), || {
        let response = gateway.client().get("/", &[("X-User", "ann"), ("X-Model", model)]);
        assert_eq!(response.status, 200, "{response:?}");
        response.number("ratelimit-remaining") == LIMIT - spent - reserved
    });
}

#[test]
fn a_quantile_of_the_named_costs_is_held_after_fifty_of_them() {
    let (_upstream, gateway) = start("learn: 90%, min: 2, max: 500, default: 300");
    let spent = spend(&gateway, "", 1..=49);
    reserves(&gateway, "", spent, 300);
    let spent = spent + spend(&gateway, "", 50..=60);
    reserves(&gateway, "", spent, 54);
    // Failures of the upstream name no cost.
    for _ in 0..60 {
        assert_eq!(gateway.client().get("/status/500", &[("X-User", "ann")]).status, 500);
    }
    reserves(&gateway, "", spent, 54);
    // The last thousand count.
    let spent = spent + spend(&gateway, "", std::iter::repeat_n(7, 1000));
    reserves(&gateway, "", spent, 7);
}

#[test]
fn what_is_learned_stays_within_its_bounds() {
    let (_upstream, gateway) = start("learn: 90%, min: 20, max: 40, default: 30");
    let spent = spend(&gateway, "", std::iter::repeat_n(1, 60));
    reserves(&gateway, "", spent, 20);
    let spent = spent + spend(&gateway, "", std::iter::repeat_n(90, 60));
    reserves(&gateway, "", spent, 40);
}

#[test]
fn values_of_an_attribute_are_learned_apart_and_survive_a_reload() {
    let reserve = "learn: 100%, by: header:x-model, min: 1, default: 300";
    let (upstream, gateway) = start(reserve);
    let spent =
        spend(&gateway, "small", std::iter::repeat_n(3, 50)) + spend(&gateway, "large", std::iter::repeat_n(90, 49));
    reserves(&gateway, "small", spent, 3);
    reserves(&gateway, "large", spent, 300);
    gateway.reload(&upstream, &budget(LIMIT, &reserve.replace("default: 300", "default: 400")));
    reserves(&gateway, "large", spent, 400);
    reserves(&gateway, "small", spent, 3);
    let spent = spent + spend(&gateway, "large", std::iter::once(91));
    reserves(&gateway, "large", spent, 91);
    // With another source of costs, learning begins again.
    gateway.reload(&upstream, &budget(LIMIT, reserve).replace("x-cost", "x-other"));
    let first = gateway.client().get("/", &[("X-User", "bob"), ("X-Model", "small")]);
    assert_eq!(first.number("ratelimit-remaining"), LIMIT - 300);
}

/// Otherwise every later request would be refused as too large, and nothing could be learned any more.
#[test]
fn a_learned_reserve_is_not_more_than_a_full_bucket_holds() {
    let (upstream, gateway) = start("learn: 100%, min: 1, default: 300");
    let spent = spend(&gateway, "", std::iter::repeat_n(600, 50));
    reserves(&gateway, "", spent, 600);
    gateway.reload(&upstream, &budget(500, "learn: 100%, min: 1, default: 300"));
    let response = gateway.client().get("/", &[("X-User", "bob")]);
    assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 0), "{response:?}");
}
