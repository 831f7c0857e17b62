//! Tries endpoints one after the other, and decides what happens when one fails: whether it is ejected, and whether the request
//! is sent to another one.
//!
//! One decision and one charge cover all attempts. A request body that was begun is never sent twice.

use std::time::Duration;

use pingora::upstreams::peer::{ALPN, HttpPeer, Peer};

use super::connect_error::{describe, upstream_error};
use super::exchange::{Exchange, FailedAttempt};
use super::fault::{Fault, Stage, UpstreamFault};
use super::forwarder::Forwarder;
use super::http2_pool::{Http2Stream, Place};
use super::upstream_pool::UpstreamStream;
use crate::gateway::state::destinations::UpstreamOfRoute;
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::labels::UpstreamError;
use crate::gateway::upstream::endpoint::Attempt;
use crate::gateway::upstream::{Choice, EndpointFailure, Retry, Turn, Upstream, Window};
use base::endpoint_address::EndpointAddress;
use base::time::{Micros, Timestamp};

/// The shortest timeout of an attempt, even if less of the request's time is left.
const LEAST: Micros = Micros(1000);

/// The state that all attempts to send one request share.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The time by which the request must have ended. It is set before the first connection is made. `None` if the duration is
    /// not limited.
    pub deadline: Option<Timestamp>,
    /// Whether the request was repeated after an upstream had closed the connection or refused the request without processing
    /// it.
    repeated: bool,
    /// The last time at which a used connection was closed without a response, or a request was refused. Connections that
    /// were opened earlier are not used.
    failed: Option<Timestamp>,
}

/// The connection of an attempt: an HTTP/1.1 connection of its own, or a stream on a shared HTTP/2 connection.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    Http1(UpstreamStream),
    Http2(Http2Stream),
}

/// An attempt that has a connection to its endpoint, with the timeouts that apply to it.
#[derive(Debug)]
pub(super) struct UpstreamAttempt<C> {
    pub connection: C,
    pub reuse: ConnectionUse,
    pub key: u64,
    /// The time at which the attempt got its connection.
    pub since: Timestamp,
    pub idle_timeout: Micros,
    pub read_timeout: Micros,
    pub write_timeout: Micros,
}

/// Whether a connection had served another request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionUse {
    First,
    Again,
}

/// Whether the same request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeatable {
    Yes,
    No,
}

impl Attempts {
    /// Selects an endpoint and connects to it. If the connection fails, tries other endpoints, as far as the retries of the
    /// upstream allow.
    ///
    /// # Errors
    /// If no endpoint can be selected or connected to, or if the process has no file left for the connection.
    pub(super) async fn connect(
        &mut self,
        exchange: &mut Exchange<'_>,
    ) -> Result<UpstreamAttempt<UpstreamConnection>, Fault> {
        loop {
            let attempt = select(exchange).await?;
            let endpoint = std::sync::Arc::clone(&attempt.endpoint);
            exchange.report.attempt = Some(attempt);
            let forwarder = exchange.forwarder;
            let now = forwarder.gateway.clock.now();
            let timeouts = exchange.overrides().map(|overrides| overrides.timeouts).unwrap_or_default();
            let options = endpoint.options();
            let of = |timeout: Option<Duration>| timeout.map_or(Micros(u64::MAX / 2), Micros::from);
            let (mut read, mut write) = (
                timeouts.read.unwrap_or(of(options.read_timeout)),
                timeouts.write.unwrap_or(of(options.write_timeout)),
            );
            let mut connect = timeouts.connect.unwrap_or(of(options.total_connection_timeout));
            if let Some(total) = exchange.total_timeout() {
                let deadline = *self.deadline.get_or_insert(now.plus(total));
                let left = deadline.since(now).max(LEAST);
                (read, write, connect) = (read.min(left), write.min(left), connect.min(left));
            }
            let backpressure = exchange.connection.write_backpressure().unwrap_or(&forwarder.write_backpressure);
            let window = match backpressure.is_above_threshold() {
                true => Window::Narrow,
                false => Window::Whole,
            };
            let key = endpoint.pool_key(window);
            let connected = |connection, reuse, since| UpstreamAttempt {
                connection,
                reuse,
                key,
                since,
                idle_timeout: of(options.idle_timeout),
                read_timeout: read,
                write_timeout: write,
            };
            let speaks_http2 = options.alpn != ALPN::H1;
            let since = self.failed.unwrap_or(Timestamp(0));
            if speaks_http2 && let Some(stream) = forwarder.http2_pool.take(key, since) {
                // The stream is on a shared connection, so the request has no connection to count.
                exchange.upstream_connection = None;
                return Ok(connected(UpstreamConnection::Http2(stream), ConnectionUse::Again, now));
            }
            if self.failed.is_none()
                && let Some(stream) = forwarder.pool.take(key, now)
            {
                count_connection(exchange)?;
                return Ok(connected(UpstreamConnection::Http1(stream), ConnectionUse::Again, now));
            }
            let mut peer = endpoint.peer(window);
            let connect = Duration::from(connect);
            peer.options.connection_timeout = Some(connect);
            peer.options.total_connection_timeout = Some(connect);
            // New connections are rare. Their future is on the heap, so that it does not enlarge the task of every request.
            let connection = match speaks_http2 {
                true => Box::pin(http2_connection(exchange, &peer, key, since)).await,
                false => Box::pin(new_connection(exchange, &peer, key)).await,
            };
            match connection {
                Ok(connection) => {
                    return Ok(connected(connection, ConnectionUse::First, forwarder.gateway.clock.now()));
                }
                Err(Fault::Upstream(fault)) => {
                    if !self.fail(exchange, fault.error, Repeatable::Yes) {
                        return Err(fault.into());
                    }
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Handles a failure of the endpoint of the last attempt. Returns whether the request is sent to another endpoint.
    fn fail(&self, exchange: &mut Exchange<'_>, error: UpstreamError, repeatable: Repeatable) -> bool {
        let gateway = &exchange.forwarder.gateway;
        let expired = self.has_expired(gateway.clock.now());
        // A retry that had only the rest of the request's time does not count as a failure of its endpoint.
        if !expired || exchange.report.failed.is_empty() {
            note_failure(exchange, EndpointFailure::Error(error));
        }
        let count = exchange.report.failed.len() + 1;
        let retry = repeatable == Repeatable::Yes
            && !expired
            && may_retry(exchange, |upstream, max| upstream.retry(count, max));
        if retry {
            exchange.count_retry(error);
            let failed_after = gateway.clock.now().since(exchange.started);
            exchange.trace.next_attempt();
            let endpoint = exchange.report.attempt.take().map(|attempt| attempt.endpoint.address.clone());
            exchange.report.failed.extend(endpoint.map(|endpoint| FailedAttempt { endpoint, error, failed_after }));
        }
        retry
    }

    /// Handles the failure of an attempt that had a connection and whose response had not begun. Returns whether another
    /// attempt follows.
    ///
    /// The upstream may have closed a pooled connection just as a request was sent on it, or have refused the request without
    /// processing it. Such a request is sent once more if it is repeatable, the upstream has retries, and their budget allows
    /// one. The second attempt may go to any endpoint, on a connection that was opened after the failure. The upstream may have
    /// seen the request twice. The failure is counted as an error of the upstream, but not as a failure of the endpoint. A
    /// request that fails a second time, or that is not repeatable, is handled like a failure on a new connection.
    pub(super) fn fail_before_response(
        &mut self,
        exchange: &mut Exchange<'_>,
        fault: &UpstreamFault,
        (reuse, key): (ConnectionUse, u64),
        upload: Repeatable,
    ) -> bool {
        // An upstream that has begun to answer may have processed the request. A refused request was not processed.
        let is_repeatable = (exchange.head.method.is_idempotent() || fault.stage == Stage::Refused)
            && upload == Repeatable::Yes
            && fault.stage != Stage::Answering
            && !matches!(fault.error, UpstreamError::InvalidAnswer | UpstreamError::TotalTimeout);
        let mut repeatable = if is_repeatable { Repeatable::Yes } else { Repeatable::No };
        let was_closed =
            fault.error == UpstreamError::Closed && fault.stage == Stage::Sent && reuse == ConnectionUse::Again;
        if was_closed {
            exchange.forwarder.pool.discard(key);
        }
        let is_unseen = was_closed || fault.stage == Stage::Refused;
        if is_unseen {
            self.failed = Some(exchange.forwarder.gateway.clock.now());
        }
        let expired = self.has_expired(exchange.forwarder.gateway.clock.now());
        if is_unseen && !expired && is_repeatable && !self.repeated {
            if may_retry(exchange, Upstream::repeat) {
                self.repeated = true;
                // The attempt ends here, which frees its place at the endpoint for the repetition.
                exchange.report.attempt = None;
                exchange.count_upstream_error(fault.error);
                exchange.count_retry(fault.error);
                return true;
            }
            // The retry budget has already been asked, so it is not asked again.
            repeatable = Repeatable::No;
        }
        let error = if expired && fault.is_timeout() { UpstreamError::TotalTimeout } else { fault.error };
        self.fail(exchange, error, repeatable)
    }

    /// Handles the failure of a response that had begun. Counts the failure for the endpoint, unless the deadline of the
    /// request has cut off the response.
    pub(super) fn fail_while_answering(&self, exchange: &mut Exchange<'_>, fault: &UpstreamFault) {
        let expired = self.has_expired(exchange.forwarder.gateway.clock.now());
        // A slow response that has begun is not a failure of the endpoint.
        if !(expired && fault.is_timeout()) {
            self.fail(exchange, fault.error, Repeatable::No);
        }
    }

    fn has_expired(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// Counts the connection of a request over HTTP/2. A further attempt keeps the count of the attempt before.
///
/// # Errors
/// If no file is left for another connection.
fn count_connection(exchange: &mut Exchange<'_>) -> Result<(), Fault> {
    if exchange.upstream_connection.is_none()
        && let Some(connections) = exchange.connection.upstream_connections()
    {
        let count = connections.count(&exchange.forwarder.gateway.clock);
        exchange.upstream_connection = Some(count.ok_or(Fault::Own(503, "no file for a connection"))?);
    }
    Ok(())
}

/// Connects to an endpoint.
async fn new_connection(exchange: &mut Exchange<'_>, peer: &HttpPeer, key: u64) -> Result<UpstreamConnection, Fault> {
    count_connection(exchange)?;
    Ok(connect(exchange.forwarder, peer, key).await?)
}

/// Returns a stream on a shared connection to the endpoint, after waiting for one that is being opened, or opens a
/// connection.
async fn http2_connection(
    exchange: &mut Exchange<'_>,
    peer: &HttpPeer,
    key: u64,
    since: Timestamp,
) -> Result<UpstreamConnection, Fault> {
    let pool = &exchange.forwarder.http2_pool;
    let timeout = peer.options.connection_timeout.unwrap_or(Duration::MAX);
    match pool.place(key, since, peer.options.max_h2_streams, timeout).await? {
        Place::Stream(stream) => {
            exchange.upstream_connection = None;
            Ok(UpstreamConnection::Http2(stream))
        }
        Place::Http1 => new_connection(exchange, peer, key).await,
        Place::ToOpen(opening) => {
            count_connection(exchange)?;
            let connection = connect(exchange.forwarder, peer, key);
            let is_shared = |connection: &_| matches!(connection, UpstreamConnection::Http2(_));
            Ok(opening.finish(pool, connection, is_shared).await?)
        }
    }
}

async fn connect(forwarder: &Forwarder, peer: &HttpPeer, key: u64) -> Result<UpstreamConnection, UpstreamFault> {
    let stream = forwarder.pool.connect(peer).await;
    let stream =
        stream.map_err(|error| UpstreamFault::new(upstream_error(&error), describe(&error), Stage::Connecting))?;
    let speaks_http2 = peer.options.alpn != ALPN::H1
        && match stream.selected_alpn_proto() {
            Some(protocol) => protocol == ALPN::H2,
            // A TLS server that does not know ALPN speaks HTTP/1.1.
            None => !peer.tls(),
        };
    if !speaks_http2 {
        return Ok(UpstreamConnection::Http1(stream));
    }
    let header_bytes = forwarder.gateway.snapshot.load().config.bounds.header_bytes;
    let stream = forwarder.http2_pool.open(key, stream, &peer.options, header_bytes).await?;
    Ok(UpstreamConnection::Http2(stream))
}

/// Selects the endpoint of the next attempt.
async fn select(exchange: &Exchange<'_>) -> Result<Attempt, Fault> {
    let Some(UpstreamOfRoute { upstream, .. }) = exchange.upstream() else {
        return Err(Fault::unconnected(UpstreamError::Unresolved));
    };
    let clock = &exchange.forwarder.gateway.clock;
    let failed = &exchange.report.failed;
    // First tries to select without waiting. A second try is needed only before the names of the upstream were first looked
    // up.
    let select = || {
        let failed_at = |address: &EndpointAddress| failed.iter().any(|failed| failed.endpoint == *address);
        let turn = if failed.is_empty() { Turn::Next } else { Turn::Drawn };
        upstream.select(Choice { turn, key: exchange.balance_key }, failed_at, || clock.now())
    };
    let selected = match select() {
        Err(UpstreamError::Unresolved) => {
            Box::pin(upstream.first_lookups()).await;
            select()
        }
        selected => selected,
    };
    selected.map_err(Fault::unconnected)
}

/// Asks the upstream whether a request may be retried. The route may limit the number of retries. Counts a retry that the
/// budget does not allow.
fn may_retry(exchange: &Exchange<'_>, ask: impl FnOnce(&Upstream, Option<u32>) -> Retry) -> bool {
    let Some(UpstreamOfRoute { upstream, metrics, .. }) = exchange.upstream() else { return false };
    let retry = ask(upstream, exchange.overrides().and_then(|overrides| overrides.retries));
    if retry == Retry::OverBudget {
        metrics.retries_over_budget.increment(1);
    }
    retry == Retry::Yes
}

/// Records the status with which the endpoint of the last attempt has answered. The status codes 502 to 504 count as a failure
/// of the endpoint, all others as a success.
pub(super) fn answered(exchange: &Exchange<'_>, status: u16) {
    if matches!(status, 502..=504) {
        return note_failure(exchange, EndpointFailure::Status);
    }
    let (Some(UpstreamOfRoute { upstream, .. }), Some(attempt)) = (exchange.upstream(), &exchange.report.attempt)
    else {
        return;
    };
    if upstream.succeeded(&attempt.endpoint, || exchange.forwarder.gateway.clock.now()) {
        log::info!(upstream = upstream.name(), endpoint:% = attempt.endpoint.address; "endpoint is used again");
    }
}

fn note_failure(exchange: &Exchange<'_>, failure: EndpointFailure) {
    let gateway = &exchange.forwarder.gateway;
    let (Some(UpstreamOfRoute { upstream, metrics, .. }), Some(attempt)) =
        (exchange.upstream(), &exchange.report.attempt)
    else {
        return;
    };
    attempt.count_failure(failure);
    if upstream.failed(&attempt.endpoint, gateway.clock.now()) {
        let (name, address) = (upstream.name(), &attempt.endpoint.address);
        metrics.ejections.increment(1);
        log::warn!(upstream = name, endpoint:% = address, last = failure.name(); "endpoint ejected");
        gateway.events.note(EventKind::EndpointEjected, &format!("{address} of {name}"));
    }
}
