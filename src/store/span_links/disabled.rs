//! Stands in for span_links where there are no traces: it takes no room, and nobody who asked is looked at.

use crate::store::caller::Caller;
use crate::store::error::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLinks;

impl SpanLinks {
    pub fn of<'c>(_callers: impl Iterator<Item = &'c dyn Caller>, _error: Option<StoreError>) -> SpanLinks {
        SpanLinks
    }
}
