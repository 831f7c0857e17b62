//! The bounds of what is read: `inspect_bytes` of one body, `inspect_total` of all bodies, and `body_timeout`.

use super::json_bodies::{JSON, begin_upload, json_of_length, per_user, post_json};
use crate::support::{Client, Gateway, Upstream, eventually};

#[test]
fn a_longer_body_than_inspect_bytes_is_a_413() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).with("limits: {inspect_bytes: 1KiB}").start();
    assert_eq!(post_json(&gateway, &json_of_length("ann", 1024)).status, 200);
    let refused = post_json(&gateway, &json_of_length("ann", 1025));
    assert_eq!(refused.status, 413);
    assert_eq!(refused.json()["type"], "about:blank");
    // A chunked body is refused as soon as it is longer.
    let body = json_of_length("ann", 1025);
    let mut client = gateway.client();
    client.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.write(&format!("401\r\n{body}\r\n"));
    assert_eq!(client.response("POST").unwrap().status, 413);
    // The client that asks first does not send the body.
    let mut client = gateway.client();
    client.write(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
         Content-Length: 1025\r\n\r\n",
    );
    assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 413 "));
    assert_eq!(upstream.count(), 1);
    // A body that no rule needs may be longer.
    let plain = gateway.client().send("POST", "/", &[("Content-Type", "text/plain")], &"x".repeat(5000));
    assert_eq!(plain.status, 200);
    assert_eq!(post_json(&gateway, "{\"user\":\"ann\"}").number("ratelimit-remaining"), 0);
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
fn a_route_may_have_an_inspect_bytes_of_its_own() {
    let upstream = Upstream::start();
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"]}}}}
routes:
  - {{name: short, match: {{path: /short}}, upstream: api, inspect_bytes: 1KiB}}
  - {{name: all, upstream: api}}
{}",
        upstream.address,
        super::json_bodies::PER_USER
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let body = json_of_length("ann", 2048);
    assert_eq!(gateway.client().send("POST", "/short", &[JSON], &body).status, 413);
    assert_eq!(gateway.client().send("POST", "/long", &[JSON], &body).status, 200);
}

/// Returns a gateway that may hold 4 KiB, with a client that holds 3 KiB of them.
fn with_a_slow_client(upstream: &Upstream) -> (Gateway, Client, String) {
    let gateway = per_user(upstream).with("limits: {inspect_bytes: 4KiB, inspect_total: 4KiB}").start();
    let body = json_of_length("slow", 3072);
    let mut client = gateway.client();
    begin_upload(&mut client, body.len(), &body[..3000]);
    let other = json_of_length("other", 2048);
    // The gateway may read the other body before it reads the slow one.
    let mut user = 0;
    eventually("the slow body is held", || {
        user += 1;
        post_json(&gateway, &other.replace("other", &format!("o{user:04}"))).status == 503
    });
    (gateway, client, body)
}

#[test]
fn bodies_share_inspect_total_and_what_does_not_fit_is_a_503() {
    let upstream = Upstream::start();
    let (gateway, mut client, body) = with_a_slow_client(&upstream);
    let refused = post_json(&gateway, &json_of_length("ann", 2048));
    assert_eq!(refused.status, 503);
    assert!(refused.field("retry-after").is_some() || refused.json()["status"] == 503, "{refused:?}");
    // A small one fits beside it, and so does a body that is not read.
    assert_eq!(post_json(&gateway, &json_of_length("small", 512)).status, 200);
    assert_eq!(gateway.client().send("POST", "/", &[], &"x".repeat(9000)).status, 200);
    client.write(&body[3000..]);
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert!(upstream.last().body == body.as_bytes());
    eventually("there is room again", || post_json(&gateway, &json_of_length("ann", 4096)).status == 200);
}

#[test]
fn a_client_that_goes_while_its_body_is_read_frees_its_share() {
    let upstream = Upstream::start();
    let (gateway, client, _) = with_a_slow_client(&upstream);
    drop(client);
    eventually("there is room again", || {
        let response = post_json(&gateway, &json_of_length("ann", 4096));
        assert_ne!(response.status, 429);
        response.status == 200
    });
    assert!(upstream.seen().iter().all(|request| !String::from_utf8_lossy(&request.body).contains("\"slow\"")));
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
