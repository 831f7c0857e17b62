//! Defines the target of a route: an upstream, one of several upstreams, or an answer without an upstream.

use bytes::Bytes;
use http::HeaderValue;
use http::header::HeaderName;

use super::UpstreamId;
use super::redirect::Redirect;
use super::split::Split;

/// What a route does with a request that no limit has refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Upstream(UpstreamId),
    /// The request goes to one of several upstreams.
    Split(Split),
    Answer(RouteAnswer),
}

/// How a route without an upstream answers requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAnswer {
    Redirect(Redirect),
    Respond(Respond),
}

/// A fixed response, configured with `respond`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    pub status: u16,
    pub body: Bytes,
    pub content_type: HeaderValue,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}
