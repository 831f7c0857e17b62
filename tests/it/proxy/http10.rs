//! HTTP/1.0 clients: they know neither chunks nor interim responses, and keep a connection only on request.

use std::io::Write;

use crate::support::{Gateway, SecureUpstream, Upstream};

const KEPT: &str = "HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n";

/// Returns the body of a response that ends with its connection.
#[track_caller]
fn body_until_closed(gateway: &Gateway, target: &str) -> String {
    let mut client = gateway.client();
    client.write(&format!("GET {target} {KEPT}"));
    let response = client.response("GET").unwrap();
    let framing = ["transfer-encoding", "content-length", "connection"].map(|name| response.field(name));
    assert_eq!((response.status, framing), (200, [None, None, Some("close".to_owned())]), "{target}");
    assert!(client.is_closed(), "{target}");
    response.body
}

#[test]
fn a_response_without_a_length_ends_with_the_connection() {
    let upstream = Upstream::answering(|seen, stream| {
        let response = match seen.line.split(' ').nth(1).unwrap() {
            "/chunked" => "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n",
            "/closed" => "200 OK\r\n\r\nonetwo",
            "/hints" => {
                "103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nonetwo\r\n0\r\n\r\n"
            }
            _ => unreachable!(),
        };
        let _ = stream.write_all(format!("HTTP/1.1 {response}").as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
    });
    let gateway = Gateway::start(&upstream, "");
    for target in ["/chunked", "/closed", "/hints"] {
        assert_eq!(body_until_closed(&gateway, target), "onetwo", "{target}");
    }
    let mut client = gateway.client();
    client.write(&format!("GET /hints {KEPT}"));
    assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 200 "));
    // It has no body, so nothing has to end.
    let mut client = gateway.client();
    for _ in 0..2 {
        client.write(&format!("HEAD /chunked {KEPT}"));
        let response = client.response("HEAD").unwrap();
        assert_eq!((response.status, response.field("transfer-encoding")), (200, None));
    }
}

#[test]
fn a_response_of_an_h2_upstream_has_no_chunks_either() {
    let upstream = SecureUpstream::h2c();
    let text = format!(
        "upstreams: {{api: {{endpoints: [\"http://{}\"], protocol: h2c}}}}\nroutes: [{{name: all, upstream: api}}]",
        upstream.address
    );
    let gateway = Gateway::before_url("").with(&text).start();
    assert_eq!(body_until_closed(&gateway, "/"), "ok");
}

#[test]
fn a_connection_is_kept_where_the_length_is_known() {
    let gateway =
        Gateway::start(&Upstream::start(), "rules: [{name: few, limit_keys: [], algorithm_config: {rate: 2/day}}]");
    let mut client = gateway.client();
    // The last one is the gateway's own.
    for status in [200, 200, 429] {
        client.write(&format!("GET / {KEPT}"));
        let response = client.response("GET").unwrap();
        assert_eq!((response.status, response.field("connection").as_deref()), (status, Some("keep-alive")));
    }
}
