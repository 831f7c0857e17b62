//! Reads the body of a request as data and trailers, and writes the response. Gives up a client that reads nothing.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut};
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::downstream_stream::{BodyTimeout, DownstreamStream, End, poll_deadline};
use super::lingering_close::reset_at_close;
use super::request_body::{BodyError, BodyFraming, Part, PartKind};
use crate::gateway::runtime::write_backpressure::StallEnd;
use crate::gateway::server::tls::EncryptedStream;
use base::time::Micros;

/// The maximum number of bytes of a chunked body that are read at once, before they are decoded.
const CHUNKED_READ: usize = 16 << 10;

/// The reason why a request cannot be read, or its response cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientFault {
    /// The client has closed the connection, or its own side of the connection.
    Gone,
    /// The client does not read its response.
    Stalled,
    /// The client does not read its response, and unread responses take too much memory.
    BuffersFull,
    Body(BodyError),
    /// The deadline of the request has passed.
    Expired,
    /// The process exits.
    Cut,
}

impl ClientFault {
    /// Describes the fault for the log. The text contains no bytes of the client.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            ClientFault::Gone => "client closed the connection",
            ClientFault::Stalled => "client does not read",
            ClientFault::BuffersFull => "client does not read, and too much is held",
            ClientFault::Body(error) => error.detail(),
            ClientFault::Expired => "request took too long",
            ClientFault::Cut => "the process exits",
        }
    }
}

/// The result of reading a part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRead {
    Data,
    /// The body is complete.
    End,
}

impl DownstreamStream {
    /// Whether the whole request has been read.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.framing, BodyFraming::Nothing)
    }

    /// Ends a request for a tunnel that is not granted. Returns `false` if no other request can follow on the
    /// connection.
    pub(crate) fn refuse_tunnel(&mut self) -> bool {
        if self.framing == BodyFraming::Tunnel {
            self.framing = BodyFraming::Nothing;
            return self.unparsed().is_empty();
        }
        true
    }

    /// Reads a part of the body. Appends at most `most` bytes of data to `data`, and the lines of trailers to `trailers`.
    ///
    /// # Errors
    /// If the client sends no more of the body, or the body is invalid.
    pub(crate) fn poll_body_part(
        &mut self,
        data: &mut Vec<u8>,
        most: usize,
        trailers: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BodyRead, ClientFault>> {
        loop {
            let before = data.len();
            while !self.unparsed().is_empty() && self.framing != BodyFraming::Nothing && data.len() - before < most {
                self.decode(data, most - (data.len() - before), trailers)?;
            }
            if data.len() > before {
                return Poll::Ready(Ok(BodyRead::Data));
            }
            if self.framing == BodyFraming::Nothing {
                return Poll::Ready(Ok(BodyRead::End));
            }
            // The next read must poll the socket, so that the socket wakes the task when bytes arrive.
            self.rearm();
            let read = match self.framing {
                BodyFraming::Chunked(_) => {
                    let mut unparsed = std::mem::take(self.unparsed());
                    unparsed.reserve(CHUNKED_READ);
                    let read = poll_read_some(&mut self.inner, &mut (&mut unparsed).limit(CHUNKED_READ), cx);
                    *self.unparsed() = unparsed;
                    read
                }
                framing => {
                    let readable = framing.readable(most);
                    data.reserve(readable.min(CHUNKED_READ));
                    let spare = (data.capacity() - data.len()).min(readable);
                    poll_read_some(&mut self.inner, &mut (&mut *data).limit(spare), cx)
                }
            };
            match read {
                Poll::Ready(Ok(read @ 1..)) => {
                    self.body_arrived();
                    if !matches!(self.framing, BodyFraming::Chunked(_)) {
                        // No byte beyond the request was read, because the read was limited to the body.
                        let all = data.get(data.len() - read..).unwrap_or_default();
                        if let Err(error) = self.framing.next_part(all) {
                            return Poll::Ready(Err(self.body_fault(error)));
                        }
                        return Poll::Ready(Ok(BodyRead::Data));
                    }
                }
                Poll::Ready(_) if self.framing == BodyFraming::Tunnel => {
                    self.end = Some(End::Closed);
                    return Poll::Ready(Ok(BodyRead::End));
                }
                Poll::Ready(_) => {
                    self.end = Some(End::Closed);
                    return Poll::Ready(Err(ClientFault::Gone));
                }
                Poll::Pending => {
                    ready!(self.poll_body_timeouts(cx));
                    return Poll::Ready(Err(self.fault()));
                }
            }
        }
    }

    /// Decodes one part of the unparsed bytes.
    fn decode(&mut self, data: &mut Vec<u8>, most: usize, trailers: &mut Vec<u8>) -> Result<(), ClientFault> {
        let mut unparsed = std::mem::take(self.unparsed());
        let bytes = unparsed.get(..most).unwrap_or(&unparsed);
        let decoded = self.framing.next_part(bytes);
        if let Ok(Part { kind, length }) = decoded {
            let part = bytes.get(..length).unwrap_or_default();
            match kind {
                PartKind::Data => data.extend_from_slice(part),
                PartKind::Trailers => trailers.extend_from_slice(part),
                PartKind::Framing => {}
            }
            unparsed.advance(length);
        }
        *self.unparsed() = unparsed;
        decoded.map(drop).map_err(|error| self.body_fault(error))
    }

    fn body_fault(&mut self, error: BodyError) -> ClientFault {
        self.end = Some(End::Invalid(error));
        ClientFault::Body(error)
    }

    /// Becomes ready when the client has sent nothing of its body for the body timeout, the deadline of the request has
    /// passed, or the process exits.
    fn poll_body_timeouts(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.framing == BodyFraming::Tunnel {
            return Poll::Pending;
        }
        if self.poll_ends(cx).is_ready() {
            return Poll::Ready(());
        }
        if self.body_timeout() != BodyTimeout::Enforced {
            return Poll::Pending;
        }
        let timeout = self.client_timeout;
        ready!(poll_deadline(self.body_deadline(), timeout, cx));
        self.end = Some(End::Invalid(BodyError::Stalled));
        Poll::Ready(())
    }

    /// Becomes ready when the client has closed the connection. Bytes that arrive before the close are kept.
    pub(crate) fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        // Once bytes have arrived, no more are read, so that a client cannot send far ahead.
        if self.unparsed().is_empty()
            && let Poll::Ready(Ok(0) | Err(_)) = self.poll_read_ahead(cx)
        {
            self.end = Some(End::Closed);
            return Poll::Ready(ClientFault::Gone);
        }
        Poll::Pending
    }

    /// Becomes ready when the client of a waiting request has left, or the process exits.
    pub(crate) fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if self.poll_cut(cx).is_ready() {
            return Poll::Ready(ClientFault::Cut);
        }
        if self.is_complete() { self.poll_client_gone(cx) } else { Poll::Pending }
    }

    /// Enforces the timeout of the body only from its first byte, because the client may wait for `100 Continue` before
    /// it sends the body.
    pub(crate) fn expect_body_later(&mut self) {
        self.set_body_timeout(BodyTimeout::AfterFirstByte);
    }

    /// Enforces the timeout of the body from now on. Called when the upstream has asked for the body.
    pub(crate) fn expect_body(&mut self) {
        self.set_body_timeout(BodyTimeout::Enforced);
    }

    /// Lifts the timeout of the body, because the request is being answered and its client may stop sending.
    pub(crate) fn expect_no_body(&mut self) {
        self.set_body_timeout(BodyTimeout::Lifted);
    }

    /// Reads no more of an invalid or late body, so that the response can still be written. The connection closes after the
    /// response.
    pub(crate) fn give_up_body(&mut self) {
        self.end = None;
    }

    /// Makes the connection close with a reset, so that the client does not take an incomplete response for a complete
    /// one.
    pub(crate) fn reset_at_close(&mut self) {
        if let Some(encrypted) = (*self.inner).as_any().downcast_ref::<EncryptedStream>() {
            encrypted.end_without_notice();
        }
        if let Err(error) = reset_at_close(&self.inner) {
            log::debug!(error:%; "connection is not reset");
        }
        self.end = Some(End::Reset);
    }

    /// Becomes ready when the deadline of the request has passed, or the process exits.
    pub(crate) fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if self.poll_request_deadline(cx).is_ready() {
            return Poll::Ready(ClientFault::Expired);
        }
        if self.poll_cut(cx).is_ready() {
            return Poll::Ready(ClientFault::Cut);
        }
        Poll::Pending
    }

    /// Writes a part of the response, and returns the number of written bytes. `held` is the number of bytes of the response
    /// that are in memory.
    ///
    /// # Errors
    /// If the client has left, reads nothing for its timeout, or is cut off because memory must be freed.
    pub(crate) fn poll_write_response(
        &mut self,
        bytes: &[u8],
        held: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, ClientFault>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        match ready!(self.poll_backpressure(written, held, cx))? {
            0 => Poll::Ready(Err(self.write_fault())),
            count => Poll::Ready(Ok(count)),
        }
    }

    /// Flushes the written bytes to the client.
    ///
    /// # Errors
    /// If the client has left or does not read.
    pub(crate) fn poll_flush_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.poll_backpressure(flushed, 0, cx)
    }

    /// Writes and flushes all of `bytes`, which belong to a response.
    ///
    /// # Errors
    /// If the client has left or does not read.
    pub(crate) async fn write_response(&mut self, bytes: &[u8]) -> Result<(), ClientFault> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            written += poll_fn(|cx| self.poll_write_response(rest, bytes.len(), cx)).await?;
        }
        poll_fn(|cx| self.poll_flush_response(cx)).await
    }

    /// Returns the result of a write, or the reason why the client is given up. `held` bytes of the response are in memory.
    fn poll_backpressure<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        held: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, ClientFault>> {
        if let Poll::Ready(written) = written {
            self.write_stall = None;
            self.timer.restart();
            return Poll::Ready(written.map_err(|_| self.write_fault()));
        }
        if let Poll::Ready(end) = self.poll_ends(cx) {
            return Poll::Ready(Err(end));
        }
        let stalled = (self.client_timeout, held);
        let end = ready!(self.write_backpressure.poll_stalled(&mut self.write_stall, stalled, cx));
        self.end = Some(End::Stalled);
        Poll::Ready(Err(match end {
            StallEnd::TimedOut => ClientFault::Stalled,
            StallEnd::BuffersFull => ClientFault::BuffersFull,
        }))
    }

    /// Returns the reason why a write failed. Notes that nothing more can be read either.
    fn write_fault(&mut self) -> ClientFault {
        self.end.get_or_insert(End::Closed);
        self.fault()
    }

    fn fault(&self) -> ClientFault {
        match self.end {
            Some(End::Invalid(error)) => ClientFault::Body(error),
            Some(End::Stalled) => ClientFault::Stalled,
            Some(End::Expired) => ClientFault::Expired,
            Some(End::Cut) => ClientFault::Cut,
            Some(End::Closed | End::Reset) | None => ClientFault::Gone,
        }
    }

    /// Becomes ready when the wait for the upstream has lasted for `timeout`, counted from
    /// [`DownstreamStream::restart_upstream_wait`].
    pub(crate) fn poll_upstream_wait(&mut self, timeout: Micros, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(timeout, cx)
    }

    /// Restarts the wait for the upstream, because the upstream has sent or accepted bytes.
    pub(crate) fn restart_upstream_wait(&mut self) {
        self.timer.restart();
    }

    pub(crate) fn set_client_timeout(&mut self, timeout: Duration) {
        self.client_timeout = timeout;
    }
}

/// Reads once from a stream into the free space of a buffer. Returns the number of bytes, which is 0 at the end of the stream.
///
/// # Errors
/// If the connection has failed.
pub(crate) fn poll_read_some(
    stream: &mut (impl AsyncReadExt + Unpin),
    buffer: &mut impl BufMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    pin!(stream.read_buf(buffer)).poll(cx)
}
