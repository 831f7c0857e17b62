//! Names the target of a route: an upstream or one of several, or an answer in their place.

use bytes::Bytes;
use http::HeaderValue;
use http::header::HeaderName;

use super::UpstreamId;
use super::redirect::Redirect;
use super::split::Split;

/// What happens to a request of a route after no limit has refused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Upstream(UpstreamId),
    /// One of several upstreams.
    Split(Split),
    Answer(RouteAnswer),
}

/// The answer of a route that has no upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAnswer {
    Redirect(Redirect),
    Respond(Respond),
}

/// A fixed answer, from `respond`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Respond {
    pub status: u16,
    pub body: Bytes,
    pub content_type: HeaderValue,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}
