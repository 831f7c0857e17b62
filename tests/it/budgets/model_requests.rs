//! Requests to language models: what is read of their bodies before they are sent, and the usage for which the gateway asks.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use super::{LIMIT, RESERVE, budget_with};
use crate::support::http2::Http2Client;
use crate::support::websocket::{SWITCHED, UPGRADE};
use crate::support::{Gateway, Response, Upstream, eventually};

const JSON: (&str, &str) = ("Content-Type", "application/json");

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}],\"usage\":null}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":30}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// An upstream that tells the usage of a stream only if the body asks for it. `X-Length` asks for a response with a length.
fn upstream() -> Upstream {
    Upstream::answering(|request, stream| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        if !body.contains("\"stream\":true") {
            return write_whole(stream, "application/json", r#"{"usage":{"prompt_tokens":7,"completion_tokens":0}}"#);
        }
        let asks = body.contains("\"include_usage\":true");
        let events = [TEXT, if asks { USAGE } else { "" }, DONE];
        if request.field("x-length").is_some() {
            return write_whole(stream, "text/event-stream", &events.concat());
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        // Pieces that end within an event.
        for piece in events.concat().as_bytes().chunks(50) {
            let piece = String::from_utf8_lossy(piece);
            let _ = stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
        }
        let _ = stream.write_all(b"0\r\n\r\n");
    })
}

fn write_whole(stream: &mut TcpStream, kind: &str, body: &str) {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

fn gateway(upstream: &Upstream, llm: &str) -> Gateway {
    let listeners = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]";
    let budget = budget_with("cost_source: llm_tokens");
    Gateway::before(upstream).with(listeners).with(&format!("llm: {{{llm}}}{budget}")).start()
}

fn post(gateway: &Gateway, fields: &[(&str, &str)], body: &str) -> Response {
    let fields = [&[JSON, ("X-User", "ann")], fields].concat();
    gateway.client().send("POST", "/v1/chat/completions", &fields, body)
}

/// Waits until this is spent, and nothing is held.
#[track_caller]
fn spent(gateway: &Gateway, tokens: u64) {
    let key = ["rule=\"spend\""];
    eventually("nothing is held", || gateway.metric("rate_limiter_held", &key) == 0.0);
    let response = post(gateway, &[], r#"{"model":"m"}"#);
    let level = response.field("ratelimit").unwrap();
    let left: u64 = level.split(";r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    assert_eq!(LIMIT - RESERVE - left, tokens);
}

#[test]
fn the_gateway_asks_for_the_usage_of_a_stream_and_takes_it_out_again() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "");
    let body = r#"{"model":"m", "stream":true}"#;
    let asking = r#"{"stream_options":{"include_usage":true},"model":"m", "stream":true}"#;
    for fields in [&[][..], &[("X-Length", "1")]] {
        let response = post(&gateway, fields, body);
        assert_eq!((response.status, &*response.body), (200, &*[TEXT, DONE].concat()));
        let seen = upstream.last();
        assert_eq!(seen.body, asking.as_bytes());
        assert_eq!(seen.field("content-length"), Some(&*asking.len().to_string()));
    }
    spent(&gateway, 100);
    // Over HTTP/2, and from a client that sends chunks.
    let mut client = Http2Client::connect(gateway.http);
    let fields = [("content-type", "application/json"), ("x-user", "ann")];
    let response = client.send("POST", "/v1/chat/completions", &fields, &[body.as_bytes()]);
    assert_eq!(response.body, [TEXT, DONE].concat().as_bytes());
    let mut client = gateway.client();
    client.write("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nContent-Type: application/json\r\n");
    client.write(&format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()));
    assert_eq!(client.response("POST").unwrap().body, [TEXT, DONE].concat());
    assert_eq!(upstream.last().body, asking.as_bytes());
    spent(&gateway, 207);
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 0.0);
}

#[test]
fn a_client_that_asks_gets_the_usage() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "");
    let body = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
    assert_eq!(post(&gateway, &[], body).body, [TEXT, USAGE, DONE].concat());
    assert_eq!(upstream.last().body, body.as_bytes());
    spent(&gateway, 50);
}

#[test]
fn nothing_is_asked_where_the_file_forbids_it() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "ask_for_usage: false");
    let body = r#"{"model":"m","stream":true}"#;
    for (missing, fields) in [(1.0, &[][..]), (2.0, &[SIGNED[0]])] {
        assert_eq!(post(&gateway, fields, body).body, [TEXT, DONE].concat());
        assert_eq!(upstream.last().body, body.as_bytes());
        gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], missing);
    }
}

const SIGNED: [(&str, &str); 6] = [
    ("Content-Digest", "sha-256=:AA==:"),
    ("Repr-Digest", "sha-256=:AA==:"),
    ("Digest", "SHA-256=AA=="),
    ("Content-MD5", "AA=="),
    ("X-Amz-Content-Sha256", "00"),
    ("Authorization", "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=00"),
];

/// The gateway must not change such a body, and without the question a client could have its streams estimated.
#[test]
fn a_signed_stream_must_ask_for_its_usage_itself() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "error_format: openai");
    let asking = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
    for field in SIGNED {
        let sent = upstream.count();
        for body in [r#"{"model":"m","stream":true}"#, &asking.replace("true}}", "false}}")] {
            let refused = post(&gateway, &[field], body);
            let reason = refused.field("x-tollgate-reason");
            assert_eq!((refused.status, reason.as_deref()), (400, Some("usage_required")), "{field:?} {body}");
            let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.contains("signed body") && message.contains("stream_options.include_usage"), "{message}");
        }
        assert_eq!(upstream.count(), sent);
        for body in [asking, r#"{"model":"m"}"#] {
            assert_eq!(post(&gateway, &[field], body).status, 200, "{field:?} {body}");
            assert_eq!(upstream.last().body, body.as_bytes());
        }
    }
    gateway.expect("rate_limiter_usage_missing_total", &["rule=\"spend\""], 0.0);
    // A limit in shadow mode refuses nothing.
    let rules = budget_with("cost_source: llm_tokens").replace("name: spend,", "name: spend, mode: shadow,");
    let tried = Gateway::start(&upstream, &rules);
    assert_eq!(post(&tried, &[SIGNED[0]], r#"{"model":"m","stream":true}"#).status, 200);
}

#[test]
fn a_question_for_the_usage_that_servers_read_differently_is_refused() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "");
    for options in [r#"{"include_usage":"false"}"#, r#"{"include_usage":0}"#, "[]", "\"\""] {
        let body = format!(r#"{{"model":"m","stream":true,"stream_options":{options}}}"#);
        let refused = post(&gateway, &[], &body);
        assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (400, Some("ambiguous_request")));
    }
    assert_eq!(upstream.count(), 0);
}

/// What is said in a WebSocket is not read, so it does as other requests do.
#[test]
fn a_websocket_does_what_other_requests_do() {
    let upstream = Upstream::answering(|request, stream| {
        if request.field("upgrade").is_some() {
            let _ = stream.write_all(SWITCHED.as_bytes());
            let _ = stream.shutdown(Shutdown::Both);
        } else {
            write_whole(stream, "application/json", "{}");
        }
    });
    let open = |gateway: &Gateway| {
        let fields = [&UPGRADE[..], &[("X-User", "ann")]].concat();
        let response = gateway.client().get("/v1/realtime?model=m", &fields);
        (response.status, response.field("x-tollgate-reason"))
    };
    let key = ["rule=\"spend\""];
    let refusing = gateway(&upstream, "");
    assert_eq!(open(&refusing), (400, Some("unpriced".to_owned())));
    assert_eq!(refusing.client().get("/v1/models", &[("X-User", "ann"), ("Upgrade", "h2c")]).status, 200);
    refusing.expect("rate_limiter_settled_total", &key, 0.0);
    assert_eq!(open(&gateway(&upstream, "other: free")), (101, None));
    let paid = gateway(&upstream, "other: 7");
    assert_eq!(open(&paid), (101, None));
    paid.expect("rate_limiter_settled_cost_total", &key, 7.0);
}

#[test]
fn a_stream_that_will_not_tell_its_usage_can_be_refused() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "require_usage: true, ask_for_usage: false");
    let refused = post(&gateway, &[], r#"{"model":"m","stream":true}"#);
    assert_eq!((refused.status, refused.field("x-tollgate-reason").as_deref()), (400, Some("usage_required")));
    assert_eq!(upstream.count(), 0);
    for body in [r#"{"model":"m"}"#, r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#] {
        assert_eq!(post(&gateway, &[], body).status, 200, "{body}");
    }
    let anthropic = [JSON, ("X-User", "ann")];
    let body = r#"{"model":"c","stream":true}"#;
    assert_eq!(gateway.client().send("POST", "/v1/messages", &anthropic, body).status, 200);
}

#[test]
fn a_body_in_no_known_format_takes_no_part() {
    let upstream = upstream();
    let gateway = gateway(&upstream, "");
    let send = |fields: &[(&str, &str)], body: &str| {
        let fields = [&[("X-User", "ann")], fields].concat();
        let response = gateway.client().send("POST", "/v1/chat/completions", &fields, body);
        (response.status, response.field("x-tollgate-reason").unwrap_or_default())
    };
    for fields in [&[][..], &[("Content-Type", "text/plain")], &[("Content-Type", "multipart/form-data; boundary=b")]] {
        assert_eq!(send(fields, r#"{"model":"m"}"#), (400, "unpriced".to_owned()));
    }
    assert_eq!(send(&[JSON], ""), (400, "unpriced".to_owned()));
    for body in ["{", "[]", "\"m\"", r#"{"model":"a","model":"b"}"#] {
        assert_eq!(send(&[JSON], body), (400, "ambiguous_request".to_owned()), "{body}");
    }
    assert_eq!(send(&[JSON, ("Content-Encoding", "gzip")], "{}"), (400, "ambiguous_request".to_owned()));
    assert_eq!(upstream.count(), 0);
    spent(&gateway, 0);
}

/// The request names 40 bytes of text, an image and content elsewhere. The response is cut before its usage.
#[test]
fn the_estimate_counts_text_media_and_content_elsewhere() {
    let upstream = Upstream::answering(|_, stream| write_whole(stream, "application/json", "{}"));
    let gateway = gateway(&upstream, "bytes_per_token: 1, media: 100");
    let key = ["rule=\"spend\""];
    let charged = |body: &str| {
        let before = gateway.metric("rate_limiter_settled_total", &key);
        assert_eq!(post(&gateway, &[], body).status, 200, "{body}");
        eventually("it is settled", || gateway.metric("rate_limiter_settled_total", &key) > before);
    };
    charged(r#"{"m":"123456789"}"#);
    let left = |response: &Response| -> u64 {
        response.field("ratelimit").unwrap().split(";r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
    };
    let image = r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#;
    let response = post(&gateway, &[], image);
    assert_eq!(LIMIT - RESERVE - left(&response), 10);
    eventually("nothing is held", || gateway.metric("rate_limiter_held", &key) == 0.0);
    // messages, content, type, image_url, image_url, url; and the image.
    let response = post(&gateway, &[], "{\"m\":\"1\"}");
    assert_eq!(LIMIT - RESERVE - left(&response), 10 + 8 + 7 + 4 + 9 + 9 + 3 + 100);
}

#[test]
fn a_long_request_to_a_model_is_read() {
    let upstream = upstream();
    let long = format!(r#"{{"model":"m","messages":[{{"content":"{}"}}]}}"#, "x".repeat(5 << 20));
    assert_eq!(post(&gateway(&upstream, ""), &[], &long).status, 200);
    assert!(upstream.last().body == long.as_bytes());
    // The rule needs the model before its limit needs the whole request.
    let keys = "match: {llm:model: m}, limit_keys: [llm:model, ";
    let by_model = Gateway::start(&upstream, &budget_with("cost_source: llm_tokens").replace("limit_keys: [", keys));
    assert_eq!(post(&by_model, &[], &long).status, 200);
    by_model.expect("rate_limiter_settled_cost_total", &["rule=\"spend\""], 7.0);
    assert_eq!(post(&by_model, &[], r#"{"model":"m"}"#).status, 200);
    by_model.expect("rate_limiter_settled_cost_total", &["rule=\"spend\""], 14.0);
    let bounded =
        Gateway::before(&upstream).with("limits: {inspect_bytes: 1MiB}").with(&budget_with("cost_source: llm_tokens"));
    assert_eq!(post(&bounded.start(), &[], &long).status, 413);
}

#[test]
fn a_limit_that_is_only_tried_changes_neither_the_request_nor_the_response() {
    let upstream = upstream();
    let rules = budget_with("cost_source: llm_tokens").replace("name: spend,", "name: spend, mode: shadow,");
    let gateway = Gateway::start(&upstream, &rules);
    let body = r#"{"model":"m","stream":true}"#;
    let response = post(&gateway, &[("Accept-Encoding", "br")], body);
    assert_eq!((response.status, &*response.body), (200, &*[TEXT, DONE].concat()));
    let seen = upstream.last();
    assert_eq!((seen.field("accept-encoding"), &*seen.body), (Some("br"), body.as_bytes()));
    gateway.expect("rate_limiter_settled_total", &["rule=\"spend\""], 1.0);
}

/// A later round that needs another value, a path in a known format with another type, and other methods.
#[test]
fn no_request_to_a_model_is_free_by_its_type_or_by_the_order_of_rules() {
    let upstream = upstream();
    let budget = "limit: 1000, window: 366d, cost_source: llm_tokens, reserve: 5";
    let rules = format!(
        "
llm: {{other: free}}
policies:
  - name: tokens
    rules: [{{name: spend, limit_keys: [header:x-user], algorithm: fixed_window, algorithm_config: {{{budget}}}}}]
  - name: values
    rules:
      - {{name: a, match: {{\"request_json:/a\": \"1\"}}, action: allow}}
      - {{name: b, match: {{\"request_json:/b\": \"1\"}}, action: allow}}
"
    );
    let gateway = Gateway::start(&upstream, &rules);
    assert_eq!(post(&gateway, &[], r#"{"model":"m","b":1}"#).status, 200);
    gateway.expect("rate_limiter_settled_cost_total", &["rule=\"spend\""], 7.0);
    let send = |method: &str, path: &str, kind: &str| {
        let fields = [("X-User", "ann"), ("Content-Type", kind)];
        let response = gateway.client().send(method, path, &fields, r#"{"model":"m"}"#);
        (response.status, response.field("x-tollgate-reason").unwrap_or_default())
    };
    assert_eq!(send("POST", "/v1/chat/completions", "text/plain"), (400, "unpriced".to_owned()));
    assert_eq!(send("POST", "/v1/files", "text/plain"), (200, String::new()));
    assert_eq!(send("PUT", "/v1/chat/completions", "application/json").0, 200);
}
