//! Follows a request's body to its last byte, whatever comes behind it.
//!
//! Bytes in, and out comes how many of them are the body's. Chunks are walked as strictly as heads are read, so that Pingora,
//! which reads them again to take them apart, finds the same end.

use std::fmt;

use super::request_head::Body;
use super::syntax::{is_token, is_value};

/// Of extensions behind chunk sizes, in one body. Nobody uses any.
const MOST_EXTENSIONS: u32 = 4 << 10;
const MOST_TRAILERS: u32 = 8 << 10;
/// Of a chunk's size: up to 4 GiB.
const MOST_DIGITS: u8 = 8;

/// Why a body cannot be followed to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyError {
    Framing,
    /// It is longer than a body may be.
    TooLong,
    /// The client sends nothing more of it.
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
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BodyError::Framing => "bad chunk",
            BodyError::TooLong => "body too long",
            BodyError::Stalled => "body not there in time",
        })
    }
}

impl std::error::Error for BodyError {}

/// What is still to come of a request behind its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    Nothing,
    Length(u64),
    Chunked(Chunks),
    /// Everything that comes.
    Tunnel,
}

impl BodyFraming {
    /// `most` is how long the body may be; a length was looked at when its head was judged.
    pub fn of(body: Body, most: u64) -> BodyFraming {
        match body {
            Body::Nothing => BodyFraming::Nothing,
            Body::Length(length) => BodyFraming::Length(length),
            Body::Chunked => BodyFraming::Chunked(Chunks::new(most)),
            Body::Tunnel => BodyFraming::Tunnel,
        }
    }

    /// How many of these bytes, from the first on, belong to the request. They are then behind us.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        match self {
            BodyFraming::Nothing => Ok(0),
            BodyFraming::Tunnel => Ok(bytes.len()),
            BodyFraming::Length(left) => {
                let taken = at_most(bytes.len(), *left);
                *left -= taken as u64;
                if *left == 0 {
                    *self = BodyFraming::Nothing;
                }
                Ok(taken)
            }
            BodyFraming::Chunked(chunks) => {
                let taken = chunks.advance(bytes)?;
                if chunks.at == At::End {
                    *self = BodyFraming::Nothing;
                }
                Ok(taken)
            }
        }
    }

    /// How many bytes can be read without reading any that belong to a next request, if that is known.
    pub fn readable(&self, buffer: usize) -> usize {
        match self {
            BodyFraming::Length(left) => at_most(buffer, *left),
            _ => buffer,
        }
    }
}

fn at_most(length: usize, most: u64) -> usize {
    usize::try_from(most).map_or(length, |most| length.min(most))
}

/// A walk over chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    at: At,
    /// What the body may still hold.
    data: u64,
    extensions: u32,
    trailers: u32,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Size { size: u64, digits: u8 },
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

const FIRST: At = At::Size { size: 0, digits: 0 };

impl Chunks {
    fn new(most: u64) -> Chunks {
        Chunks { at: FIRST, data: most, extensions: MOST_EXTENSIONS, trailers: MOST_TRAILERS }
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<usize, BodyError> {
        let mut place = 0;
        while self.at != At::End
            && let Some(byte) = bytes.get(place)
        {
            if let At::Data { left } = self.at {
                let taken = at_most(bytes.len() - place, left);
                place += taken;
                let left = left - taken as u64;
                self.at = if left == 0 { At::DataCr } else { At::Data { left } };
            } else {
                self.step(*byte)?;
                place += 1;
            }
        }
        Ok(place)
    }

    /// One byte that is not data.
    fn step(&mut self, byte: u8) -> Result<(), BodyError> {
        self.at = match (self.at, byte) {
            (At::Size { size, digits }, _) if byte.is_ascii_hexdigit() && digits < MOST_DIGITS => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                At::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
            }
            (At::Size { size, digits: 1.. } | At::Extension { size }, b'\r') => At::SizeLf { size },
            (At::Size { size, digits: 1.. }, b';') => At::Extension { size },
            (At::Extension { size }, _) if is_value(byte) => {
                self.extensions = self.extensions.checked_sub(1).ok_or(BodyError::Framing)?;
                At::Extension { size }
            }
            (At::SizeLf { size: 0 }, b'\n') => At::TrailerStart,
            (At::SizeLf { size }, b'\n') => {
                self.data = self.data.checked_sub(size).ok_or(BodyError::TooLong)?;
                At::Data { left: size }
            }
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => FIRST,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these bytes belong to a body, and whether it then is at its end; the same however they are split.
    #[track_caller]
    fn follow(bytes: &str, most: u64) -> Result<(usize, bool), BodyError> {
        let walk = |step: usize| {
            let mut remainder = BodyFraming::of(Body::Chunked, most);
            let mut taken = 0;
            for part in bytes.as_bytes().chunks(step) {
                taken += remainder.advance(part)?;
            }
            Ok((taken, remainder == BodyFraming::Nothing))
        };
        let whole = walk(bytes.len());
        for step in 1..8 {
            assert_eq!(walk(step), whole, "{bytes:?} by {step}");
        }
        whole
    }

    #[test]
    fn chunks_end_with_an_empty_one_and_its_trailers() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "00000005\r\n0\r\n\r\n\r\nA\r\n0123456789\r\n000\r\n\r\n",
            "1;a=b;c=\"d\"\r\nx\r\n0;\r\nX-Sum: 1\r\nY:\r\n\r\n",
        ] {
            assert_eq!(follow(body, u64::MAX), Ok((body.len(), true)), "{body:?}");
            assert_eq!(follow(&format!("{body}GET / "), u64::MAX), Ok((body.len(), true)), "{body:?}");
            for part in (1..body.len()).map(|length| body.get(..length).unwrap()) {
                assert_eq!(follow(part, u64::MAX), Ok((part.len(), false)), "{part:?}");
            }
        }
    }

    #[test]
    fn what_can_be_read_otherwise_is_refused() {
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
            "000000005\r\n",
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
            assert_eq!(follow(body, u64::MAX), Err(BodyError::Framing), "{body:?}");
        }
        assert_eq!(follow(&format!("5;{}", "x".repeat(4097)), u64::MAX), Err(BodyError::Framing));
        assert_eq!(follow(&format!("0\r\nX: {}", "x".repeat(8192)), u64::MAX), Err(BodyError::Framing));
        assert_eq!(follow(&format!("1;{}\r\nx\r\n", "x".repeat(100)).repeat(41), u64::MAX), Err(BodyError::Framing));
    }

    #[test]
    fn a_body_is_as_long_as_it_may_be_and_no_longer() {
        let body = "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n";
        assert_eq!(follow(body, 6), Ok((body.len(), true)));
        assert_eq!(follow(body, 5), Err(BodyError::TooLong));
        assert_eq!(follow("6\r\n", 5), Err(BodyError::TooLong));
        assert_eq!(follow("0\r\n\r\n", 0), Ok((5, true)));
    }

    #[test]
    fn a_length_is_followed_to_its_last_byte() {
        let mut remainder = BodyFraming::of(Body::Length(5), u64::MAX);
        assert_eq!((remainder.readable(3), remainder.readable(9)), (3, 5));
        assert_eq!((remainder.advance(b"hel"), remainder.advance(b"loGET")), (Ok(3), Ok(2)));
        assert_eq!((remainder, remainder.advance(b"GET")), (BodyFraming::Nothing, Ok(0)));
    }
}
