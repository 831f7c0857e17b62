//! Holds a response of the gateway itself: status, fields and body. The response is the same for every protocol.

use bytes::Bytes;

use super::field_lines::FieldLines;

/// A response that the gateway makes itself. `Date` and the fields of the connection are added when it is written.
#[derive(Clone, Debug)]
pub(crate) struct OwnResponse {
    pub status: u16,
    pub fields: FieldLines,
    pub body: Bytes,
    /// The fields after the body, for example the status of a gRPC call. Only HTTP/2 can carry such fields.
    pub trailers: FieldLines,
}

impl OwnResponse {
    pub(crate) fn new(status: u16) -> OwnResponse {
        OwnResponse { status, fields: FieldLines::default(), body: Bytes::new(), trailers: FieldLines::default() }
    }
}
