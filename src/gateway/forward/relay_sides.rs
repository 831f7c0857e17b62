//! Defines the two sides of a [relay](super::relay). Each side reads and writes parts of bodies.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;

use super::attempts::UpstreamAttempt;
use super::exchange::ForwardedRequest;
use super::fault::{Fault, UpstreamFault};
use super::forwarder::Forwarder;
use super::http1_response_head::ResponseHead;
use super::outgoing_request::OutgoingRequest;
use super::read_body::{BodyReader, ReadBody};
use super::response_head::FinalHead;
use crate::gateway::server::body_part::{BodyPart, HasBody};
use crate::gateway::server::http1::exchange_io::ClientFault;

/// The client's side of a relay: reads the body of the request and writes the response.
pub(super) trait ClientSide: Send {
    /// Reads the next part of the request's body. Must not be called after the end of the body.
    ///
    /// # Errors
    /// If the client sends no more of the body, or the body is invalid.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>>;

    /// Whether all of the request has been read.
    fn is_complete(&self) -> bool;

    /// Whether trailers have been read that [`ClientSide::poll_body`] has not returned yet. Such a request cannot be sent
    /// again.
    fn holds_trailers(&self) -> bool;

    /// Becomes ready when the deadline of the request has passed, or the process exits.
    fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Becomes ready when the client has left, as far as the gateway can notice this.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Becomes ready when the wait for the upstream has lasted for `timeout`, counted from
    /// [`ClientSide::restart_upstream_wait`].
    fn poll_upstream_wait(&mut self, timeout: Duration, cx: &mut Context<'_>) -> Poll<()>;

    /// Restarts the wait for the upstream, because the upstream has sent or accepted bytes.
    fn restart_upstream_wait(&mut self);

    /// Enforces the timeout of the body from now on, because the upstream has asked for the body.
    fn expect_body(&mut self);

    /// Lifts the timeout of the body, because the upstream has answered. The rest of the body is still read when it arrives.
    fn expect_no_body(&mut self);

    /// Reads no more of the body. The response continues.
    fn give_up_body(&mut self);

    /// Makes the client see that its response is incomplete. Called when the response has ended too early.
    fn cut_short(&mut self);

    /// Writes an interim response, if the client can read one.
    ///
    /// # Errors
    /// If the client has left.
    fn write_interim(&mut self, head: InterimHead<'_>, request: &ForwardedRequest<'_, '_>) -> Result<(), ClientFault>;

    /// Writes the head of the response. `body` says whether a body follows.
    ///
    /// # Errors
    /// If the client has left, or the head cannot be expressed in the client's protocol.
    fn write_head(
        &mut self,
        head: FinalHead<'_>,
        request: &ForwardedRequest<'_, '_>,
        body: HasBody,
    ) -> Result<(), Fault>;

    /// Writes a part of the response's body. Ready when all of the part has been sent, except for at most one buffer. `held` is
    /// the number of other bytes of the response that are in memory.
    ///
    /// # Errors
    /// If the client has left or does not read.
    fn poll_send(&mut self, part: &mut BodyPart, held: usize, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>>;

    /// Flushes the written bytes to the client.
    ///
    /// # Errors
    /// If the client has left or does not read.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>>;
}

/// The head of an interim response (1xx).
#[derive(Clone, Copy, Debug)]
pub(super) struct InterimHead<'h> {
    pub bytes: &'h [u8],
    pub status: u16,
    pub reason: &'h [u8],
}

/// The upstream's side of a relay: writes the request and reads the response.
pub(super) trait UpstreamSide: Send + Sized {
    /// The connection on which the request is sent, or the place of the request on a shared connection.
    type Connection;

    /// Begins the request, whose head is sent first.
    ///
    /// # Errors
    /// If the head cannot be expressed in the upstream's protocol, or the connection takes no more requests.
    fn begin(
        connection: Self::Connection,
        attempt: &UpstreamAttempt,
        outgoing: OutgoingRequest<'_>,
        request: &ForwardedRequest<'_, '_>,
    ) -> Result<Self, Fault>;

    /// Whether any byte of the request may have been sent.
    fn has_begun(&self) -> bool;

    /// Ends a request that has been sent completely, and its response. Offers the connection to other requests, if
    /// nothing of the response is left on it.
    fn release(self, attempt: &UpstreamAttempt, forwarder: &Forwarder);

    /// Writes a part of the request's body. Ready when all of the part has been sent, except for at most one buffer.
    ///
    /// # Errors
    /// If the upstream accepts no more bytes.
    fn poll_send(&mut self, part: &mut BodyPart, cx: &mut Context<'_>) -> Poll<Result<(), String>>;

    /// Flushes the written bytes to the upstream.
    ///
    /// # Errors
    /// If the upstream accepts no more bytes.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>>;

    /// Reads the next head of the response. Returns the parsed head and its bytes.
    ///
    /// # Errors
    /// If the upstream fails, or the head is invalid.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(ResponseHead, BytesMut), UpstreamFault>>;

    /// Whether the first bytes of the next head have arrived, but not the whole head.
    fn has_head_begun(&self) -> bool;

    /// Whether the response is already known to end with this final head.
    fn ends_with_head(&self, head: &ResponseHead) -> bool;

    /// Prepares to read the body of the response. `head` is the final head, and `body` says whether a body follows.
    fn expect_body(&mut self, head: &ResponseHead, body: HasBody);

    /// Reads the next part of the response's body. Must not be called after the end of the body.
    ///
    /// # Errors
    /// If the upstream fails.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, UpstreamFault>>;

    /// Reads the parts of the body that arrive while the client does not read, and holds them in memory. Flow control
    /// bounds these parts.
    fn poll_hold(&mut self, cx: &mut Context<'_>);

    /// Returns the number of bytes of the response that this side holds in memory.
    fn held(&self) -> usize;
}

/// Reads the whole body of a request into memory.
///
/// # Errors
/// If the client sends no more of the body, or the body is invalid or too long. Or if the bodies in memory are too large
/// together.
pub(super) async fn read_whole_body<C: ClientSide>(client: &mut C, mut reader: BodyReader) -> Result<ReadBody, Fault> {
    loop {
        let part = poll_fn(|cx| client.poll_body(cx)).await?;
        reader.add(&part)?;
        if let Some(trailers) = part.end {
            return reader.end(trailers);
        }
    }
}
