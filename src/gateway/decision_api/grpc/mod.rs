//! The gRPC calls at Envoy's doors, and the gRPC health check.
//!
//! A call is an ordinary HTTP/2 request with the limits of its listener. This folder adds the framing of messages, their
//! definitions, and the status in the trailers.

pub(super) mod envoy_call;
pub mod frame;
pub(super) mod health;
pub mod messages;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use prost::Message;

use crate::gateway::response::own_response::OwnResponse;
use frame::FrameError;

/// The answer to a gRPC call: a message, or a failure with its status and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The one message of the response, with the gRPC prefix that contains its length.
    Message(Bytes),
    Failure(Status, &'static str),
}

/// The gRPC status codes with which a call may fail.
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

impl From<Reply> for OwnResponse {
    fn from(reply: Reply) -> OwnResponse {
        let mut response = OwnResponse::new(200);
        response.fields.add("Content-Type", b"application/grpc");
        match reply {
            Reply::Message(message) => {
                response.body = message;
                response.trailers.add("grpc-status", b"0");
            }
            Reply::Failure(status, message) => {
                response.trailers.add("grpc-status", itoa::Buffer::new().format(status as u16).as_bytes());
                response.trailers.add("grpc-message", message.as_bytes());
            }
        }
        response
    }
}

/// Returns whether an HTTP/2 request is a gRPC call, by its content type.
pub fn is_call(head: &Parts) -> bool {
    head.headers.get(CONTENT_TYPE).is_some_and(|kind| is_grpc(kind.as_bytes()))
}

fn is_grpc(content_type: &[u8]) -> bool {
    matches!(content_type.strip_prefix(b"application/grpc"), Some([] | [b'+' | b';', ..]))
}

/// Decodes the message of a call. `body` is the received body, or the error that occurred when it was read.
///
/// # Errors
/// Returns the reason why the body is not a valid message.
pub(super) fn message<M: Message + Default>(body: Result<Bytes, FrameError>) -> Result<M, FrameError> {
    frame::read(&body?)
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
