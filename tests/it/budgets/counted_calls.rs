//! `count_on` with statuses of gRPC: which calls cost something.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use super::LIMIT;
use crate::support::http2::Http2Client;
use crate::support::http2_upstream::{MESSAGE, serve};
use crate::support::{Gateway, now};

/// Starts an upstream of gRPC. It answers `/call/N` with a message and the status N in the trailers, `/head/N` with the status
/// in the head, `/http/N` with this HTTP status, `/none` without a status, and resets the stream of `/reset` after the head.
fn upstream() -> std::net::SocketAddr {
    serve(
        h2::server::Builder::new(),
        || (),
        |request, mut respond| async move {
            let path = request.uri().path().to_owned();
            let (kind, number) = path.trim_start_matches('/').split_once('/').unwrap_or((&path[1..], ""));
            let mut head = Response::new(());
            head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            match kind {
                "head" => _ = head.headers_mut().insert("grpc-status", number.parse().unwrap()),
                "http" => *head.status_mut() = number.parse().unwrap(),
                _ => {}
            }
            let mut stream = respond.send_response(head, matches!(kind, "head" | "http"))?;
            if matches!(kind, "call" | "none") {
                stream.send_data(Bytes::from_static(MESSAGE), kind == "none")?;
            }
            if kind == "call" {
                let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), number.parse().unwrap())]);
                stream.send_trailers(trailers)?;
            }
            if kind == "reset" {
                stream.send_data(Bytes::from_static(MESSAGE), false)?;
                tokio::time::sleep(Duration::from_millis(50)).await;
                stream.send_reset(h2::Reason::INTERNAL_ERROR);
            }
            Ok(())
        },
    )
}

#[test]
fn only_calls_with_a_counted_status_cost_something() {
    play(
        "count_on: [UNAUTHENTICATED, PERMISSION_DENIED]",
        &[
            ("/call/0", 0),
            ("/call/16", 1),
            ("/call/5", 1),
            ("/head/7", 2),
            ("/head/0", 2),
            // A client of gRPC sees an unknown status here.
            ("/call/99", 2),
            // Without a status it is not known that the call does not count.
            ("/none", 3),
            ("/reset", 4),
            // Clients of gRPC map the HTTP status.
            ("/http/401", 5),
            ("/http/503", 5),
        ],
    );
}

#[test]
fn only_a_call_with_a_status_resets_what_was_spent() {
    let reset_on = "count_on: [UNAUTHENTICATED], reset_on: [NOT_FOUND]";
    play(reset_on, &[("/call/16", 1), ("/head/16", 2), ("/none", 3), ("/reset", 4), ("/call/3", 4), ("/call/5", 0)]);
    // The HTTP status of each call is 200. That of the last one is of the kind that counts.
    let reset_on = "count_on: [UNAUTHENTICATED], reset_on: [201, 5xx]";
    play(reset_on, &[("/call/16", 1), ("/call/13", 1), ("/http/503", 1), ("/http/401", 2)]);
}

/// Sends calls to a limit with these keys. After each, so much is spent.
fn play(keys: &str, calls: &[(&str, u64)]) {
    let text = format!(
        "listeners: [{{address: 127.0.0.1:0, protocols: [h2c]}}]
upstreams: {{default: {{endpoints: [\"http://{}\"], protocol: h2c}}}}
routes: [{{name: all, upstream: default}}]
rules:
  - name: guesses
    limit_keys: [header:x-user]
    algorithm: fixed_window
    algorithm_config: {{limit: {LIMIT}, window: 366d, {keys}}}\n",
        upstream()
    );
    let gateway = Gateway::before_url("").with(&text).start();
    let mut client = Http2Client::connect(gateway.http);
    let mut call = |path: &str| {
        let fields = [("content-type", "application/grpc"), ("te", "trailers"), ("x-user", "ann")];
        client.begin("POST", path, &fields, true).response()
    };
    for (path, spent) in calls {
        let _ = call(path);
        let begun = now();
        loop {
            // The field shows what is left after this call's hold.
            let response = call("/call/0").unwrap();
            let used = LIMIT - 1 - response.field("ratelimit-remaining").parse::<u64>().unwrap();
            if used == *spent {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{path}: {used}, not {spent}");
        }
    }
}
