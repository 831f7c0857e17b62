//! Keeps the span_links of a call, and how it failed.

use crate::store::caller::{Caller, SpanLink};
use crate::store::error::StoreError;

/// Those of one call, in the order of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanLinks {
    pub decisions: Vec<SpanLink>,
    /// Also one that ends the link, and is told when it ends.
    pub error: Option<StoreError>,
}

impl SpanLinks {
    pub fn of<'c>(callers: impl Iterator<Item = &'c dyn Caller>, error: Option<StoreError>) -> SpanLinks {
        // Where nobody is marked, which is nearly every call, nothing is allocated.
        SpanLinks { decisions: callers.filter_map(Caller::span_link).collect(), error }
    }
}
