//! Reads the head of the next request of a connection, within `limits.idle_timeout` and `limits.header_timeout`.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Buf;

use super::downstream_stream::DownstreamStream;
use super::early_response::HeadRejection;
use super::request_head::{Body, Head, HeadParser, Size};
use super::timers::idle_timeout::IdleTimeout;
use crate::base::time;
use crate::base::time::Micros;
use crate::config::Bounds;
use crate::gateway::state::GatewayState;

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

/// Waits for the first byte of a head. `false` if the connection is to be closed: the client has closed it or sent nothing
/// for the idle timeout, or this process leaves.
///
/// Some clients send an empty line after a body, which is skipped (RFC 9112, section 2.2).
pub async fn wait_for_first_byte(
    stream: &mut DownstreamStream,
    idle_timeout: &mut IdleTimeout<impl Future<Output = ()> + Unpin>,
    gateway: &GatewayState,
) -> bool {
    let mut skipped = false;
    loop {
        match &stream.unparsed()[..] {
            [b'\r', b'\n', ..] if !skipped => {
                stream.unparsed().advance(2);
                skipped = true;
                continue;
            }
            [] => {}
            [b'\r'] if !skipped => {}
            _ => return true,
        }
        let timeout = gateway.snapshot.load().config.bounds.idle_timeout;
        let end = gateway.clock.now().plus(timeout);
        let read = poll_fn(|cx| match stream.poll_read_ahead(cx) {
            Poll::Ready(read) => Poll::Ready(read.unwrap_or(0)),
            Poll::Pending => idle_timeout.poll(end, &gateway.clock, cx).map(|()| 0),
        });
        if read.await == 0 {
            return false;
        }
    }
}

/// Reads the rest of a head and checks it.
pub async fn read_head(stream: &mut DownstreamStream, bounds: &Bounds, gateway: &GatewayState) -> NextHead {
    let size = Size { bytes: bounds.header_bytes, fields: bounds.headers, target: bounds.target_bytes };
    let mut parser = HeadParser::default();
    let is_extra = |method: &[u8]| gateway.snapshot.load().config.has_extra_method(method);
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
    let started = gateway.clock.now();
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
    let duration = gateway.clock.now().since(started);
    match parsed.unwrap_or(Some(Err(HeadRejection::TimedOut))) {
        Some(Ok(head)) => NextHead::Valid(head),
        Some(Err(rejection)) => NextHead::Rejected { rejection, duration },
        None => NextHead::Closed,
    }
}
