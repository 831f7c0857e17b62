//! The HTTP/2 server: accepts the streams of a connection, checks the head of each, and passes each to the application
//! as a request.
//!
//! The h2 crate implements the protocol, over a stream that counts the frames ([`frame_counts`]). Each request runs in
//! a task of its own, because the loop in [`Http2Server::serve`] must poll the connection.

pub(crate) mod application;
pub(crate) mod client;
mod early_response;
mod flood_limit;
pub mod frame_counts;
mod frame_watch;
mod lingering_stream;
pub(crate) mod message_body;
pub(crate) mod preface;
pub(crate) mod received_body;
mod request_head;
pub(crate) mod streams;
pub(crate) mod trailer_counts;
mod upstream_wait;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use pingora::protocols::Stream;
use pingora::server::ShutdownWatch;

use super::connection_guard::ConnectionGuard;
use super::connection_handle::ConnectionHandle;
use super::connection_limits::ConnectionLimits;
use super::http1::BodyError;
use super::http1::early_response::HeadRejection;
use super::http1::poll_on_wake::PollOnWake;
use super::http1::request_head::Size;
use super::http1::reusable_timer::ReusableTimer;
use super::server_state::ServerState;
use super::tls::client_exclusion::ClientExclusion;
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use crate::gateway::telemetry::metrics::Http2Errors;
use application::{ClientStream, Http2Application, Http2Request};
use base::time;
use base::time::{Micros, Timestamp};
use config::Bounds;
use flood_limit::FloodLimit;
use frame_counts::FrameCounts;
use frame_watch::FrameWatch;
use received_body::{ReceivedBody, WaitingBody};
use streams::Streams;

/// How long a connection without open streams is kept after a GOAWAY, and how long a failed connection is kept.
const FAREWELL: Micros = Micros(2_000_000);

/// How long a client may still take for its preface when the process begins to shut down.
const LAST_PREFACE: Duration = Duration::from_millis(100);

const MOST_STREAMS: u32 = 100;
/// The largest size of a request's fields, in bytes as HTTP/2 counts them (RFC 9113, section 6.5.2).
const HEADER_LIST: u32 = 64 << 10;

/// The maximum number of bytes of a body that a client may send on a stream before they are read.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = MOST_STREAMS * STREAM_WINDOW;

/// The number of body parts that may arrive before unread parts are taken out of the h2 crate.
const PARTS_PER_SWEEP: u32 = 64;

/// The largest number of bytes of a response that wait in a stream until the client reads them.
pub(crate) const SEND_BUFFER: usize = 64 << 10;

/// The maximum number of streams that are reset because of a client's errors. Also the maximum number of streams that a
/// client may reset before they are accepted.
const MOST_ERRORS: usize = 200;

/// Serves HTTP/2 requests with the application `A`.
pub(crate) struct Http2Server<A> {
    pub app: Arc<A>,
    pub state: ServerState,
    pub limits: Arc<ConnectionLimits>,
    pub write_backpressure: WriteBackpressure,
    pub errors: Arc<Http2Errors>,
}

/// A stream that a client has opened: the request, and the handle for the response.
type OpenedStream = (Request<RecvStream>, SendResponse<Bytes>);

/// An event for the loop of a connection.
enum Event {
    /// The process shuts down, the application wants to close the connection, or the client is excluded.
    Leave,
    /// The client has sent more frames than [`flood_limit`] allows.
    Flood,
    Deadline,
    Closed,
    /// The client has violated the protocol.
    Broken,
}

impl<A: Http2Application> Http2Server<A> {
    /// Serves the streams of a connection, until it is closed. `prefix` are the bytes that have already been read from the
    /// connection.
    pub(crate) async fn serve(
        &self,
        stream: Stream,
        prefix: Bytes,
        guard: ConnectionGuard,
        handle: ConnectionHandle,
        shutdown: &ShutdownWatch,
    ) {
        let (stream, frames) = FrameWatch::new(stream, prefix);
        let Some(connection) = self.handshake(stream, shutdown).await else { return };
        let now = self.state.clock.now();
        let connection = Http2Connection {
            server: self,
            connection,
            flood_limit: FloodLimit::new(now),
            frames,
            accepted: 0,
            rejected: 0,
            bodies: Vec::new(),
            swept_at: 0,
            streams: Streams::new(guard, &self.state.clock, handle.clone()),
            exclusion: ClientExclusion::of(&handle, &self.state),
            handle,
            leave_woken: PollOnWake::default(),
            block: None,
            left_at: None,
            failed_at: None,
        };
        connection.serve(shutdown).await;
    }

    /// Waits for the preface of the client.
    async fn handshake(&self, stream: FrameWatch, shutdown: &ShutdownWatch) -> Option<Connection<FrameWatch, Bytes>> {
        let timeout = self.state.snapshot.load().config.bounds.header_timeout;
        let mut options = h2::server::Builder::new();
        options
            .max_concurrent_streams(MOST_STREAMS)
            .max_header_list_size(HEADER_LIST)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            // No budget is needed, because `take_out_bodies` takes unread parts out of the h2 crate.
            .data_frame_budget(usize::MAX)
            .max_local_error_reset_streams(Some(MOST_ERRORS))
            .max_pending_accept_reset_streams(MOST_ERRORS);
        let mut handshake = pin!(time::timeout(timeout.into(), options.handshake(stream)));
        let mut watch = shutdown.clone();
        let leave = async { drop(watch.wait_for(|leave| *leave).await) };
        let connection = tokio::select! {
            biased;
            connection = &mut handshake => connection,
            () = leave => time::timeout(LAST_PREFACE, handshake).await.ok()?,
        };
        connection.ok()?.ok()
    }
}

/// One connection, from its preface to its end.
struct Http2Connection<'s, A> {
    server: &'s Http2Server<A>,
    connection: Connection<FrameWatch, Bytes>,
    frames: Arc<FrameCounts>,
    flood_limit: FloodLimit,
    /// The number of accepted streams, modulo 2^32.
    accepted: u32,
    /// The number of streams that are already counted as rejected by the h2 crate.
    rejected: u32,
    /// The bodies of open streams, and of some streams that have ended.
    bodies: Vec<WaitingBody>,
    /// The number of body parts that had arrived at the last sweep.
    swept_at: u32,
    streams: Streams,
    handle: ConnectionHandle,
    /// Tells when to poll for the shutdown of the process.
    leave_woken: PollOnWake,
    exclusion: ClientExclusion,
    /// The number of the incomplete block of header fields, and the time at which it was first seen.
    block: Option<(u32, Timestamp)>,
    /// The time at which the GOAWAY was sent. After the GOAWAY, no more streams are accepted.
    left_at: Option<Timestamp>,
    /// The time at which the connection failed. Afterwards only the reason is sent.
    failed_at: Option<Timestamp>,
}

impl<A: Http2Application> Http2Connection<'_, A> {
    async fn serve(mut self, shutdown: &ShutdownWatch) {
        let mut watch = shutdown.clone();
        let mut leave = pin!(async { drop(watch.wait_for(|leave| *leave).await) });
        let mut timer = ReusableTimer::coarse();
        loop {
            let server = self.server;
            let errors = &server.errors;
            match poll_fn(|cx| self.poll(leave.as_mut(), &mut timer, cx)).await {
                Event::Leave => self.leave(),
                Event::Flood => {
                    errors.flood.increment(1);
                    self.fail(Reason::ENHANCE_YOUR_CALM);
                }
                Event::Deadline if self.failed_at.is_some() => break,
                Event::Deadline if self.block.is_some() => {
                    errors.header_timeout.increment(1);
                    self.fail(Reason::ENHANCE_YOUR_CALM);
                }
                Event::Deadline if self.left_at.is_some() => break,
                // The connection has been idle for the idle timeout.
                Event::Deadline => self.leave(),
                Event::Broken => {
                    errors.connection.increment(1);
                    break;
                }
                Event::Closed => break,
            }
        }
        self.count_rejected();
        self.streams.close();
    }

    /// Counts streams that were opened but not accepted, because the h2 crate has answered or reset them.
    fn count_rejected(&mut self) {
        let incomplete = u32::from(self.frames.open_block().is_some());
        let missing = self.frames.opened().wrapping_sub(self.accepted);
        // The difference is -1, a very large `u32`, if the incomplete block belongs to a stream that is already open.
        let rejected = missing.wrapping_sub(incomplete);
        if rejected > self.rejected && rejected < u32::MAX / 2 {
            self.server.errors.stream.increment(u64::from(rejected - self.rejected));
            self.rejected = rejected;
        }
    }

    /// Begins the streams that the client has opened, and waits for any other event.
    fn poll(
        &mut self,
        leave: Pin<&mut impl Future<Output = ()>>,
        timer: &mut ReusableTimer,
        cx: &mut Context<'_>,
    ) -> Poll<Event> {
        let (clock, mut now) = (&self.server.state.clock, None);
        loop {
            self.frames.begin_turn();
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok(accepted))) => {
                    self.accepted = self.accepted.wrapping_add(1);
                    self.handle.note_accepted(*now.get_or_insert_with(|| clock.now()));
                    self.begin(accepted);
                }
                // If this side has ended the connection, the error is expected and is not counted.
                Poll::Ready(Some(Err(error))) if error.is_library() && self.left_at.is_none() => {
                    return Poll::Ready(Event::Broken);
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Event::Closed),
                Poll::Pending => {
                    self.take_out_bodies();
                    break;
                }
            }
            self.take_out_bodies();
        }
        // If no stream is open, the h2 crate has handled all bytes that were read, so its rejections are known.
        if self.streams.open() == 0 {
            self.count_rejected();
        }
        if self.left_at.is_none()
            && (self.handle.is_to_be_closed()
                || self.leave_woken.poll(cx, |cx| leave.poll(cx)).is_ready()
                || self.exclusion.poll(cx).is_ready())
        {
            return Poll::Ready(Event::Leave);
        }
        let state = &self.server.state;
        if let Some(failed) = self.failed_at {
            // The flood limit is not checked again, because the connection has already failed.
            return timer.poll(failed.plus(FAREWELL), clock, cx).map(|()| Event::Deadline);
        }
        let now = now.unwrap_or_else(|| clock.now());
        if self.flood_limit.is_exceeded(&self.frames, now) {
            return Poll::Ready(Event::Flood);
        }
        if self.left_at.is_some() {
            self.streams.wake_at_end(cx.waker());
        }
        let deadline = self.deadline(&state.snapshot.load().config.bounds, now);
        timer.poll(deadline, clock, cx).map(|()| Event::Deadline)
    }

    /// Takes body parts out of the h2 crate when many have arrived.
    fn take_out_bodies(&mut self) {
        let parts = self.frames.data();
        if parts.wrapping_sub(self.swept_at) >= PARTS_PER_SWEEP {
            self.swept_at = parts;
            self.bodies.retain(WaitingBody::is_wanted);
            self.bodies.iter().for_each(WaitingBody::take_out);
        }
    }

    /// Makes the body of a stream. The connection keeps track of the body from then on.
    fn receive(&mut self, body: RecvStream) -> ReceivedBody {
        let body = ReceivedBody::new(body, Arc::clone(&self.frames));
        // Bodies of ended streams are removed before the list would grow.
        if self.bodies.len() == self.bodies.capacity() {
            self.bodies.retain(WaitingBody::is_wanted);
        }
        self.bodies.push(body.waiting());
        body
    }

    /// The moment at which the connection is checked again, if nothing happens on it.
    fn deadline(&mut self, bounds: &Bounds, now: Timestamp) -> Timestamp {
        let end = match (self.streams.open(), self.left_at) {
            (0, Some(left)) => self.streams.ended().max(left).plus(FAREWELL),
            (0, None) => self.streams.ended().plus(bounds.idle_timeout),
            // With open streams, this time moves with every poll, so it is never reached.
            _ => now.plus(bounds.idle_timeout),
        };
        self.block = self.frames.open_block().map(|number| match self.block {
            Some((known, since)) if known == number => (number, since),
            _ => (number, now),
        });
        self.block.map_or(end, |(_, since)| end.min(since.plus(bounds.header_timeout)))
    }

    /// Sends a GOAWAY: no more streams are accepted, and the connection ends after the open streams.
    fn leave(&mut self) {
        self.left_at = Some(self.server.state.clock.now());
        self.connection.graceful_shutdown();
    }

    /// Ends the connection with all of its streams.
    fn fail(&mut self, reason: Reason) {
        let now = self.server.state.clock.now();
        (self.left_at, self.failed_at) = (Some(now), Some(now));
        self.connection.abrupt_shutdown(reason);
    }

    fn begin(&mut self, (request, mut respond): OpenedStream) {
        // A stream that was reset as soon as it was opened gets no request.
        if respond.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        let state = &self.server.state;
        let snapshot = state.snapshot.load();
        let bounds = &snapshot.config.bounds;
        let (mut head, body) = request.into_parts();
        let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
        let most = bounds.body_bytes.unwrap_or(u64::MAX);
        let is_extra = |method: &[u8]| snapshot.config.has_extra_method(method);
        let (length, rejection) = match request_head::check(&mut head, &size, is_extra) {
            Ok(Some(length)) if length > most => (None, Some(HeadRejection::Body(BodyError::TooLong))),
            Ok(length) => (length, None),
            Err(error) => (None, Some(HeadRejection::Invalid(error))),
        };
        let (guard, counted) = self.streams.begin(bounds.streams_per_client());
        if rejection.is_some() || counted.is_err() {
            let at = early_response::Connection { state, handle: &self.handle };
            match (rejection, counted) {
                (Some(rejection), _) => early_response::reject_head(at, &mut respond, &head, rejection),
                (None, counted) => {
                    if let Err(limit) = counted {
                        self.server.limits.log_rejection(limit, &state.clock);
                    }
                    early_response::reject_stream(at, &mut respond, &head);
                }
            }
            if !body.is_end_stream() {
                let body = self.receive(body);
                lingering_stream::linger(body, Some(guard));
            }
            return;
        }
        let request = Http2Request {
            head,
            length,
            stream: ClientStream {
                body: (!body.is_end_stream()).then(|| self.receive(body)),
                respond,
                client_timeout: bounds.body_timeout.into(),
                body_bytes: most,
                guard,
            },
            handle: self.handle.clone(),
        };
        let app = Arc::clone(&self.server.app);
        // The runtime has one thread, so the stream stays on the thread of its connection.
        tokio::spawn(async move { app.serve(request).await });
    }
}
