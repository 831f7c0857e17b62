//! One request of HTTP/2 and its response, as Pingora's proxy uses them.
//!
//! Pingora's own session for HTTP/2 is not used. It answers invalid heads itself and without our fields, has no timeout for a
//! body, writes no interim responses, and ends the stream during an upload, so that the client does not see the response. This
//! session is a custom one in Pingora's terms. The proxy sees an ordinary request with the head of an HTTP/1.1 request.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderName};
use http::{HeaderMap, Method, Response, StatusCode, response};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::date::get_cached_date;
use pingora::{Error, ErrorType, Result};
use tokio::time::Sleep;

use super::SEND_BUFFER;
use super::lingering_stream::linger;
use super::received_body::ReceivedBody;
use super::streams::StreamGuard;
use crate::gateway::runtime::write_backpressure::{StallEnd, WriteStall};
use crate::gateway::server::http1::BodyError;

/// The limits of the request of a stream.
#[derive(Debug)]
pub struct StreamLimits {
    /// How long a client may neither send more of its body nor read more of its response.
    pub client_timeout: Duration,
    /// The largest body, in bytes.
    pub body_bytes: u64,
}

pub struct Http2Session {
    head: RequestHeader,
    /// The body; `None` for a request without one, and once the session ends.
    body: Option<ReceivedBody>,
    /// Whether the whole body has been read.
    body_done: bool,
    /// The moment by which the client must have sent more of the body.
    body_deadline: Option<Pin<Box<Sleep>>>,
    body_read: usize,
    limits: StreamLimits,
    responder: Responder,
    /// The head of the response, without its fields.
    response: Option<ResponseHeader>,
    /// Whether the response is complete.
    response_done: bool,
    body_sent: usize,
    write_stall: Option<WriteStall>,
    digest: Arc<Digest>,
    guard: Option<StreamGuard>,
}

/// The state of the response.
enum Responder {
    Waiting(SendResponse<Bytes>),
    Streaming(SendStream<Bytes>),
}

impl Http2Session {
    pub fn new(
        head: RequestHeader,
        body: Option<ReceivedBody>,
        respond: SendResponse<Bytes>,
        limits: StreamLimits,
        digest: Arc<Digest>,
        guard: StreamGuard,
    ) -> Http2Session {
        Http2Session {
            head,
            body_done: body.is_none(),
            body,
            body_deadline: None,
            body_read: 0,
            limits,
            responder: Responder::Waiting(respond),
            response: None,
            response_done: false,
            body_sent: 0,
            write_stall: None,
            digest,
            guard: Some(guard),
        }
    }

    pub(super) fn head(&self) -> &RequestHeader {
        &self.head
    }

    pub(super) fn head_mut(&mut self) -> &mut RequestHeader {
        &mut self.head
    }

    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    pub(super) fn response(&self) -> Option<&ResponseHeader> {
        self.response.as_ref()
    }

    pub(super) fn body_read(&self) -> usize {
        self.body_read
    }

    pub(super) fn body_sent(&self) -> usize {
        self.body_sent
    }

    pub(super) fn is_body_done(&self) -> bool {
        self.body_done
    }

    /// Whether the request has no body, as far as its head says.
    pub(super) fn is_body_empty(&self) -> bool {
        let is_zero = || self.head.headers.get(CONTENT_LENGTH).is_some_and(|length| length == "0");
        self.body_read == 0 && (self.body_done || is_zero())
    }

    /// The next part of the body; `None` at its end.
    pub(super) async fn read_body(&mut self) -> Result<Option<Bytes>> {
        poll_fn(|cx| self.poll_body(cx)).await
    }

    /// Sets the longest time in which the client neither sends more of its body nor reads more of its response, from now on.
    pub(super) fn set_client_timeout(&mut self, timeout: Duration) {
        self.limits.client_timeout = timeout;
        self.body_deadline = None;
    }

    /// Fails when the client resets the stream. Otherwise never returns.
    pub(super) async fn watch_reset(&mut self) -> Box<Error> {
        poll_fn(|cx| {
            let reset = match &mut self.responder {
                Responder::Waiting(respond) => respond.poll_reset(cx),
                Responder::Streaming(stream) => stream.poll_reset(cx),
            };
            let detail = match reset {
                Poll::Ready(Ok(reason)) => format!("stream reset by the client: {}", reason.description()),
                Poll::Ready(Err(error)) => error.to_string(),
                Poll::Pending => return Poll::Pending,
            };
            Poll::Ready(Error::explain(ErrorType::H2Error, detail).into_down())
        })
        .await
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        loop {
            let Some(body) = self.body.as_ref().filter(|_| !self.body_done) else { return Poll::Ready(Ok(None)) };
            match body.poll_part(cx) {
                Poll::Ready(Some(Ok(part))) => {
                    self.body_deadline = None;
                    self.body_done = body.is_at_end();
                    self.body_read += part.len();
                    if u64::try_from(self.body_read).is_ok_and(|read| read > self.limits.body_bytes) {
                        return Poll::Ready(Err(invalid_body(BodyError::TooLong)));
                    }
                    // An empty part would be the end of a body in HTTP/1.1.
                    if !part.is_empty() {
                        return Poll::Ready(Ok(Some(part)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(downstream(ErrorType::ReadError, error))),
                Poll::Ready(None) => self.body_done = true,
                Poll::Pending => {
                    let timeout = self.limits.client_timeout;
                    let deadline = self.body_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                    ready!(deadline.as_mut().poll(cx));
                    return Poll::Ready(Err(invalid_body(BodyError::Stalled)));
                }
            }
        }
    }

    /// Writes a head: of the response, or of an interim response before it.
    pub(super) fn write_head(&mut self, header: ResponseHeader, end: bool) -> Result<()> {
        let Responder::Waiting(respond) = &mut self.responder else { return Ok(()) };
        let mut head = response::Parts::from(header);
        // Looked for in one pass: nearly no response has one.
        while let Some(name) = head.headers.keys().find(|name| is_of_connection(name)).cloned() {
            head.headers.remove(name);
        }
        if head.status.is_informational() {
            let interim = respond.send_informational(Response::from_parts(head, ()));
            return interim.map_err(|error| downstream(ErrorType::WriteError, error));
        }
        head.headers.insert(DATE, get_cached_date());
        let end = end || self.head.method == Method::HEAD || is_bodiless(&head);
        let response = ResponseHeader::build_no_case(head.status, Some(0))?;
        let stream = respond.send_response(Response::from_parts(head, ()), end);
        self.responder = Responder::Streaming(stream.map_err(|error| downstream(ErrorType::WriteError, error))?);
        self.response = Some(response);
        self.response_done = end;
        Ok(())
    }

    pub(super) async fn write_body(&mut self, mut body: Bytes, end: bool) -> Result<()> {
        if self.response_done {
            return Ok(());
        }
        while !body.is_empty() {
            let capacity = poll_fn(|cx| self.poll_capacity(body.len(), cx)).await?;
            let part = body.split_to(capacity.min(body.len()));
            self.body_sent += part.len();
            self.send(part, end && body.is_empty())?;
        }
        if end && !self.response_done { self.send(Bytes::new(), true) } else { Ok(()) }
    }

    pub(super) fn write_trailers(&mut self, trailers: HeaderMap) -> Result<()> {
        match &mut self.responder {
            Responder::Streaming(stream) if !self.response_done => {
                self.response_done = true;
                stream.send_trailers(trailers).map_err(|error| downstream(ErrorType::WriteError, error))
            }
            _ => Ok(()),
        }
    }

    /// Ends a response that has begun.
    pub(super) fn finish(&mut self) -> Result<()> {
        match &self.responder {
            Responder::Streaming(_) if !self.response_done => self.send(Bytes::new(), true),
            _ => Ok(()),
        }
    }

    fn send(&mut self, part: Bytes, end: bool) -> Result<()> {
        let Responder::Streaming(stream) = &mut self.responder else {
            return Err(Error::explain(ErrorType::InternalError, "body before the head"));
        };
        self.response_done = end;
        stream.send_data(part, end).map_err(|error| downstream(ErrorType::WriteError, error))
    }

    /// The part of `wanted` bytes that can be sent now.
    fn poll_capacity(&mut self, wanted: usize, cx: &mut Context<'_>) -> Poll<Result<usize>> {
        let Responder::Streaming(stream) = &mut self.responder else {
            return Poll::Ready(Err(Error::explain(ErrorType::InternalError, "body before the head")));
        };
        stream.reserve_capacity(wanted);
        loop {
            if stream.capacity() > 0 {
                self.write_stall = None;
                return Poll::Ready(Ok(stream.capacity()));
            }
            match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(downstream(ErrorType::WriteError, error))),
                Poll::Ready(None) => {
                    return Poll::Ready(Err(Error::explain(ErrorType::WriteError, "stream closed").into_down()));
                }
                Poll::Pending => {
                    let backpressure = self.guard.as_ref().and_then(|guard| guard.handle().write_backpressure());
                    let Some(backpressure) = backpressure else { return Poll::Pending };
                    let stalled = (self.limits.client_timeout, SEND_BUFFER + wanted);
                    let error = match ready!(backpressure.poll_stalled(&mut self.write_stall, stalled, cx)) {
                        StallEnd::TimedOut => {
                            Error::explain(ErrorType::WriteTimedout, "response not read by the client")
                        }
                        StallEnd::BuffersFull(full) => {
                            Error::because(ErrorType::WriteError, "response", io::Error::from(full))
                        }
                    };
                    return Poll::Ready(Err(error.into_down()));
                }
            }
        }
    }

    /// Resets the stream, which a client distinguishes from the end of a response.
    pub(super) fn reset(&mut self) {
        if self.response_done {
            return;
        }
        self.response_done = true;
        match &mut self.responder {
            Responder::Waiting(respond) => respond.send_reset(Reason::INTERNAL_ERROR),
            Responder::Streaming(stream) => stream.send_reset(Reason::INTERNAL_ERROR),
        }
    }
}

/// Whether a field has a meaning on an HTTP/1.1 connection only (RFC 9113, section 8.2.2).
fn is_of_connection(name: &HeaderName) -> bool {
    matches!(name.as_str(), "connection" | "transfer-encoding" | "upgrade" | "keep-alive" | "proxy-connection")
}

/// Whether a response ends with its head.
fn is_bodiless(head: &response::Parts) -> bool {
    matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || head.headers.get(CONTENT_LENGTH).is_some_and(|length| length == "0")
}

fn downstream(kind: ErrorType, error: h2::Error) -> Box<Error> {
    Error::because(kind, "HTTP/2 stream of the client", error).into_down()
}

fn invalid_body(error: BodyError) -> Box<Error> {
    let error = io::Error::new(io::ErrorKind::InvalidData, error);
    Error::because(ErrorType::ReadError, "request body", error).into_down()
}

impl Drop for Http2Session {
    fn drop(&mut self) {
        if !self.response_done {
            return self.reset();
        }
        // Also of a client that waits for 100 Continue, and will send no body: it would not see its response either.
        if !self.body_done
            && let Some(body) = self.body.take()
        {
            linger(body, self.guard.take());
        }
    }
}
