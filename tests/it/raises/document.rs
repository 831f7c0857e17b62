//! `POST /buckets/raise` on the admin listener, with one JSON document.

use serde_json::json;

use super::{RULES, passing};
use crate::support::bucket_command::says;
use crate::support::{Client, Gateway, Redis, Response, Upstream, eventually};

/// The fields of a request that no page of another site can send.
const ALLOWED: [(&str, &str); 2] = [("Tollgate-Operator", "raise"), ("Content-Type", "application/json")];

fn post(gateway: &Gateway, fields: &[(&str, &str)], body: &str) -> Response {
    let host = gateway.admin.to_string();
    Client::connect(gateway.admin).send("POST", "/buckets/raise", &[&[("Host", &*host)], fields].concat(), body)
}

fn document(amount: &str) -> String {
    let keys = json!({"header:x-user": "ann"});
    json!({"rule": "month", "keys": keys, "amount": amount, "until": "period-end", "id": "t1", "reason": "a spike"})
        .to_string()
}

fn play(gateway: &Gateway) {
    assert_eq!(passing(gateway, "/month", "ann"), 5);
    let raised = post(gateway, &ALLOWED, &document("+3"));
    assert_eq!(raised.status, 200, "{raised:?}");
    let (act, bucket) = (&raised.json()["act"], &raised.json()["buckets"][0]);
    assert_eq!((act, &bucket["quota"], &bucket["left"]), (&json!("raise"), &json!(8), &json!(3)), "{raised:?}");
    // The sign can be left out, and the same raise is made once.
    assert_eq!(post(gateway, &ALLOWED, &document("3")).status, 200);
    eventually("the raise is in force", || gateway.client().get("/month", &[("X-User", "ann")]).status == 200);
    assert_eq!(passing(gateway, "/month", "ann"), 2);
    let other = post(gateway, &ALLOWED, &document("4"));
    assert_eq!(other.status, 422, "{other:?}");
    assert!(
        other.json()["error"].as_str().unwrap().starts_with("--id: a raise of this bucket with this id is +3 until ")
    );
    says(gateway, &["show", "month", "header:x-user=ann"], 0, "    raised by 3 until ");
    gateway.expect_logged("bucket was raised by an operator");
}

#[test]
fn a_document_raises_a_bucket_in_memory_and_in_redis() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    play(&Gateway::start(&upstream, RULES));
    play(&Gateway::start(&upstream, &format!("{}\n{RULES}", redis.patient_store())));
}

#[test]
fn no_foreign_page_and_no_other_document_raises() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, RULES);
    let good = document("+3");
    for (fields, code) in [
        (&[][..], 403),
        (&[("Tollgate-Operator", "grant"), ALLOWED[1]], 403),
        (&[ALLOWED[0], ("Content-Type", "text/plain")], 415),
    ] {
        assert_eq!(post(&gateway, fields, &good).status, code, "{fields:?}");
    }
    let foreign = [&[("Host", "evil.example")][..], &ALLOWED].concat();
    assert_eq!(Client::connect(gateway.admin).send("POST", "/buckets/raise", &foreign, &good).status, 403);
    let twice = good.replace("{\"header:x-user\":\"ann\"}", "{\"header:x-user\":\"ann\",\"header:x-user\":\"bob\"}");
    assert_ne!(twice, good);
    for body in ["", "{}", "[]", &good.replace("\"id\"", "\"ids\""), &good.replace("\"+3\"", "3"), &twice] {
        let refused = post(&gateway, &ALLOWED, body);
        assert!(refused.status == 400 && refused.body.starts_with("the document is wrong: "), "{body}: {refused:?}");
    }
    let long = format!("{good}{}", " ".repeat(17 << 10));
    assert_eq!(post(&gateway, &ALLOWED, &long).status, 413);
    assert_eq!(passing(&gateway, "/month", "ann"), 5);
}
