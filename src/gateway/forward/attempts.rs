//! Tries endpoints one after the other, and decides what happens when an endpoint fails: whether the endpoint is
//! ejected, and whether the request is sent to another endpoint.
//!
//! One decision and one charge cover all attempts. When a part of a request body has been sent, the request is not sent
//! again, unless the whole body is in memory.

use std::time::Duration;

use pingora::upstreams::peer::{ALPN, HttpPeer, Peer};

use super::connect_error::{describe, upstream_error};
use super::exchange::ForwardedRequest;
use super::fault::{Fault, Stage, UpstreamFault};
use super::forwarder::Forwarder;
use super::http2_pool::{Http2Stream, Place};
use super::read_body::ReadBody;
use super::repeatable::Repeatable;
use super::transfer::Timeouts;
use super::upstream_pool::UpstreamStream;
use crate::gateway::server::connection_guard::CountGuard;
use crate::gateway::server::request_client::Reuse;
use crate::gateway::state::destinations::UpstreamOfRoute;
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::labels::UpstreamError;
use crate::gateway::upstream::endpoint::Attempt;
use crate::gateway::upstream::{Choice, EndpointFailure, RetriedFailure, Retry, Turn, Upstream, Window};
use base::endpoint_address::EndpointAddress;
use base::time::{Micros, Timestamp};
use rules::route::retries::RetryCause;

/// The shortest timeout of an attempt. It applies even if the request's deadline is nearer.
const LEAST: Micros = Micros(1000);

/// The attempts to send one request to its upstream: the values that all attempts share, and the last attempt.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The current attempt, or the last one if the request has ended. `None` while the next endpoint is being selected.
    pub current: Option<Attempt>,
    pub failed: Vec<FailedAttempt>,
    /// The time by which the request must have ended. It is set before the first connection is made. `None` if the duration is
    /// not limited.
    pub deadline: Option<Timestamp>,
    /// The time at which the request got the connection on which it was sent. `None` if the request was not sent.
    pub sent: Option<Timestamp>,
    /// The status of a response that was not passed on, because the request is sent again. `None` once it has a connection for that.
    pub discarded: Option<u16>,
    /// The number of bytes that were read of the request's body.
    pub request_bytes: usize,
    /// The body of the request, if it was read before the decision. It is dropped when a response has begun, because no other
    /// attempt follows then.
    pub body: Option<Box<ReadBody>>,
    /// The guard that counts the connection to the upstream. `None` for a client of HTTP/1, whose connection is counted
    /// together with the connection to the upstream. Also `None` for a stream on a shared connection.
    counted_connection: Option<CountGuard>,
    /// Whether the request was repeated after an upstream had closed the connection or refused the request without processing
    /// it.
    repeated: bool,
    /// The last time at which a reused connection was closed without a response, or a request was refused. The next
    /// attempt needs a connection that was opened later.
    connection_failed: Option<Timestamp>,
}

/// An attempt that failed and was followed by another attempt.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    pub endpoint: EndpointAddress,
    pub failure: RetriedFailure,
    /// The time from the arrival of the request's head to the failure.
    pub failed_after: Micros,
}

/// The connection of an attempt: an HTTP/1.1 connection of its own, or a stream on a shared HTTP/2 connection.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    Http1(UpstreamStream),
    Http2(Http2Stream),
}

/// An attempt that has a connection to its endpoint, with the timeouts that apply to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpstreamAttempt {
    pub reuse: ConnectionUse,
    pub key: u64,
    pub scheme: config::Scheme,
    /// The time at which the attempt got its connection.
    pub since: Timestamp,
    pub idle_timeout: Micros,
    pub timeouts: Timeouts,
}

/// How an attempt has ended without a fault that ends the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptEnd {
    /// The response has been sent. The value says whether the client's connection is kept.
    Responded(Reuse),
    /// Another attempt follows.
    Retry,
}

/// Whether a connection had served another request before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionUse {
    First,
    Again,
}

impl ForwardedRequest<'_, '_> {
    /// Selects an endpoint and connects to it. If the connection fails, tries other endpoints, as far as the retries of the
    /// upstream allow.
    ///
    /// # Errors
    /// If no endpoint can be selected or connected to, or if the process has no file descriptor left for the
    /// connection.
    pub(super) async fn connect(&mut self) -> Result<(UpstreamConnection, UpstreamAttempt), Fault> {
        loop {
            let current = self.select().await?;
            let endpoint = std::sync::Arc::clone(&current.endpoint);
            self.attempts.current = Some(current);
            let forwarder = self.received.forwarder;
            let now = forwarder.gateway.clock.now();
            let timeouts = self.overrides().map(|overrides| overrides.timeouts).unwrap_or_default();
            let options = endpoint.options();
            let of = |timeout: Option<Duration>| timeout.map_or(Micros(u64::MAX / 2), Micros::from);
            let (mut read, mut write) = (
                timeouts.read.unwrap_or(of(options.read_timeout)),
                timeouts.write.unwrap_or(of(options.write_timeout)),
            );
            let mut connect = timeouts.connect.unwrap_or(of(options.total_connection_timeout));
            let mut first_byte = timeouts.first_byte.or(self.upstream.upstream.first_byte_timeout());
            if let Some(total) = self.total_timeout() {
                let deadline = *self.attempts.deadline.get_or_insert(now.plus(total));
                let left = deadline.since(now).max(LEAST);
                (read, write, connect) = (read.min(left), write.min(left), connect.min(left));
                first_byte = first_byte.map(|first_byte| first_byte.min(left));
            }
            let backpressure = self.received.connection.write_backpressure().unwrap_or(&forwarder.write_backpressure);
            let window = match backpressure.is_above_threshold() {
                true => Window::Narrow,
                false => Window::Whole,
            };
            let key = endpoint.pool_key(window);
            let attempt = |reuse, since| UpstreamAttempt {
                reuse,
                key,
                scheme: endpoint.scheme,
                since,
                idle_timeout: of(options.idle_timeout),
                timeouts: Timeouts { first_byte, read, write },
            };
            let speaks_http2 = options.alpn != ALPN::H1;
            let since = self.attempts.connection_failed.unwrap_or(Timestamp(0));
            if speaks_http2 && let Some(stream) = forwarder.http2_pool.take(key, since) {
                // The stream is on a shared connection, so the request has no connection to count.
                self.attempts.counted_connection = None;
                return Ok((UpstreamConnection::Http2(stream), attempt(ConnectionUse::Again, now)));
            }
            if self.attempts.connection_failed.is_none()
                && let Some(stream) = forwarder.pool.take(key, now)
            {
                self.count_connection()?;
                return Ok((UpstreamConnection::Http1(stream), attempt(ConnectionUse::Again, now)));
            }
            let mut peer = endpoint.peer(window);
            let connect = Duration::from(connect);
            peer.options.connection_timeout = Some(connect);
            peer.options.total_connection_timeout = Some(connect);
            // New connections are rare. Their future is on the heap, so that it does not enlarge the task of every request.
            let connection = match speaks_http2 {
                true => Box::pin(self.http2_connection(&peer, key, since)).await,
                false => Box::pin(self.new_connection(&peer, key)).await,
            };
            match connection {
                Ok(connection) => {
                    return Ok((connection, attempt(ConnectionUse::First, forwarder.gateway.clock.now())));
                }
                Err(Fault::Upstream(fault)) => {
                    if !self.fail(fault.error, Some(RetryCause::Connect)) {
                        return Err(fault.into());
                    }
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Handles the end of an attempt that had a connection and has failed. `upload` says whether the request can be sent again.
    ///
    /// # Errors
    /// Returns the fault unless another attempt follows.
    pub(super) fn fail_attempt(
        &mut self,
        fault: Fault,
        attempt: &UpstreamAttempt,
        upload: Repeatable,
    ) -> Result<AttemptEnd, Fault> {
        if let Fault::Upstream(fault) = &fault {
            if self.response.begun.is_some() {
                self.fail_while_answering(fault);
            } else if self.fail_before_response(fault, attempt, upload) {
                return Ok(AttemptEnd::Retry);
            }
        }
        Err(fault)
    }

    /// Handles a failure of the endpoint of the last attempt. `cause` is `None` if the request cannot be sent again. Returns
    /// whether the request is sent to another endpoint.
    fn fail(&mut self, error: UpstreamError, cause: Option<RetryCause>) -> bool {
        let expired = self.has_expired();
        // A retry that failed because the request's time was over does not count as a failure of its endpoint.
        if !expired || self.attempts.failed.is_empty() {
            self.note_failure(EndpointFailure::Error(error));
        }
        let retry = !expired && cause.is_some_and(|cause| self.may_try_another(cause));
        if retry {
            self.try_another(RetriedFailure::Error(error));
        }
        retry
    }

    /// Returns whether the request is sent to another endpoint, because the upstream has answered with this status. Then
    /// nothing of the response is passed on. Otherwise the response is the client's.
    pub(super) fn retry_after_status(&mut self, status: u16, upload: Repeatable) -> bool {
        let Some(cause) = RetryCause::of_status(status) else { return false };
        let is_repeatable = self.received.head.method.is_idempotent() && upload == Repeatable::Yes;
        // A body was sent, even if it is in memory and could be sent again.
        let is_repeatable = is_repeatable && self.attempts.body.is_none();
        let retry = is_repeatable && !self.has_expired() && self.has_other_endpoint() && self.may_try_another(cause);
        if retry {
            self.note_failure(EndpointFailure::Status);
            self.try_another(RetriedFailure::Status(status));
            self.attempts.discarded = Some(status);
        }
        retry
    }

    /// Whether an endpoint that has not failed is available. Without one the response is better than the next attempt.
    fn has_other_endpoint(&self) -> bool {
        let (attempts, clock) = (&self.attempts, &self.received.forwarder.gateway.clock);
        let current = attempts.current.as_ref().map(|attempt| &attempt.endpoint.address);
        let is_used = |address: &EndpointAddress| {
            current == Some(address) || attempts.failed.iter().any(|failed| failed.endpoint == *address)
        };
        self.upstream.upstream.has_available(|address| !is_used(address), || clock.now())
    }

    fn may_try_another(&self, cause: RetryCause) -> bool {
        let count = self.attempts.failed.len() + 1;
        let own = self.overrides().and_then(|overrides| overrides.retries.on);
        let causes = own.unwrap_or_else(|| self.upstream.upstream.retry_causes());
        causes.contains(cause) && self.may_retry(|upstream, max| upstream.retry(count, max))
    }

    /// Ends the attempt, which has failed, so that another endpoint is selected.
    fn try_another(&mut self, failure: RetriedFailure) {
        self.upstream.metrics.count_retry(failure);
        let failed_after = self.received.forwarder.gateway.clock.now().since(self.received.started);
        self.received.trace.next_attempt();
        let endpoint = self.attempts.current.take().map(|attempt| attempt.endpoint.address.clone());
        self.attempts.failed.extend(endpoint.map(|endpoint| FailedAttempt { endpoint, failure, failed_after }));
    }

    /// Handles the failure of an attempt that had a connection and whose response had not begun. Returns whether another
    /// attempt follows.
    ///
    /// The upstream may have closed a pooled connection just as a request was sent on it, or have refused the request
    /// without processing it. Such a request is sent once more if it is repeatable, the upstream has retries, and the
    /// retry budget is not used up. The second attempt may go to any endpoint, on a connection that was opened after
    /// the failure. The upstream may have seen the request twice. The failure is counted as an error of the upstream,
    /// but not as a failure of the endpoint. It needs no entry in `retries.on`. If a request fails a second time, or is not repeatable, the endpoint has
    /// failed, as after a failure on a new connection.
    fn fail_before_response(&mut self, fault: &UpstreamFault, attempt: &UpstreamAttempt, upload: Repeatable) -> bool {
        let forwarder = self.received.forwarder;
        // An upstream that has begun to answer may have processed the request. A refused request was not processed.
        let is_repeatable = (self.received.head.method.is_idempotent() || fault.stage == Stage::Refused)
            && upload == Repeatable::Yes
            && fault.stage != Stage::Answering
            && !matches!(fault.error, UpstreamError::InvalidAnswer | UpstreamError::TotalTimeout);
        let cause = if fault.stage == Stage::Connecting { RetryCause::Connect } else { RetryCause::Reset };
        let mut cause = is_repeatable.then_some(cause);
        let was_closed =
            fault.error == UpstreamError::Closed && fault.stage == Stage::Sent && attempt.reuse == ConnectionUse::Again;
        if was_closed {
            forwarder.pool.discard(attempt.key);
        }
        let is_unseen = was_closed || fault.stage == Stage::Refused;
        if is_unseen {
            self.attempts.connection_failed = Some(forwarder.gateway.clock.now());
        }
        let expired = self.has_expired();
        if is_unseen && !expired && is_repeatable && !self.attempts.repeated {
            if self.may_retry(Upstream::repeat) {
                self.attempts.repeated = true;
                // The attempt ends here. So the endpoint no longer counts it when the request is repeated.
                self.attempts.current = None;
                self.upstream.metrics.count_error(fault.error);
                self.upstream.metrics.count_retry(RetriedFailure::Error(fault.error));
                return true;
            }
            // The retry budget has already been asked, so it is not asked again.
            cause = None;
        }
        let error = if expired && fault.is_timeout() { UpstreamError::TotalTimeout } else { fault.error };
        self.fail(error, cause)
    }

    /// Handles the failure of a response that had begun. Counts the failure for the endpoint, unless the deadline of the
    /// request has cut off the response.
    fn fail_while_answering(&mut self, fault: &UpstreamFault) {
        if !(self.has_expired() && fault.is_timeout()) {
            self.fail(fault.error, None);
        }
    }

    fn has_expired(&self) -> bool {
        self.attempts.deadline.is_some_and(|deadline| deadline <= self.received.forwarder.gateway.clock.now())
    }

    /// Counts the connection to the upstream for a request over HTTP/2. The connection of a further attempt is not
    /// counted again.
    ///
    /// # Errors
    /// If no file descriptor is left for another connection.
    fn count_connection(&mut self) -> Result<(), Fault> {
        if self.attempts.counted_connection.is_none()
            && let Some(connections) = self.received.connection.upstream_connections()
        {
            let count = connections.count(&self.received.forwarder.gateway.clock);
            self.attempts.counted_connection = Some(count.ok_or(Fault::Own(503, "no file for a connection"))?);
        }
        Ok(())
    }

    async fn new_connection(&mut self, peer: &HttpPeer, key: u64) -> Result<UpstreamConnection, Fault> {
        self.count_connection()?;
        Ok(connect(self.received.forwarder, peer, key).await?)
    }

    /// Returns a stream on a shared connection to the endpoint. Waits for a connection that is being opened, or opens a
    /// connection.
    async fn http2_connection(
        &mut self,
        peer: &HttpPeer,
        key: u64,
        since: Timestamp,
    ) -> Result<UpstreamConnection, Fault> {
        let forwarder = self.received.forwarder;
        let pool = &forwarder.http2_pool;
        let timeout = peer.options.connection_timeout.unwrap_or(Duration::MAX);
        match pool.place(key, since, peer.options.max_h2_streams, timeout).await? {
            Place::Stream(stream) => {
                self.attempts.counted_connection = None;
                Ok(UpstreamConnection::Http2(stream))
            }
            Place::Http1 => self.new_connection(peer, key).await,
            Place::ToOpen(opening) => {
                self.count_connection()?;
                let connection = connect(forwarder, peer, key);
                let is_shared = |connection: &_| matches!(connection, UpstreamConnection::Http2(_));
                Ok(opening.finish(pool, connection, is_shared).await?)
            }
        }
    }

    /// Selects the endpoint of the next attempt.
    async fn select(&self) -> Result<Attempt, Fault> {
        let upstream = &self.upstream.upstream;
        let clock = &self.received.forwarder.gateway.clock;
        let failed = &self.attempts.failed;
        // First tries to select without waiting. A second try, after a wait, is needed only if the upstream's names have never
        // been looked up.
        let select = || {
            let failed_at = |address: &EndpointAddress| failed.iter().any(|failed| failed.endpoint == *address);
            let turn = if failed.is_empty() { Turn::Next } else { Turn::Drawn };
            upstream.select(Choice { turn, key: self.decided.balance_key }, failed_at, || clock.now())
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

    /// Asks the upstream whether the request may be retried. The route may limit the number of retries. Counts a retry that the
    /// budget does not allow.
    fn may_retry(&self, ask: impl FnOnce(&Upstream, Option<u32>) -> Retry) -> bool {
        let UpstreamOfRoute { upstream, metrics, .. } = self.upstream;
        let retry = ask(upstream, self.overrides().and_then(|overrides| overrides.retries.max));
        if retry == Retry::OverBudget {
            metrics.retries_over_budget.increment(1);
        }
        retry == Retry::Yes
    }

    /// Notes that the head of the upstream's response is passed on. `head` are its bytes, as they arrived. The status codes 502 to
    /// 504 count as a failure of the endpoint, all others as a success.
    pub(super) fn begin_response(&mut self, status: u16, head: &[u8]) {
        self.response.begin_upstream(status, head);
        self.attempts.body = None;
        if matches!(status, 502..=504) {
            return self.note_failure(EndpointFailure::Status);
        }
        let Some(attempt) = &self.attempts.current else { return };
        let upstream = &self.upstream.upstream;
        if upstream.succeeded(&attempt.endpoint, || self.received.forwarder.gateway.clock.now()) {
            log::info!(upstream = upstream.name(), endpoint:% = attempt.endpoint.address; "endpoint is used again");
        }
    }

    fn note_failure(&self, failure: EndpointFailure) {
        let gateway = &self.received.forwarder.gateway;
        let UpstreamOfRoute { upstream, metrics, .. } = self.upstream;
        let Some(attempt) = &self.attempts.current else { return };
        attempt.count_failure(failure);
        if upstream.failed(&attempt.endpoint, gateway.clock.now()) {
            let (name, address) = (upstream.name(), &attempt.endpoint.address);
            metrics.ejections.increment(1);
            log::warn!(upstream = name, endpoint:% = address, last = failure.name(); "endpoint ejected");
            gateway.events.note(EventKind::EndpointEjected, &format!("{address} of {name}"));
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
            // A TLS server without ALPN speaks HTTP/1.1. Without TLS, the settings alone determine the protocol.
            None => !peer.tls(),
        };
    if !speaks_http2 {
        return Ok(UpstreamConnection::Http1(stream));
    }
    let header_bytes = forwarder.gateway.snapshot.load().config.bounds.header_bytes;
    let stream = forwarder.http2_pool.open(key, stream, &peer.options, header_bytes).await?;
    Ok(UpstreamConnection::Http2(stream))
}
