//! Defines the application that answers the requests of a connection, each in a task of its own.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::request::Parts;

use super::received_body::ReceivedBody;
use super::streams::StreamGuard;
use crate::gateway::server::connection_handle::ConnectionHandle;

/// A request of one stream, whose head is valid, in the form of HTTP/1.1.
#[expect(missing_debug_implementations, reason = "a stream of the h2 crate has nothing that is short")]
pub struct Http2Request {
    pub head: Parts,
    /// The length of its body, if the head states it.
    pub length: Option<u64>,
    pub stream: ClientStream,
    pub handle: ConnectionHandle,
}

/// What a request has besides its head.
#[expect(missing_debug_implementations, reason = "a stream of the h2 crate has nothing that is short")]
pub struct ClientStream {
    /// `None` for a request without a body.
    pub body: Option<ReceivedBody>,
    pub respond: SendResponse<Bytes>,
    /// How long the client may neither send more of its body nor read more of its response.
    pub client_timeout: Duration,
    /// The largest body, in bytes.
    pub body_bytes: u64,
    pub guard: StreamGuard,
}

/// Answers requests of HTTP/2.
pub trait Http2Application: Send + Sync + 'static {
    /// Answers a request.
    fn serve(&self, request: Http2Request) -> impl Future<Output = ()> + Send;
}
