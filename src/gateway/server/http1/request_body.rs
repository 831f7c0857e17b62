//! Finds the end of a request body as its bytes arrive (RFC 9112, section 6).
//!
//! Chunks are parsed strictly, so that every other parser finds the same end.

use std::fmt;

use super::request_head::Body;
use super::syntax::{is_token, is_value};

/// The maximum number of bytes of chunk extensions, and of zeros before chunk sizes, in one body.
const MOST_EXTENSIONS: u32 = 4 << 10;
/// The maximum number of bytes of trailers.
const MOST_TRAILERS: u32 = 8 << 10;
/// The largest size of a chunk: 4 GiB less one byte.
const LARGEST_CHUNK: u64 = u32::MAX as u64;

/// The reason why the end of a body cannot be reached: the body is invalid, too long, or does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    Framing,
    /// The body is longer than the limit.
    TooLong,
    /// The client has sent no more of the body for the body timeout.
    Stalled,
}

impl BodyError {
    pub fn status(self) -> u16 {
        match self {
            BodyError::Framing => 400,
            BodyError::TooLong => 413,
            BodyError::Stalled => 408,
        }
    }

    pub fn detail(self) -> &'static str {
        match self {
            BodyError::Framing => "bad chunk",
            BodyError::TooLong => "body too long",
            BodyError::Stalled => "body not there in time",
        }
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail())
    }
}

impl std::error::Error for BodyError {}

/// The part of a request after its head that has not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    Nothing,
    Length(u64),
    Chunked(Chunks),
    /// Every byte that follows, because the connection is a tunnel.
    Tunnel,
}

impl BodyFraming {
    /// Makes the framing of the body that a head announces. `most` is the largest allowed length of a body in chunks.
    pub fn of(body: Body, most: u64) -> BodyFraming {
        match body {
            Body::Nothing => BodyFraming::Nothing,
            Body::Length(length) => BodyFraming::Length(length),
            Body::Chunked => BodyFraming::Chunked(Chunks::new(most)),
            Body::Tunnel => BodyFraming::Tunnel,
        }
    }

    /// Advances over all bytes that belong to the request, and returns their number.
    ///
    /// # Errors
    /// If the body is invalid or too long.
    pub fn advance_to_end(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut index = 0;
        while let Some(rest) = bytes.get(index..).filter(|rest| !rest.is_empty() && *self != BodyFraming::Nothing) {
            index += self.next_part(rest)?.length;
        }
        Ok(index)
    }

    /// Takes the next part of the body from the beginning of `bytes`. All bytes of a part are of one kind.
    ///
    /// # Errors
    /// If the body is invalid or too long.
    pub fn next_part(&mut self, bytes: &[u8]) -> Result<Part, BodyError> {
        match self {
            BodyFraming::Nothing => Ok(Part { kind: PartKind::Data, length: 0 }),
            BodyFraming::Tunnel => Ok(Part { kind: PartKind::Data, length: bytes.len() }),
            BodyFraming::Length(left) => {
                let length = at_most(bytes.len(), *left);
                *left -= length as u64;
                if *left == 0 {
                    *self = BodyFraming::Nothing;
                }
                Ok(Part { kind: PartKind::Data, length })
            }
            BodyFraming::Chunked(chunks) => {
                let part = chunks.next_part(bytes)?;
                if chunks.at == At::End {
                    *self = BodyFraming::Nothing;
                }
                Ok(part)
            }
        }
    }

    /// Returns how many of `buffer` bytes may be read without reading beyond the known end of the request.
    pub fn readable(&self, buffer: usize) -> usize {
        match self {
            BodyFraming::Length(left) => at_most(buffer, *left),
            _ => buffer,
        }
    }
}

/// A part of a body as it arrives: the kind of its bytes, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub kind: PartKind,
    pub length: usize,
}

/// The kind of bytes in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    Data,
    /// The lines around chunks: their sizes, extensions and line ends.
    Framing,
    /// Lines of trailers, and the empty line after the last line.
    Trailers,
}

fn at_most(length: usize, most: u64) -> usize {
    usize::try_from(most).map_or(length, |most| length.min(most))
}

/// The state of reading a body in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    at: At,
    /// The maximum number of bytes of data that may still follow.
    data: u64,
    extensions: u32,
    trailers: u32,
    extension_budget: ExtensionBudget,
}

/// Whether the bytes of chunk extensions are bounded for the whole body, or for each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtensionBudget {
    Body,
    /// Used for responses, because a server may add an extension to every chunk.
    Chunk,
}

/// The element that is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    FirstDigit,
    Digit { size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    End,
}

impl At {
    fn is_trailer(self) -> bool {
        matches!(self, At::TrailerStart | At::TrailerName | At::TrailerValue | At::TrailerLf | At::EndLf)
    }
}

impl Chunks {
    fn new(most: u64) -> Chunks {
        let (extensions, trailers) = (MOST_EXTENSIONS, MOST_TRAILERS);
        Chunks { at: At::FirstDigit, data: most, extensions, trailers, extension_budget: ExtensionBudget::Body }
    }

    /// Makes the state for a response, whose length is not limited.
    pub fn of_response() -> Chunks {
        Chunks { extension_budget: ExtensionBudget::Chunk, ..Chunks::new(u64::MAX) }
    }

    fn next_part(&mut self, bytes: &[u8]) -> Result<Part, BodyError> {
        if let At::Data { left } = self.at {
            let taken = at_most(bytes.len(), left);
            let left = left - taken as u64;
            self.at = if left == 0 { At::DataCr } else { At::Data { left } };
            return Ok(Part { kind: PartKind::Data, length: taken });
        }
        let kind = if self.at.is_trailer() { PartKind::Trailers } else { PartKind::Framing };
        let mut length = 0;
        for byte in bytes {
            if self.at == (At::Digit { size: 0 }) && *byte == b'0' {
                self.extensions = self.extensions.checked_sub(1).ok_or(BodyError::Framing)?;
            }
            self.step(*byte)?;
            length += 1;
            let ends =
                matches!(self.at, At::Data { .. } | At::End) || self.at.is_trailer() != (kind == PartKind::Trailers);
            if ends {
                break;
            }
        }
        Ok(Part { kind, length })
    }

    /// Advances over one byte that is not data.
    fn step(&mut self, byte: u8) -> Result<(), BodyError> {
        self.at = match (self.at, byte) {
            (At::FirstDigit, _) if byte.is_ascii_hexdigit() => At::Digit { size: hex_value(byte) },
            (At::Digit { size }, _) if byte.is_ascii_hexdigit() => {
                let size = size * 16 + hex_value(byte);
                if size > LARGEST_CHUNK {
                    return Err(BodyError::Framing);
                }
                At::Digit { size }
            }
            (At::Digit { size } | At::Extension { size }, b'\r') => At::SizeLf { size },
            (At::Digit { size }, b';') => At::Extension { size },
            (At::Extension { size }, _) if is_value(byte) => {
                self.extensions = self.extensions.checked_sub(1).ok_or(BodyError::Framing)?;
                At::Extension { size }
            }
            (At::SizeLf { size: 0 }, b'\n') => At::TrailerStart,
            (At::SizeLf { size }, b'\n') => {
                if self.extension_budget == ExtensionBudget::Chunk {
                    self.extensions = MOST_EXTENSIONS;
                } else {
                    self.data = self.data.checked_sub(size).ok_or(BodyError::TooLong)?;
                }
                At::Data { left: size }
            }
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => At::FirstDigit,
            (At::TrailerStart, b'\r') => At::EndLf,
            (At::TrailerName, b':') => At::TrailerValue,
            (At::TrailerStart | At::TrailerName, _) if is_token(byte) => self.trailer(At::TrailerName)?,
            (At::TrailerValue, b'\r') => At::TrailerLf,
            (At::TrailerValue, _) if is_value(byte) => self.trailer(At::TrailerValue)?,
            (At::TrailerLf, b'\n') => At::TrailerStart,
            (At::EndLf, b'\n') => At::End,
            _ => return Err(BodyError::Framing),
        };
        Ok(())
    }

    fn trailer(&mut self, next: At) -> Result<At, BodyError> {
        self.trailers = self.trailers.checked_sub(1).ok_or(BodyError::Framing)?;
        Ok(next)
    }
}

fn hex_value(digit: u8) -> u64 {
    char::from(digit).to_digit(16).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of bytes that belong to the body, and whether the body is complete. Checks that the result
    /// does not depend on how the bytes are split.
    #[track_caller]
    fn advance(bytes: &str, most: u64) -> Result<(usize, bool), BodyError> {
        let walk = |step: usize| {
            let mut framing = BodyFraming::of(Body::Chunked, most);
            let mut taken = 0;
            for part in bytes.as_bytes().chunks(step) {
                taken += framing.advance_to_end(part)?;
            }
            Ok((taken, framing == BodyFraming::Nothing))
        };
        let whole = walk(bytes.len());
        for step in 1..8 {
            assert_eq!(walk(step), whole, "{bytes:?} by {step}");
        }
        whole
    }

    #[test]
    fn a_chunked_body_ends_with_an_empty_chunk_and_its_trailers() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "00000005\r\n0\r\n\r\n\r\nA\r\n0123456789\r\n000\r\n\r\n",
            "0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n",
            "00000000000000000000000000000005\r\nhello\r\n00000000000000000000;a\r\n\r\n",
            "1;a=b;c=\"d\"\r\nx\r\n0;\r\nX-Sum: 1\r\nY:\r\n\r\n",
        ] {
            assert_eq!(advance(body, u64::MAX), Ok((body.len(), true)), "{body:?}");
            assert_eq!(advance(&format!("{body}GET / "), u64::MAX), Ok((body.len(), true)), "{body:?}");
            for part in (1..body.len()).map(|length| body.get(..length).unwrap()) {
                assert_eq!(advance(part, u64::MAX), Ok((part.len(), false)), "{part:?}");
            }
        }
    }

    #[test]
    fn ambiguous_chunks_are_rejected() {
        for body in [
            "\r\n",
            "x",
            "-1\r\n",
            "+5\r\n",
            "0x5\r\n",
            " 5\r\n",
            "5 \r\n",
            "5\n",
            "5\rh",
            "5;a\n",
            "5;a\0",
            ";a\r\n",
            "123456789\r\n",
            "0000000100000000\r\n",
            "00000000000000000x5\r\n",
            "00000000000000000;a\n",
            "5\r\nhelloX",
            "5\r\nhello\n",
            "5\r\nhello\rX",
            "5\r\nhello\r\n\r\n",
            "0\r\n\n",
            "0\r\n\rX",
            "0\r\n X: y\r\n",
            "0\r\nX y\r\n",
            "0\r\nX\r\n",
            "0\r\n: y\r\n",
            "0\r\nX: y\n",
            "0\r\nX: \x01",
            "0\r\nX: y\r\n z\r\n",
        ] {
            assert_eq!(advance(body, u64::MAX), Err(BodyError::Framing), "{body:?}");
        }
        assert_eq!(advance(&format!("5;{}", "x".repeat(4097)), u64::MAX), Err(BodyError::Framing));
        assert_eq!(advance(&format!("0\r\nX: {}", "x".repeat(8192)), u64::MAX), Err(BodyError::Framing));
        assert_eq!(advance(&format!("1;{}\r\nx\r\n", "x".repeat(100)).repeat(41), u64::MAX), Err(BodyError::Framing));
    }

    #[test]
    fn leading_zeros_are_bounded() {
        let zeros = |count: usize| advance(&format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(count)), u64::MAX);
        assert_eq!(zeros(4097), Ok((4112, true)));
        assert_eq!(zeros(4098), Err(BodyError::Framing));
    }

    #[test]
    fn a_body_may_be_as_long_as_the_limit_and_no_longer() {
        let body = "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n";
        assert_eq!(advance(body, 6), Ok((body.len(), true)));
        assert_eq!(advance(body, 5), Err(BodyError::TooLong));
        assert_eq!(advance("6\r\n", 5), Err(BodyError::TooLong));
        assert_eq!(advance("0\r\n\r\n", 0), Ok((5, true)));
    }

    #[test]
    fn a_body_is_decoded_however_it_is_split() {
        let body = b"000000005;a=b\r\nhello\r\n3\r\nyou\r\n0\r\nX: y\r\n\r\nGET";
        for step in 1..body.len() {
            let (mut framing, mut data, mut trailers) = (BodyFraming::of(Body::Chunked, 8), Vec::new(), Vec::new());
            let mut taken = 0;
            while framing != BodyFraming::Nothing {
                let rest = &body[taken..body.len().min(taken + step)];
                let Part { kind, length } = framing.next_part(rest).unwrap();
                match kind {
                    PartKind::Data => data.extend_from_slice(&rest[..length]),
                    PartKind::Trailers => trailers.extend_from_slice(&rest[..length]),
                    PartKind::Framing => {}
                }
                taken += length;
            }
            assert_eq!(
                (&data[..], &trailers[..], taken),
                (&b"helloyou"[..], &b"X: y\r\n\r\n"[..], body.len() - 3),
                "{step}"
            );
        }
    }

    #[test]
    fn a_body_with_a_length_ends_with_its_last_byte() {
        let mut framing = BodyFraming::of(Body::Length(5), u64::MAX);
        assert_eq!((framing.readable(3), framing.readable(9)), (3, 5));
        assert_eq!((framing.advance_to_end(b"hel"), framing.advance_to_end(b"loGET")), (Ok(3), Ok(2)));
        assert_eq!((framing, framing.advance_to_end(b"GET")), (BodyFraming::Nothing, Ok(0)));
    }
}
