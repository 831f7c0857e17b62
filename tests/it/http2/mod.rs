//! HTTP/2 with clients: heads, bodies, refusals, limits, drains, and hostile clients.

mod bodies;
mod bounds;
mod clients;
mod conformance;
mod drains;
mod floods;
mod grpc;
mod heads;
mod malformed_trailers;
mod refusals;
mod refused_streams;
mod response_heads;
mod shared_connections;
mod upstream_timeouts;

use std::net::SocketAddr;

use crate::support::{Gateway, GatewayBuilder, Upstream};

/// Returns a gateway whose only listener speaks HTTP/1.1 and HTTP/2 without TLS.
fn before(upstream: &Upstream) -> GatewayBuilder {
    Gateway::before(upstream).with("listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]")
}

/// Returns such a gateway with one thread and an upstream that speaks HTTP/2 without TLS.
fn before_http2(upstream: SocketAddr) -> GatewayBuilder {
    before_http2_with(upstream, "")
}

/// Returns such a gateway with additional settings of the upstream.
fn before_http2_with(upstream: SocketAddr, keys: &str) -> GatewayBuilder {
    Gateway::before_url("").with(&format!(
        "threads: 1\n\
         listeners: [{{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}}]\n\
         upstreams: {{api: {{endpoints: [\"http://{upstream}\"], protocol: h2c{keys}}}}}\n\
         routes: [{{name: all, upstream: api}}]\n"
    ))
}
