//! HTTP/2: bodies are read before the decision as with HTTP/1.1, also those longer than a window.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response};

use super::json_bodies::{PER_USER, json_of_length, per_user};
use crate::support::http2::Http2Client;
use crate::support::http2_upstream;
use crate::support::{Gateway, Upstream, eventually};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn a_body_in_frames_arrives_whole() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    for (number, length) in [30, 70_000, 1 << 20].into_iter().enumerate() {
        let body = json_of_length(&format!("u{number}"), length);
        let parts: Vec<&[u8]> = body.as_bytes().chunks(10_000).collect();
        for fields in [&[JSON][..], &[JSON, ("content-length", &*length.to_string())]] {
            assert_eq!(client.send("POST", "/", fields, &parts).status, 200, "{length} {fields:?}");
            let seen = upstream.last();
            assert!(seen.body == body.as_bytes(), "{length} {fields:?}");
            assert_eq!(seen.field("content-length").is_some(), fields.len() == 2);
        }
        assert_eq!(client.send("POST", "/", &[JSON], &parts).status, 429);
    }
    assert_eq!(upstream.count(), 6);
}

#[test]
fn trailers_follow_a_read_body() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    let mut client = Http2Client::connect(gateway.http);
    let mut request = client.begin("POST", "/", &[JSON], false);
    request.write(b"{\"user\":\"ann\"}", false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "17".parse().unwrap());
    request.end_with(trailers);
    assert_eq!(request.response().unwrap().status, 200);
    let seen = upstream.last();
    assert_eq!((seen.body, seen.trailers), (b"{\"user\":\"ann\"}".to_vec(), vec![("x-sum".into(), "17".into())]));
}

#[test]
fn bodies_that_are_ambiguous_or_too_long_leave_the_connection_usable() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).with("limits: {inspect_bytes: 1KiB}").start();
    let mut client = Http2Client::connect(gateway.http);
    for (body, status) in [
        ("[]".to_owned(), 400),
        ("{\"user\":".to_owned(), 400),
        (json_of_length("ann", 1025), 413),
        (json_of_length("ann", 1024), 200),
    ] {
        assert_eq!(client.send("POST", "/", &[JSON], &[body.as_bytes()]).status, status, "{body}");
    }
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_stream_that_is_reset_frees_its_share() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).with("limits: {inspect_bytes: 4KiB, inspect_total: 4KiB}").start();
    let mut client = Http2Client::connect(gateway.http);
    let slow = json_of_length("slow", 3072);
    let mut request = client.begin("POST", "/", &[JSON, ("content-length", "3072")], false);
    request.write(&slow.as_bytes()[..3000], false).unwrap();
    let mut user = 0;
    let mut post = |length: usize| {
        user += 1;
        let body = json_of_length(&format!("u{user}"), length);
        client.send("POST", "/", &[JSON], &[body.as_bytes()]).status
    };
    eventually("the slow body is held", || post(2048) == 503);
    request.reset();
    eventually("there is room again", || post(4096) == 200);
}

#[test]
fn a_read_body_is_sent_to_an_upstream_that_speaks_http2() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&bodies);
    let upstream = http2_upstream::serve(
        h2::server::Builder::new(),
        || {},
        move |request, mut respond| {
            let recorded = Arc::clone(&recorded);
            async move {
                let mut received = request.into_body();
                let mut body = Vec::new();
                while let Some(part) = received.data().await {
                    let part = part?;
                    body.extend_from_slice(&part);
                    received.flow_control().release_capacity(part.len())?;
                }
                recorded.lock().unwrap().push(body);
                respond.send_response(Response::new(()), false)?.send_data(Bytes::new(), true)
            }
        },
    );
    let gateway = Gateway::before_url("")
        .with(&format!(
            "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]
upstreams: {{api: {{endpoints: [\"http://{upstream}\"], protocol: h2c}}}}
routes: [{{name: all, upstream: api}}]
{PER_USER}"
        ))
        .start();
    let body = json_of_length("ann", 300_000);
    assert_eq!(Http2Client::connect(gateway.http).send("POST", "/", &[JSON], &[body.as_bytes()]).status, 200);
    assert_eq!(gateway.client().send("POST", "/", &[super::json_bodies::JSON], &body).status, 200);
    assert_eq!(gateway.client().send("POST", "/", &[super::json_bodies::JSON], &body).status, 429);
    let bodies = bodies.lock().unwrap();
    assert!(bodies.len() == 2 && bodies.iter().all(|received| received == body.as_bytes()));
}
