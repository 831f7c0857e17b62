//! The description of the API for services, docs/json-door.openapi.yaml, compared with the answers of the gateway.

use boon::{Compiler, Schemas};
use serde_json::{Value, json};

use super::json_door::{JSON, take};
use crate::repository::docs;
use crate::support::{Gateway, Response};

const RULES: &str = r#"
listeners: [{name: services, address: 127.0.0.1:0, decide: [json], clients: [127.0.0.0/8]}]
hash_key: 0123456789abcdef
rules:
  - {name: blocked, match: {descriptor:user: banned}, action: deny}
  - name: mails
    match: {descriptor:domain: mail}
    limit_keys: ["descriptor:user"]
    limits:
      month: {algorithm: fixed_window, limit: 10, window: month}
      burst: {rps: 0.001, burst: 5}
  - {name: jobs, match: {descriptor:domain: jobs}, limit_keys: ["descriptor:user"], algorithm: concurrency, algorithm_config: {limit: 1}}
"#;

/// The document, whose schemas can be asked by their place.
struct Api {
    document: Value,
}

impl Api {
    fn read() -> Api {
        let yaml = docs::read("docs/json-door.openapi.yaml");
        Api { document: serde_yaml::from_str(&yaml).unwrap() }
    }

    /// Returns why a value does not fit the schema of a body; `None` if it fits.
    #[track_caller]
    fn misfit(&self, path: &str, place: &str, media_type: &str, value: &Value) -> Option<String> {
        let place = format!("/paths/~1{path}/post/{place}/content/{}/schema", media_type.replace('/', "~1"));
        assert!(self.document.pointer(&place).is_some(), "{place} is not described");
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.enable_format_assertions();
        compiler.add_resource("api.json", self.document.clone()).unwrap();
        let index = compiler.compile(&format!("api.json#{place}"), &mut schemas).unwrap();
        schemas.validate(value, index).err().map(|error| format!("{error:#}"))
    }

    #[track_caller]
    fn check(&self, path: &str, answer: &Response) {
        let media_type = answer.field("content-type").unwrap();
        let misfit = self.misfit(path, &format!("responses/{}", answer.status), &media_type, &answer.json());
        assert_eq!(misfit, None, "{answer:?}");
        let headers = self.document.pointer(&format!("/paths/~1{path}/post/responses/{}/headers", answer.status));
        for name in headers.and_then(Value::as_object).into_iter().flat_map(|headers| headers.keys()) {
            assert!(name == "Retry-After" || answer.field(name).is_some(), "{name}: {answer:?}");
        }
    }
}

#[test]
fn every_answer_to_a_settlement_is_as_the_document_says() {
    let api = Api::read();
    let gateway = Gateway::deciding().with(RULES).start();
    let mut client = gateway.client();
    let job = json!({"entries": {"user": "u1"}, "domain": "jobs", "hold_for": "30s"});
    let held = take(&mut client, &job);
    api.check("take", &held);
    let full = take(&mut client, &job);
    assert_eq!((full.status, &full.json()["limits"][0]["unit"]), (429, &json!("slots")), "{full:?}");
    api.check("take", &full);
    let id = held.json()["hold_id"].clone();
    for (body, status, fits) in [
        (json!({"hold_id": id, "cost": {"jobs": 1.5}}), 200, true),
        (json!({"hold_id": id, "cost": 2}), 200, true),
        (json!({"hold_id": id}), 200, true),
        (json!({"hold_id": "x"}), 404, true),
        (json!({"hold_id": id, "cost": {"other": 1}}), 400, true),
        (json!({"hold_id": id, "cost": -1}), 400, false),
        (json!({"hold_id": id, "cost": "1"}), 400, false),
        (json!({"hold_id": id, "costs": 1}), 400, false),
        (json!({}), 400, false),
    ] {
        let answer = client.send("POST", "/settle", &[JSON], &body.to_string());
        assert_eq!(answer.status, status, "{body} {answer:?}");
        assert_eq!(api.misfit("settle", "requestBody", "application/json", &body).is_none(), fits, "{body}");
        api.check("settle", &answer);
    }
    api.check("settle", &gateway.client().send("POST", "/settle", &[], "{}"));
    let long = format!("{{\"hold_id\": \"{}\"}}", "x".repeat(65 << 10));
    api.check("settle", &gateway.client().send("POST", "/settle", &[JSON], &long));
}

#[test]
fn every_answer_is_as_the_document_says() {
    let api = Api::read();
    let gateway = Gateway::deciding().with(RULES).start();
    let mut client = gateway.client();
    let entries = json!({"user": "u1"});
    let accepted = [
        (json!({"entries": entries, "domain": "mail", "cost": 2, "id": "a"}), 200),
        (json!({"entries": entries, "domain": "mail", "cost": 2, "id": "a"}), 200),
        (json!({"entries": entries, "domain": "mail", "cost": 0}), 200),
        (json!({"entries": entries, "domain": "mail", "cost": 4}), 429),
        (json!({"entries": entries, "domain": "mail", "cost": u64::MAX}), 429),
        (json!({"entries": {"user": "banned"}}), 403),
        (json!({"entries": {}}), 200),
        (json!({"entries": entries, "domain": "mail", "id": "a"}), 400),
        (json!({"entries": entries, "domain": "mail", "hold_for": "1h"}), 200),
    ];
    for (body, status) in &accepted {
        let answer = take(&mut client, body);
        assert_eq!(answer.status, *status, "{body} {answer:?}");
        assert_eq!(api.misfit("take", "requestBody", "application/json", body), None, "{body}");
        api.check("take", &answer);
    }
    let many: serde_json::Map<String, Value> = (0..65).map(|number| (number.to_string(), json!(""))).collect();
    for body in [
        json!({}),
        json!([]),
        json!({"entries": {}, "hold_for": "1d"}),
        json!({"entries": {}, "hold_for": 1}),
        json!({"entries": []}),
        json!({"entries": {"a": 1}}),
        json!({"entries": {}, "cost": -1}),
        json!({"entries": {}, "cost": 0.5}),
        json!({"entries": {}, "cost": "1"}),
        json!({"entries": {}, "cost": null}),
        json!({"entries": {}, "id": ""}),
        json!({"entries": {}, "id": "x".repeat(257)}),
        json!({"entries": {}, "id": null}),
        json!({"entries": {}, "domain": 1}),
        json!({"entries": many}),
    ] {
        let answer = take(&mut client, &body);
        assert_eq!(answer.status, 400, "{body} {answer:?}");
        assert!(api.misfit("take", "requestBody", "application/json", &body).is_some(), "{body}");
        assert!(answer.json()["detail"].is_string(), "{answer:?}");
        api.check("take", &answer);
    }
    api.check("take", &take(&mut client, &json!({"entries": {"a": "x".repeat(65 << 10)}})));
    api.check("take", &gateway.client().send("POST", "/take", &[], "{}"));
    let away = format!("{RULES}store: {{redis: {{url: \"redis://127.0.0.1:1\"}}}}\non_store_failure: deny\n");
    let gateway = Gateway::deciding().with(&away).start();
    let answer = take(&mut gateway.client(), &json!({"entries": entries, "domain": "mail"}));
    assert_eq!(answer.status, 503);
    api.check("take", &answer);
}
