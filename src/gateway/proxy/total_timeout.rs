//! Bounds how long a request may take as a whole, all its attempts together (`timeouts.total`).
//!
//! The time begins with the first attempt and ends with the last byte of the response. Each attempt has at most what is left of
//! it to connect, to write and to read. Those are timeouts between bytes, so every part of a response is checked as well, and
//! a client's connection or stream, which is polled while the upstream is waited for, ends the request at its time.

use std::time::Duration;

use pingora::proxy::Session;
use pingora::upstreams::peer::PeerOptions;
use pingora::{Error, ErrorType, Result};

use super::exchange::Exchange;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::session::asks_for_websocket;
use crate::gateway::upstream::request_deadline::RequestDeadline;
use base::time::{Micros, Timestamp};

/// What an attempt has at least, if it is made at all.
const LEAST: Duration = Duration::from_millis(1);

/// Applies it to one attempt.
pub fn apply(exchange: &mut Exchange, total: Micros, options: &mut PeerOptions, session: &Session, now: Timestamp) {
    let deadline = *exchange.deadline.get_or_insert(now.plus(total));
    let left = Duration::from(deadline.since(now)).max(LEAST);
    let bound = |timeout: &mut Option<Duration>| *timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
    bound(&mut options.connection_timeout);
    bound(&mut options.total_connection_timeout);
    // These hold for a WebSocket as well, which may last longer.
    if !asks_for_websocket(session) {
        bound(&mut options.read_timeout);
        bound(&mut options.write_timeout);
    }
    let of_connection = exchange.connection.as_ref().and_then(ConnectionHandle::deadline);
    if let Some(enforced) = of_connection.or_else(|| RequestDeadline::of_stream(session.req_header())) {
        enforced.set(deadline);
    }
}

/// A part of the response has arrived.
///
/// # Errors
/// If that is after the deadline.
pub fn check(deadline: Timestamp, now: Timestamp) -> Result<()> {
    if now < deadline { Ok(()) } else { Err(Error::new_up(ErrorType::ReadTimedout)) }
}
