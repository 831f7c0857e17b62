//! Budgets on the status page and in the metrics: what is spent, and what is held.

use serde_json::json;

use super::{RESERVE, begin, budget, get, shows, upstream};
use crate::support::{Client, Gateway, eventually};

/// Returns the document of the status page, and the row of the budget in it.
fn document(gateway: &Gateway) -> (serde_json::Value, serde_json::Value) {
    let seen = Client::connect(gateway.admin).get("/status.json", &[]).json();
    let row = seen["rows"].as_array().unwrap().iter().find(|row| row["rule"] == "spend").unwrap().clone();
    (seen, row)
}

#[test]
fn the_status_page_shows_what_is_spent_and_held_and_the_buckets_with_most_in_flight() {
    let (upstream, finish) = upstream::start();
    let gateway = Gateway::start(&upstream, &budget());
    assert_eq!(document(&gateway).0["held"], json!([]));
    assert_eq!(get(&gateway, "/cost/7", "ann").status, 200);
    shows(&gateway, "ann", 7);
    let mut running: Vec<_> =
        ["ann", "ann", "bob"].iter().map(|user| begin(&gateway, "/cost/2.5/hold", user)).collect();
    let held = |requests: u32| f64::from(requests * u32::try_from(RESERVE).unwrap());
    eventually("three requests hold", || {
        let (seen, row) = document(&gateway);
        row["budget"]["spent"] == 7.0
            && row["budget"]["held"] == held(3)
            && seen["held"].as_array().is_some_and(|list| list.len() == 2)
    });
    let (seen, _) = document(&gateway);
    let list = seen["held"].as_array().unwrap();
    let shown: Vec<_> = list.iter().map(|one| (one["requests"].as_u64(), one["amount"]["held"].as_f64())).collect();
    assert_eq!(shown, [(Some(2), Some(held(2))), (Some(1), Some(held(1)))]);
    let labels = ["rule=\"spend\"", "unit=\"requests\""];
    assert_eq!(gateway.metric("rate_limiter_held", &labels), 15.0);
    for _ in 0..3 {
        finish.send(()).unwrap();
    }
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    eventually("nothing is held", || {
        let (seen, row) = document(&gateway);
        seen["held"] == json!([]) && row["budget"] == json!({"unit": "requests", "spent": 14.5, "held": 0.0})
    });
    gateway.expect(
        "rate_limiter_settled_cost_total",
        &["rule=\"spend\"", "mode=\"enforce\"", "unit=\"requests\""],
        14.5,
    );
}
