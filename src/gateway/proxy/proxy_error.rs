//! Reads what Pingora says went wrong: whose fault it is, and what may be said of it.

use std::io;

use pingora::{Error, ErrorType};

use crate::gateway::server::http1::{BodyError, UpstreamTimedOut};
use crate::gateway::telemetry::labels::UpstreamError;

/// What has happened, without what was read: Pingora's own text has all of a head in it that cannot be one.
pub fn words(error: &Error) -> String {
    let kind = error.etype().as_str();
    match error.root_cause().downcast_ref::<io::Error>() {
        Some(cause) => format!("{kind}: {cause}"),
        None => kind.to_owned(),
    }
}

/// What the client has done that its request could not be followed to its end.
pub fn violation(error: &Error) -> Option<BodyError> {
    ours(error)?.downcast_ref::<BodyError>().copied()
}

/// Whether the upstream has said nothing for too long, as the front door has found.
pub fn is_silence(error: &Error) -> bool {
    ours(error).is_some_and(|cause| cause.is::<UpstreamTimedOut>())
}

/// What the front door has said of a connection.
fn ours(error: &Error) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
    error.root_cause().downcast_ref::<io::Error>()?.get_ref()
}

/// How the upstream has failed.
pub fn upstream_error(kind: &ErrorType) -> UpstreamError {
    match kind {
        ErrorType::ConnectTimedout => UpstreamError::ConnectTimeout,
        ErrorType::ConnectRefused
        | ErrorType::ConnectNoRoute
        | ErrorType::ConnectError
        | ErrorType::BindError
        | ErrorType::SocketError => UpstreamError::ConnectFailed,
        ErrorType::ReadTimedout => UpstreamError::ReadTimeout,
        ErrorType::WriteTimedout => UpstreamError::WriteTimeout,
        ErrorType::InvalidHTTPHeader => UpstreamError::InvalidAnswer,
        _ => UpstreamError::Closed,
    }
}
