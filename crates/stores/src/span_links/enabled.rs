//! Collects the span links and the error of a call.

use crate::caller::{Caller, SpanLink};
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
