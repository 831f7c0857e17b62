//! The reasons for which a body is not JSON.

use std::fmt;

/// The reason why a body is not one JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JsonError {
    /// The byte at this offset cannot be there. Offsets count from 0 at the start of the body.
    Syntax { offset: u64 },
    /// The byte at this offset is invalid UTF-8 (RFC 3629) in a string.
    NotUtf8 { offset: u64 },
    /// Arrays and objects are nested more than [`MAX_DEPTH`](Self::MAX_DEPTH) deep.
    TooDeep { offset: u64 },
    /// The body is empty, or ended too early.
    Incomplete,
    /// The body is longer than the scanner's limit.
    TooLong,
    /// A string has half of a UTF-16 surrogate pair as an escape, so it is no Unicode text.
    LoneSurrogate,
}

impl JsonError {
    /// The deepest nesting of arrays and objects, as in serde_json.
    pub const MAX_DEPTH: u8 = 127;
}

impl fmt::Display for JsonError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::Syntax { offset } => write!(out, "byte {offset}: must be JSON"),
            JsonError::NotUtf8 { offset } => write!(out, "byte {offset}: must be UTF-8"),
            JsonError::TooDeep { offset } => {
                write!(out, "byte {offset}: must be nested at most {} deep", Self::MAX_DEPTH)
            }
            JsonError::Incomplete => out.write_str("must be a whole JSON value"),
            JsonError::TooLong => out.write_str("must be shorter"),
            JsonError::LoneSurrogate => out.write_str("must be Unicode, has half of a surrogate pair"),
        }
    }
}

impl std::error::Error for JsonError {}
