//! Writes responses to a client: heads with the fields that join them, and bodies. Gives up a client that reads nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

use super::downstream_stream::{DownstreamStream, End};
use crate::gateway::response::pending_fields::ResponseStart;
use crate::gateway::runtime::write_backpressure::StallEnd;

/// The most parts of a response that Pingora reads ahead while others are written: five, and one in another buffer.
const READ_AHEAD_PARTS: usize = 6;
/// The longest part that Pingora reads.
const LONGEST_PART: usize = 64 << 10;

impl DownstreamStream {
    /// Writes `bytes`. The head of a response gets the fields that join it, and is held until the next write or flush.
    pub(super) fn poll_write_part(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.head_done {
            // An interim response, which nothing but a head follows.
            ready!(self.poll_waiting_head(cx))?;
            let joined = self.handle.pending_fields().map_or(Ok(ResponseStart::Unchanged), |fields| fields.join(bytes));
            match joined {
                // Kept whole too: its rest would not be recognised as part of a head.
                Ok(ResponseStart::Interim) => self.head = Bytes::copy_from_slice(bytes),
                Ok(ResponseStart::Unchanged) => self.head_done = true,
                Ok(ResponseStart::Head(head)) => (self.head, self.head_done) = (head, true),
                Err(lost) => return Poll::Ready(Err(lost.into())),
            }
            if !self.head.is_empty() {
                self.upstream_timer.restart();
                return Poll::Ready(Ok(bytes.len()));
            }
        }
        while !self.head.is_empty() && !bytes.is_empty() {
            self.largest_part = self.largest_part.max(bytes.len());
            let parts = [io::IoSlice::new(&self.head), io::IoSlice::new(bytes)];
            let written = Pin::new(&mut self.inner).poll_write_vectored(cx, &parts);
            let written = ready!(self.poll_backpressure(written, cx));
            if let Some(count) = self.advance_head(written)?.filter(|count| *count > 0) {
                return Poll::Ready(Ok(count));
            }
        }
        self.largest_part = self.largest_part.max(bytes.len());
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.poll_backpressure(written, cx)
    }

    /// Whether the head of the response has not been written completely yet.
    pub(super) fn awaits_head(&self) -> bool {
        !self.head_done || !self.head.is_empty()
    }

    /// Writes the held head, if there is one.
    pub(super) fn poll_waiting_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.head.is_empty() {
            let written = Pin::new(&mut self.inner).poll_write(cx, &self.head);
            let written = ready!(self.poll_backpressure(written, cx));
            self.advance_head(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Removes the written bytes from the head. Returns `None` while a part of the head is left, then the number of bytes that
    /// were written after it.
    fn advance_head(&mut self, written: io::Result<usize>) -> io::Result<Option<usize>> {
        let count = match written {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            written => written,
        };
        // After a failure, what is written is not in it.
        let count = count.inspect_err(|_| self.head.clear())?;
        let beyond = count.checked_sub(self.head.len());
        self.head.advance(count.min(self.head.len()));
        Ok(beyond)
    }

    /// Returns the result of a write, or an error if the client has read nothing for its timeout.
    pub(super) fn poll_backpressure<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        let held = self.largest_part + READ_AHEAD_PARTS * self.largest_part.min(LONGEST_PART);
        self.poll_backpressure_of(written, held, cx)
    }

    /// As [`DownstreamStream::poll_backpressure`], for a response of which `held` bytes are in memory.
    pub(super) fn poll_backpressure_of<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        held: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_stall = None;
            self.upstream_timer.restart();
            return written;
        }
        if let Poll::Ready(expired) = self.poll_request_deadline(cx) {
            return Poll::Ready(Err(expired));
        }
        if self.end != Some(End::Cut)
            && let Poll::Ready(cut) = self.poll_cut(cx)
        {
            return Poll::Ready(Err(cut));
        }
        let stalled = (self.client_timeout, held);
        let end = ready!(self.write_backpressure.poll_stalled(&mut self.write_stall, stalled, cx));
        self.end = Some(End::Stalled);
        Poll::Ready(Err(match end {
            StallEnd::TimedOut => io::ErrorKind::TimedOut.into(),
            StallEnd::BuffersFull(full) => full.into(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use http::HeaderValue;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::gateway::response::response_fields::ResponseFields;
    use crate::gateway::runtime::write_backpressure::WriteBackpressure;
    use crate::gateway::server::connection_guard::{ConnectionSlot, CountGuard};
    use crate::gateway::server::connection_handle::ConnectionHandle;
    use base::time::{Clock, Timestamp};
    use request::scheme::Scheme;

    /// A stream with fields pending whose client reads little at a time.
    fn stream() -> (DuplexStream, DownstreamStream) {
        stream_to(3)
    }

    /// As [`stream`], with a client that reads at most `window` bytes at a time.
    fn stream_to(window: usize) -> (DuplexStream, DownstreamStream) {
        let (client, server) = tokio::io::duplex(window);
        let slot = ConnectionSlot::Rejected(CountGuard::new(&Arc::default(), 1).unwrap());
        let handle = ConnectionHandle::http1(0, Scheme::Http, None);
        let request_id = HeaderValue::from_static("a");
        let fields = ResponseFields { request_id: &request_id, problem: None, rate_limits: None, cors: None };
        handle.pending_fields().unwrap().put(fields.to_http1());
        let clock = Clock::manual(Timestamp(1_000_000));
        (client, DownstreamStream::new(Box::new(server), slot, WriteBackpressure::default(), handle, clock))
    }

    #[tokio::test]
    async fn a_head_that_is_written_in_parts_has_its_fields_whole_and_once() {
        let [early, head, body] =
            ["HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"];
        for vectored in [false, true] {
            let (mut client, mut stream) = stream();
            assert!(stream.is_write_vectored());
            tokio::spawn(async move {
                for mut bytes in [early, head, body].map(str::as_bytes) {
                    match vectored {
                        false => stream.write_all(bytes).await.unwrap(),
                        true => stream.write_all_buf(&mut bytes).await.unwrap(),
                    }
                }
            });
            let mut read = String::new();
            client.read_to_string(&mut read).await.unwrap();
            assert_eq!(read, format!("{early}HTTP/1.1 200 OK\r\nA: b\r\nX-Request-Id: a\r\n\r\n{body}"), "{vectored}");
        }
    }

    #[tokio::test]
    async fn a_head_is_written_with_what_follows_or_by_a_flush() {
        let expected = "HTTP/1.1 200 OK\r\nX-Request-Id: a\r\n\r\n";
        for body in ["", "body"] {
            let (mut client, mut stream) = stream_to(1 << 10);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut read = [0; 1 << 10];
            let early = tokio::time::timeout(Duration::from_millis(20), client.read(&mut read)).await;
            assert!(early.is_err(), "{early:?}");
            match body {
                "" => stream.flush().await.unwrap(),
                body => stream.write_all(body.as_bytes()).await.unwrap(),
            }
            let count = client.read(&mut read).await.unwrap();
            assert_eq!(std::str::from_utf8(&read[..count]).unwrap(), format!("{expected}{body}"));
        }
    }

    #[tokio::test]
    async fn a_response_that_would_lose_its_fields_is_an_error_and_not_sent() {
        let (mut client, mut stream) = stream();
        let error = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap_err();
        assert_eq!(error.to_string(), "response without a head for its fields");
        drop(stream);
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        assert!(read.is_empty(), "{read:?}");
    }
}
