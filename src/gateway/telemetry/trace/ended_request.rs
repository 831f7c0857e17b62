//! Holds what the spans of a request are made of, besides their ids: its access log line, and its call to the upstream.

use std::net::SocketAddr;

use crate::access_log_line::Line;
use crate::gateway::telemetry::labels::UpstreamError;

/// A request that has ended.
#[derive(Debug)]
pub struct EndedRequest<'r> {
    pub line: Line<'r>,
    /// Of its connection: `http` or `https`.
    pub scheme: &'static str,
    /// The local address of its connection.
    pub server: Option<SocketAddr>,
    /// `None`: the request was not let through.
    pub upstream: Option<UpstreamCall<'r>>,
}

/// What became of a request that was let through.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamCall<'r> {
    pub host: &'r str,
    pub port: u16,
    /// The status of the upstream's response, if one has been sent on.
    pub status: Option<u16>,
    pub error: Option<UpstreamError>,
}
