//! The bounds of bodies that are read before the decision: size, memory of all, and time.

use std::thread::scope;
use std::time::Duration;

use super::json_bodies::{JSON, begin_upload, json_of_length, per_user, post_json};
use super::{BY_MODEL, LISTENERS};
use crate::support::http2::Http2Client;
use crate::support::{Gateway, Upstream, eventually, now, print_measured};

#[test]
fn a_body_that_is_too_long_is_refused() {
    let upstream = Upstream::start();
    let routes = "
limits: {inspect_bytes: 1KiB}
upstreams: {api: {endpoints: [\"http://UPSTREAM\"]}}
routes:
  - {name: long, match: {path: /llm/long}, upstream: api, inspect_bytes: 2KiB}
  - {name: all, upstream: api}
";
    let config = routes.replace("UPSTREAM", &upstream.address.to_string()) + BY_MODEL + LISTENERS;
    let gateway = Gateway::before_url("").with(&config).start();
    let body = |length: usize| format!("{:length$}", "{}");
    for (path, length, status) in [
        ("/llm/a", 1024, 200),
        ("/llm/a", 1025, 413),
        ("/llm/long", 1025, 200),
        ("/llm/long", 2048, 200),
        ("/llm/long", 2049, 413),
        ("/other", 5000, 200),
    ] {
        let mut client = gateway.client();
        assert_eq!(client.send("POST", path, &[JSON], &body(length)).status, status, "{path} {length}");
        let mut client = gateway.client();
        client.write(&format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"));
        client.write(&format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{}\r\n0\r\n\r\n", body(length)));
        assert_eq!(client.response("POST").unwrap().status, status, "{path} {length} in chunks");
        let mut client = Http2Client::connect(gateway.http);
        let response = client.send("POST", path, &[("content-type", "application/json")], &[body(length).as_bytes()]);
        assert_eq!(response.status, status, "{path} {length} over HTTP/2");
    }
    // The length alone is enough for the refusal.
    let mut client = gateway.client();
    client.write("POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1025\r\n\r\n");
    assert_eq!(client.response("POST").unwrap().status, 413);
    gateway.expect("tollgate_http_requests_total", &["code=\"413\""], 7.0);
}

#[test]
fn all_bodies_together_are_bounded_and_what_has_ended_counts_no_more() {
    let gateway = Gateway::before(&Upstream::start()).with(BY_MODEL).with("limits: {inspect_total: 40KiB}").start();
    let begin = || {
        let mut client = gateway.client();
        client.write("POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n");
        client.write("Expect: 100-continue\r\nContent-Length: 20000\r\n\r\n");
        // The gateway has made room for the body when it says this.
        assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        client.write("{");
        client
    };
    let status = || gateway.client().send("POST", "/llm/a", &[JSON], &format!("{:20000}", "{}")).status;
    let (mut one, other) = (begin(), begin());
    assert_eq!(status(), 503);
    assert_eq!(gateway.client().send("POST", "/other", &[JSON], "{}").status, 200);
    // A client that leaves frees its share.
    drop(other);
    eventually("the share is free", || status() == 200);
    // As does a request that has ended.
    let begun = begin();
    assert_eq!(status(), 503);
    one.write(&format!("{:19999}", "}"));
    assert_eq!(one.response("POST").unwrap().status, 200);
    eventually("the share is free again", || status() == 200);
    drop(begun);
    // Many requests one after the other leave nothing behind.
    for _ in 0..50 {
        eventually("nothing is left", || status() == 200);
    }
}

#[test]
fn a_client_with_many_slow_bodies_does_not_keep_out_others() {
    let gateway = Gateway::before(&Upstream::start())
        .with(BY_MODEL)
        .with(LISTENERS)
        .with("limits: {inspect_total: 90KiB}")
        .with("client_ip: {trusted_proxies: [127.0.0.1]}")
        .start();
    let begin = |address: &str| {
        let mut client = gateway.client();
        client.write("POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n");
        client.write(&format!("X-Forwarded-For: {address}\r\nExpect: 100-continue\r\nContent-Length: 20000\r\n\r\n"));
        assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
        client.write("{");
        client
    };
    let status = |address: &str| {
        let fields = [JSON, ("x-forwarded-for", address)];
        gateway.client().send("POST", "/llm/a", &fields, &format!("{:20000}", "{}")).status
    };
    let mut slow: Vec<_> = (0..5).map(|_| begin("192.0.2.1")).collect();
    assert_eq!(status("192.0.2.1"), 503, "it holds most");
    assert_eq!(status("192.0.2.2"), 200);
    // The newest of its bodies was given up for that.
    assert_eq!(slow.pop().unwrap().response("POST").unwrap().status, 503);
    // Over HTTP/2 the same holds.
    slow.push(begin("192.0.2.1"));
    let mut http2 = Http2Client::connect(gateway.http);
    let fields = [("content-type", "application/json"), ("x-forwarded-for", "192.0.2.3"), ("content-length", "20000")];
    let mut request = http2.begin("POST", "/llm/a", &fields, false);
    request.write(format!("{:20000}", "{}").as_bytes(), true).unwrap();
    assert_eq!(request.response().unwrap().status, 200);
    assert_eq!(slow.pop().unwrap().response("POST").unwrap().status, 503);
    // The older ones go on.
    for mut client in slow {
        client.write(&format!("{:19999}", "}"));
        assert_eq!(client.response("POST").unwrap().status, 200);
    }
}

#[test]
fn bodies_that_are_sent_at_the_same_time_share_the_memory() {
    let gateway = Gateway::before(&Upstream::start()).with(BY_MODEL).with("limits: {inspect_total: 1MiB}").start();
    let body = format!("{{{}}}", " ".repeat(100_000));
    scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(gateway.client().send("POST", "/llm/a", &[JSON], &body).status, 200);
                }
            });
        }
    });
}

#[test]
fn a_body_that_does_not_arrive_in_time_is_given_up() {
    let upstream = Upstream::start();
    let gateway =
        Gateway::before(&upstream).with(BY_MODEL).with(LISTENERS).with("limits: {body_timeout: 300ms}").start();
    let head = "POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n";
    for part in ["", "{"] {
        let mut client = gateway.client();
        client.write(&format!("{head}{part}"));
        assert_eq!(client.response("POST").unwrap().status, 408, "{part:?}");
    }
    let mut client = Http2Client::connect(gateway.http);
    let mut request = client.begin("POST", "/llm/a", &[("content-type", "application/json")], false);
    request.write(b"{", false).unwrap();
    assert_eq!(request.response().unwrap().status, 408);
    // A slow body that makes progress is read.
    let mut client = gateway.client();
    client.write(head);
    for byte in format!("{:20}", "{}").chars() {
        client.write(&byte.to_string());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_body_that_is_cut_reaches_no_upstream() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(BY_MODEL).with(LISTENERS).start();
    let head = "POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
    let mut client = gateway.client();
    client.write(&format!("{head}Content-Length: 20\r\n\r\n{{}}"));
    client.finish();
    assert!(client.is_closed_without_response());
    let mut client = gateway.client();
    client.write(&format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\nzz\r\n"));
    assert_eq!(client.response("POST").unwrap().status, 400);
    let mut client = Http2Client::connect(gateway.http);
    let fields = [("content-type", "application/json"), ("content-length", "20")];
    let mut request = client.begin("POST", "/llm/a", &fields, false);
    drop(request.write(b"{}", true));
    assert!(request.response().map_or(true, |response| response.status == 400));
    client.begin("POST", "/llm/a", &fields, false).reset();
    assert_eq!(gateway.client().send("POST", "/llm/a", &[JSON], "{}").status, 200);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn one_mebibyte_is_read_by_default() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let body = json_of_length("ann", 1 << 20);
    assert_eq!(post_json(&gateway, &body).status, 200);
    assert!(upstream.last().body == body.as_bytes());
    let mut client = gateway.client();
    begin_upload(&mut client, (1 << 20) + 1, "");
    assert_eq!(client.response("POST").unwrap().status, 413);
}

#[test]
fn a_body_that_stops_is_a_408_and_frees_its_share() {
    let upstream = Upstream::start();
    let gateway =
        per_user(&upstream).with("limits: {body_timeout: 100ms, inspect_bytes: 4KiB, inspect_total: 16KiB}").start();
    // Without their shares back, the fifth would be refused.
    for _ in 0..8 {
        let mut client = gateway.client();
        begin_upload(&mut client, 4096, "{\"user\":");
        assert_eq!(client.response("POST").unwrap().status, 408);
    }
    assert_eq!(post_json(&gateway, &json_of_length("ann", 4096)).number("ratelimit-remaining"), 1);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_body_that_is_cut_is_charged_nothing() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let body = "{\"user\":\"ann\"}";
    for length in 0..body.len() {
        let mut client = gateway.client();
        begin_upload(&mut client, body.len(), &body[..length]);
        client.finish();
        let response = client.response("POST").map_or(400, |response| response.status);
        assert!((400..500).contains(&response), "{length}: {response}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(post_json(&gateway, body).number("ratelimit-remaining"), 1);
}

/// The gateway has one thread, which reads a body of 32 MiB and then refuses its request.
#[test]
fn a_long_body_does_not_keep_other_requests_waiting() {
    let upstream = Upstream::start();
    let rules = "
threads: 1
limits: {inspect_bytes: 32MiB}
rules: [{name: no, match: {path: /long, \"request_json:/last\": \"1\"}, action: deny}]
";
    let gateway = Gateway::start(&upstream, rules);
    let (head, tail) = ("{\"text\":\"", "\",\"last\":1}");
    let body = format!("{head}{}{tail}", "x".repeat((32 << 20) - head.len() - tail.len()));
    let (most, last) = body.split_at(body.len() - 1);
    let mut other = gateway.client();
    assert_eq!(other.get("/", &[]).status, 200);
    let mut long = gateway.client();
    let length = body.len();
    long.write(&format!(
        "POST /long HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{most}"
    ));
    long.write(last);
    let (begun, mut longest) = (now(), Duration::ZERO);
    while !long.receives_within(Duration::from_millis(1)) {
        let sent = now();
        assert_eq!(other.get("/", &[]).status, 200);
        longest = longest.max(sent.elapsed());
    }
    let whole = begun.elapsed();
    assert_eq!(long.response("POST").unwrap().status, 403);
    print_measured(&format!("a body of 32 MiB: decided in {whole:?}, others wait {longest:?} at most"));
    assert!(longest < whole / 3, "another request has waited {longest:?} of {whole:?}");
}
