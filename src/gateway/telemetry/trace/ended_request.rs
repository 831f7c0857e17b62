//! Holds the values from which the spans of a request are made, besides their ids: its access log line, and its call to the
//! upstream.

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::gateway::telemetry::labels::UpstreamError;
use decision::access_log_line::Line;

/// A request that has ended.
#[derive(Debug)]
pub struct EndedRequest<'r> {
    pub line: Line<'r>,
    /// Of its connection: `http` or `https`.
    pub scheme: &'static str,
    /// The local address of its connection.
    pub server: Option<SocketAddr>,
    /// The call to the upstream; `None`: the request was not let through.
    pub upstream: Option<UpstreamCall<'r>>,
}

/// The call to the upstream of a request that was let through.
#[derive(Clone, Debug)]
pub struct UpstreamCall<'r> {
    /// The host: a name, an address, or the path of a socket.
    pub host: Cow<'r, str>,
    /// `None` for a socket.
    pub port: Option<u16>,
    /// The status of the upstream's response, if one has been sent on.
    pub status: Option<u16>,
    pub error: Option<UpstreamError>,
}
