//! Stands between a connection and Pingora, and ends every request where its judged head says that it ends.
//!
//! What comes behind a request is kept for the next one, so no session ever sees a byte of another. Time is kept here as well:
//! a client that sends nothing more of its body, or takes nothing more of its answer, is given up.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::body_framing::{BodyError, BodyFraming};
use super::lingering_close::linger;
use super::timers::poll_on_wake::PollOnWake;
use super::timers::upstream_read_timer::{UpstreamReadTimeout, UpstreamTimedOut};
use crate::base::time::{Clock, Micros};
use crate::gateway::response::pending_fields::PendingFields;
use crate::gateway::runtime::stalled_writes::{StalledWrites, WriteStall};
use crate::gateway::server::connection_guard::ConnectionSlot;

/// How much of a next request is read while one is under way.
const AHEAD: usize = 2 << 10;

/// How long an answer may take to which no request was read.
const ANSWER: Duration = Duration::from_secs(2);

/// A client's connection, from its first byte to its last.
#[derive(Debug)]
pub struct DownstreamStream {
    pub(super) inner: Stream,
    /// Whether there may be something to read. Of a stream that reads only where it is asked to: with TLS it would have to
    /// be asked as well when a write has read, or a read has written.
    readable: PollOnWake,
    /// Until the connection is closed, wherever that is.
    held: Option<ConnectionSlot>,
    /// Has been read, and belongs to nobody yet.
    ahead: BytesMut,
    remainder: BodyFraming,
    end: Option<End>,
    /// How long a client may neither send nor take anything.
    patience: Duration,
    /// What joins the head of the answer.
    addendum: PendingFields,
    /// That head, as far as it has still to be written.
    head: Bytes,
    reading: Option<Pin<Box<Sleep>>>,
    untaken: StalledWrites,
    writing: Option<WriteStall>,
    /// The upstream's.
    silence: UpstreamReadTimeout,
}

/// Why nothing more is to be had from a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client sends no more.
    Closed,
    Violated(BodyError),
    /// It takes no more.
    Stuck,
    /// It has nothing to do with the client: the upstream says nothing.
    Silent,
}

impl DownstreamStream {
    pub fn new(stream: Stream, held: ConnectionSlot, untaken: StalledWrites, clock: Clock) -> DownstreamStream {
        DownstreamStream {
            inner: stream,
            readable: PollOnWake::default(),
            held: Some(held),
            ahead: BytesMut::new(),
            remainder: BodyFraming::Nothing,
            end: None,
            patience: ANSWER,
            addendum: PendingFields::new(),
            head: Bytes::new(),
            reading: None,
            untaken,
            writing: None,
            silence: UpstreamReadTimeout::new(clock),
        }
    }

    /// What has come and belongs to no request yet.
    pub fn ahead(&mut self) -> &mut BytesMut {
        &mut self.ahead
    }

    /// For whoever makes the answers on this connection.
    pub fn addendum(&self) -> PendingFields {
        self.addendum.clone()
    }

    /// Reads once, in a buffer that lives no longer than there is something in it: an idle connection holds none.
    pub fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::<u8>::uninit() }; 2 * AHEAD];
        let mut part = ReadBuf::uninit(&mut space);
        let stream = Pin::new(&mut self.inner);
        ready!(self.readable.poll(cx, |cx| stream.poll_read(cx, &mut part)))?;
        self.ahead.extend_from_slice(part.filled());
        Poll::Ready(Ok(part.filled().len()))
    }

    /// Begins a request: its first `head` bytes, which are taken out of what has come; the rest of it will be read.
    /// `silence` is how long an upstream may say nothing, where all of the request is there.
    pub fn begin(&mut self, head: usize, remainder: BodyFraming, patience: Duration, silence: Micros) -> BytesMut {
        self.remainder = remainder;
        self.patience = patience;
        self.silence.begin((remainder == BodyFraming::Nothing).then_some(silence));
        // What follows in a tunnel is Pingora's business already, as it is without us.
        let whole = self.ahead.len() == head || remainder == BodyFraming::Tunnel;
        // A buffer that is given away whole stays unshared, and is then frozen without a copy.
        if whole { std::mem::take(&mut self.ahead) } else { self.ahead.split_to(head) }
    }

    /// Says that what the client sends will not be read, whether or not it has begun to.
    pub fn interrupt(&mut self) {
        self.remainder = BodyFraming::Length(1);
    }

    /// Whether the next byte is the first of a next request.
    pub fn is_between_requests(&self) -> bool {
        self.end.is_none() && matches!(self.remainder, BodyFraming::Nothing | BodyFraming::Tunnel)
    }

    /// Whether the client is still sending what nobody will read.
    fn is_interrupted(&self) -> bool {
        match self.end {
            Some(End::Closed | End::Stuck) => false,
            Some(End::Violated(_)) => true,
            Some(End::Silent) | None => {
                !self.ahead.is_empty() || matches!(self.remainder, BodyFraming::Length(_) | BodyFraming::Chunked(_))
            }
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = self.remainder.room(buf.remaining());
        if !self.ahead.is_empty() {
            let given = self.ahead.get(..room).unwrap_or(&self.ahead);
            let taken = match self.remainder.follow(given) {
                Ok(taken) => taken,
                Err(violation) => return Poll::Ready(Err(self.violated(violation))),
            };
            buf.put_slice(given.get(..taken).unwrap_or(given));
            self.ahead.advance(taken);
            return Poll::Ready(Ok(()));
        }
        if room == 0 {
            return Poll::Ready(Ok(()));
        }
        // The task itself is called from here on.
        self.readable.ask_again();
        let before = buf.filled().len();
        let polled = if room == buf.remaining() {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        } else {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(room));
            let polled = Pin::new(&mut self.inner).poll_read(cx, &mut part);
            let read = part.filled().len();
            buf.advance(read);
            polled
        };
        match polled {
            Poll::Ready(Ok(())) => self.reading = None,
            Poll::Ready(Err(error)) => {
                self.end = Some(End::Closed);
                return Poll::Ready(Err(error));
            }
            Poll::Pending if self.remainder == BodyFraming::Tunnel => return Poll::Pending,
            Poll::Pending => {
                ready!(poll_deadline(&mut self.reading, self.patience, cx));
                return Poll::Ready(Err(self.violated(BodyError::Stalled)));
            }
        }
        let read = buf.filled().get(before..).unwrap_or_default();
        if read.is_empty() {
            self.end = Some(End::Closed);
        }
        let taken = match self.remainder.follow(read) {
            Ok(taken) => taken,
            Err(violation) => return Poll::Ready(Err(self.violated(violation))),
        };
        self.ahead.extend_from_slice(read.get(taken..).unwrap_or_default());
        buf.set_filled(before + taken);
        Poll::Ready(Ok(()))
    }

    /// Pingora watches here for a client that goes away, for as long as it waits for the upstream. What comes instead is kept.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Not read on: nothing bounds how far a client is ahead but this. Another wakes the session, the upstream.
        if self.ahead.is_empty()
            && let Poll::Ready(read) = self.poll_ahead(cx)
            && read? == 0
        {
            self.end = Some(End::Closed);
            return Poll::Ready(Ok(()));
        }
        let too_long = ready!(self.silence.poll(cx));
        self.end = Some(End::Silent);
        Poll::Ready(Err(too_long))
    }

    fn violated(&mut self, violation: BodyError) -> io::Error {
        self.end = Some(End::Violated(violation));
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }

    /// Writes the head that these bytes are, if something joins it. They count as written when all of it is: who has to wait
    /// asks again with the same.
    fn poll_head(&mut self, bytes: &[u8], cx: &mut Context<'_>) -> Option<Poll<io::Result<usize>>> {
        if self.head.is_empty() {
            self.head = self.addendum.join(bytes)?;
        }
        while !self.head.is_empty() {
            let written = Pin::new(&mut self.inner).poll_write(cx, &self.head);
            match self.poll_taken(written, cx) {
                Poll::Ready(Ok(count @ 1..)) => self.head.advance(count),
                Poll::Pending => return Some(Poll::Pending),
                failed => {
                    // Of what comes now nothing is in it.
                    self.head.clear();
                    return Some(failed);
                }
            }
        }
        Some(Poll::Ready(Ok(bytes.len())))
    }

    /// Gives up a client that takes nothing.
    fn poll_taken<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            self.silence.end();
            return written;
        }
        ready!(self.writing.get_or_insert_with(|| self.untaken.wait(self.patience)).poll_given_up(cx));
        self.end = Some(End::Stuck);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

fn poll_deadline(deadline: &mut Option<Pin<Box<Sleep>>>, patience: Duration, cx: &mut Context<'_>) -> Poll<()> {
    deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience))).as_mut().poll(cx)
}

impl Drop for DownstreamStream {
    /// Answered before all was read: closed at once, the client might never see the answer.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.is_interrupted() {
            // Something has to stand in its place; this is connected to nothing.
            let (nobody, _) = tokio::io::duplex(1);
            let stream = std::mem::replace(&mut self.inner, Box::new(nobody));
            let held = self.held.take();
            runtime.spawn(async move {
                linger(stream).await;
                drop(held);
            });
        }
    }
}

impl AsyncRead for DownstreamStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.end {
            Some(End::Violated(violation)) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation))),
            Some(End::Closed | End::Stuck) => Poll::Ready(Ok(())),
            Some(End::Silent) => Poll::Ready(Err(UpstreamTimedOut.into())),
            None if this.remainder == BodyFraming::Nothing => this.poll_gone(cx),
            None => this.poll_body(cx, buf),
        }
    }
}

impl AsyncWrite for DownstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(written) = this.poll_head(bytes, cx) {
            return written;
        }
        let written = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.poll_taken(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let first = parts.iter().find(|part| !part.is_empty());
        if let Some(written) = first.and_then(|first| this.poll_head(first, cx)) {
            return written;
        }
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, parts);
        this.poll_taken(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_flush(cx);
        this.poll_taken(written, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.poll_taken(written, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::base::time::Timestamp;
    use crate::gateway::response::pending_fields::RawFields;
    use crate::gateway::server::connection_guard::RejectionGuard;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_head_of_which_little_is_taken_at_a_time_has_its_lines_whole_and_once() {
        let [early, head, body] =
            ["HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"];
        for in_parts in [false, true] {
            let (mut client, server) = tokio::io::duplex(3);
            let held = ConnectionSlot::Rejected(RejectionGuard::new(&Arc::default(), 1).unwrap());
            let mut framed = DownstreamStream::new(
                Box::new(server),
                held,
                StalledWrites::default(),
                Clock::manual(Timestamp(1_000_000)),
            );
            assert!(framed.is_write_vectored());
            let mut lines = RawFields::default();
            lines.number("Retry-After", 1);
            framed.addendum().put(lines);
            tokio::spawn(async move {
                for mut bytes in [early, head, body].map(str::as_bytes) {
                    match in_parts {
                        false => framed.write_all(bytes).await.unwrap(),
                        true => framed.write_all_buf(&mut bytes).await.unwrap(),
                    }
                }
            });
            let mut seen = String::new();
            client.read_to_string(&mut seen).await.unwrap();
            assert_eq!(seen, format!("{early}HTTP/1.1 200 OK\r\nA: b\r\nRetry-After: 1\r\n\r\n{body}"), "{in_parts}");
        }
    }
}
