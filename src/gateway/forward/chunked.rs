//! Writes bodies in chunks (RFC 9112, section 7.1).

use crate::gateway::server::body_part::BodyPart;

/// The way in which a body is written: as it is, or in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Plain,
    Chunked,
}

/// The last chunk of a body in chunks. The trailers and the empty line are written after it.
pub const LAST_CHUNK: &[u8] = b"0\r\n";

/// Moves the data of a part to `out`, written in this coding. If the part ends a body in chunks, the last chunk and the
/// trailers follow.
pub(super) fn write_part(part: &mut BodyPart, coding: Coding, out: &mut Vec<u8>) {
    let data = std::mem::take(&mut part.data);
    match coding {
        Coding::Plain => out.extend_from_slice(&data),
        Coding::Chunked => chunk(&data, out),
    }
    if let Some(trailers) = part.end.take().filter(|_| coding == Coding::Chunked) {
        out.extend_from_slice(LAST_CHUNK);
        out.extend_from_slice(if trailers.is_empty() { b"\r\n" } else { &trailers });
    }
}

/// Writes `data` as one chunk of a body. Writes nothing if `data` is empty, because an empty chunk would end the body.
pub fn chunk(data: &[u8], out: &mut Vec<u8>) {
    if data.is_empty() {
        return;
    }
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}
