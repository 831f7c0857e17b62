//! Bodies that two readers could read in two ways: 400 `ambiguous_request`, before anything is charged.

use super::json_bodies::{FORM, JSON, per_user, post_json};
use crate::support::{Gateway, Response, Upstream};

#[track_caller]
fn check_ambiguous(response: &Response, what: &str) {
    let reason = response.field("x-tollgate-reason");
    assert_eq!((response.status, reason.as_deref()), (400, Some("ambiguous_request")), "{what}: {response:?}");
}

#[test]
fn a_json_body_that_can_be_read_in_two_ways_is_refused() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    for body in [
        "{\"user\":\"ann\"",
        "{\"user\":\"ann\"}}",
        "{\"user\":\"ann\"} {}",
        "{'user':'ann'}",
        "{\"user\":\"ann\",}",
        "{\"user\":\"ann\"}\u{0}",
        "\u{feff}{\"user\":\"ann\"}",
        "user=ann",
        " ",
        "{\"user\":\"ann\",\"user\":\"bob\"}",
        "{\"user\":\"ann\",\"\\u0075ser\":\"bob\"}",
        "{\"user\":\"\\ud800\"}",
        "{\"User\":\"ann\"}",
        "{\"user\":\"ann\",\"u\u{17f}er\":\"bob\"}",
        "[{\"user\":\"ann\"},{\"user\":\"bob\"}]",
        "[]",
    ] {
        check_ambiguous(&post_json(&gateway, body), body);
    }
    let mut client = gateway.client();
    let latin = b"{\"user\":\"\xe9\"}";
    super::json_bodies::begin_upload(&mut client, latin.len(), "");
    client.write_bytes(latin).unwrap();
    check_ambiguous(&client.response("POST").unwrap(), "Latin-1");
    assert_eq!(upstream.count(), 0);
    assert_eq!(post_json(&gateway, "{\"user\":\"ann\"}").number("ratelimit-remaining"), 1);
    gateway.expect("tollgate_http_requests_total", &["code=\"400\"", "origin=\"gateway\""], 17.0);
}

#[test]
fn a_name_that_is_twice_elsewhere_is_no_matter() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let body = "{\"a\":{\"user\":1,\"user\":2},\"b\":1,\"b\":2,\"user\":\"ann\"}";
    assert_eq!(post_json(&gateway, body).number("ratelimit-remaining"), 1);
    assert_eq!(upstream.last().body, body.as_bytes());
}

#[test]
fn a_coded_body_and_another_charset_are_refused() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let body = "{\"user\":\"ann\"}";
    for fields in [
        &[JSON, ("Content-Encoding", "gzip")][..],
        &[JSON, ("Content-Encoding", "identity, br")],
        &[("Content-Type", "application/json; charset=utf-16")],
        &[("Content-Type", "application/json; charset=utf-8; charset=utf-7")],
        &[JSON, ("Content-Type", "text/plain")],
    ] {
        check_ambiguous(&gateway.client().send("POST", "/", fields, body), &format!("{fields:?}"));
    }
    let plain = gateway.client().send("POST", "/", &[JSON, ("Content-Encoding", "identity")], body);
    assert_eq!(plain.status, 200);
    // No attribute reads this body, so its coding does not matter.
    let other = [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")];
    assert_eq!(gateway.client().send("POST", "/", &other, body).status, 200);
    assert_eq!(upstream.count(), 2);
}

#[test]
fn a_form_that_can_be_read_in_two_ways_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream)
        .with("rules: [{name: login, limit_keys: [\"request_form:user\"], algorithm_config: {rate: 1/day}}]")
        .start();
    for body in ["user=ann&user=bob", "user=ann&%75ser=bob", "user=%ff", "a=1;user=ann&user=ann"] {
        check_ambiguous(&gateway.client().send("POST", "/", &[FORM], body), body);
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.client().send("POST", "/", &[FORM], "a=1&a=2&user=ann").status, 200);
}

#[test]
fn a_connection_is_usable_after_a_refused_body() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let mut client = gateway.client();
    check_ambiguous(&client.send("POST", "/", &[JSON], "[]"), "a batch");
    assert_eq!(client.send("POST", "/", &[JSON], "{\"user\":\"ann\"}").status, 200);
    assert_eq!(client.send("POST", "/", &[JSON], "{\"user\":\"ann\"}").status, 200);
    assert_eq!(client.send("POST", "/", &[JSON], "{\"user\":\"ann\"}").status, 429);
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!(upstream.count(), 3);
}
