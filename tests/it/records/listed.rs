//! `tollgate bucket list RULE`: the subjects of recorded limits, with what they have used.

use serde_json::{Value, json};

use super::{RULES, records, send};
use crate::support::{CommandOutput, Gateway, Redis, Upstream, tollgate};

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
        assert!(
            text.contains("2 of the 2 subjects that this gateway knows") && text.contains("header:x-user=bob"),
            "{text}"
        );
    }
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
