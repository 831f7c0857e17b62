//! Stands between a client connection and Pingora, and ends every request where its checked head says that it ends.
//!
//! Bytes that arrive after a request are kept for the next one, so no session ever sees a byte of another. The stream also
//! keeps time: a client that sends nothing more of its body, or reads nothing more of its response, is given up.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::lingering_close::linger;
use super::request_body::{Advance, BodyError, BodyFraming};
use super::timers::delegated_timer::DelegatedTimer;
use super::timers::poll_on_wake::PollOnWake;
use crate::gateway::runtime::write_backpressure::{WriteBackpressure, WriteStall};
use crate::gateway::server::connection_guard::ConnectionSlot;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::upstream::request_deadline::{RequestDeadline, UpstreamTimedOut};
use base::time::Clock;

/// How many bytes of a next request are read while one is being served.
const READ_AHEAD: usize = 2 << 10;

/// How long a client may take to read a response before any request was read.
const EARLY_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A client connection, from its first byte to its last.
#[derive(Debug)]
pub struct DownstreamStream {
    pub(super) inner: Stream,
    /// Whether there may be something to read. This relies on a stream that reads only when it is polled for reading, as
    /// sockets and our stream of TLS do.
    readable: PollOnWake,
    /// Held until the connection is closed, wherever that is.
    slot: Option<ConnectionSlot>,
    /// What has been read and belongs to no request yet.
    unparsed: BytesMut,
    /// What is left of the request's body.
    pub(super) framing: BodyFraming,
    pub(super) end: Option<End>,
    /// How long a client may neither send nor read anything.
    pub(super) client_timeout: Duration,
    pub(super) handle: ConnectionHandle,
    /// A response head that is not written yet. It goes out with what follows it, so that they are one record of TLS.
    pub(super) head: Bytes,
    /// Whether that was the last head of the response, after which only its body is written.
    pub(super) head_done: bool,
    /// When the client has to have sent more of the body.
    body_deadline: Option<Pin<Box<Sleep>>>,
    body_timeout: BodyTimeout,
    pub(super) write_backpressure: WriteBackpressure,
    pub(super) write_stall: Option<WriteStall>,
    /// The longest part of the response that was to be written.
    pub(super) largest_part: usize,
    pub(super) upstream_timer: DelegatedTimer,
}

/// Why nothing more can be read from or written to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client has closed it, or its side of it.
    Closed,
    /// The client has sent an invalid body.
    Invalid(BodyError),
    /// The client does not read its response.
    Stalled,
    /// The upstream has sent nothing for too long, or the request has taken longer than it may.
    UpstreamTimedOut,
    /// A request that the process does not wait for.
    Cut,
    /// The response has ended early, which only a reset can tell the client.
    Reset,
}

/// Whether the client has to send its body in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyTimeout {
    Enforced,
    /// The client may be waiting for `100 Continue`.
    AfterFirstByte,
    /// The request has been answered.
    Lifted,
}

impl DownstreamStream {
    pub fn new(
        stream: Stream,
        slot: ConnectionSlot,
        write_backpressure: WriteBackpressure,
        handle: ConnectionHandle,
        clock: Clock,
    ) -> DownstreamStream {
        DownstreamStream {
            inner: stream,
            readable: PollOnWake::default(),
            slot: Some(slot),
            unparsed: BytesMut::new(),
            framing: BodyFraming::Nothing,
            end: None,
            client_timeout: EARLY_RESPONSE_TIMEOUT,
            handle,
            head: Bytes::new(),
            head_done: false,
            body_deadline: None,
            body_timeout: BodyTimeout::Enforced,
            write_backpressure,
            write_stall: None,
            largest_part: 0,
            upstream_timer: DelegatedTimer::new(clock),
        }
    }

    /// What has been read and belongs to no request yet.
    pub fn unparsed(&mut self) -> &mut BytesMut {
        &mut self.unparsed
    }

    /// For the application that answers the requests.
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }

    /// Reads once more of what belongs to no request yet. The buffer is on the stack: an idle connection holds none.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::<u8>::uninit() }; 2 * READ_AHEAD];
        let mut part = ReadBuf::uninit(&mut space);
        let stream = Pin::new(&mut self.inner);
        ready!(self.readable.poll(cx, |cx| stream.poll_read(cx, &mut part)))?;
        self.unparsed.extend_from_slice(part.filled());
        Poll::Ready(Ok(part.filled().len()))
    }

    /// Begins a request: its first `head` bytes are taken out of what has been read and returned; `framing` says how much
    /// more belongs to it.
    pub fn begin(&mut self, head: usize, framing: BodyFraming, client_timeout: Duration) -> BytesMut {
        self.framing = framing;
        self.client_timeout = client_timeout;
        self.restart();
        // What follows the head of a tunnel is Pingora's already.
        let whole = self.unparsed.len() == head || framing == BodyFraming::Tunnel;
        // A buffer that is given away whole stays unshared, and is then frozen without a copy.
        if whole { std::mem::take(&mut self.unparsed) } else { self.unparsed.split_to(head) }
    }

    /// What was of the request before is of none.
    pub(super) fn restart(&mut self) {
        self.head_done = false;
        self.largest_part = 0;
        self.set_body_timeout(BodyTimeout::Enforced);
        self.upstream_timer.restart();
        if let Some(deadline) = self.handle.deadline() {
            deadline.clear();
        }
    }

    /// The next read reaches the socket: another waker has been registered with it.
    pub(super) fn rearm(&mut self) {
        self.readable.rearm();
    }

    /// A part of the body has arrived in time.
    pub(super) fn body_arrived(&mut self) {
        self.body_deadline = None;
        if self.body_timeout == BodyTimeout::AfterFirstByte {
            self.body_timeout = BodyTimeout::Enforced;
        }
    }

    pub(super) fn set_body_timeout(&mut self, body_timeout: BodyTimeout) {
        self.body_timeout = body_timeout;
        self.body_deadline = None;
    }

    pub(super) fn body_timeout(&self) -> BodyTimeout {
        self.body_timeout
    }

    pub(super) fn body_deadline(&mut self) -> &mut Option<Pin<Box<Sleep>>> {
        &mut self.body_deadline
    }

    /// Marks what the client sends as not to be read, whether or not it has begun to send.
    pub fn interrupt(&mut self) {
        self.framing = BodyFraming::Length(1);
    }

    /// Whether the next byte is the first of a next request.
    pub fn is_between_requests(&self) -> bool {
        self.end.is_none() && matches!(self.framing, BodyFraming::Nothing | BodyFraming::Tunnel)
    }

    /// Whether the client may still be sending what will not be read.
    fn is_interrupted(&self) -> bool {
        match self.end {
            Some(End::Closed | End::Stalled | End::Cut | End::Reset) => false,
            Some(End::Invalid(_)) => true,
            Some(End::UpstreamTimedOut) | None => {
                !self.unparsed.is_empty() || matches!(self.framing, BodyFraming::Length(_) | BodyFraming::Chunked(_))
            }
        }
    }

    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let Advance { forwarded, dropped } = ready!(self.poll_part_of_body(cx, buf))?;
            // To have read nothing would mean the end.
            if forwarded > 0 || dropped == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_part_of_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<Advance>> {
        let readable = self.framing.readable(buf.remaining());
        if !self.unparsed.is_empty() {
            let bytes = self.unparsed.get(..readable).unwrap_or(&self.unparsed);
            let advance = match self.framing.advance(bytes) {
                Ok(advance) => advance,
                Err(error) => return Poll::Ready(Err(self.end_invalid(error))),
            };
            buf.put_slice(bytes.get(..advance.forwarded).unwrap_or(bytes));
            self.unparsed.advance(advance.forwarded + advance.dropped);
            return Poll::Ready(Ok(advance));
        }
        if readable == 0 {
            return Poll::Ready(Ok(Advance { forwarded: 0, dropped: 0 }));
        }
        // From here on the stream wakes the task itself.
        self.readable.rearm();
        let before = buf.filled().len();
        let polled = if readable == buf.remaining() {
            Pin::new(&mut self.inner).poll_read(cx, buf)
        } else {
            let mut part = ReadBuf::new(buf.initialize_unfilled_to(readable));
            let polled = Pin::new(&mut self.inner).poll_read(cx, &mut part);
            let read = part.filled().len();
            buf.advance(read);
            polled
        };
        match polled {
            Poll::Ready(Ok(())) => self.body_deadline = None,
            Poll::Ready(Err(error)) => {
                self.end = Some(End::Closed);
                return Poll::Ready(Err(error));
            }
            Poll::Pending if self.framing == BodyFraming::Tunnel => {
                if let Poll::Ready(cut) = self.poll_cut(cx) {
                    return Poll::Ready(Err(cut));
                }
                return self.poll_request_deadline(cx).map(Err);
            }
            Poll::Pending => {
                if let Poll::Ready(expired) = self.poll_request_deadline(cx) {
                    return Poll::Ready(Err(expired));
                }
                ready!(poll_deadline(&mut self.body_deadline, self.client_timeout, cx));
                return Poll::Ready(Err(self.end_invalid(BodyError::Stalled)));
            }
        }
        let read = buf.filled().get(before..).unwrap_or_default();
        if read.is_empty() {
            self.end = Some(End::Closed);
        }
        let advance = match self.framing.advance(read) {
            Ok(advance) => advance,
            Err(error) => return Poll::Ready(Err(self.end_invalid(error))),
        };
        self.unparsed.extend_from_slice(read.get(advance.forwarded + advance.dropped..).unwrap_or_default());
        buf.set_filled(before + advance.forwarded);
        Poll::Ready(Ok(advance))
    }

    /// Ready once the client has closed the connection, or the request has taken longer than it may. Bytes that arrive are kept.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(closed) = self.poll_read_end(cx) {
            return Poll::Ready(closed);
        }
        self.poll_request_deadline(cx).map(Err)
    }

    /// Ready once the client has closed the connection. Bytes that arrive are kept.
    pub(super) fn poll_read_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing more is read once something is there: nothing else bounds how far a client sends ahead. What wakes the
        // session then is the upstream.
        if self.unparsed.is_empty()
            && let Poll::Ready(read) = self.poll_read_ahead(cx)
            && read? == 0
        {
            self.end = Some(End::Closed);
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Ready once the request has taken longer than it may, if that is bounded.
    pub(super) fn poll_request_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(deadline) = self.handle.deadline().and_then(RequestDeadline::get) else { return Poll::Pending };
        // Once it has passed, the response to that may be written.
        if self.end.is_some() {
            return Poll::Pending;
        }
        ready!(self.upstream_timer.poll_deadline(deadline, cx));
        self.end = Some(End::UpstreamTimedOut);
        Poll::Ready(UpstreamTimedOut.into())
    }

    /// Ready once the process waits for this tunnel no longer.
    pub(super) fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(connection_cut) = self.handle.connection_cut() else { return Poll::Pending };
        let cut = ready!(connection_cut.poll(cx));
        self.end = Some(End::Cut);
        Poll::Ready(cut)
    }

    fn end_invalid(&mut self, error: BodyError) -> io::Error {
        self.end = Some(End::Invalid(error));
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

pub(super) fn poll_deadline(
    deadline: &mut Option<Pin<Box<Sleep>>>,
    timeout: Duration,
    cx: &mut Context<'_>,
) -> Poll<()> {
    deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout))).as_mut().poll(cx)
}

impl Drop for DownstreamStream {
    /// If the response was sent before the whole request was read, closing at once might discard the response.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.is_interrupted() {
            // A placeholder, connected to nothing.
            let (placeholder, _) = tokio::io::duplex(1);
            let stream = std::mem::replace(&mut self.inner, Box::new(placeholder));
            let slot = self.slot.take();
            runtime.spawn(async move {
                linger(stream).await;
                drop(slot);
            });
        }
    }
}
