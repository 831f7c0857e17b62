//! Defines the application that answers the requests of a connection, each in a task of its own.

use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use http::request::Parts;

use super::received_body::ReceivedBody;
use super::streams::StreamGuard;
use crate::gateway::server::connection_handle::ConnectionHandle;

/// A request on one HTTP/2 stream. Its head is valid, and has the form of an HTTP/1.1 head.
pub(crate) struct Http2Request {
    pub head: Parts,
    /// The length of the body, if the head states it.
    pub length: Option<u64>,
    pub stream: ClientStream,
    pub handle: ConnectionHandle,
}

/// The HTTP/2 stream of one request: the body of the request, and the means to send the response.
pub(crate) struct ClientStream {
    /// The body; `None` for a request without one.
    pub body: Option<ReceivedBody>,
    pub respond: SendResponse<Bytes>,
    /// How long the gateway waits for a client that neither sends nor reads anything.
    pub client_timeout: Duration,
    /// The largest allowed body of the request, in bytes.
    pub body_bytes: u64,
    pub guard: StreamGuard,
}

/// The application that answers HTTP/2 requests.
pub(crate) trait Http2Application: Send + Sync + 'static {
    /// Answers a request. The server runs the future in a task of its own.
    fn serve(&self, request: Http2Request) -> impl Future<Output = ()> + Send;
}
