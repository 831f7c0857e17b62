//! Calls of gRPC, which the doors of Envoy answer, and the health check.
//!
//! A call is a request of HTTP/2 like any other, with the bounds of its listener. This folder adds the frames of its messages,
//! the required messages, and the status in the trailers.

pub(super) mod envoy_call;
pub mod frame;
pub(super) mod health;
pub mod messages;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use prost::Message;

use base::time::{Micros, timeout};
use frame::FrameError;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The answer of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The only message of the response, framed.
    Message(Bytes),
    Failure(Status, &'static str),
}

/// The gRPC codes of answers, besides 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
}

impl From<FrameError> for Reply {
    fn from(error: FrameError) -> Reply {
        match error {
            FrameError::Framing => Reply::Failure(Status::InvalidArgument, "the body is not one message"),
            FrameError::Message => Reply::Failure(Status::InvalidArgument, "the message is not of its type"),
            FrameError::Compressed => Reply::Failure(Status::Unimplemented, "compressed messages are not read"),
            FrameError::TooLong => Reply::Failure(Status::ResourceExhausted, "the message is too long"),
            FrameError::Late => {
                Reply::Failure(Status::DeadlineExceeded, "the message was not whole within body_timeout")
            }
        }
    }
}

/// Whether a request is a call of gRPC, which only HTTP/2 has.
pub fn is_call(session: &Session) -> bool {
    let is_http2 = matches!(session.as_downstream(), ServerSession::Custom(_));
    is_http2 && session.req_header().headers.get(CONTENT_TYPE).is_some_and(|kind| is_grpc(kind.as_bytes()))
}

fn is_grpc(content_type: &[u8]) -> bool {
    matches!(content_type.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

/// Reads the message of a call, which must be complete within this time. The body is kept in memory.
pub(super) async fn read_message<M: Message + Default>(
    session: &mut Session,
    within: Micros,
) -> Result<std::result::Result<M, FrameError>> {
    let read = async {
        let mut body = BytesMut::new();
        while let Some(part) = session.read_request_body().await? {
            if body.len() + part.len() > frame::PREFIX + frame::LONGEST {
                return Ok(Err(FrameError::TooLong));
            }
            body.extend_from_slice(&part);
        }
        Ok(Ok(body.freeze()))
    };
    let body: Result<std::result::Result<Bytes, FrameError>> =
        timeout(within.into(), read).await.unwrap_or(Ok(Err(FrameError::Late)));
    Ok(body?.and_then(|body| frame::read(&body)))
}

/// Answers a call.
///
/// # Errors
/// When the other proxy has disconnected.
pub(super) async fn respond(session: &mut Session, reply: Reply) -> Result<()> {
    let mut header = ResponseHeader::build(200, Some(4))?;
    header.insert_header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))?;
    session.write_response_header(Box::new(header), false).await?;
    let mut trailers = HeaderMap::with_capacity(2);
    match reply {
        Reply::Message(message) => {
            session.write_response_body(Some(message), false).await?;
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        }
        Reply::Failure(status, message) => {
            trailers.insert(GRPC_STATUS, HeaderValue::from(status as u16));
            trailers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
        }
    }
    session.as_downstream_mut().write_response_trailers(trailers).await
}

/// The error for a peer that has disconnected.
pub(super) fn gone() -> Box<Error> {
    Error::new_down(ErrorType::ConnectionClosed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_says_that_it_is_grpc() {
        for (kind, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;a=b", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(kind.as_bytes()), is, "{kind}");
        }
    }
}
