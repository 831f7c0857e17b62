//! What a store may ask of a request: whether its client is still there, and the span to link to.

use std::fmt;

/// Who asked, as far as a store has to know.
pub trait Caller: fmt::Debug + Send + Sync {
    /// Whether nobody waits for the answer any more.
    fn has_left(&self) -> bool;

    /// What a trace calls the decision that asked; none where it is not traced.
    #[cfg(feature = "opentelemetry")]
    fn span_link(&self) -> Option<SpanLink> {
        None
    }
}

/// Which decision asked, in the words of W3C Trace Context.
#[cfg(feature = "opentelemetry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLink {
    pub trace: u128,
    pub span: u64,
}
