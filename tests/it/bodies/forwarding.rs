//! A body that was read before the decision reaches the upstream as it was sent, over every pair of protocols.

use std::io::Write;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response};
use sha2::{Digest, Sha256};

use super::json_bodies::{JSON, PER_USER, json_of_length, per_user};
use super::{BY_MODEL, LISTENERS};
use crate::support::http2::Http2Client;
use crate::support::{Client, Gateway, Upstream, http2_upstream};

/// A request as an upstream has received it: its fields, the digest of its body, and its trailers.
type Received = (HeaderMap, Vec<u8>, HeaderMap);

/// Starts an upstream of HTTP/2 that answers each request with 200, and records it.
fn http2() -> (std::net::SocketAddr, Arc<Mutex<Vec<Received>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&seen);
    let address = http2_upstream::serve(
        h2::server::Builder::new(),
        || (),
        move |request, mut respond| {
            let seen = Arc::clone(&recorded);
            async move {
                let (head, mut body) = request.into_parts();
                let mut data = Vec::new();
                while let Some(part) = body.data().await {
                    let part = part?;
                    body.flow_control().release_capacity(part.len())?;
                    data.extend_from_slice(&part);
                }
                let trailers = body.trailers().await?.unwrap_or_default();
                seen.lock().unwrap().push((head.headers, Sha256::digest(&data).to_vec(), trailers));
                let mut stream = respond.send_response(Response::new(()), false)?;
                stream.send_data(Bytes::from_static(b"ok"), true)
            }
        },
    );
    (address, seen)
}

/// Returns a JSON text of about this length, in which every byte is needed.
fn json(length: usize) -> String {
    let numbers: Vec<String> = (0..length / 7).map(|number| format!("{:06}", 100_000 + number % 900_000)).collect();
    format!("{{ \"model\" : \"m\", \"numbers\": [{}] }}\n", numbers.join(","))
}

const CONFIG: &str = "
limits: {inspect_bytes: 8MiB, target_bytes: 1KiB}
policies:
  - {name: all, rules: [{name: model, limit_keys: [request_json:/model], algorithm_config: {rps: 1000, burst: 1000}}]}
";

#[test]
fn a_body_is_forwarded_byte_for_byte() {
    let upstream = Upstream::start();
    let (address, seen) = http2();
    let upstreams = format!(
        "upstreams: {{one: {{endpoints: [\"http://{}\"]}}, two: {{endpoints: [\"http://{address}\"], protocol: h2c}}}}\n\
         routes: [{{name: two, match: {{path: /2}}, upstream: two}}, {{name: one, upstream: one}}]\n",
        upstream.address
    );
    let gateway = Gateway::before_url("").with(&upstreams).with(LISTENERS).with(CONFIG).start();
    for length in [0, 50, 16_000, 70_000, 300_000, 3_000_000] {
        let body = json(length);
        let digest = Sha256::digest(&body).to_vec();
        for path in ["/1", "/2"] {
            for kind in ["length", "chunked", "h2", "h2 length"] {
                match kind {
                    "length" => assert_eq!(gateway.client().send("POST", path, &[JSON], &body).status, 200),
                    "chunked" => {
                        let mut client = gateway.client();
                        client.write(&format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"));
                        client.write(
                            "TE: trailers\r\nConnection: TE\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n",
                        );
                        for part in body.as_bytes().chunks(9_999) {
                            client
                                .write_bytes(&[format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat())
                                .unwrap();
                        }
                        client.write("0\r\nX-Sum: 7\r\n\r\n");
                        assert_eq!(client.response("POST").unwrap().status, 200);
                        // Another request follows on the connection.
                        assert_eq!(client.send("POST", path, &[JSON], &body).status, 200);
                        if path == "/2" {
                            seen.lock().unwrap().pop();
                        }
                    }
                    _ => {
                        let length = body.len().to_string();
                        let mut fields = vec![("content-type", "application/json")];
                        fields.extend((kind == "h2 length").then_some(("content-length", &*length)));
                        let mut client = Http2Client::connect(gateway.http);
                        let mut request = client.begin("POST", path, &fields, false);
                        request.write(body.as_bytes(), false).unwrap();
                        request.end_with(HeaderMap::from_iter([("x-sum".parse().unwrap(), "7".parse().unwrap())]));
                        assert_eq!(request.response().unwrap().status, 200);
                    }
                }
                let has_length = kind.ends_with("length");
                if path == "/1" {
                    let seen = upstream.seen();
                    let received = if kind == "chunked" { &seen[seen.len() - 2] } else { &seen[seen.len() - 1] };
                    assert_eq!(Sha256::digest(&received.body).to_vec(), digest, "{kind} {length}");
                    assert_eq!(received.field("content-length").is_some(), has_length, "{kind} {received:?}");
                    let trailers = if has_length { 0 } else { 1 };
                    assert_eq!(received.trailers.len(), trailers, "{kind}");
                } else {
                    let (fields, received, trailers) = seen.lock().unwrap().pop().unwrap();
                    assert_eq!(received, digest, "{kind} {length}");
                    assert_eq!(fields.contains_key("content-length"), has_length, "{kind} {fields:?}");
                    assert_eq!(trailers.contains_key("x-sum"), kind != "length", "{kind}");
                }
            }
        }
    }
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it_from_the_gateway() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream).with(BY_MODEL).with(LISTENERS).start();
    let mut client = gateway.client();
    client.write("POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 13\r\n");
    client.write("Expect: 100-continue\r\n\r\n");
    assert_eq!(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write(r#"{"model":"a"}"#);
    assert_eq!(client.response("POST").unwrap().status, 200);
    assert_eq!(upstream.last().field("expect"), None);
    let mut client = Http2Client::connect(gateway.http);
    let fields = [("content-type", "application/json"), ("expect", "100-continue")];
    let mut request = client.begin("POST", "/llm/a", &fields, false);
    assert_eq!(request.interim().unwrap().status(), 100);
    request.write(br#"{"model":"a"}"#, true).unwrap();
    assert_eq!(request.response().unwrap().status, 429);
}

#[test]
fn the_connection_of_a_refused_request_is_kept() {
    let gateway = Gateway::before(&Upstream::start()).with(BY_MODEL).start();
    let mut client = gateway.client();
    let request = "POST /llm/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"model\":\"a\"}";
    // All requests arrive at once.
    client.write(&request.repeat(3));
    let statuses = [(); 3].map(|()| client.response("POST").unwrap().status);
    assert_eq!(statuses, [200, 429, 429]);
    assert_eq!(client.get("/other", &[]).status, 200);
}

#[test]
fn a_body_in_memory_is_sent_again_with_a_retry() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let upstreams = [(); 2].map(|()| {
        let counted = Arc::clone(&counted);
        Upstream::answering(move |_, stream| {
            // The whole request has been read. The first connection is closed without a response.
            if counted.fetch_add(1, Ordering::SeqCst) == 0 {
                let _ = stream.shutdown(Shutdown::Both);
            } else {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        })
    });
    let config = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\", \"http://{}\"], ejection: false}}}}\n\
         routes: [{{name: all, upstream: api}}]\n",
        upstreams[0].address, upstreams[1].address
    );
    let gateway = Gateway::before_url("").with(&config).with(CONFIG).start();
    let body = json(200_000);
    let put = |client: &mut Client| client.send("PUT", "/llm/a", &[JSON], &body).status;
    assert_eq!(put(&mut gateway.client()), 200);
    let seen = upstreams.each_ref().map(|upstream| upstream.last());
    assert!(seen.iter().all(|request| request.body == body.as_bytes()));
    // A method that is not idempotent is never repeated.
    count.store(0, Ordering::SeqCst);
    assert_eq!(gateway.client().send("POST", "/llm/a", &[JSON], &body).status, 502);
    // Nor is a body that was not read, because no rule needs it.
    count.store(0, Ordering::SeqCst);
    let text = [("Content-Type", "text/plain")];
    assert_eq!(gateway.client().send("PUT", "/llm/a", &text, &body).status, 502);
}

#[test]
fn a_chunked_body_is_forwarded_chunked_with_its_trailers() {
    let upstream = Upstream::start();
    let gateway = per_user(&upstream).start();
    for (number, (length, size)) in [(40, 1), (40, 1000), (50_000, 999), (200_000, 65_536)].into_iter().enumerate() {
        let body = json_of_length(&format!("u{number}"), length);
        let mut client = gateway.client();
        client.write(&chunked(&body, size, "Trailer: x-sum\r\n", "x-sum: 17\r\n"));
        assert_eq!(client.response("POST").unwrap().status, 200);
        let seen = upstream.last();
        assert_eq!((seen.field("content-length"), seen.field("transfer-encoding")), (None, Some("chunked")));
        assert!(seen.body == body.as_bytes(), "{length}");
        assert_eq!(seen.trailers, [("x-sum".to_owned(), "17".to_owned())]);
        // The connection stands at the beginning of the next request.
        assert_eq!(client.get("/", &[]).status, 200);
    }
}

#[test]
fn a_read_body_is_sent_again_to_another_connection() {
    let upstream = Upstream::answering(|seen, stream| {
        let is_broken = seen.line.contains("/break") && seen.connection == 0;
        let _ = match is_broken {
            true => stream.shutdown(Shutdown::Both),
            false => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        };
    });
    let gateway = Gateway::before(&upstream).with("threads: 1").with(PER_USER).start();
    let mut client = gateway.client();
    assert_eq!(client.send("PUT", "/warm", &[], "").status, 200);
    let body = json_of_length("ann", 100_000);
    let response = client.send("PUT", "/break", &[JSON], &body);
    assert_eq!((response.status, response.number("ratelimit-remaining")), (200, 1));
    let sent: Vec<_> = upstream.seen().into_iter().filter(|seen| seen.line.contains("/break")).collect();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|seen| seen.body == body.as_bytes()));
    gateway.expect("tollgate_upstream_retries_total", &[], 1.0);
}

/// Returns a chunked upload with this size of chunks.
fn chunked(body: &str, size: usize, fields: &str, trailers: &str) -> String {
    let chunks = body.as_bytes().chunks(size).map(|chunk| std::str::from_utf8(chunk).unwrap());
    let chunks: String = chunks.map(|chunk| format!("{:x};ext=1\r\n{chunk}\r\n", chunk.len())).collect();
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n{fields}\r\n\
         {chunks}0\r\n{trailers}\r\n"
    )
}
