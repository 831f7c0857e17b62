//! API keys at the door `ext_authz`, if the upstream does not get them.

use identity::api_key_file;
use request::identity::KnownKey;
use serde_json::{Value, json};

use super::grpc_caller::{Caller, field};
use super::grpc_doors::check;
use crate::support::Gateway;

#[test]
fn a_key_that_is_not_forwarded_is_named_to_the_proxy_that_forwards_the_request() {
    let text = "listeners: [{address: 127.0.0.1:0, decide: [ext_authz], clients: [127.0.0.0/8], answer_within: 10s}]
api_keys: {from: [bearer, header:x-key, 'query:key', 'cookie:key'], file: keys.txt, forward: false}
rules: [{name: known, limit_keys: [key:id], algorithm_config: {rps: 10, burst: 20}}]
";
    let key = "sk-3fQk0bCz7LrYw1xA";
    let line = api_key_file::line(key.as_bytes(), &KnownKey::new("acme", "gold")) + "\n";
    let gateway = Gateway::before_url("").with(text).file("keys.txt", &line).start();
    let mut caller = Caller::new(gateway.http);
    let mut removed = |fields: &[(&str, &str)], path: &str| {
        let answer = caller.message("AuthorizationCheck", &check(fields, &json!({"path": path})));
        let ok = &answer["ok_response"];
        assert_eq!(field(&ok["response_headers_to_add"], "ratelimit-limit"), Some("20"), "{answer}");
        [ok["headers_to_remove"].clone(), ok["query_parameters_to_remove"].clone()]
    };
    let bearer = format!("Bearer {key}");
    assert_eq!(removed(&[("authorization", &bearer)], "/"), [json!(["authorization"]), Value::Null]);
    let both = [("authorization", &*bearer), ("x-key", key)];
    assert_eq!(removed(&both, "/"), [json!(["authorization", "x-key"]), Value::Null]);
    assert_eq!(removed(&[], &format!("/?key={key}")), [Value::Null, json!(["key"])]);
}
