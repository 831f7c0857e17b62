//! Defines the application that answers the requests of a connection, one after the other.

use std::time::Duration;

use super::downstream_stream::DownstreamStream;
use super::request_body::BodyFraming;
use super::request_head::Head;

/// A request with a valid head. The head is at the beginning of the connection's unparsed bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedRequest {
    pub head: Head,
    pub framing: BodyFraming,
    /// How long the gateway waits for a client that neither sends nor reads anything.
    pub client_timeout: Duration,
}

/// The application that answers requests of HTTP/1.0 and HTTP/1.1.
pub(crate) trait Http1Application: Send + Sync + 'static {
    /// Answers a request. Returns the connection if another request may follow on it.
    fn serve(
        &self,
        stream: Box<DownstreamStream>,
        request: ReceivedRequest,
    ) -> impl Future<Output = Option<Box<DownstreamStream>>> + Send;
}
