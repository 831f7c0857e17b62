//! Defines the application that answers the requests of a connection, each in a task of its own.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::request::Parts;

use super::received_body::ReceivedBody;
use super::streams::StreamGuard;
use crate::gateway::server::connection_handle::ConnectionHandle;

/// A request on one HTTP/2 stream, whose head is valid, in the form of HTTP/1.1.
pub(crate) struct Http2Request {
    pub head: Parts,
    /// The length of the body, if the head states it.
    pub length: Option<u64>,
    pub stream: ClientStream,
    pub handle: ConnectionHandle,
}

/// The body and the connection of a request, without its head.
pub(crate) struct ClientStream {
    /// The body; `None` for a request without one.
    pub body: Option<ReceivedBody>,
    pub respond: SendResponse<Bytes>,
    /// The longest time in which the client neither sends more of its body nor reads more of its response.
    pub client_timeout: Duration,
    /// The largest body, in bytes.
    pub body_bytes: u64,
    pub guard: StreamGuard,
}

/// Answers HTTP/2 requests.
pub(crate) trait Http2Application: Send + Sync + 'static {
    /// Answers a request.
    fn serve(&self, request: Http2Request) -> impl Future<Output = ()> + Send;
}
