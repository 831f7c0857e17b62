//! HTTP/2 with clients: heads, bodies, refusals, bounds, drains, and what hostile clients send.

mod bodies;
mod bounds;
mod clients;
mod conformance;
mod drains;
mod floods;
mod grpc;
mod heads;
mod refusals;
mod refused_streams;
mod response_heads;
mod shared_connections;
mod upstream_timeouts;

use std::net::SocketAddr;

use crate::support::{Gateway, GatewayBuilder, Upstream};

/// A gateway whose only listener speaks HTTP/1.1, and HTTP/2 without TLS.
fn before(upstream: &Upstream) -> GatewayBuilder {
    Gateway::before(upstream).with("listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]")
}

/// The same with one thread, before an upstream of HTTP/2 without TLS.
fn before_http2(upstream: SocketAddr) -> GatewayBuilder {
    before_http2_with(upstream, "")
}

/// The same with further keys of the upstream.
fn before_http2_with(upstream: SocketAddr, keys: &str) -> GatewayBuilder {
    Gateway::before_url("").with(&format!(
        "threads: 1\n\
         listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
         upstreams: {{api: {{endpoints: [\"http://{upstream}\"], protocol: h2c{keys}}}}}\n\
         routes: [{{name: all, upstream: api}}]\n"
    ))
}
