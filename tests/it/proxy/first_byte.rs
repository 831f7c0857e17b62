//! The timeout for the first byte of a response, apart from the pauses in it, over every pair of protocols.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread::{scope, sleep};
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::support::http2::Http2Client;
use crate::support::{Client, Gateway, Upstream, http2_upstream, now};

/// How long the upstreams pause.
const PAUSE: Duration = Duration::from_secs(4);
/// How long the client pauses in its body, three times.
const OF_CLIENT: Duration = Duration::from_millis(700);

/// Starts an upstream of HTTP/1.1. By the path, it pauses before the head, in the head, or in the body.
fn http1() -> Upstream {
    Upstream::answering(|request, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        let parts: &[&str] = match request.line.split('/').nth(3).unwrap().split(' ').next().unwrap() {
            "late" => &["", head, "half"],
            "head" => &["HTTP/1.1 200 OK\r\nCont", "ent-Length: 4\r\n\r\nhalf"],
            "body" => &["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha", "lf"],
            "never" => {
                let _ = stream.read(&mut [0]);
                return;
            }
            _ => &["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhalf"],
        };
        for (index, part) in parts.iter().enumerate() {
            if index == 1 {
                sleep(PAUSE);
            }
            let _ = stream.write_all(part.as_bytes());
        }
    })
}

/// Starts the same upstream for HTTP/2.
fn http2() -> SocketAddr {
    http2_upstream::serve(
        h2::server::Builder::new(),
        || (),
        |request, mut respond| async move {
            let (head, mut body) = request.into_parts();
            let kind = head.uri.path().split('/').nth(3).unwrap().to_owned();
            while let Some(part) = body.data().await {
                body.flow_control().release_capacity(part?.len())?;
            }
            if kind == "never" {
                std::future::pending::<()>().await;
            }
            if kind == "late" {
                tokio::time::sleep(PAUSE).await;
            }
            let mut stream = respond.send_response(Response::new(()), false)?;
            stream.send_data(Bytes::from_static(b"ha"), false)?;
            if kind == "body" {
                tokio::time::sleep(PAUSE).await;
            }
            stream.send_data(Bytes::from_static(b"lf"), true)
        },
    )
}

/// Starts a gateway to both. Below `/long`, the first byte has much time and pauses have little. Below `/short`, it is the other
/// way round.
fn gateway(http1: SocketAddr, http2: SocketAddr) -> Gateway {
    let route = |name: &str, timeouts: &str| {
        ["1", "2"].map(|version| {
            format!("  - {{name: {name}{version}, match: {{path: /{name}/{version}/*}}, upstream: http{version}{timeouts}}}\n")
        })
    };
    let routes = [
        route("long", ""),
        route("short", ", timeouts: {first_byte: 1500ms, read: 12s}"),
        // What the route does not set is that of the upstream.
        route("read", ", timeouts: {read: 12s}"),
    ];
    Gateway::before_url("")
        .with(&format!(
            "listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
             upstreams:\n\
             \u{20} http1: {{endpoints: [\"http://{http1}\"], timeouts: {{read: 1500ms}}, retries: {{max: 0}}}}\n\
             \u{20} http2: {{endpoints: [\"http://{http2}\"], protocol: h2c, timeouts: {{read: 1500ms}}, retries: {{max: 0}}}}\n\
             upstream_timeouts: {{first_byte: 12s, read: 6s}}\n\
             routes:\n{}",
            routes.concat().concat()
        ))
        .start()
}

/// Sends a request over HTTP/1.1. Returns the status and the body; without the body if it is incomplete.
fn over_http1(gateway: &Gateway, method: &str, target: &str) -> String {
    let mut client: Client = gateway.client();
    if method == "GET" {
        client.write(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    } else {
        client.write(&format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"));
        for _ in 0..3 {
            sleep(OF_CLIENT);
            client.write("x");
        }
    }
    match client.response(method) {
        Ok(response) => format!("{} {}", response.status, if response.status == 200 { &*response.body } else { "" }),
        Err(_) => "cut".to_owned(),
    }
}

fn over_http2(gateway: &Gateway, method: &str, target: &str) -> String {
    let mut client = Http2Client::connect(gateway.http);
    let mut request = client.begin(method, target, &[], method == "GET");
    for part in 1..=3 {
        if method == "POST" {
            sleep(OF_CLIENT);
            request.write(b"x", part == 3).unwrap();
        }
    }
    match request.response() {
        Ok(response) => {
            format!("{} {}", response.status, if response.status == 200 { response.text() } else { String::new() })
        }
        Err(_) => "cut".to_owned(),
    }
}

#[test]
fn a_response_has_one_time_to_begin_and_another_for_its_pauses() {
    let (one, two) = (http1(), http2());
    let gateway = gateway(one.address, two);
    // `V` is the version of the upstream.
    let cases = [
        ("GET", "/long/V/late", "200 half"),
        ("GET", "/long/V/body", "cut"),
        ("GET", "/short/V/late", "504 "),
        ("GET", "/short/V/body", "200 half"),
        ("GET", "/short/V/never", "504 "),
        // The first byte of a head is not the whole head.
        ("GET", "/long/1/head", "504 "),
        ("GET", "/short/1/head", "200 half"),
        // A body that takes longer than the first byte may is no pause of the upstream.
        ("POST", "/short/V/now", "200 half"),
        ("POST", "/short/V/never", "504 "),
        ("GET", "/read/V/late", "200 half"),
        ("GET", "/read/V/body", "200 half"),
    ];
    let began = now();
    scope(|scope| {
        for (method, target, expected) in cases {
            for version in ["1", "2"] {
                let target = target.replace('V', version);
                if !target.contains(&format!("/{version}/")) {
                    continue;
                }
                for ask in [over_http1, over_http2] {
                    let (gateway, target) = (&gateway, target.clone());
                    scope.spawn(move || assert_eq!(ask(gateway, method, &target), expected, "{method} {target}"));
                }
            }
        }
    });
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    gateway.expect("tollgate_upstream_errors_total", &["first_byte_timeout"], 12.0);
    // Those in bodies, and in a head that had begun.
    gateway.expect("tollgate_upstream_errors_total", &["\"read_timeout\""], 6.0);
    gateway.expect("tollgate_upstream_errors_total", &[], 18.0);
}

#[test]
fn a_client_that_waits_for_100_continue_does_not_use_the_time_of_the_first_byte() {
    let (one, two) = (http1(), http2());
    let gateway = gateway(one.address, two);
    scope(|scope| {
        for version in ["1", "2"] {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut client: Client = gateway.client();
                let head = "Host: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
                client.write(&format!("POST /short/{version}/now HTTP/1.1\r\n{head}"));
                // Longer than `first_byte`.
                sleep(Duration::from_millis(2500));
                client.write("xxx");
                let response = client.response("POST").unwrap();
                assert_eq!((response.status, &*response.body), (200, "half"), "{version}");
            });
        }
    });
}

#[test]
fn an_interim_response_gives_the_final_one_its_whole_time() {
    let upstream = Upstream::answering(|_, stream| {
        for part in ["HTTP/1.1 103 Early Hints\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhalf"] {
            sleep(Duration::from_secs(2));
            let _ = stream.write_all(part.as_bytes());
        }
    });
    let text = "listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]\nupstream_timeouts: {first_byte: 3500ms, read: 1s}";
    let gateway = Gateway::before(&upstream).with(text).start();
    scope(|scope| {
        for ask in [over_http1, over_http2] {
            let gateway = &gateway;
            scope.spawn(move || assert_eq!(ask(gateway, "GET", "/"), "200 half"));
        }
    });
}

#[test]
fn a_call_of_grpc_has_the_timeout_for_its_first_byte_only_if_it_is_set() {
    let upstream = http2();
    let gateway = gateway(SocketAddr::from(([127, 0, 0, 1], 9)), upstream);
    let call = [("content-type", "application/grpc"), ("te", "trailers")];
    let mut client = Http2Client::connect(gateway.http);
    let mut begin = |target: &str| {
        let mut request = client.begin("POST", target, &call, false);
        request.write(http2_upstream::MESSAGE, true).unwrap();
        request
    };
    let (never, body) = (begin("/short/2/never"), begin("/long/2/body"));
    let refused = never.response().unwrap();
    assert_eq!((refused.status, refused.field("grpc-status")), (200, "14"));
    // A call may pause for longer than `read`.
    assert_eq!(body.response().unwrap().text(), "half");
    gateway.expect("tollgate_upstream_errors_total", &["first_byte_timeout"], 1.0);
    gateway.expect("tollgate_upstream_errors_total", &[], 1.0);
}

#[test]
fn a_reload_sets_and_removes_it() {
    let upstream = http1();
    let gateway = Gateway::start(&upstream, "upstream_timeouts: {first_byte: 1s, read: 12s}");
    assert_eq!(over_http1(&gateway, "GET", "/a/1/late"), "504 ");
    gateway.reload(&upstream, "upstream_timeouts: {read: 12s}");
    assert_eq!(over_http1(&gateway, "GET", "/a/1/late"), "200 half");
    gateway.reload(&upstream, "upstream_timeouts: {read: 1s}");
    assert_eq!(over_http1(&gateway, "GET", "/a/1/late"), "504 ");
    gateway.expect("tollgate_upstream_errors_total", &["first_byte_timeout"], 1.0);
    gateway.expect("tollgate_upstream_errors_total", &["\"read_timeout\""], 1.0);
}
