//! Reads the head of a request within `limits.header_timeout`, once its first byte is there.

use std::future::poll_fn;

use super::downstream_stream::DownstreamStream;
use super::early_response::HeadRejection;
use super::request_head::{Body, Head, HeadParser, Size};
use crate::base::time;
use crate::base::time::Micros;
use crate::config::Bounds;
use crate::gateway::server::server_state::ServerState;

/// The result of waiting for a head.
pub enum NextHead {
    Valid(Head),
    Rejected {
        rejection: HeadRejection,
        /// How long the head was waited for.
        duration: Micros,
    },
    /// The client has closed the connection.
    Closed,
}

/// Reads the rest of a head and checks it.
pub async fn read_head(stream: &mut DownstreamStream, bounds: &Bounds, state: &ServerState) -> NextHead {
    let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
    let mut parser = HeadParser::default();
    let is_extra = |method: &[u8]| state.snapshot.load().config.has_extra_method(method);
    let parse =
        |parser: &mut HeadParser, stream: &mut DownstreamStream| match parser.parse(stream.unparsed(), &size, is_extra)
        {
            Ok(head) => match head?.body {
                Body::Length(length) if bounds.body_bytes.is_some_and(|most| length > most) => {
                    Some(Err(HeadRejection::BodyTooLong))
                }
                _ => head.map(Ok),
            },
            Err(error) => Some(Err(HeadRejection::Invalid(error))),
        };
    // Mostly the whole head has arrived at once.
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
