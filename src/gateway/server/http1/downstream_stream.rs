//! Holds a client connection. A request ends where its checked head says.
//!
//! Bytes that arrive after a request are kept for the next request. The stream also enforces the client's timeouts.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch::Receiver;
use tokio::time::Sleep;

use super::lingering_close::linger;
use super::request_body::{BodyError, BodyFraming};
use super::timers::exchange_timer::ExchangeTimer;
use super::timers::poll_on_wake::PollOnWake;
use crate::gateway::runtime::write_backpressure::{WriteBackpressure, WriteStall};
use crate::gateway::server::connection_cut::ConnectionCut;
use crate::gateway::server::connection_guard::ConnectionSlot;
use crate::gateway::server::connection_handle::ConnectionHandle;
use base::time::{Clock, Timestamp};

/// The maximum number of bytes of the next request that are read while a request is served.
const READ_AHEAD: usize = 2 << 10;

/// How long a client may read nothing of an early response. An early response is sent before any request was read.
const EARLY_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The HTTP/1.x connection of a client.
#[derive(Debug)]
pub(crate) struct DownstreamStream {
    pub(super) inner: Stream,
    /// Whether the socket has woken the task since the last read, so that there may be something to read.
    readable: PollOnWake,
    /// Counts the connection until it is closed.
    slot: Option<ConnectionSlot>,
    /// The bytes that have been read and belong to no request yet.
    unparsed: BytesMut,
    /// The part of the request's body that has not been read yet.
    pub(super) framing: BodyFraming,
    pub(super) end: Option<End>,
    /// How long the gateway waits for a client that neither sends nor reads anything.
    pub(super) client_timeout: Duration,
    pub(super) handle: ConnectionHandle,
    /// The time by which the client must have sent more of the body.
    body_deadline: Option<Pin<Box<Sleep>>>,
    body_timeout: BodyTimeout,
    pub(super) write_backpressure: WriteBackpressure,
    pub(super) write_stall: Option<WriteStall>,
    pub(super) timer: ExchangeTimer,
    /// The time by which the request must have ended.
    deadline: Option<Timestamp>,
    cut: ConnectionCut,
}

/// The reason why nothing more can be read from or written to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client has closed the connection, or its own side of the connection.
    Closed,
    /// The client has sent an invalid body.
    Invalid(BodyError),
    /// The client does not read its response.
    Stalled,
    /// The deadline of the request has passed.
    Expired,
    /// The process exits.
    Cut,
    /// The response ended too early. The connection is reset, because only a reset shows this to the client.
    Reset,
}

/// Whether the timeout for the body of the request is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyTimeout {
    Enforced,
    /// The timeout begins with the first byte of the body, because the client may be waiting for `100 Continue`.
    AfterFirstByte,
    /// The timeout is not enforced, because the request has been answered.
    Lifted,
}

impl DownstreamStream {
    pub(crate) fn new(
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
            body_deadline: None,
            body_timeout: BodyTimeout::Enforced,
            write_backpressure,
            write_stall: None,
            timer: ExchangeTimer::new(clock),
            deadline: None,
            cut: ConnectionCut::default(),
        }
    }

    /// Returns the bytes that have been read and belong to no request yet.
    pub(crate) fn unparsed(&mut self) -> &mut BytesMut {
        &mut self.unparsed
    }

    /// Returns the handle of the connection, for the application.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }

    /// Reads once from the connection, and adds the bytes to the unparsed bytes. The buffer is on the stack, so an idle
    /// connection holds no buffer.
    ///
    /// # Errors
    /// If the connection fails.
    pub(crate) fn poll_read_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [const { MaybeUninit::<u8>::uninit() }; 2 * READ_AHEAD];
        let mut part = ReadBuf::uninit(&mut space);
        let stream = Pin::new(&mut self.inner);
        ready!(self.readable.poll(cx, |cx| stream.poll_read(cx, &mut part)))?;
        self.unparsed.extend_from_slice(part.filled());
        Poll::Ready(Ok(part.filled().len()))
    }

    /// Begins a request and returns its head: the first `head` unparsed bytes. `framing` says how long the body is.
    pub(crate) fn begin(&mut self, head: usize, framing: BodyFraming, client_timeout: Duration) -> BytesMut {
        self.framing = framing;
        self.client_timeout = client_timeout;
        self.set_body_timeout(BodyTimeout::Enforced);
        self.timer.restart();
        self.deadline = None;
        // Giving away the whole buffer avoids a copy later.
        if self.unparsed.len() == head { std::mem::take(&mut self.unparsed) } else { self.unparsed.split_to(head) }
    }

    /// Makes the requests of the connection end at once when the process exits. `receiver` subscribes to a channel that
    /// becomes true at the exit.
    pub(crate) fn cut_at_exit(&mut self, receiver: impl FnOnce() -> Receiver<bool>) {
        self.cut.begin(receiver);
    }

    /// Sets the time by which the request must have ended.
    pub(crate) fn set_deadline(&mut self, deadline: Timestamp) {
        self.deadline = Some(deadline);
    }

    pub(crate) fn clear_deadline(&mut self) {
        self.deadline = None;
    }

    /// Makes the next read poll the socket. Needed when other code has polled the socket with another waker.
    pub(super) fn rearm(&mut self) {
        self.readable.rearm();
    }

    /// Restarts the timeout of the body, because a part of the body has arrived.
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

    /// Marks the connection for a lingering close, because the client may still be sending.
    pub(crate) fn interrupt(&mut self) {
        self.framing = BodyFraming::Length(1);
    }

    /// Whether the next byte is the first of another request.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.end.is_none() && matches!(self.framing, BodyFraming::Nothing | BodyFraming::Tunnel)
    }

    /// Whether the client may still be sending bytes that will not be read.
    fn is_interrupted(&self) -> bool {
        match self.end {
            Some(End::Closed | End::Stalled | End::Cut | End::Reset) => false,
            Some(End::Invalid(_)) => true,
            Some(End::Expired) | None => {
                !self.unparsed.is_empty() || matches!(self.framing, BodyFraming::Length(_) | BodyFraming::Chunked(_))
            }
        }
    }

    /// Becomes ready at the deadline of the request, if the request has a deadline.
    pub(super) fn poll_request_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else { return Poll::Pending };
        // The deadline is reported only once, so that a response can still be written.
        if self.end.is_some() {
            return Poll::Pending;
        }
        ready!(self.timer.poll_deadline(deadline, cx));
        self.end = Some(End::Expired);
        Poll::Ready(())
    }

    /// Becomes ready when the process exits, which ends the request.
    pub(super) fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.end == Some(End::Cut) {
            return Poll::Pending;
        }
        ready!(self.cut.poll(cx));
        self.end = Some(End::Cut);
        Poll::Ready(())
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
    /// Reads on for a while if the client may still be sending, because closing at once might discard the response.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.is_interrupted() {
            // The stream is moved out, and an unconnected stream takes its place.
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
