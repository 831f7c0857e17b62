//! Holds a client of HTTP/1.x that has sent a request, and writes the gateway's own responses to it.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::EXPECT;
use http::request::Parts;

use super::application::ReceivedRequest;
use super::downstream_stream::DownstreamStream;
use super::exchange_io::{BodyRead, ClientFault};
use super::head_parts::{self, InvalidHead, wants_connection_kept};
use super::request_body::BodyFraming;
use super::response_head;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::server::request_client::{AnsweredRequest, RequestClient, Rest, Reuse, WrittenResponse};
use crate::gateway::state::lifecycle::Lifecycle;
use base::time;

/// The largest number of bytes of a body that one buffer holds.
pub(crate) const BUFFER: usize = 64 << 10;

/// The longest time for which the rest of a body is read before the connection is closed.
const DRAIN: Duration = Duration::from_secs(2);

/// A client of HTTP/1.x that has sent a request and waits for the response.
#[derive(Debug)]
pub(crate) struct Client {
    pub stream: Box<DownstreamStream>,
    /// Whether another request may follow on the connection: the client wants this, and the process is not draining.
    pub reuse: Reuse,
    /// Whether the client has asked for a WebSocket.
    pub is_tunnel: bool,
    /// Whether the request has waited before, for example for a decision. The client may then have left.
    has_waited: bool,
}

/// A client, with the head of its request as bytes and in parsed form.
#[derive(Debug)]
pub(crate) struct ClientRequest {
    pub client: Client,
    /// The bytes of the head as they were received.
    pub bytes: Bytes,
    pub head: Result<Parts, InvalidHead>,
}

impl Client {
    /// Begins a request on a connection. The request ends at once when the process exits.
    pub(crate) fn begin(
        mut stream: Box<DownstreamStream>,
        ReceivedRequest { head, framing, client_timeout }: ReceivedRequest,
        lifecycle: &Lifecycle,
    ) -> ClientRequest {
        let bytes = stream.begin(head.length, framing, client_timeout).freeze();
        stream.cut_at_exit(|| lifecycle.tunnel());
        let head = head_parts::parse(&bytes);
        let kept = head.as_ref().is_ok_and(wants_connection_kept) && !lifecycle.is_draining();
        let reuse = if kept { Reuse::Kept } else { Reuse::Closed };
        let client = Client { stream, reuse, is_tunnel: framing == BodyFraming::Tunnel, has_waited: false };
        ClientRequest { client, bytes, head }
    }

    /// Ends a request. Returns the connection if another request may follow on it.
    pub(crate) fn end(self, reuse: Reuse) -> Option<Box<DownstreamStream>> {
        (reuse == Reuse::Kept && self.stream.is_between_requests()).then_some(self.stream)
    }

    /// Appends a part of the body to `data`, and the lines of its trailers to `trailers`.
    ///
    /// # Errors
    /// If the client sends no more of the body, or the body is invalid.
    pub(crate) async fn read_body(
        &mut self,
        data: &mut Vec<u8>,
        trailers: &mut Vec<u8>,
    ) -> Result<BodyRead, ClientFault> {
        poll_fn(|cx| self.stream.poll_body_part(data, BUFFER, trailers, cx)).await
    }

    /// Reads the rest of a body. Returns whether the end of the body was found.
    async fn drain(&mut self) -> bool {
        let (mut data, mut trailers) = (Vec::new(), Vec::new());
        loop {
            data.clear();
            match self.read_body(&mut data, &mut trailers).await {
                Ok(BodyRead::Data) => {}
                Ok(BodyRead::End) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl RequestClient for Client {
    fn poll_request_ends(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.stream.poll_ends(cx)
    }

    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<ClientFault> {
        self.stream.poll_given_up(cx)
    }

    fn asks_before_wait(&self) -> bool {
        self.has_waited
    }

    fn note_wait(&mut self) {
        self.has_waited = true;
    }

    async fn write_continue(&mut self) -> Result<(), ClientFault> {
        self.stream.write_response(b"HTTP/1.1 100 Continue\r\n\r\n").await
    }

    async fn write_own(&mut self, request: AnsweredRequest<'_>, response: OwnResponse, rest: Rest) -> WrittenResponse {
        // A client that waits for 100 Continue does not send its body, so there is nothing to read.
        let is_complete = self.stream.refuse_tunnel() && self.stream.is_complete();
        let drains = rest == Rest::Drained && !request.head.headers.contains_key(EXPECT);
        let mut reuse = if request.reuse == Reuse::Closed { Reuse::Closed } else { self.reuse };
        if !(is_complete && rest == Rest::Drained || drains && !self.is_tunnel) {
            reuse = Reuse::Closed;
        }
        let mut out = Vec::with_capacity(512 + response.body.len());
        response_head::write_own(&response, reuse, &mut out);
        let body = if request.head.method == Method::HEAD { &[][..] } else { &response.body };
        out.extend_from_slice(body);
        let body_bytes = body.len();
        if let Err(fault) = self.stream.write_response(&out).await {
            log::debug!(error = fault.detail(); "response not written");
            return WrittenResponse { body_bytes, reuse: Reuse::Closed, fault: Some(fault) };
        }
        WrittenResponse { body_bytes, reuse, fault: None }
    }

    async fn read_rest(&mut self) -> Reuse {
        match self.stream.is_complete() || time::timeout(DRAIN, self.drain()).await.unwrap_or(false) {
            true => Reuse::Kept,
            false => Reuse::Closed,
        }
    }
}
