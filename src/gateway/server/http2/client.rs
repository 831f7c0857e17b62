//! Holds a client that has sent an HTTP/2 request: reads the body, writes the response, and enforces the timeouts.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::DATE;
use http::{HeaderValue, Method, Response, StatusCode};
use pingora::protocols::http::date::get_cached_date;
use tokio::time::Sleep;

use super::SEND_BUFFER;
use super::application::ClientStream;
use super::lingering_stream::linger;
use super::message_body::{self, is_malformed, poll_part};
use super::received_body::ReceivedBody;
use super::streams::StreamGuard;
use super::upstream_wait::UpstreamWait;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::request_id;
use crate::gateway::runtime::write_backpressure::{StallEnd, WriteStall};
use crate::gateway::server::body_part::{BodyPart, HasBody};
use crate::gateway::server::connection_cut::ConnectionCut;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::request_client::{AnsweredRequest, RequestClient, Rest, Reuse, WrittenResponse};
use crate::gateway::state::lifecycle::Lifecycle;
use base::time::Timestamp;

/// A client of HTTP/2 that has sent a request on a stream and waits for the response.
pub(crate) struct Http2Client {
    /// The rest of the body; `None` once it has been read completely.
    body: Option<ReceivedBody>,
    /// The maximum number of bytes of the body that may still arrive.
    left: u64,
    body_timeout: BodyTimeout,
    body_deadline: Option<Pin<Box<Sleep>>>,
    /// How long the gateway waits for a client that neither sends nor reads anything.
    client_timeout: Duration,
    deadline: Deadline,
    upstream_wait: UpstreamWait,
    responder: Responder,
    write_stall: Option<WriteStall>,
    cut: ConnectionCut,
    guard: Option<StreamGuard>,
}

/// The state of the response.
enum Responder {
    Waiting(SendResponse<Bytes>),
    Streaming(SendStream<Bytes>),
    /// The response is complete, or the stream was reset.
    Done,
}

/// Whether the timeout of the body is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyTimeout {
    Enforced,
    /// The timeout begins with the first byte of the body, because the client may be waiting for `100 Continue`.
    AfterFirstByte,
    /// The timeout is not enforced, because the request has been answered.
    Lifted,
}

/// The time by which the request must have ended.
enum Deadline {
    None,
    Waiting(Pin<Box<Sleep>>),
    /// The deadline has passed. The response that reports this may still be written.
    Passed,
}

impl Http2Client {
    /// Makes the client of a request. The request ends at once when the process exits.
    pub(crate) fn new(request: ClientStream, lifecycle: &Lifecycle) -> Http2Client {
        let mut cut = ConnectionCut::default();
        cut.begin(|| lifecycle.tunnel());
        // The exit is delayed, so that the connection can still write the RST_STREAM frame.
        request.guard.delay_exit(|| lifecycle.tunnel());
        Http2Client {
            body: request.body,
            left: request.body_bytes,
            body_timeout: BodyTimeout::Enforced,
            body_deadline: None,
            client_timeout: request.client_timeout,
            deadline: Deadline::None,
            upstream_wait: UpstreamWait::default(),
            responder: Responder::Waiting(request.respond),
            write_stall: None,
            cut,
            guard: Some(request.guard),
        }
    }

    /// Whether all of the request has been read.
    pub(crate) fn is_complete(&self) -> bool {
        self.body.is_none()
    }

    /// Enforces the timeout of the body only from its first byte, because the client may be waiting for
    /// `100 Continue`.
    pub(crate) fn expect_body_later(&mut self) {
        self.body_timeout = BodyTimeout::AfterFirstByte;
    }

    /// Enforces the timeout of the body from now on. Called when the upstream has asked for the body.
    pub(crate) fn expect_body(&mut self) {
        self.body_timeout = BodyTimeout::Enforced;
    }

    /// Lifts the timeout of the body, because the request is being answered and its client may stop sending.
    pub(crate) fn expect_no_body(&mut self) {
        self.body_timeout = BodyTimeout::Lifted;
        self.body_deadline = None;
    }

    /// Sets the time by which the request must have ended. Does nothing if this time has been set before.
    pub(crate) fn set_deadline(&mut self, deadline: Timestamp) {
        if matches!(self.deadline, Deadline::None)
            && let Some(guard) = &self.guard
        {
            let left = Duration::from(deadline.since(guard.clock().now()));
            self.deadline = Deadline::Waiting(Box::pin(tokio::time::sleep(left)));
        }
    }

    /// Sets how long the gateway waits for a client that neither sends nor reads anything.
    pub(crate) fn set_client_timeout(&mut self, timeout: Duration) {
        self.client_timeout = timeout;
        self.body_deadline = None;
    }

    /// Reads the next part of the body. Must not be called after the end of the body.
    ///
    /// # Errors
    /// If the client sends no more of the body, or too much. Also if the deadline of the request passes or the process
    /// exits.
    pub(crate) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>> {
        let Some(body) = &self.body else { return Poll::Ready(Ok(BodyPart::end(Vec::new()))) };
        match poll_part(body, cx) {
            Poll::Ready(Ok(part)) => {
                self.body_deadline = None;
                if self.body_timeout == BodyTimeout::AfterFirstByte {
                    self.body_timeout = BodyTimeout::Enforced;
                }
                let left = self.left.checked_sub(u64::try_from(part.data.len()).unwrap_or(u64::MAX));
                self.left = left.ok_or(ClientFault::Body(BodyError::TooLong))?;
                if part.end.is_some() {
                    self.body = None;
                }
                Poll::Ready(Ok(part))
            }
            Poll::Ready(Err(error)) => {
                // For errors that the h2 crate finds, it has already reset the stream.
                if is_malformed(&error) {
                    self.reset_for(Reason::PROTOCOL_ERROR);
                }
                Poll::Ready(Err(ClientFault::Gone))
            }
            Poll::Pending => {
                if let Poll::Ready(fault) = self.poll_request_ends(cx) {
                    return Poll::Ready(Err(fault));
                }
                if self.body_timeout != BodyTimeout::Enforced {
                    return Poll::Pending;
                }
                let timeout = self.client_timeout;
                let deadline = self.body_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                ready!(deadline.as_mut().poll(cx));
                Poll::Ready(Err(ClientFault::Body(BodyError::Stalled)))
            }
        }
    }

    /// Becomes ready when the wait for the upstream has lasted for `timeout`, counted from
    /// [`Http2Client::restart_upstream_wait`].
    pub(crate) fn poll_upstream_wait(&mut self, timeout: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let Some(guard) = &self.guard else { return Poll::Pending };
        self.upstream_wait.poll(timeout.into(), guard, cx)
    }

    /// Restarts the wait for the upstream, because the upstream has sent or accepted bytes.
    pub(crate) fn restart_upstream_wait(&mut self) {
        self.upstream_wait.restart();
    }

    /// Becomes ready when the client has reset the stream.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        match &mut self.responder {
            Responder::Waiting(respond) => respond.poll_reset(cx).map(|_| ClientFault::Gone),
            Responder::Streaming(stream) => stream.poll_reset(cx).map(|_| ClientFault::Gone),
            Responder::Done => Poll::Pending,
        }
    }

    /// Writes an interim response. Does nothing if the response has been begun.
    ///
    /// # Errors
    /// If the client has left.
    pub(crate) fn write_interim(&mut self, head: Response<()>) -> Result<(), ClientFault> {
        let Responder::Waiting(respond) = &mut self.responder else { return Ok(()) };
        respond.send_informational(head).map_err(|_| ClientFault::Gone)
    }

    /// Begins the response by writing its head. `body` says whether a body follows.
    ///
    /// # Errors
    /// If the client has left.
    pub(crate) fn write_head(&mut self, head: Response<()>, body: HasBody) -> Result<(), ClientFault> {
        let Responder::Waiting(respond) = &mut self.responder else { return Ok(()) };
        let stream = respond.send_response(head, body == HasBody::No).map_err(|_| ClientFault::Gone)?;
        self.responder = match body {
            HasBody::No => Responder::Done,
            HasBody::Yes => Responder::Streaming(stream),
        };
        Ok(())
    }

    /// Writes a part of the response's body. Ready when all of the part has been sent, except for at most one buffer. `held` is
    /// the number of other bytes of the response that are in memory.
    ///
    /// # Errors
    /// If the client has left or does not read.
    pub(crate) fn poll_send(
        &mut self,
        part: &mut BodyPart,
        held: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ClientFault>> {
        let Responder::Streaming(stream) = &mut self.responder else { return Poll::Ready(Ok(())) };
        let (ends, before) = (part.end.is_some(), part.data.len());
        let sent = message_body::poll_send(stream, part, cx);
        if part.data.len() < before || sent.is_ready() {
            self.write_stall = None;
        }
        match sent {
            Poll::Ready(Ok(())) => {
                if ends {
                    self.responder = Responder::Done;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(ClientFault::Gone)),
            Poll::Pending => self.poll_stalled(part.data.len() + held, cx).map(Err),
        }
    }

    /// Becomes ready when the client has read nothing for its timeout, or when too many bytes are held for clients.
    fn poll_stalled(&mut self, held: usize, cx: &mut Context<'_>) -> Poll<ClientFault> {
        let backpressure = self.guard.as_ref().and_then(|guard| guard.handle().write_backpressure());
        let Some(backpressure) = backpressure else { return Poll::Pending };
        let stalled = (self.client_timeout, SEND_BUFFER + held);
        Poll::Ready(match ready!(backpressure.poll_stalled(&mut self.write_stall, stalled, cx)) {
            StallEnd::TimedOut => ClientFault::Stalled,
            StallEnd::BuffersFull => ClientFault::BuffersFull,
        })
    }

    /// Resets the stream, so that the client does not take the response for a complete one.
    pub(crate) fn reset(&mut self) {
        self.reset_for(Reason::INTERNAL_ERROR);
    }

    fn reset_for(&mut self, reason: Reason) {
        match &mut self.responder {
            Responder::Waiting(respond) => respond.send_reset(reason),
            Responder::Streaming(stream) => stream.send_reset(reason),
            Responder::Done => {}
        }
        self.responder = Responder::Done;
    }

    async fn send_own(&mut self, head: Response<()>, body: Bytes, trailers: Vec<u8>) -> Result<(), ClientFault> {
        let has_body = if body.is_empty() && trailers.is_empty() { HasBody::No } else { HasBody::Yes };
        self.write_head(head, has_body)?;
        let mut part = BodyPart { data: body, end: Some(trailers) };
        poll_fn(|cx| match self.poll_send(&mut part, 0, cx) {
            Poll::Pending => self.cut.poll(cx).map(|()| Err(ClientFault::Cut)),
            sent => sent,
        })
        .await
    }
}

/// Makes the head of a response that the gateway itself gives.
pub(crate) fn own_head(response: &OwnResponse, request_id: &HeaderValue) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut fields = response.fields.to_map();
    for name in ["connection", "transfer-encoding", "keep-alive"] {
        fields.remove(name);
    }
    fields.insert(DATE, get_cached_date());
    // The request id is not put into the HPACK table, because no other response has this id.
    if let Some(id) = fields.get_mut(request_id::NAME) {
        id.clone_from(request_id);
    }
    *head.headers_mut() = fields;
    head
}

impl RequestClient for Http2Client {
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if let Deadline::Waiting(sleep) = &mut self.deadline
            && sleep.as_mut().poll(cx).is_ready()
        {
            self.deadline = Deadline::Passed;
            return Poll::Ready(ClientFault::Expired);
        }
        self.cut.poll(cx).map(|()| ClientFault::Cut)
    }

    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if self.cut.poll(cx).is_ready() {
            return Poll::Ready(ClientFault::Cut);
        }
        self.poll_reset(cx)
    }

    /// In HTTP/2, it costs no system call to find out whether the client has left.
    fn asks_before_wait(&self) -> bool {
        true
    }

    fn note_wait(&mut self) {}

    async fn write_continue(&mut self) -> Result<(), ClientFault> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CONTINUE;
        self.write_interim(response)
    }

    /// Writes a response of the gateway. In HTTP/2, the rest of the request is always discarded afterwards.
    async fn write_own(&mut self, request: AnsweredRequest<'_>, response: OwnResponse, _: Rest) -> WrittenResponse {
        if let (Reuse::Closed, Some(guard)) = (request.reuse, &self.guard) {
            guard.handle().close_when_done();
        }
        let head = own_head(&response, request.request_id);
        let body = if request.head.method == Method::HEAD { Bytes::new() } else { response.body };
        let body_bytes = body.len();
        let sent = self.send_own(head, body, response.trailers.as_bytes().to_vec()).await;
        if let Err(fault) = sent {
            log::debug!(error = fault.detail(); "response not written");
            self.reset();
        }
        WrittenResponse { body_bytes, reuse: Reuse::Kept, fault: sent.err() }
    }

    /// The rest of the request is discarded when the client is dropped.
    async fn read_rest(&mut self) -> Reuse {
        Reuse::Kept
    }
}

impl Drop for Http2Client {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            self.upstream_wait.end(guard);
        }
        if !matches!(self.responder, Responder::Done) {
            return self.reset();
        }
        // Lingers also for a client that waits for 100 Continue, so that the client sees the response.
        if let Some(body) = self.body.take() {
            linger(body, self.guard.take());
        }
    }
}

impl std::fmt::Debug for Http2Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http2Client").field("body", &self.body).field("left", &self.left).finish_non_exhaustive()
    }
}
