//! Defines the span links of a call: the spans of the decisions that the call served.

pub use crate::caller::SpanLink;

use crate::caller::Caller;
use crate::error::StoreError;

/// The spans of the decisions that one call served, in the order of the call's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanLinks {
    pub decisions: Vec<SpanLink>,
    /// The error of a call that decided nothing, even if the error ends the connection.
    pub error: Option<StoreError>,
}

impl SpanLinks {
    pub fn of<'c>(callers: impl Iterator<Item = &'c dyn Caller>, error: Option<StoreError>) -> SpanLinks {
        // Usually no request of a call is traced, and nothing is allocated.
        SpanLinks { decisions: callers.filter_map(Caller::span_link).collect(), error }
    }
}
