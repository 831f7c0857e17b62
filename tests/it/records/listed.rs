//! `tollgate bucket list RULE`: the subjects of recorded limits, with what they have used.

use std::time::Duration;

use serde_json::{Value, json};

use super::{RULES, records, send};
use crate::support::{CommandOutput, Gateway, Postgres, Redis, RedisCluster, Replicas, Upstream, eventually, tollgate};

/// Asks the gateway by its admin listener.
fn list(gateway: &Gateway, arguments: &[&str]) -> CommandOutput {
    tollgate(&[&["bucket", "list"], arguments, &["--admin", &gateway.admin.to_string()]].concat())
}

fn subjects(output: &CommandOutput) -> Vec<Value> {
    assert_eq!(output.code, Some(0), "{output:?}");
    let found = output.json()["buckets"].as_array().unwrap().clone();
    found.iter().map(|bucket| json!([bucket["subject"], bucket["share"], bucket["spent"], bucket["quota"]])).collect()
}

#[test]
fn who_is_near_a_limit_is_listed_by_name_with_the_largest_share_first() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    for store in [String::new(), redis.patient_store()] {
        let gateway = Gateway::start(&upstream, &format!("{RULES}{}{store}", records("1d")));
        send(&gateway, 2, "ann", "free");
        send(&gateway, 3, "bob", "free");
        send(&gateway, 4, "eve", "pro");
        let all = list(&gateway, &["api-month", "--json"]);
        let (bob, ann, eve) = (json!(["bob", 100, 3, 3]), json!(["ann", 66, 2, 3]), json!(["eve", 0, 4, 1000]));
        assert_eq!(subjects(&all), [bob.clone(), ann, eve]);
        assert_eq!(subjects(&list(&gateway, &["free", "--near", "80%", "--json"])), [bob]);
        assert_eq!(subjects(&list(&gateway, &["pro", "--near", "80%", "--json"])), [Value::Null; 0]);
        let text = list(&gateway, &["free", "--near", "60%"]).out;
        let whose = if store.is_empty() { "that this gateway knows" } else { "that gateways have told" };
        assert!(text.contains(&format!("2 of the 2 subjects {whose}")) && text.contains("header:x-user=bob"), "{text}");
    }
}

/// Returns a gateway that tells names soon.
fn start(upstream: &Upstream, store: &str) -> Gateway {
    let file = format!("{RULES}{}{store}", records("1d"));
    Gateway::before(upstream).with(&file).interval("subject_names", Duration::from_millis(50)).start()
}

#[test]
fn who_was_charged_at_one_gateway_is_listed_at_the_others_also_when_it_is_dead() {
    let (upstream, redis, postgres) = (Upstream::start(), Redis::start(), Postgres::start());
    // Creates the tables.
    postgres.settings();
    let cluster = RedisCluster::start(Replicas::None);
    for store in [redis.patient_store(), postgres.store_with(", timeout: 5s", "deny"), cluster.store("deny", "")] {
        let (mut one, other) = (start(&upstream, &store), start(&upstream, &store));
        send(&one, 3, "bob", "free");
        send(&one, 4, "eve", "pro");
        send(&other, 2, "ann", "free");
        let (bob, ann, eve) = (json!(["bob", 100, 3, 3]), json!(["ann", 66, 2, 3]), json!(["eve", 0, 4, 1000]));
        let all = [bob, ann, eve];
        let listed = |gateway: &Gateway| subjects(&list(gateway, &["api-month", "--json"]));
        eventually("the other knows bob and eve", || listed(&other) == all);
        eventually("the first knows ann", || listed(&one) == all);
        assert_eq!(subjects(&list(&other, &["free", "--near", "80%", "--json"])), all[..1]);
        one.signal("KILL");
        one.wait();
        assert_eq!(listed(&other), all);
        let later = start(&upstream, &store);
        assert_eq!(listed(&later), all);
        // A customer who changes the plan is listed under the new one, at each gateway.
        send(&later, 1, "bob", "pro");
        let moved = json!(["bob", 0, 4, 1000]);
        eventually("bob is listed under his new plan", || {
            let under = |plan| subjects(&list(&other, &[plan, "--json"]));
            under("pro").contains(&moved) && !under("free").iter().any(|subject| subject[0] == "bob")
        });
        // A bucket that is gone has no subject.
        let config = other.file("gateway.yaml").display().to_string();
        let reset = tollgate(&["bucket", "reset", "pro", "header:x-user=eve", "-c", &config]);
        assert_eq!(reset.code, Some(0), "{reset:?}");
        assert!(listed(&later).iter().all(|subject| subject[0] != "eve"));
    }
}

#[test]
fn a_gateway_that_ends_tells_first_whom_it_has_charged() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let file = format!("{RULES}{}{}", records("1d"), redis.patient_store());
    let (mut one, other) = (Gateway::start(&upstream, &file), Gateway::start(&upstream, &file));
    send(&one, 3, "bob", "free");
    one.signal("TERM");
    one.wait();
    assert_eq!(subjects(&list(&other, &["free", "--json"])), [json!(["bob", 100, 3, 3])]);
}

#[test]
fn the_names_in_a_store_are_bounded_and_an_answer_says_if_some_may_be_missing() {
    const CUSTOMERS: usize = 11_500;
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let store = redis.patient_store();
    let (one, other) = (start(&upstream, &store), start(&upstream, &store));
    let mut client = one.client();
    for customer in 0..CUSTOMERS {
        let user = format!("user-{customer}");
        assert_eq!(client.get("/", &[("X-User", &user), ("X-Plan", "free")]).status, 200);
    }
    let known = || {
        let listed = list(&other, &["free", "--near", "100%"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let (_, rest) = listed.out.split_once("0 of the ").unwrap();
        let is_full = listed.out.contains("the index of subjects is full: some may be missing");
        (rest.split(' ').next().unwrap().parse::<usize>().unwrap(), is_full)
    };
    let told = |(known, _): (usize, bool)| known > 9_500;
    eventually("most are told", || told(known()));
    let (known, is_full) = known();
    assert!(known <= 10_240 && is_full, "{known}");
    let listed = list(&other, &["free", "--near", "33%", "--json"]).json();
    assert_eq!((listed["buckets"].as_array().unwrap().len(), &listed["complete"]), (1000, &json!(false)));
}

#[test]
fn a_limit_that_is_not_recorded_has_no_subjects() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let refused = list(&gateway, &["pro"]);
    assert!(refused.code == Some(1) && refused.err.contains("no meter of pro is in `records`"), "{refused:?}");
    let refused = list(&gateway, &["pro", "--near", "101%"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}
