//! Reads Pingora's errors of connections to upstreams: how a connection failed, and which text about it may be logged.

use std::io;

use pingora::{Error, ErrorType};

use crate::gateway::telemetry::labels::UpstreamError;
use base::tls::certificate_error::{self, UNVERIFIED};

/// Converts an error of Pingora's connector to the kind of error that metrics and logs name.
pub(super) fn upstream_error(error: &Error) -> UpstreamError {
    let cause = error.root_cause().downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    if cause.is_some_and(|cause| cause.is::<rustls::Error>()) {
        return UpstreamError::Tls;
    }
    match error.etype() {
        ErrorType::ConnectTimedout => UpstreamError::ConnectTimeout,
        ErrorType::ConnectRefused
        | ErrorType::ConnectNoRoute
        | ErrorType::ConnectError
        | ErrorType::BindError
        | ErrorType::SocketError => UpstreamError::ConnectFailed,
        ErrorType::TLSHandshakeFailure if tls_context(error).contains(UNVERIFIED) => UpstreamError::Certificate,
        ErrorType::InvalidCert
        | ErrorType::TLSWantX509Lookup
        | ErrorType::TLSHandshakeFailure
        | ErrorType::TLSHandshakeTimedout
        | ErrorType::HandshakeError => UpstreamError::Tls,
        ErrorType::ReadTimedout => UpstreamError::ReadTimeout,
        ErrorType::WriteTimedout => UpstreamError::WriteTimeout,
        ErrorType::InvalidHTTPHeader => UpstreamError::InvalidAnswer,
        _ => UpstreamError::Closed,
    }
}

/// Describes an error of a connection for the log, without bytes of the peer. Pingora's own text is not used, because
/// it would contain the whole of an invalid head.
pub(super) fn describe(error: &Error) -> String {
    let kind = error.etype().as_str();
    match error.root_cause().downcast_ref::<io::Error>() {
        Some(cause) => format!("{kind}: {}", certificate_error::of_server(&cause.to_string())),
        // Pingora's text about a failed handshake can be logged. It has no bytes of the peer but the names in the
        // certificate.
        None if *error.etype() == ErrorType::TLSHandshakeFailure => {
            let said = certificate_error::of_server(tls_context(error));
            // Pingora's text before the reason only repeats the kind of the error.
            let reason = said.find(UNVERIFIED).and_then(|at| said.get(at..)).unwrap_or(&said);
            format!("{kind}: {reason}")
        }
        None => kind.to_owned(),
    }
}

/// Returns Pingora's text about a failed handshake. It includes the text of rustls.
fn tls_context(error: &Error) -> &str {
    error.context.as_ref().map_or("", |context| context.as_str())
}
