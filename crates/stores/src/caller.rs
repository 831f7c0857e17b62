//! Defines what a store asks about the request for which it is called.

use std::fmt;

/// A request for which a store is called.
pub trait Caller: fmt::Debug + Send + Sync {
    /// Whether the client has disconnected, so that no answer is needed.
    fn has_left(&self) -> bool;

    /// Returns the span of the request's decision. `None` if the request is not traced.
    fn span_link(&self) -> Option<SpanLink> {
        None
    }
}

/// The identity of a decision's span: the ids of its trace and of the span, as in W3C Trace Context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLink {
    pub trace: u128,
    pub span: u64,
}
