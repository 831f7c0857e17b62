//! The upstream's side of an exchange over HTTP/2: one stream of a shared connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::Response;
use http::uri::Scheme;

use super::attempts::UpstreamAttempt;
use super::exchange::ForwardedRequest;
use super::fault::{Fault, Stage, UpstreamFault};
use super::forwarder::Forwarder;
use super::http1_response_head::ResponseHead;
use super::http2_heads::{self, received_response};
use super::http2_pool::Http2Stream;
use super::outgoing_request::OutgoingRequest;
use super::relay_sides::UpstreamSide;
use crate::gateway::server::body_part::{BodyPart, HasBody};
use crate::gateway::server::http1::request_head::Size;
use crate::gateway::server::http2::message_body::{self, SendEnd, is_malformed, poll_part};
use crate::gateway::server::http2::received_body::ReceivedBody;
use crate::gateway::telemetry::labels::UpstreamError;

/// One request to an HTTP/2 upstream, and its response.
#[derive(Debug)]
pub(super) struct Http2Upstream {
    request: SendStream<Bytes>,
    response: ReadState,
    size: Size,
    /// The place on the shared connection, which is held until the stream has ended.
    stream: Http2Stream,
}

/// The part of the response that is read next.
#[derive(Debug)]
enum ReadState {
    Head(ResponseFuture),
    Body(ReceivedBody),
    /// The response ended with its head.
    Ended,
}

impl UpstreamSide for Http2Upstream {
    type Connection = Http2Stream;

    fn begin(
        stream: Http2Stream,
        attempt: &UpstreamAttempt,
        outgoing: OutgoingRequest<'_>,
        request: &ForwardedRequest<'_, '_>,
    ) -> Result<Http2Upstream, Fault> {
        let scheme = match attempt.scheme {
            config::Scheme::Https => Scheme::HTTPS,
            config::Scheme::Http => Scheme::HTTP,
        };
        let head = http2_heads::request(outgoing.head, request, scheme)?;
        let sent = stream.requests().send_request(head, outgoing.has_body() == HasBody::No);
        let (response, request) = sent.map_err(|error| {
            stream.close();
            failed(&error, Stage::Sent)
        })?;
        Ok(Http2Upstream { request, response: ReadState::Head(response), size: outgoing.size, stream })
    }

    /// Returns `true`, because the head was sent when this value was made.
    fn has_begun(&self) -> bool {
        true
    }

    /// Only frees the place on the shared connection, by dropping the stream.
    fn release(self, _: &UpstreamAttempt, _: &Forwarder) {}

    fn poll_send(&mut self, part: &mut BodyPart, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        message_body::poll_send(&mut self.request, part, cx).map_err(|end| match end {
            SendEnd::Failed(error) => error.to_string(),
            SendEnd::Closed => "stream closed".to_owned(),
        })
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), String>> {
        Poll::Ready(Ok(()))
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<(ResponseHead, BytesMut), UpstreamFault>> {
        let ReadState::Head(response) = &mut self.response else { return Poll::Pending };
        // This call finds only interim responses. The future finds the final response, or an error.
        if let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
            return Poll::Ready(received_response(&interim.into_parts().0, &self.size));
        }
        let response = match ready!(Pin::new(response).poll(cx)) {
            Ok(response) => response,
            Err(error) => {
                if error.is_go_away() || error.is_io() {
                    self.stream.close();
                }
                return Poll::Ready(Err(failed(&error, Stage::Sent)));
            }
        };
        let (head, body) = Response::into_parts(response);
        self.response = ReadState::Body(ReceivedBody::new(body, self.stream.frames()));
        Poll::Ready(received_response(&head, &self.size))
    }

    /// The h2 crate delivers heads as a whole.
    fn has_head_begun(&self) -> bool {
        false
    }

    fn ends_with_head(&self, _: &ResponseHead) -> bool {
        matches!(&self.response, ReadState::Body(body) if body.is_at_end())
    }

    fn expect_body(&mut self, _: &ResponseHead, body: HasBody) {
        if body == HasBody::No {
            self.response = ReadState::Ended;
        }
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyPart, UpstreamFault>> {
        let ReadState::Body(body) = &self.response else { return Poll::Ready(Ok(BodyPart::end(Vec::new()))) };
        poll_part(body, cx).map_err(|error| failed(&error, Stage::Answering))
    }

    fn poll_hold(&mut self, cx: &mut Context<'_>) {
        if let ReadState::Body(body) = &self.response {
            body.poll_take_out(cx);
        }
    }

    fn held(&self) -> usize {
        if let ReadState::Body(body) = &self.response { body.held() } else { 0 }
    }
}

/// Makes the fault for a stream that failed.
fn failed(error: &h2::Error, stage: Stage) -> UpstreamFault {
    // Whether the server has reported that it did not process the request (RFC 9113, sections 6.8 and 8.7).
    let is_refused = error.is_remote()
        && match error.reason() {
            Some(Reason::REFUSED_STREAM) => error.is_reset(),
            Some(Reason::NO_ERROR) => error.is_go_away(),
            _ => false,
        };
    let stage = if is_refused && stage == Stage::Sent { Stage::Refused } else { stage };
    // If the h2 crate or the gateway has found the error, the upstream has violated the protocol.
    let kind =
        if error.is_library() || is_malformed(error) { UpstreamError::InvalidAnswer } else { UpstreamError::Closed };
    UpstreamFault::new(kind, format!("H2Error: {error}"), stage)
}
