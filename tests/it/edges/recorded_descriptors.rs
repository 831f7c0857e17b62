//! Records for billing of calls to the door `rls`: each descriptor of a call has its own subject.

use serde_json::{Value, json};

use super::grpc_caller::{Caller, levels};
use crate::support::Gateway;

const CONFIG: &str = r#"
listeners: [{name: teams, address: 127.0.0.1:0, decide: [rls], clients: [127.0.0.0/8], answer_within: 10s}]
rules:
  - name: user
    limit_keys: ["descriptor:user"]
    algorithm: fixed_window
    algorithm_config: {limit: 5, window: 365d}
    meter: calls
records: {to: records.jsonl, every: 1d, meters: [calls], subject: ["descriptor:user"]}
"#;

#[test]
fn each_descriptor_of_a_call_is_recorded_for_its_own_subject() {
    let mut gateway = Gateway::before_url("").with(CONFIG).start();
    let mut caller = Caller::new(gateway.http);
    assert_eq!(levels(&caller.ask(&[("user=ann", Some(2)), ("user=bob", None)])), [(1, Some(3)), (1, Some(4))]);
    // Both descriptors charge one bucket, once, with their sum. Each is a request.
    assert_eq!(caller.ask(&[("user=ann", None), ("user=ann", None)])["overall_code"], 1);
    let refused = caller.ask(&[("user=ann", Some(3)), ("user=bob", None)]);
    assert_eq!(refused["overall_code"], 2);
    assert_eq!(recorded(&mut gateway), [json!(["ann", 4, 3, 1]), json!(["bob", 1, 1, 0])]);
}

#[test]
fn descriptors_of_one_bucket_are_recorded_for_their_own_subjects() {
    let config = CONFIG.replace(r#"limit_keys: ["descriptor:user"]"#, r#"limit_keys: ["descriptor:team"]"#);
    let mut gateway = Gateway::before_url("").with(&config).start();
    let mut caller = Caller::new(gateway.http);
    let call = [("team=x,user=ann", Some(2)), ("team=x,user=bob", None)];
    assert_eq!(caller.ask(&call)["overall_code"], 1);
    assert_eq!(caller.ask(&call)["overall_code"], 2);
    assert_eq!(recorded(&mut gateway), [json!(["ann", 2, 1, 1]), json!(["bob", 1, 1, 1])]);
}

/// Ends a gateway, and returns what it has recorded: subject, quantity, requests and refused requests.
fn recorded(gateway: &mut Gateway) -> Vec<Value> {
    gateway.signal("TERM");
    gateway.wait();
    let text = std::fs::read_to_string(gateway.file("records.jsonl")).unwrap();
    let mut found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].take())
        .map(|data| json!([data["subject"], data["quantity"], data["requests"], data["refused"]]))
        .collect();
    found.sort_by_key(Value::to_string);
    found
}
