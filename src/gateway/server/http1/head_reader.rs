//! Reads the head of a request within `limits.header_timeout`, which begins with the head's first byte.

use std::future::poll_fn;

use super::downstream_stream::DownstreamStream;
use super::early_response::HeadRejection;
use super::request_body::{BodyError, BodyFraming};
use super::request_head::{Body, Head, HeadParser, Size};
use crate::gateway::server::server_state::ServerState;
use base::time;
use base::time::Micros;
use config::Bounds;

/// The result of waiting for the head of a request.
pub(super) enum NextHead {
    Valid(Head),
    Rejected {
        rejection: HeadRejection,
        /// How long the gateway waited for the head.
        duration: Micros,
    },
    /// The connection ended before the head was complete.
    Closed,
}

/// Reads the rest of a head. Checks the head, and the part of the body that is already known.
pub(super) async fn read_head(stream: &mut DownstreamStream, bounds: &Bounds, state: &ServerState) -> NextHead {
    let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
    let mut parser = HeadParser::over(stream.handle.scheme());
    let is_extra = |method: &[u8]| state.snapshot.load().config.has_extra_method(method);
    let parse =
        |parser: &mut HeadParser, stream: &mut DownstreamStream| match parser.parse(stream.unparsed(), &size, is_extra)
        {
            Ok(head) => Some(check_body(head?, bounds, stream.unparsed()).map_err(HeadRejection::Body)),
            Err(error) => Some(Err(HeadRejection::Invalid(error))),
        };
    // Most heads have already arrived whole, and need no timeout.
    match parse(&mut parser, stream) {
        Some(Ok(head)) => return NextHead::Valid(head),
        Some(Err(rejection)) => return NextHead::Rejected { rejection, duration: Micros(0) },
        None => {}
    }
    let started = state.clock.now();
    let rest = async {
        loop {
            match poll_fn(|cx| stream.poll_read_ahead(cx)).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
            if let Some(parsed) = parse(&mut parser, stream) {
                return Some(parsed);
            }
        }
    };
    let parsed = time::timeout(bounds.header_timeout.into(), rest).await;
    let duration = state.clock.now().since(started);
    match parsed.unwrap_or(Some(Err(HeadRejection::TimedOut))) {
        Some(Ok(head)) => NextHead::Valid(head),
        Some(Err(rejection)) => NextHead::Rejected { rejection, duration },
        None => NextHead::Closed,
    }
}

/// Checks what is known of the body: its length, or the chunks that arrived with the head. `bytes` begins with the
/// head.
fn check_body(head: Head, bounds: &Bounds, bytes: &[u8]) -> Result<Head, BodyError> {
    let most = bounds.body_bytes.unwrap_or(u64::MAX);
    match head.body {
        Body::Length(length) if length > most => Err(BodyError::TooLong),
        Body::Chunked => {
            let arrived = bytes.get(head.length..).unwrap_or_default();
            BodyFraming::of(head.body, most).advance_to_end(arrived).map(|_| head)
        }
        Body::Nothing | Body::Length(_) | Body::Tunnel => Ok(head),
    }
}
