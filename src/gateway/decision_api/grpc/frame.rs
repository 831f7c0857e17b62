//! Frames messages as in gRPC: one byte for the compression flag, four bytes for the length, and the message.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::gateway::server::http1::BodyError;

/// The number of bytes that precede each message: one for the compression flag, and four for the length.
pub const PREFIX: usize = 5;

/// The maximum length of a message in bytes. A message may contain the body that Envoy sends along with a request.
pub const LONGEST: usize = 1 << 20;

/// The reason why the message of a call cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The body does not contain one whole message, or has more bytes after the message.
    Framing,
    Compressed,
    TooLong,
    /// The message was not complete in time.
    Late,
    /// The bytes are not a message of the expected type.
    Message,
}

impl From<BodyError> for FrameError {
    fn from(error: BodyError) -> FrameError {
        match error {
            BodyError::Framing => FrameError::Framing,
            BodyError::TooLong => FrameError::TooLong,
            BodyError::Stalled => FrameError::Late,
        }
    }
}

/// Reads the message of a body that must contain exactly one message.
///
/// # Errors
/// If the body is not exactly one valid, uncompressed message.
pub fn read<M: Message + Default>(body: &[u8]) -> Result<M, FrameError> {
    let (prefix, message) = body.split_first_chunk::<PREFIX>().ok_or(FrameError::Framing)?;
    let [compressed, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| FrameError::TooLong)?;
    if length > LONGEST {
        return Err(FrameError::TooLong);
    }
    match compressed {
        0 => {}
        1 => return Err(FrameError::Compressed),
        _ => return Err(FrameError::Framing),
    }
    if message.len() != length {
        return Err(FrameError::Framing);
    }
    M::decode(message).map_err(|_| FrameError::Message)
}

/// Makes a body that contains only this message.
pub fn write(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut body = BytesMut::with_capacity(PREFIX + length);
    body.put_u8(0);
    // The length fits, because a response is far shorter than 4 GiB.
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding cannot fail, because the buffer grows.
    let _ = message.encode(&mut body);
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::super::messages::{DescriptorEntry, RateLimitDescriptor, RateLimitRequest};
    use super::*;

    fn request() -> RateLimitRequest {
        let entry = DescriptorEntry { key: "a".to_owned(), value: "b".into() };
        let descriptor =
            RateLimitDescriptor { entries: vec![entry], limit: None, hits_addend: Some(0), is_negative_hits: false };
        RateLimitRequest { domain: "edge".to_owned(), descriptors: vec![descriptor], hits_addend: 3 }
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        assert_eq!(read(&write(&request())), Ok(request()));
        // Encoded by hand from the definition of the message. An optional field with the value 0 is encoded too.
        let encoded = b"\x0a\x04edge\x12\x0a\x0a\x06\x0a\x01a\x12\x01b\x1a\x00\x18\x03";
        assert_eq!(write(&request()).get(PREFIX..), Some(&encoded[..]));
    }

    #[test]
    fn a_body_that_is_not_one_message_is_an_error() {
        let whole = write(&request()).to_vec();
        let check = |body: &[u8], error| assert_eq!(read::<RateLimitRequest>(body), Err(error), "{body:?}");
        for end in 0..whole.len() {
            check(&whole[..end], FrameError::Framing);
        }
        check(&[&whole[..], &[0]].concat(), FrameError::Framing);
        check(&[&[1], &whole[1..]].concat(), FrameError::Compressed);
        check(&[&[2], &whole[1..]].concat(), FrameError::Framing);
        check(&[0, 0, 0x10, 0, 1], FrameError::TooLong);
        check(&[0, 0, 0, 0, 1, 0xff], FrameError::Message);
    }
}
