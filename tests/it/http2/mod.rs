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
mod shared_connections;
mod upstream_timeouts;

use crate::support::{Gateway, GatewayBuilder, Upstream};

/// A gateway whose only listener speaks HTTP/1.1, and HTTP/2 without TLS.
fn before(upstream: &Upstream) -> GatewayBuilder {
    Gateway::before(upstream).with("listeners: [{address: 127.0.0.1:0, protocols: [h2c, http/1.1]}]")
}
