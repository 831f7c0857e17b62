//! Holds a response of the gateway itself: its status, its fields and its body, whatever protocol carries it.

use bytes::Bytes;

use super::field_lines::FieldLines;

/// A response of the gateway itself, without the fields of the connection and `Date`, which are added when it is written.
#[derive(Clone, Debug)]
pub(crate) struct OwnResponse {
    pub status: u16,
    pub fields: FieldLines,
    pub body: Bytes,
    /// Only HTTP/2 can carry them.
    pub trailers: FieldLines,
}

impl OwnResponse {
    pub(crate) fn new(status: u16) -> OwnResponse {
        OwnResponse { status, fields: FieldLines::default(), body: Bytes::new(), trailers: FieldLines::default() }
    }
}
