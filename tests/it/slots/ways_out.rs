//! Every way in which a request ends gives its slot back: the table in docs/exactness.md. The limit is one slot, so the next
//! request of the same user shows whether it is free.

use std::io::{Read, Write};
use std::time::Duration;

use super::upstream::SlowUpstream;
use super::{begin, get, slots};
use crate::support::http2::Http2Client;
use crate::support::websocket::{SWITCHED, UPGRADE};
use crate::support::{Gateway, Redis, Upstream, eventually, now};

/// The user's one slot is held.
#[track_caller]
fn is_held(gateway: &Gateway) {
    eventually("the slot is held", || gateway.metric("rate_limiter_in_flight", &[]) == 1.0);
    assert_eq!(get(gateway, "/", "ann").status, 429);
}

/// The user's one slot is free soon.
#[track_caller]
fn becomes_free(gateway: &Gateway) {
    eventually("the slot is free", || get(gateway, "/", "ann").status == 200);
    gateway.expect("rate_limiter_in_flight", &[], 0.0);
}

/// Starts an upstream that answers `/` at once, and calls `answer` with the connection of any other request.
fn upstream(answer: impl Fn(&mut std::net::TcpStream) + Send + Sync + 'static) -> Upstream {
    Upstream::answering(move |request, stream| match request.line.contains(" / ") {
        true => drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")),
        false => answer(stream),
    })
}

/// Writes the head of an endless response, and parts of it for as long as somebody reads them.
fn endless(stream: &mut std::net::TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    while stream.write_all(b"4\r\npart\r\n").is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_whole_response_frees_its_slot() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(1));
    let mut running = begin(&gateway, "/hold", "ann");
    is_held(&gateway);
    slow.finish(1);
    assert_eq!(running.response("GET").unwrap().status, 200);
    becomes_free(&gateway);
    // On a kept connection, one request after the other has the slot.
    for _ in 0..20 {
        assert_eq!(running.get("/", &[("X-User", "ann")]).status, 200);
    }
}

#[test]
fn a_failed_connection_frees_its_slot() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::before_url(&format!("http://{free}")).with(&slots(1)).start();
    for _ in 0..5 {
        assert_eq!(get(&gateway, "/", "ann").status, 502);
        gateway.expect("rate_limiter_in_flight", &[], 0.0);
    }
}

#[test]
fn a_retry_keeps_the_slot_that_its_request_has() {
    let working = SlowUpstream::start();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstreams = format!(
        "upstreams: {{api: {{endpoints: [\"http://{free}\", \"http://{}\"], ejection: false}}}}\nroutes: [{{name: all, upstream: api}}]\n",
        working.upstream.address
    );
    let gateway = Gateway::before_url("").with(&format!("{upstreams}{}", slots(1))).start();
    let mut client = gateway.client();
    for _ in 0..6 {
        assert_eq!(client.get("/", &[("X-User", "ann")]).status, 200);
    }
    assert!(gateway.metric("tollgate_upstream_retries_total", &[]) >= 1.0);
    let _running = begin(&gateway, "/hold", "ann");
    is_held(&gateway);
    working.finish(1);
    becomes_free(&gateway);
}

#[test]
fn an_upstream_that_resets_frees_the_slot() {
    let upstream = upstream(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    let gateway = Gateway::start(&upstream, &slots(1));
    for _ in 0..5 {
        assert_eq!(get(&gateway, "/cut", "ann").status, 502);
        gateway.expect("rate_limiter_in_flight", &[], 0.0);
    }
    becomes_free(&gateway);
}

#[test]
fn a_client_that_leaves_before_the_head_frees_its_slot() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(1));
    let running = begin(&gateway, "/hold", "ann");
    is_held(&gateway);
    drop(running);
    becomes_free(&gateway);
}

#[test]
fn a_client_that_leaves_in_the_body_frees_its_slot() {
    let upstream = upstream(endless);
    let gateway = Gateway::start(&upstream, &slots(1));
    let mut running = begin(&gateway, "/endless", "ann");
    running.first_bytes();
    is_held(&gateway);
    drop(running);
    becomes_free(&gateway);
}

#[test]
fn a_client_that_leaves_during_its_upload_frees_its_slot() {
    let upstream = upstream(|_| ());
    let gateway = Gateway::start(&upstream, &slots(1));
    let mut running = gateway.client();
    running.write("POST /upload HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nContent-Length: 1000\r\n\r\nbegin");
    is_held(&gateway);
    drop(running);
    becomes_free(&gateway);
}

/// The reply of the store comes after the client has left. What the request paid stays paid.
#[test]
fn a_client_that_leaves_during_its_decision_frees_its_slot() {
    let rules = "
rules:
  - {name: free, match: {path: /free}, limit_keys: [], algorithm_config: {rate: 100/day}}
  - name: both
    limit_keys: [header:x-user]
    limits:
      day: {rate: 100/day}
      slots: {algorithm: concurrency, limit: 1}";
    let listeners = "threads: 1\nlisteners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\n";
    let check = |leave: &dyn Fn(&Gateway, &dyn Fn())| {
        let (redis, upstream) = (Redis::start(), Upstream::start());
        let text = format!("{listeners}{}{rules}", redis.patient_store());
        // So that all that the stopped Redis gets is the call of the request.
        let gateway = Gateway::before(&upstream).with(&text).interval("heartbeat", Duration::from_secs(3600)).start();
        assert_eq!(get(&gateway, "/free", "ann").status, 200);
        redis.signal("STOP");
        leave(&gateway, &|| eventually("the call is under way", || redis.has_unread_calls()));
        gateway.answers_without_the_store();
        redis.signal("CONT");
        gateway.expect("tollgate_http_requests_total", &["code=\"499\""], 1.0);
        gateway.expect("rate_limiter_in_flight", &[], 0.0);
        let mut fields = None;
        eventually("the slot is free", || {
            let response = get(&gateway, "/", "ann");
            fields = response.field("ratelimit");
            response.status == 200
        });
        let fields = fields.unwrap();
        assert!(fields.contains("\"both.day\";r=98"), "{fields}");
        assert_eq!(upstream.count(), 2);
    };
    check(&|gateway, wait_for_call| {
        let client = begin(gateway, "/", "ann");
        wait_for_call();
        drop(client);
    });
    check(&|gateway, wait_for_call| {
        let mut client = Http2Client::connect(gateway.http);
        let request = client.begin("GET", "/", &[("x-user", "ann")], true);
        wait_for_call();
        request.reset();
        // The connection stays open until the gateway has read the reset.
        gateway.answers_without_the_store();
    });
}

#[test]
fn a_response_of_a_route_frees_its_slot_before_the_rest_of_the_request_has_been_read() {
    let answers = "routes: [{name: fixed, match: {path: /fixed}, respond: {status: 200, body: fixed}}, {name: moved, match: {path: /moved/*}, redirect: {code: 302, strip_prefix: /moved}}, {name: all, upstream: api}]\n";
    let upstream = upstream(|_| ());
    let upstreams = format!("upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}\n", upstream.address);
    let gateway = Gateway::before_url("").with(&format!("{upstreams}{answers}{}", slots(1))).start();
    for (path, status) in [("/fixed", 200), ("/moved/away", 302)] {
        let mut running = gateway.client();
        running.write(&format!("POST {path} HTTP/1.1\r\nHost: a\r\nX-User: ann\r\nContent-Length: 1000\r\n\r\nbegin"));
        assert_eq!(running.response("POST").unwrap().status, status);
        // The rest is read for two seconds.
        let answered = now();
        becomes_free(&gateway);
        assert!(answered.elapsed() < Duration::from_secs(1), "{:?}", answered.elapsed());
    }
}

/// A websocket holds its slot while it is open, and either side frees it.
#[test]
fn a_websocket_that_either_side_closes_frees_its_slot() {
    let upstream = upstream(|stream| {
        let _ = stream.write_all(SWITCHED.as_bytes());
        // Until a byte arrives, or the other side closes.
        let _ = stream.read(&mut [0]);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let gateway = Gateway::start(&upstream, &slots(1));
    for is_closed_by_client in [true, false] {
        let mut client = gateway.client();
        let fields = [&UPGRADE[..], &[("X-User", "ann")]].concat();
        assert_eq!(client.get("/socket", &fields).status, 101);
        is_held(&gateway);
        if is_closed_by_client {
            drop(client);
        } else {
            client.write("x");
            assert!(client.is_closed());
        }
        becomes_free(&gateway);
    }
}

#[test]
fn a_stream_that_is_reset_frees_its_slot() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(
        &slow.upstream,
        &format!("listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]{}", slots(1)),
    );
    let mut client = Http2Client::connect(gateway.http);
    let running = client.begin("GET", "/hold", &[("x-user", "ann")], true);
    is_held(&gateway);
    running.reset();
    becomes_free(&gateway);
    slow.finish(1);
}

#[test]
fn a_reload_keeps_slots_and_frees_them_later() {
    let slow = SlowUpstream::start();
    let gateway = Gateway::start(&slow.upstream, &slots(1));
    let mut running = begin(&gateway, "/hold", "ann");
    is_held(&gateway);
    gateway.reload(
        &slow.upstream,
        &format!("{}\n  - {{name: more, limit_keys: [], algorithm_config: {{rps: 9, burst: 9}}}}", slots(1)),
    );
    is_held(&gateway);
    gateway.reload(&slow.upstream, &slots(2));
    let other = get(&gateway, "/", "ann");
    assert_eq!((other.status, other.field("ratelimit").as_deref()), (200, Some("\"in-flight\";r=0")));
    gateway.reload(&slow.upstream, &slots(1));
    slow.finish(1);
    assert_eq!(running.response("GET").unwrap().status, 200);
    becomes_free(&gateway);
}

#[test]
fn a_drain_frees_slots_in_memory_as_their_requests_end() {
    let slow = SlowUpstream::start();
    // During the delay, other connections are still accepted.
    let gateway = Gateway::start(&slow.upstream, &format!("drain: {{delay: 30s}}{}", slots(1)));
    let mut running = begin(&gateway, "/hold", "ann");
    is_held(&gateway);
    gateway.drain();
    is_held(&gateway);
    slow.finish(1);
    assert_eq!(running.response("GET").unwrap().status, 200);
    becomes_free(&gateway);
}

/// A panic of the task of a request, after the decision.
#[test]
#[cfg(feature = "test-hooks")]
fn a_panic_frees_the_slot() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(&slots(1)).shell("export TOLLGATE_STUMBLE=decided/stumble").start();
    for _ in 0..3 {
        let mut client = begin(&gateway, "/stumble", "ann");
        assert!(client.response("GET").is_err());
        becomes_free(&gateway);
    }
    eventually("each panic is logged", || gateway.errors().matches("ERROR panicked, which is a bug").count() == 3);
}
