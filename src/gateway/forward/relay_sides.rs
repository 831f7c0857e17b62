//! Defines the two sides of a [relay](super::relay), each a reader and a writer of parts of bodies.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;

use super::exchange::Exchange;
use super::fault::{Fault, UpstreamFault};
use super::http1_response_head::ResponseHead;
use super::response_head::FinalHead;
use crate::gateway::server::body_part::BodyPart;
pub(crate) use crate::gateway::server::body_part::HasBody;
use crate::gateway::server::http1::exchange_io::ClientFault;

/// The client's side of a relay: reads the body of the request and writes the response.
pub(super) trait ClientSide: Send {
    /// The next part of the body. Not called after its end.
    ///
    /// # Errors
    /// If the client sends no more of it, or an invalid one.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>>;

    /// Whether all of the request has been read.
    fn is_complete(&self) -> bool;

    /// Whether a part of the trailers has been read, and not been returned yet.
    fn holds_trailers(&self) -> bool;

    /// Ready once the request has taken longer than it may, or the process waits for it no longer.
    fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Ready once the client has left, as far as that can be seen.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault>;

    /// Ready once the upstream has been waited for as long as `timeout`, since [`ClientSide::restart_upstream_wait`].
    fn poll_upstream_wait(&mut self, timeout: Duration, cx: &mut Context<'_>) -> Poll<()>;

    /// The upstream has sent something, or taken something.
    fn restart_upstream_wait(&mut self);

    /// The upstream has asked for the body.
    fn expect_body(&mut self);

    /// The upstream has answered: the body is read as far as it arrives, and not waited for.
    fn expect_no_body(&mut self);

    /// No more of the body is read.
    fn give_up_body(&mut self);

    /// The response will not be whole, which the client must be able to see.
    fn cut_short(&mut self);

    /// Writes an interim response, where the client can read one.
    ///
    /// # Errors
    /// If it has left.
    fn write_interim(&mut self, head: InterimHead<'_>, exchange: &Exchange<'_>) -> Result<(), ClientFault>;

    /// Writes the head of the response, which may have no body.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write_head(&mut self, head: FinalHead<'_>, exchange: &Exchange<'_>, body: HasBody) -> Result<(), Fault>;

    /// Writes a part of the body: ready when nothing of it is left, apart from one buffer. `held` bytes are held beside it.
    ///
    /// # Errors
    /// If the client has left or does not read.
    fn poll_send(&mut self, part: &mut BodyPart, held: usize, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>>;

    /// Sends what has been written.
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

/// The upstream's side of a relay: writes the request, whose head it already has, and reads the response.
pub(super) trait UpstreamSide: Send {
    /// Sends a part of the body: ready when nothing of it is left, apart from one buffer.
    ///
    /// # Errors
    /// If the upstream takes no more.
    fn poll_send(&mut self, part: &mut BodyPart, cx: &mut Context<'_>) -> Poll<Result<(), String>>;

    /// Sends what has been written.
    ///
    /// # Errors
    /// If the upstream takes no more.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>>;

    /// The next head of the response, with its bytes.
    ///
    /// # Errors
    /// If the upstream fails, or the head is invalid.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(ResponseHead, BytesMut), UpstreamFault>>;

    /// Whether this final head is known to be the end of the response.
    fn ends_with_head(&self, head: &ResponseHead) -> bool;

    /// The final head has arrived, and this follows.
    fn expect_body(&mut self, head: &ResponseHead, body: HasBody);

    /// The next part of the body. Not called after its end.
    ///
    /// # Errors
    /// If the upstream fails.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, UpstreamFault>>;

    /// Holds what arrives of the body while the client does not read, as far as flow control admits.
    fn poll_hold(&mut self, cx: &mut Context<'_>);

    /// The bytes of the response that are held.
    fn held(&self) -> usize;
}
