//! Reads the body of a request as data and trailers, and writes its response, for an application that forwards bytes.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use pingora::protocols::SocketDigest;
use tokio::io::{AsyncReadExt, AsyncWrite};

use super::downstream_stream::{BodyTimeout, DownstreamStream, End, poll_deadline};
use super::lingering_close::reset_at_close;
use super::request_body::{BodyError, BodyFraming, Part, PartKind};
use crate::gateway::runtime::response_buffers::BuffersFull;
use crate::gateway::server::tls::EncryptedStream;
use base::time::{Micros, Timestamp};

/// How many bytes of a body in chunks are read at once, before they are decoded.
const CHUNKED_READ: usize = 16 << 10;

/// Why a request cannot be read, or its response not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFault {
    /// The client has closed the connection, or its side of it.
    Gone,
    /// It does not read its response.
    Stalled,
    /// The same, and unread responses take too much memory.
    BuffersFull,
    Body(BodyError),
    /// The request has taken longer than it may.
    Expired,
    /// The process exits.
    Cut,
}

/// What has been read of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyRead {
    Data,
    /// That was all of it.
    End,
}

impl DownstreamStream {
    /// As [`DownstreamStream::begin`], for an application that reads what follows the head itself.
    pub fn begin_exchange(&mut self, head: usize, framing: BodyFraming, client_timeout: Duration) -> BytesMut {
        self.framing = framing;
        self.client_timeout = client_timeout;
        self.restart();
        // A buffer that is given away whole stays unshared, and is then frozen without a copy.
        let unparsed = self.unparsed();
        if unparsed.len() == head { std::mem::take(unparsed) } else { unparsed.split_to(head) }
    }

    /// Whether all of the request has been read.
    pub fn is_complete(&self) -> bool {
        matches!(self.framing, BodyFraming::Nothing)
    }

    /// The request asked for a tunnel and gets none. Whether another request may follow: no byte has come that belonged to the tunnel.
    pub fn refuse_tunnel(&mut self) -> bool {
        if self.framing == BodyFraming::Tunnel {
            self.framing = BodyFraming::Nothing;
            return self.unparsed().is_empty();
        }
        true
    }

    /// Appends at most `most` bytes of the body to `data`, and what belongs to its trailers to `trailers`.
    ///
    /// # Errors
    /// If the client sends no more of it, or an invalid one.
    pub fn poll_body_part(
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
            // From here on the stream wakes the task itself.
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
                        // Never more than belongs to the request was read.
                        let all = data.get(data.len() - read..).unwrap_or_default();
                        if let Err(error) = self.framing.advance(all) {
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

    /// Decodes one part of what has been read.
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

    /// Ready once the client has sent nothing of its body for its timeout, the request has taken too long, or the process waits for
    /// it no longer.
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

    /// Ready once the client has closed the connection. Bytes that arrive are kept.
    pub fn poll_client_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.poll_read_end(cx).map(|_| ClientFault::Gone)
    }

    /// Ready once a request that waits has no client, or the process waits for it no longer.
    pub fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if self.end != Some(End::Cut) && self.poll_cut(cx).is_ready() {
            return Poll::Ready(ClientFault::Cut);
        }
        if self.is_complete() { self.poll_client_gone(cx) } else { Poll::Pending }
    }

    /// The client may wait for `100 Continue` before it sends its body.
    pub fn expect_body_later(&mut self) {
        self.set_body_timeout(BodyTimeout::AfterFirstByte);
    }

    /// From now on the client has to send its body in time.
    pub fn expect_body(&mut self) {
        self.set_body_timeout(BodyTimeout::Enforced);
    }

    /// The request is being answered: its client may send the rest, or may not.
    pub fn expect_no_body(&mut self) {
        self.set_body_timeout(BodyTimeout::Lifted);
    }

    /// Nothing more is read of the body, whatever was wrong with it. The connection closes after the response.
    pub fn give_up_body(&mut self) {
        self.end = None;
    }

    /// Closes the connection by a reset once it is dropped, without the end that TLS would announce: to a client that reads to the
    /// end of the connection, anything else would make a response whole.
    pub fn reset_at_close(&mut self) {
        if let Some(encrypted) = (*self.inner).as_any().downcast_ref::<EncryptedStream>() {
            encrypted.end_without_notice();
        }
        if let Err(error) = reset_at_close(&self.inner) {
            log::debug!(error:%; "connection is not reset");
        }
        self.end = Some(End::Reset);
    }

    /// Ready once the request has taken longer than it may, or the process waits for it no longer.
    pub fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if self.poll_request_deadline(cx).is_ready() {
            return Poll::Ready(ClientFault::Expired);
        }
        if self.end != Some(End::Cut) && self.poll_cut(cx).is_ready() {
            return Poll::Ready(ClientFault::Cut);
        }
        Poll::Pending
    }

    /// Writes a part of the response, for which so many bytes are held. The client is given up if it reads nothing for its timeout.
    ///
    /// # Errors
    /// If the client has gone or does not read.
    pub fn poll_write_response(
        &mut self,
        bytes: &[u8],
        held: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, ClientFault>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        match ready!(self.poll_backpressure_of(written, held, cx)) {
            Ok(count @ 1..) => Poll::Ready(Ok(count)),
            Ok(0) => Poll::Ready(Err(self.write_fault(None))),
            Err(error) => Poll::Ready(Err(self.write_fault(Some(&error)))),
        }
    }

    /// Sends what has been written.
    ///
    /// # Errors
    /// If the client has gone or does not read.
    pub fn poll_flush_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        match ready!(self.poll_backpressure_of(flushed, 0, cx)) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(self.write_fault(Some(&error)))),
        }
    }

    fn write_fault(&mut self, error: Option<&io::Error>) -> ClientFault {
        if error.and_then(io::Error::get_ref).is_some_and(|cause| cause.is::<BuffersFull>()) {
            return ClientFault::BuffersFull;
        }
        // Nothing can be written any more, so nothing is read either.
        self.end.get_or_insert(End::Closed);
        self.fault()
    }

    fn fault(&self) -> ClientFault {
        match self.end {
            Some(End::Invalid(error)) => ClientFault::Body(error),
            Some(End::Stalled) => ClientFault::Stalled,
            Some(End::UpstreamTimedOut) => ClientFault::Expired,
            Some(End::Cut) => ClientFault::Cut,
            Some(End::Closed | End::Reset) | None => ClientFault::Gone,
        }
    }

    /// Ready once the upstream has been waited for as long as `timeout`, since [`DownstreamStream::restart_upstream_wait`].
    pub fn poll_upstream_wait(&mut self, timeout: Micros, cx: &mut Context<'_>) -> Poll<()> {
        self.upstream_timer.poll(timeout, cx)
    }

    /// The upstream has sent something, or taken something.
    pub fn restart_upstream_wait(&mut self) {
        self.upstream_timer.restart();
    }

    /// When the request has to have ended.
    pub fn set_deadline(&mut self, deadline: Timestamp) {
        if let Some(enforced) = self.handle.deadline() {
            enforced.set(deadline);
        }
    }

    /// The socket of the connection.
    pub fn socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }

    pub fn set_client_timeout(&mut self, timeout: Duration) {
        self.client_timeout = timeout;
    }
}

/// Reads once from a stream into the space that a buffer has.
///
/// # Errors
/// If the connection is broken.
pub fn poll_read_some(
    stream: &mut (impl AsyncReadExt + Unpin),
    buffer: &mut impl BufMut,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    pin!(stream.read_buf(buffer)).poll(cx)
}
