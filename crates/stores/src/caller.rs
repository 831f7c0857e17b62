//! Defines what a store can ask about a request: whether its client is still connected, and the span to link to.

use std::fmt;

/// The request on whose behalf a call is made.
pub trait Caller: fmt::Debug + Send + Sync {
    /// Whether the client has disconnected, so that no answer is needed.
    fn has_left(&self) -> bool;

    /// The span of the decision, to link the call to; `None` where the request is not traced.
    #[cfg(feature = "opentelemetry")]
    fn span_link(&self) -> Option<SpanLink> {
        None
    }
}

/// The span of a decision, in the terms of W3C Trace Context.
#[cfg(feature = "opentelemetry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLink {
    pub trace: u128,
    pub span: u64,
}
