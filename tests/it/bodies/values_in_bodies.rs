//! The values that rules read from JSON bodies and from forms, and the requests whose bodies no rule needs.

use super::json_bodies::{FORM, JSON, per_user, post_json};
use crate::support::{Gateway, Upstream, wait_for_nothing};
use std::time::Duration;

#[test]
fn each_value_in_a_json_body_has_a_bucket_of_its_own() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let ann = "{\"user\":\"ann\",\"text\":\"hello\"}";
    for (body, status) in [(ann, 200), ("{ \"text\" : 1, \"user\" : \"\\u0061nn\" }", 200), (ann, 429)] {
        assert_eq!(post_json(&gateway, body).status, status, "{body}");
    }
    let bob = post_json(&gateway, "{\"user\":\"bob\"}");
    assert_eq!((bob.status, bob.number("ratelimit-remaining")), (200, 1));
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_condition_may_read_a_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream)
        .with("rules: [{name: no-export, match: {\"request_json:/kind\": export}, action: deny}]")
        .start();
    assert_eq!(post_json(&gateway, "{\"kind\":\"list\"}").status, 200);
    let denied = post_json(&gateway, "{\"kind\":\"export\"}");
    assert_eq!((denied.status, denied.field("x-tollgate-reason").as_deref()), (403, Some("denied")));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_field_of_a_form_is_decoded() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream)
        .with(
            "rules: [{name: login, limit_keys: [\"lower(request_form:user name)\"], algorithm_config: {rate: 1/day}}]",
        )
        .start();
    let post = |body: &str| gateway.client().send("POST", "/", &[FORM], body).status;
    assert_eq!(post("password=x&user+name=Ann%20B"), 200);
    assert_eq!(post("user%20name=ann+b&password=y"), 429);
    assert_eq!(post("user%20name=ann+c"), 200);
    assert_eq!(post("other=ann+b"), 200);
    assert_eq!(upstream.last().body, b"other=ann+b");
}

#[test]
fn a_body_without_the_value_passes_the_rule_over() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    for _ in 0..3 {
        for (kind, body) in [
            ("application/json", "{\"text\":\"hello\"}"),
            ("application/json", "{\"user\":null}"),
            ("application/json", "{\"user\":\"\"}"),
            ("application/json", "{\"user\":{\"name\":\"ann\"}}"),
            ("application/json", "\"text\""),
            ("text/plain", "{\"user\":\"ann\"}"),
            ("application/x-www-form-urlencoded", "user=ann"),
            ("multipart/form-data; boundary=b", "--b\r\n\r\n{\"user\":\"ann\"}\r\n--b--\r\n"),
        ] {
            let response = gateway.client().send("POST", "/", &[("Content-Type", kind)], body);
            assert_eq!((response.status, response.field("ratelimit")), (200, None), "{kind} {body}");
        }
        assert_eq!(gateway.client().send("POST", "/", &[], "{\"user\":\"ann\"}").status, 200);
        assert_eq!(gateway.client().get("/", &[JSON]).status, 200);
    }
    // Nobody has paid for ann.
    assert_eq!(post_json(&gateway, "{\"user\":\"ann\"}").number("ratelimit-remaining"), 1);
}

#[test]
fn a_media_type_that_is_written_in_another_way_is_json() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    for (number, kind) in
        ["application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json", "application/json ;q=1"]
            .into_iter()
            .enumerate()
    {
        let body = format!("{{\"user\":\"u{number}\"}}");
        let response = gateway.client().send("POST", "/", &[("Content-Type", kind)], &body);
        assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 1), "{kind}");
    }
}

/// Every rule that reads a body here has another condition that fails.
#[test]
fn a_body_that_no_rule_needs_is_not_waited_for() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream)
        .with(
            "policies:
  - {name: exports, match: {path: /exports}, rules: [{name: user, limit_keys: [\"request_json:/user\"], \
             algorithm_config: {rate: 1/day}}]}
  - name: others
    rules:
      - {name: blocked, match: {path: /blocked}, action: deny}
      - {name: put, match: {method: PUT, \"request_json:/user\": ann}, action: deny}
      - {name: address, limit_keys: [ip:address], algorithm_config: {rate: 100/day}}
      - {name: late, limit_keys: [\"request_json:/user\"], algorithm_config: {rate: 1/day}}",
        )
        .start();
    let mut client = gateway.client();
    client.write(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    );
    // An unread body is forwarded while it arrives: what follows may be anything.
    client.write("3\r\nno!\r\n0\r\n\r\n");
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert_eq!(upstream.last().body, b"{no!");
    // A request that is denied by its head is not read either.
    let mut client = gateway.client();
    client.write(
        "POST /blocked HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
         Content-Length: 20\r\n\r\n",
    );
    assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 403 "));
    assert_eq!(upstream.count(), 1);
}

#[test]
fn the_upstream_hears_of_a_request_only_when_it_is_granted() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let mut client = gateway.client();
    let body = "{\"user\":\"ann\"}";
    super::json_bodies::begin_upload(&mut client, body.len(), &body[..5]);
    wait_for_nothing(Duration::from_millis(300));
    assert_eq!(upstream.count(), 0);
    client.write(&body[5..]);
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert_eq!(upstream.last().body, body.as_bytes());
}
