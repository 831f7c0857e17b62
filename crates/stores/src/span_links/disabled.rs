//! Replaces the span links in a build without traces.

use crate::caller::Caller;
use crate::error::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLinks;

impl SpanLinks {
    pub fn of<'c>(_callers: impl Iterator<Item = &'c dyn Caller>, _error: Option<StoreError>) -> SpanLinks {
        SpanLinks
    }
}
