//! Reads and writes the bodies of HTTP/2 messages, of requests and of responses.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::received_body::ReceivedBody;
use crate::gateway::server::body_part::{BodyPart, TrailerLines};
use base::split::split_once;

/// Reads the next part of a body. Must not be called after the end of the body.
///
/// # Errors
/// If the stream was reset, or its connection failed.
pub(crate) fn poll_part(body: &ReceivedBody, cx: &mut Context<'_>) -> Poll<Result<BodyPart, h2::Error>> {
    loop {
        match ready!(body.poll_part(cx)) {
            Some(Ok(data)) if body.is_at_end() => {
                // The last part is returned together with the end. The end may also be a failure of the stream.
                return Poll::Ready(match poll_end(body, cx) {
                    Poll::Ready(end) => end.map(|BodyPart { end, .. }| BodyPart { data, end }),
                    Poll::Pending => Ok(BodyPart::data(data)),
                });
            }
            Some(Ok(data)) if data.is_empty() => {}
            Some(Ok(data)) => return Poll::Ready(Ok(BodyPart::data(data))),
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => return poll_end(body, cx),
        }
    }
}

/// Whether the gateway has found that the message violates the protocol. `false` for errors that the h2 crate finds.
pub(crate) fn is_malformed(error: &h2::Error) -> bool {
    error.reason() == Some(Reason::PROTOCOL_ERROR) && !error.is_reset() && !error.is_go_away()
}

fn poll_end(body: &ReceivedBody, cx: &mut Context<'_>) -> Poll<Result<BodyPart, h2::Error>> {
    let trailers = ready!(body.poll_trailers(cx))?;
    Poll::Ready(Ok(BodyPart::end(trailers.as_ref().map(trailer_lines).unwrap_or_default())))
}

/// The reason why nothing more is sent on a stream.
#[derive(Debug)]
pub(crate) enum SendEnd {
    /// The peer has reset the stream, or the connection has failed.
    Failed(h2::Error),
    Closed,
}

/// Sends a part of a body. Ready when the h2 crate has accepted all of the part. The crate holds at most one buffer of it.
///
/// # Errors
/// If the stream was reset, or its connection failed.
pub(crate) fn poll_send(
    stream: &mut SendStream<Bytes>,
    part: &mut BodyPart,
    cx: &mut Context<'_>,
) -> Poll<Result<(), SendEnd>> {
    while !part.data.is_empty() {
        stream.reserve_capacity(part.data.len());
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(SendEnd::Failed(error))),
                None => return Poll::Ready(Err(SendEnd::Closed)),
            }
        }
        let data = part.data.split_to(stream.capacity().min(part.data.len()));
        let is_last = part.data.is_empty() && part.end.as_ref().is_some_and(Vec::is_empty);
        if is_last {
            part.end = None;
        }
        stream.send_data(data, is_last).map_err(SendEnd::Failed)?;
    }
    let sent = match part.end.take() {
        None => Ok(()),
        Some(lines) => match trailer_map(&lines) {
            Some(trailers) => stream.send_trailers(trailers),
            None => stream.send_data(Bytes::new(), true),
        },
    };
    Poll::Ready(sent.map_err(SendEnd::Failed))
}

/// The lines of trailers, with the empty line after them.
fn trailer_lines(trailers: &HeaderMap) -> TrailerLines {
    let mut lines = TrailerLines::new();
    for (name, value) in trailers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            lines.extend_from_slice(part);
        }
    }
    if !lines.is_empty() {
        lines.extend_from_slice(b"\r\n");
    }
    lines
}

/// The fields in lines of trailers; `None` without lines. A line that is no valid field in HTTP/2 is left out.
fn trailer_map(lines: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for (name, value) in lines.split(|byte| *byte == b'\n').filter_map(|line| split_once(line, b':')) {
        let field = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value.trim_ascii()));
        if let (Ok(name), Ok(value)) = field
            && trailers.try_append(name, value).is_ok()
        {
            continue;
        }
        log::debug!("a trailer has no form in HTTP/2");
    }
    (!trailers.is_empty()).then_some(trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trailer_without_a_form_takes_no_other_with_it() {
        let trailers = trailer_map(b"x-sum: 1\r\nx-bad: \x01\r\ngrpc-status: 0\r\n\r\n").unwrap();
        let names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-sum", "grpc-status"]);
        assert_eq!(trailer_map(b"\r\n"), None);
    }
}
