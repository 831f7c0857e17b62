//! The values that rules read, and the bodies that have none or more than one reading.

use std::io::Write;

use super::BY_MODEL;
use super::json_bodies::{JSON, per_user, post_json};
use crate::support::{Gateway, Upstream};

/// Sends a body as JSON. Returns the status.
fn ask(gateway: &Gateway, body: &str) -> u16 {
    gateway.client().send("POST", "/llm/chat", &[JSON], body).status
}

#[test]
fn each_value_has_a_bucket_of_its_own() {
    let gateway = Gateway::before(&Upstream::start()).with(BY_MODEL).start();
    for body in [r#"{"model":"a"}"#, r#" {"x":[{"model":"c"}], "model": "b" }"#, r#"{"model":7}"#, r#"{"model":true}"#]
    {
        assert_eq!([ask(&gateway, body), ask(&gateway, body)], [200, 429], "{body}");
    }
    // The same value in another spelling.
    for body in [r#"{"m\u006fdel":"\u0061"}"#, r#"{"model":"7"}"#, r#"{"model":"true"}"#] {
        assert_eq!(ask(&gateway, body), 429, "{body}");
    }
}

#[test]
fn a_body_without_the_value_is_not_counted() {
    let gateway = Gateway::before(&Upstream::start()).with(BY_MODEL).start();
    for body in ["", "{}", r#"{"model":null}"#, r#"{"model":[]}"#, r#"{"model":1.5}"#, r#"{"model":""}"#, r#""model""#]
    {
        assert_eq!([ask(&gateway, body), ask(&gateway, body)], [200, 200], "{body}");
    }
    let body = r#"{"model":"a"}"#;
    for media_type in ["text/plain", "application/jsonl", "multipart/form-data; boundary=x", ""] {
        for _ in 0..2 {
            let fields = [("Content-Type", media_type), ("Content-Encoding", "gzip")];
            assert_eq!(gateway.client().send("POST", "/llm/chat", &fields, body).status, 200, "{media_type}");
        }
    }
    assert_eq!(gateway.client().get("/llm/chat", &[JSON]).status, 200);
}

#[test]
fn a_body_with_more_than_one_reading_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(BY_MODEL).start();
    let long = format!(r#"{{"model":"{}"}}"#, "x".repeat(1025));
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for body in [
        "{",
        "model",
        r#"{"model":"a"} {}"#,
        r#"{"model":"a","model":"a"}"#,
        r#"{"model":"a","m\u006fdel":"b"}"#,
        r#"[{"model":"a"}]"#,
        r#"{"model":"\ud800"}"#,
        "\u{feff}{}",
        &long,
        &deep,
    ] {
        let response = gateway.client().send("POST", "/llm/chat", &[JSON], body);
        let reason = response.field("x-tollgate-reason");
        assert_eq!((response.status, reason.as_deref()), (400, Some("ambiguous_request")), "{body}");
    }
    let mut client = gateway.client();
    client
        .write_bytes(b"POST /llm/x HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n")
        .unwrap();
    client.write_bytes(b"{\"model\":\"\xff\"}").unwrap();
    assert_eq!(client.response("POST").unwrap().status, 400);
    for fields in [
        [JSON, ("Content-Encoding", "gzip")],
        [JSON, ("Content-Encoding", "identity, br")],
        [JSON, ("Content-Type", "text/plain")],
        [JSON, JSON],
        [("Content-Type", "application/json; charset=utf-16"), ("X", "y")],
        [("Content-Type", "application/problem+json; charset=\"latin1\""), ("X", "y")],
    ] {
        assert_eq!(gateway.client().send("POST", "/llm/x", &fields, "{}").status, 400, "{fields:?}");
    }
    assert_eq!(upstream.count(), 0);
    for (fields, status) in [
        ([("Content-Type", "Application/JSON ; Charset=UTF-8"), ("Content-Encoding", "identity")], 200),
        ([("Content-Type", "application/vnd.api+json"), ("X", "y")], 429),
    ] {
        // Another name may occur twice.
        let response = gateway.client().send("POST", "/llm/x", &fields, r#"{"model":"a","b":1,"b":1}"#);
        assert_eq!(response.status, status, "{fields:?}");
    }
}

#[test]
fn a_field_of_a_form_is_decoded() {
    let gateway = Gateway::before(&Upstream::start()).with(BY_MODEL).start();
    let send = |body: &str| {
        let fields = [("Content-Type", "application/x-www-form-urlencoded")];
        gateway.client().send("POST", "/login", &fields, body).status
    };
    for (body, status) in [
        ("user+name=Ann%C3%A9&password=x", 200),
        ("password=y&user%20name=ann%C3%A9", 429),
        ("user+name=bob", 200),
        ("user+name=", 200),
        ("user+name=", 200),
        ("username=bob", 200),
        ("user+name=bob&user%20name=eve", 400),
        ("user+name=eve;x=y", 400),
        ("x=y;user+name=eve", 400),
        ("user+name=%ff", 400),
    ] {
        assert_eq!(send(body), status, "{body}");
    }
    // JSON has no fields of a form.
    assert_eq!(gateway.client().send("POST", "/login", &[JSON], r#"{"user name":"bob"}"#).status, 200);
}

#[test]
fn a_body_is_read_only_if_a_rule_needs_it() {
    let config = "
limits: {inspect_bytes: 1KiB}
policies:
  - name: closed
    rules: [{name: closed, match: {path: /closed}, action: deny}]
  - name: tiers
    match: {path: /tiers}
    rules:
      - {name: paid, match: {header:x-tier: paid}, action: allow}
      - {name: missing, limit_keys: [header:x-user], match: {request_json:/model: big}, action: deny}
      - {name: big, match: {request_json:/model: big, header:x-tier: free}, action: deny}
      - {name: cost, match: {request_json:/model: {prefix: b}}, limit_keys: [request_json:/user], algorithm_config: {rps: 0.001, burst: 1}}
  - name: later
    match: {path: /tiers}
    rules: [{name: later, match: {header:x-later: \"1\"}, action: deny}]
exempt: [{header:x-exempt: \"1\", request_json:/trial: \"true\"}]
";
    let gateway = Gateway::before(&Upstream::start()).with(config).start();
    let send = |path: &str, fields: &[(&str, &str)], body: &str| {
        gateway.client().send("POST", path, &[&[JSON], fields].concat(), body).status
    };
    // A body that may not be read shows whether it is read.
    let long = format!("{{\"model\": \"{}\"}}", "x".repeat(2000));
    assert_eq!(send("/other", &[], &long), 200);
    assert_eq!(send("/closed", &[], &long), 403);
    assert_eq!(send("/tiers", &[("X-Tier", "paid")], &long), 200);
    assert_eq!(send("/tiers", &[("X-Later", "1")], &long), 403);
    assert_eq!(send("/tiers", &[], &long), 413);
    assert_eq!(send("/other", &[("X-Exempt", "1")], &long), 413);
    // A second value is read after the first.
    assert_eq!(send("/tiers", &[("X-Tier", "free")], r#"{"model":"big"}"#), 403);
    assert_eq!(send("/tiers", &[("X-User", "u")], r#"{"model":"big"}"#), 403);
    assert_eq!(send("/tiers", &[], r#"{"model":"big","user":"u","user2":"v"}"#), 200);
    assert_eq!(send("/tiers", &[], r#"{"model":"b","user":"u"}"#), 429);
    assert_eq!(send("/tiers", &[], r#"{"model":"b","user":"v"}"#), 200);
    assert_eq!(send("/tiers", &[("X-Exempt", "1")], r#"{"model":"b","user":"u","trial":true}"#), 200);
    // A name that occurs twice is refused only where its value is read.
    assert_eq!(send("/tiers", &[], r#"{"model":"x","user":"u","user":"u"}"#), 200);
    assert_eq!(send("/tiers", &[], r#"{"model":"b","user":"u","user":"u"}"#), 400);
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
    client.write(&format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write(&body[..5]);
    assert_eq!(upstream.count(), 0);
    client.write(&body[5..]);
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert_eq!(upstream.last().body, body.as_bytes());
}

#[test]
fn a_websocket_handshake_has_no_body_to_read() {
    let upstream = Upstream::answering(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\ntunnel",
        );
    });
    let gateway = per_user(&upstream).start();
    let mut client = gateway.client();
    client.write(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nContent-Type: application/json\r\n\r\n",
    );
    assert!(client.until("tunnel").starts_with("HTTP/1.1 101 "));
}
