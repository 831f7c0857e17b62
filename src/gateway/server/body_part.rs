//! A part of a body, in the form that all protocols share.

use bytes::Bytes;

/// The lines of trailers, each with its line end, and the empty line after them. Empty if there are no trailers.
pub(crate) type TrailerLines = Vec<u8>;

/// A part of a body: its data, and the end of the body if nothing follows.
#[derive(Debug)]
pub(crate) struct BodyPart {
    pub data: Bytes,
    pub end: Option<TrailerLines>,
}

/// The number of bytes that may still follow in a body; `None` if its head states no length. Bytes beyond this length
/// would be read as part of another message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatedLength(pub Option<u64>);

/// The error for a body that is shorter or longer than the length in its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LengthMismatch;

impl StatedLength {
    /// Counts the data of a part.
    ///
    /// # Errors
    /// If the body is longer or shorter than the stated length.
    pub(crate) fn count(&mut self, part: &BodyPart) -> Result<(), LengthMismatch> {
        let Some(left) = &mut self.0 else { return Ok(()) };
        let length = u64::try_from(part.data.len()).unwrap_or(u64::MAX);
        *left = left.checked_sub(length).ok_or(LengthMismatch)?;
        if part.end.is_some() && *left > 0 { Err(LengthMismatch) } else { Ok(()) }
    }
}

impl BodyPart {
    /// Makes a part after which more may follow.
    pub(crate) fn data(data: Bytes) -> BodyPart {
        BodyPart { data, end: None }
    }

    /// Makes the part that ends a body and has no data.
    pub(crate) fn end(trailers: TrailerLines) -> BodyPart {
        BodyPart { data: Bytes::new(), end: Some(trailers) }
    }
}

/// Whether a body follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HasBody {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_exactly_its_stated_length() {
        let part = |length: usize, is_last: bool| {
            let end = is_last.then(TrailerLines::new);
            BodyPart { data: Bytes::from(vec![b'x'; length]), end }
        };
        let count = |length: Option<u64>, parts: &[(usize, bool)]| {
            let mut stated = StatedLength(length);
            parts.iter().try_for_each(|(length, is_last)| stated.count(&part(*length, *is_last)))
        };
        for right in [&[(2, false), (3, true)][..], &[(5, false), (0, true)], &[(0, false), (5, true)]] {
            assert_eq!(count(Some(5), right), Ok(()), "{right:?}");
        }
        for wrong in [&[(2, false), (2, true)][..], &[(0, true)], &[(5, false), (1, false)], &[(6, true)]] {
            assert_eq!(count(Some(5), wrong), Err(LengthMismatch), "{wrong:?}");
            assert_eq!(count(None, wrong), Ok(()), "{wrong:?}");
        }
        assert_eq!(count(Some(0), &[(0, true)]), Ok(()));
    }
}
