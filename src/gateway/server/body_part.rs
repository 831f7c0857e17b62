//! A part of a body on its way from one side to the other, whatever their protocols.

use bytes::Bytes;

/// Lines of trailers, each with its line end, and the empty line after the last; empty without any.
pub type TrailerLines = Vec<u8>;

/// Data, and the end if it is known that nothing follows.
#[derive(Debug)]
pub struct BodyPart {
    pub data: Bytes,
    pub end: Option<TrailerLines>,
}

impl BodyPart {
    /// A part after which more may follow.
    pub fn data(data: Bytes) -> BodyPart {
        BodyPart { data, end: None }
    }

    /// The end, after all data.
    pub fn end(trailers: TrailerLines) -> BodyPart {
        BodyPart { data: Bytes::new(), end: Some(trailers) }
    }
}

/// Whether a body follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasBody {
    Yes,
    No,
}
