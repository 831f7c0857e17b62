//! Slots on the status page: how many are in flight, and which buckets have most of them.

use super::upstream::SlowUpstream;
use super::{begin, get, slots};
use crate::support::{Client, Gateway, eventually};

#[test]
fn the_status_page_shows_slots_in_flight_and_the_buckets_that_have_most() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(3));
    let document = || Client::connect(gateway.admin).get("/status.json", &[]).json();
    let mut running: Vec<_> = ["ann", "ann", "bob"].iter().map(|user| begin(&gateway, "/hold", user)).collect();
    slow.expect_running(3);
    let mut seen = document();
    eventually("the document is new", || {
        seen = document();
        seen["held"].as_array().is_some_and(|held| held.len() == 2)
    });
    let held = seen["held"].as_array().unwrap();
    let shown: Vec<_> = held.iter().map(|one| (&one["policy"], &one["rule"], one["requests"].as_u64())).collect();
    let rule = (&"default".into(), &"in-flight".into());
    assert_eq!(shown, [(rule.0, rule.1, Some(2)), (rule.0, rule.1, Some(1))]);
    let command = held[0]["command"].as_str().unwrap();
    assert!(command.starts_with("tollgate bucket show --admin "), "{command}");
    assert!(command.ends_with(&format!("default/in-flight --hash {}", held[0]["bucket"].as_str().unwrap())));
    let row = |seen: &serde_json::Value| {
        let rows = seen["rows"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["rule"] == "in-flight").unwrap()["in_flight"].as_f64()
    };
    assert_eq!(row(&seen), Some(3.0));
    slow.finish(3);
    for client in &mut running {
        assert_eq!(client.response("GET").unwrap().status, 200);
    }
    assert_eq!(get(&gateway, "/", "ann").status, 200);
    eventually("nothing is held", || {
        let seen = document();
        seen["held"] == serde_json::json!([]) && row(&seen) == Some(0.0)
    });
}
