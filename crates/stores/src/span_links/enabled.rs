//! Collects the span links of a call, and its error.

use crate::caller::{Caller, SpanLink};
use crate::error::StoreError;

/// The links of one call, in the order of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanLinks {
    pub decisions: Vec<SpanLink>,
    /// The error of the call. An error that ends the connection is reported when the connection ends.
    pub error: Option<StoreError>,
}

impl SpanLinks {
    pub fn of<'c>(callers: impl Iterator<Item = &'c dyn Caller>, error: Option<StoreError>) -> SpanLinks {
        // Without a traced request, as in nearly every call, nothing is allocated.
        SpanLinks { decisions: callers.filter_map(Caller::span_link).collect(), error }
    }
}
