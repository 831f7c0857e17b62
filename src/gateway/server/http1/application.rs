//! Defines the application that answers the requests of a connection, one after the other.

use std::time::Duration;

use super::downstream_stream::DownstreamStream;
use super::request_body::BodyFraming;
use super::request_head::Head;

/// A request with a valid head, which is at the beginning of the unparsed bytes of its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedRequest {
    pub head: Head,
    pub framing: BodyFraming,
    /// The longest time in which the client neither sends nor reads anything.
    pub client_timeout: Duration,
}

/// Answers requests of HTTP/1.0 and HTTP/1.1.
pub(crate) trait Http1Application: Send + Sync + 'static {
    /// Answers a request. Returns its connection if another may follow on it.
    fn serve(
        &self,
        stream: Box<DownstreamStream>,
        request: ReceivedRequest,
    ) -> impl Future<Output = Option<Box<DownstreamStream>>> + Send;
}
