//! Forwards an admitted request, one attempt after another, for every pair of protocols.

use std::pin::pin;

use http::header::TE;
use http::{HeaderValue, Method};

use super::attempts::{AttemptEnd, UpstreamAttempt, UpstreamConnection};
use super::exchange::ForwardedRequest;
use super::fault::Fault;
use super::http1_upstream::Http1Upstream;
use super::http2_upstream::Http2Upstream;
use super::outgoing_request::OutgoingRequest;
use super::read_body::{BodyReader, ReadBody};
use super::relay_sides::read_whole_body;
use super::relayed_exchange::relay;
use super::request_head::ReceivedHead;
use super::transfer::Timeouts;
use crate::gateway::server::http1::request_head::Size;
use crate::gateway::server::http2::client::Http2Client;
use crate::gateway::server::request_client::{RequestClient, Reuse, WaitEnd};
use base::time::{Micros, Timestamp};
use request::grpc_timeout::is_grpc;

/// The maximum number of interim responses (1xx) to one request. An honest upstream sends one or two.
pub(super) const MOST_INTERIM: u8 = 32;

/// The maximum number of fields of a response head. An upstream may set many cookies.
const MOST_FIELDS: usize = 256;

/// Whether the client got interim responses of an attempt before the final head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interim {
    None,
    Passed,
}

impl Interim {
    pub(super) fn before(count: u8) -> Interim {
        if count == 0 { Interim::None } else { Interim::Passed }
    }
}

/// The result of an exchange: whether the client's connection is kept, or the fault that ended the exchange.
pub(super) type ExchangeResult = Result<Reuse, Fault>;

/// A client whose request can be forwarded.
pub(super) trait ForwardingClient: RequestClient {
    /// Enforces the timeout of the body only from its first byte, because the client may wait for `100 Continue` before
    /// it sends the body.
    fn expect_body_later(&mut self);

    /// Sets the time by which the request must have ended.
    fn set_deadline(&mut self, deadline: Timestamp);

    /// Begins the wait for the upstream.
    fn restart_upstream_wait(&mut self);

    /// Reads the whole body of the request.
    ///
    /// # Errors
    /// If the client sends no more of the body, or the body is invalid or too long.
    fn read_request_body(&mut self, reader: BodyReader) -> impl Future<Output = Result<ReadBody, Fault>> + Send;

    /// Makes one attempt: sends the request on this connection, and the response to the client. After a fault the response may
    /// have begun. `request` then has the status code of the response.
    fn attempt(
        &mut self,
        connection: UpstreamConnection,
        attempt: UpstreamAttempt,
        outgoing: OutgoingRequest<'_>,
        request: &mut ForwardedRequest<'_, '_>,
    ) -> impl Future<Output = Result<AttemptEnd, Fault>> + Send;
}

/// Sends the request to the upstream, and the response to the client. `header_bytes` is the largest allowed head of the
/// response.
pub(super) async fn forward<C: ForwardingClient>(
    client: &mut C,
    mut request: ForwardedRequest<'_, '_>,
    head: ReceivedHead<'_>,
    header_bytes: usize,
) -> ExchangeResult {
    let outgoing = OutgoingRequest {
        head,
        size: Size { bytes: header_bytes, fields: MOST_FIELDS, target: 0 },
        // A body that has been read needs no limit, because its length was checked before.
        body_left: match &request.attempts.body {
            Some(_) => None,
            None => request.overrides().and_then(|overrides| overrides.body_bytes),
        },
        // When the body has been read, the client no longer waits for `100 Continue`.
        expects_continue: request.attempts.body.is_none()
            && request.received.head.headers.contains_key(http::header::EXPECT),
    };
    if outgoing.expects_continue {
        client.expect_body_later();
    }
    loop {
        let (connection, attempt) = client.until(WaitEnd::ClientLeaves, pin!(request.connect())).await??;
        request.attempts.discarded = None;
        if let Some(deadline) = request.attempts.deadline {
            client.set_deadline(deadline);
        }
        client.restart_upstream_wait();
        match client.attempt(connection, attempt, outgoing, &mut request).await? {
            AttemptEnd::Responded(reuse) => return Ok(reuse),
            AttemptEnd::Retry => {}
        }
    }
}

impl ForwardingClient for Http2Client {
    fn expect_body_later(&mut self) {
        Http2Client::expect_body_later(self);
    }

    fn set_deadline(&mut self, deadline: Timestamp) {
        Http2Client::set_deadline(self, deadline);
    }

    fn restart_upstream_wait(&mut self) {
        Http2Client::restart_upstream_wait(self);
    }

    async fn read_request_body(&mut self, reader: BodyReader) -> Result<ReadBody, Fault> {
        read_whole_body(self, reader).await
    }

    async fn attempt(
        &mut self,
        connection: UpstreamConnection,
        mut attempt: UpstreamAttempt,
        outgoing: OutgoingRequest<'_>,
        request: &mut ForwardedRequest<'_, '_>,
    ) -> Result<AttemptEnd, Fault> {
        // The futures are on the heap, so that requests that wait for their decision do not hold the memory for a
        // response.
        match connection {
            UpstreamConnection::Http1(stream) => {
                Box::pin(relay::<_, Http1Upstream>(self, stream, attempt, outgoing, request, Reuse::Kept)).await
            }
            UpstreamConnection::Http2(stream) => {
                if let Some(pause) = pause_of_grpc(request) {
                    attempt.timeouts = Timeouts { read: pause, write: pause, ..attempt.timeouts };
                    self.set_client_timeout(pause.into());
                }
                Box::pin(relay::<_, Http2Upstream>(self, stream, attempt, outgoing, request, Reuse::Kept)).await
            }
        }
    }
}

/// How long both sides of a gRPC stream may pause; `None` for other requests. A gRPC request has the content type of
/// gRPC, the method `POST`, and `TE: trailers`.
fn pause_of_grpc(request: &ForwardedRequest<'_, '_>) -> Option<Micros> {
    let head = &request.received.head;
    let accepts_trailers = |te: &HeaderValue| te.as_bytes().eq_ignore_ascii_case(b"trailers");
    let is_stream = is_grpc(head) && head.method == Method::POST && head.headers.get(TE).is_some_and(accepts_trailers);
    is_stream.then_some(request.upstream.stream_idle_timeout)
}
