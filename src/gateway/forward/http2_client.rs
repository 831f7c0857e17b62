//! The client's side of an exchange over HTTP/2: one stream of its connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{Method, Response, response};
use pingora::protocols::http::date::get_cached_date;
use tokio::time::Sleep;

use super::body_part::BodyPart;
use super::exchange::Exchange;
use super::fault::Fault;
use super::http2_body::{self, poll_part};
use super::http2_heads;
use super::own_response::{OwnResponse, Rest};
use super::relay_sides::{ClientSide, HasBody, InterimHead};
use super::request_client::RequestClient;
use super::request_head::Wire;
use super::response_head::{self, FinalHead, Reuse};
use crate::gateway::runtime::write_backpressure::{StallEnd, WriteStall};
use crate::gateway::server::connection_cut::ConnectionCut;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::http1::exchange_io::ClientFault;
use crate::gateway::server::http2::SEND_BUFFER;
use crate::gateway::server::http2::application::ClientStream;
use crate::gateway::server::http2::lingering_stream::linger;
use crate::gateway::server::http2::received_body::ReceivedBody;
use crate::gateway::server::http2::streams::StreamGuard;
use crate::gateway::server::http2::upstream_wait::UpstreamWait;
use crate::gateway::state::lifecycle::Lifecycle;
use base::time::Timestamp;

/// A client that has sent a request on a stream.
pub struct Http2Client {
    /// The rest of the body; `None` when all of it has been read.
    body: Option<ReceivedBody>,
    /// How much of it may still come.
    left: u64,
    body_timeout: BodyTimeout,
    body_deadline: Option<Pin<Box<Sleep>>>,
    /// How long the client may neither send nor read anything.
    client_timeout: Duration,
    deadline: Deadline,
    upstream_wait: UpstreamWait,
    responder: Responder,
    write_stall: Option<WriteStall>,
    cut: Cut,
    guard: Option<StreamGuard>,
}

/// How far the response has been written.
enum Responder {
    Waiting(SendResponse<Bytes>),
    Streaming(SendStream<Bytes>),
    /// It is complete, or the stream was reset.
    Done,
}

/// When the client has to send more of its body in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyTimeout {
    Enforced,
    /// It may be waiting for `100 Continue`.
    AfterFirstByte,
    /// The request has been answered.
    Lifted,
}

/// When the request has to have ended.
enum Deadline {
    None,
    Waiting(Pin<Box<Sleep>>),
    /// It has passed: the response about that may be written.
    Passed,
}

/// The cut of the request when the process exits.
enum Cut {
    Waiting(ConnectionCut),
    /// The process waits for the request no longer.
    Made,
}

impl Http2Client {
    pub fn new(request: ClientStream, lifecycle: &Lifecycle) -> Http2Client {
        let cut = ConnectionCut::default();
        cut.begin(|| lifecycle.tunnel());
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
            cut: Cut::Waiting(cut),
            guard: Some(request.guard),
        }
    }

    /// The client may wait for `100 Continue` before it sends its body.
    pub fn expect_body_later(&mut self) {
        self.body_timeout = BodyTimeout::AfterFirstByte;
    }

    /// Sets when the request has to have ended.
    pub fn set_deadline(&mut self, deadline: Timestamp) {
        if matches!(self.deadline, Deadline::None)
            && let Some(guard) = &self.guard
        {
            let left = Duration::from(deadline.since(guard.clock().now()));
            self.deadline = Deadline::Waiting(Box::pin(tokio::time::sleep(left)));
        }
    }

    /// How long the client may neither send nor read anything, from now on.
    pub fn set_client_timeout(&mut self, timeout: Duration) {
        self.client_timeout = timeout;
        self.body_deadline = None;
    }

    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        let Cut::Waiting(cut) = &self.cut else { return Poll::Pending };
        ready!(cut.poll(cx));
        self.cut = Cut::Made;
        Poll::Ready(ClientFault::Cut)
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        match &mut self.responder {
            Responder::Waiting(respond) => respond.poll_reset(cx).map(|_| ClientFault::Gone),
            Responder::Streaming(stream) => stream.poll_reset(cx).map(|_| ClientFault::Gone),
            Responder::Done => Poll::Pending,
        }
    }

    fn begin(&mut self, head: Response<()>, body: HasBody) -> Result<(), h2::Error> {
        let Responder::Waiting(respond) = &mut self.responder else { return Ok(()) };
        let ends = body == HasBody::No || head.headers().get(CONTENT_LENGTH).is_some_and(|length| length == "0");
        let stream = respond.send_response(head, ends)?;
        self.responder = if ends { Responder::Done } else { Responder::Streaming(stream) };
        Ok(())
    }

    /// Resets the stream, which a client distinguishes from the end of a response.
    fn reset(&mut self) {
        match &mut self.responder {
            Responder::Waiting(respond) => respond.send_reset(Reason::INTERNAL_ERROR),
            Responder::Streaming(stream) => stream.send_reset(Reason::INTERNAL_ERROR),
            Responder::Done => {}
        }
        self.responder = Responder::Done;
    }

    /// Ready once the client has read nothing for its timeout, or too much is held for clients.
    fn poll_stalled(&mut self, held: usize, cx: &mut Context<'_>) -> Poll<ClientFault> {
        let backpressure = self.guard.as_ref().and_then(|guard| guard.handle().write_backpressure());
        let Some(backpressure) = backpressure else { return Poll::Pending };
        let stalled = (self.client_timeout, SEND_BUFFER + held);
        Poll::Ready(match ready!(backpressure.poll_stalled(&mut self.write_stall, stalled, cx)) {
            StallEnd::TimedOut => ClientFault::Stalled,
            StallEnd::BuffersFull(_) => ClientFault::BuffersFull,
        })
    }
}

impl ClientSide for Http2Client {
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, ClientFault>> {
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
            Poll::Ready(Err(_)) => Poll::Ready(Err(ClientFault::Gone)),
            Poll::Pending => {
                if let Poll::Ready(fault) = self.poll_ends(cx) {
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

    fn is_complete(&self) -> bool {
        self.body.is_none()
    }

    fn poll_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if let Deadline::Waiting(sleep) = &mut self.deadline
            && sleep.as_mut().poll(cx).is_ready()
        {
            self.deadline = Deadline::Passed;
            return Poll::Ready(ClientFault::Expired);
        }
        self.poll_cut(cx)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.poll_reset(cx)
    }

    fn poll_upstream_wait(&mut self, timeout: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let Some(guard) = &self.guard else { return Poll::Pending };
        self.upstream_wait.poll(timeout.into(), guard, cx)
    }

    fn restart_upstream_wait(&mut self) {
        self.upstream_wait.restart();
    }

    fn expect_body(&mut self) {
        self.body_timeout = BodyTimeout::Enforced;
    }

    fn expect_no_body(&mut self) {
        self.body_timeout = BodyTimeout::Lifted;
        self.body_deadline = None;
    }

    /// Does nothing: the rest is discarded after the response.
    fn give_up_body(&mut self) {}

    fn cut_short(&mut self) {
        self.reset();
    }

    fn write_interim(&mut self, head: InterimHead<'_>, exchange: &Exchange<'_>) -> Result<(), ClientFault> {
        let edit = response_head::edited_interim(head.bytes);
        let (Some(head), Responder::Waiting(respond)) =
            (http2_heads::response(&edit, head.status, exchange), &mut self.responder)
        else {
            return Ok(());
        };
        respond.send_informational(head).map_err(|_| ClientFault::Gone)
    }

    fn write_head(&mut self, head: FinalHead<'_>, exchange: &Exchange<'_>, body: HasBody) -> Result<(), Fault> {
        if exchange.forwarder.gateway.is_draining() {
            exchange.connection.close_when_done();
        }
        let status = head.status;
        let edit = response_head::edited(head, exchange, Wire::Http2);
        let head = http2_heads::response(&edit, status, exchange);
        let head = head.ok_or(Fault::Own(502, "response has no form in HTTP/2"))?;
        self.begin(head, body).map_err(|_| ClientFault::Gone.into())
    }

    fn poll_send(&mut self, part: &mut BodyPart, held: usize, cx: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        let Responder::Streaming(stream) = &mut self.responder else { return Poll::Ready(Ok(())) };
        let (ends, before) = (part.end.is_some(), part.data.len());
        let sent = http2_body::poll_send(stream, part, cx);
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

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ClientFault>> {
        Poll::Ready(Ok(()))
    }
}

impl RequestClient for Http2Client {
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        ClientSide::poll_ends(self, cx)
    }

    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        if let Poll::Ready(fault) = self.poll_cut(cx) {
            return Poll::Ready(fault);
        }
        self.poll_reset(cx)
    }

    /// The rest of the request is discarded after the response.
    async fn write_own(&mut self, exchange: &mut Exchange<'_>, response: OwnResponse, _: Rest) -> Reuse {
        if exchange.forwarder.gateway.is_draining() {
            exchange.connection.close_when_done();
        }
        let OwnResponse { header, body } = response;
        let mut head = response::Parts::from(header);
        for name in ["connection", "transfer-encoding", "keep-alive"] {
            head.headers.remove(name);
        }
        head.headers.insert(DATE, get_cached_date());
        let status = head.status.as_u16();
        let body = if exchange.head.method == Method::HEAD { Bytes::new() } else { body };
        let has_body = if body.is_empty() { HasBody::No } else { HasBody::Yes };
        exchange.report.code = Some(status);
        exchange.report.response_bytes += body.len();
        let begun = self.begin(Response::from_parts(head, ()), has_body);
        let mut part = BodyPart { data: body, end: Some(Vec::new()) };
        let sent = match begun {
            Ok(()) => {
                poll_fn(|cx| match self.poll_send(&mut part, 0, cx) {
                    Poll::Pending => self.poll_cut(cx).map(Err),
                    sent => sent,
                })
                .await
            }
            Err(_) => Err(ClientFault::Gone),
        };
        if let Err(fault) = sent {
            log::debug!(error = Fault::from(fault).detail(); "response not written");
            self.reset();
        }
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
        // Also of a client that waits for 100 Continue, and will send no body: it would not see its response either.
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
