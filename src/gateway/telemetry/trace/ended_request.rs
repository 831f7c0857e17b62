//! Holds the values from which the spans of a request are made: its access log line, and its call to the upstream.
//! `RequestTrace` holds the ids of these spans.

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::gateway::telemetry::labels::UpstreamError;
use decision::access_log_line::Line;

/// The values of a request that has ended, from which its spans are made.
#[derive(Debug)]
pub(crate) struct EndedRequest<'r> {
    pub line: Line<'r>,
    /// The scheme of the connection: `http` or `https`.
    pub scheme: &'static str,
    /// The local address of the connection. `None` if it is not known.
    pub server: Option<SocketAddr>,
    /// The call to the upstream. `None` if the request was not forwarded.
    pub upstream: Option<UpstreamCall<'r>>,
}

/// The last call to the upstream, for a request that was forwarded.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamCall<'r> {
    /// The host that was called: a name, an address, or the path of a socket.
    pub host: Cow<'r, str>,
    /// The port. `None` for a Unix domain socket.
    pub port: Option<u16>,
    /// The status of the upstream's response. `None` if no response was forwarded to the client.
    pub status: Option<u16>,
    pub error: Option<UpstreamError>,
}
