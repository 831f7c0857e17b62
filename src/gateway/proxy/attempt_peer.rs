//! Selects the endpoint for an attempt of a request, and prepares the connection to it.

use http::header::TE;
use http::{HeaderValue, Method};
use pingora::proxy::Session;
use pingora::upstreams::peer::{ALPN, HttpPeer};
use pingora::{Error, ErrorType, Result};

use super::exchange::Exchange;
use super::{Proxy, route_overrides, total_timeout};
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::session::asks_for_websocket;
use crate::gateway::state::destinations::UpstreamOfRoute;
use crate::gateway::telemetry::labels::UpstreamError;
use crate::gateway::upstream::{Alternatives, Choice, Selection, Turn, Upstream};
use base::endpoint_address::EndpointAddress;
use base::time::Timestamp;
use request::grpc_timeout::is_grpc;

/// The peer of the endpoint that is tried next.
///
/// # Errors
/// No endpoint is known, none may have one more request, or there is no file for one more connection.
pub async fn select(proxy: &Proxy, session: &mut Session, exchange: &mut Exchange) -> Result<Box<HttpPeer>> {
    let clock = &proxy.gateway.clock;
    // First without waiting, which is enough for every request but the first few.
    let window = proxy.window(exchange);
    let select = |upstream: &Upstream| {
        let failed_at = |address: &EndpointAddress| exchange.failed.iter().any(|failed| failed.endpoint == *address);
        let turn = if exchange.failed.is_empty() { Turn::Next } else { Turn::Drawn };
        let choice = Choice { turn, key: exchange.balance_key };
        upstream.select(choice, failed_at, || clock.now())
    };
    let selected = match exchange.upstream() {
        Some(UpstreamOfRoute { upstream, .. }) => match select(upstream) {
            Err(UpstreamError::Unresolved) => {
                upstream.first_lookups().await;
                select(upstream)
            }
            selected => selected,
        },
        None => Err(UpstreamError::Unresolved),
    };
    let Selection { attempt, alternatives } = selected.map_err(|error| {
        exchange.upstream_error = Some(error);
        Error::new_up(ErrorType::ConnectError)
    })?;
    let mut peer = attempt.endpoint.peer(window);
    // A further attempt has the place of the one before.
    if exchange.upstream_connection.is_none()
        && let Some(upstream_connections) =
            exchange.connection.as_ref().and_then(ConnectionHandle::upstream_connections)
    {
        let count = upstream_connections.count(clock);
        let count = count.ok_or_else(|| Error::explain(ErrorType::HTTPStatus(503), "no file for a connection"))?;
        exchange.upstream_connection = Some(count);
    }
    exchange.attempt = Some(attempt);
    let alternatives = exchange
        .overrides()
        .map_or(alternatives, |overrides| route_overrides::apply(overrides, &mut peer.options, alternatives));
    if peer.options.alpn != ALPN::H1 && is_grpc_stream(session, exchange) {
        let idle = exchange.upstream().map(|one| one.stream_idle_timeout.into());
        (peer.options.read_timeout, peer.options.write_timeout) = (idle, idle);
        session.set_write_timeout(idle);
    }
    if let Some(total) = exchange.total_timeout() {
        total_timeout::apply(exchange, total, &mut peer.options, session, clock.now());
    }
    // A timeout at the client's connection ends the request, so one that may be retried has its own.
    let is_final = alternatives == Alternatives::None || !session.req_header().method.is_idempotent();
    if let Some(connection) = &exchange.connection
        && peer.options.alpn == ALPN::H1
    {
        match connection.read_timeout() {
            Some(read_timeout) if asks_for_websocket(session) => {
                // For the head of the response alone.
                read_timeout.take_from(&mut peer.options);
                let idle = exchange.upstream().map(|one| one.stream_idle_timeout.into());
                (peer.options.read_timeout, peer.options.write_timeout) = (idle, idle);
            }
            Some(read_timeout) if is_final => read_timeout.take_from(&mut peer.options),
            // Each stream of HTTP/2 has its own.
            None if is_final && session.is_body_done() => session.set_read_timeout(peer.options.read_timeout.take()),
            _ => {}
        }
    }
    Ok(peer)
}

/// Whether both sides may pause for as long as a stream: only what gRPC itself sends, and not whatever names its content type.
fn is_grpc_stream(session: &Session, exchange: &Exchange) -> bool {
    let head = session.req_header();
    let accepts_trailers = |te: &HeaderValue| te.as_bytes().eq_ignore_ascii_case(b"trailers");
    is_grpc(head)
        && head.method == Method::POST
        && exchange.connection.as_ref().is_some_and(ConnectionHandle::is_http2)
        && head.headers.get(TE).is_some_and(accepts_trailers)
}

/// The request has a connection to its endpoint.
pub fn connected(exchange: &mut Exchange, peer: &HttpPeer, reused: bool, now: Timestamp) {
    if reused && peer.options.alpn != ALPN::H1 {
        // It shares the connection of other requests. One that is made for it counts, even if others will share it.
        exchange.upstream_connection = None;
    }
    exchange.forward(now);
}
