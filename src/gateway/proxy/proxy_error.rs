//! Reads Pingora's errors: whose fault one is, and what of it may be logged.

use std::io;

use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType};

use super::exchange::Exchange;
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::runtime::response_buffers::BuffersFull;
use crate::gateway::server::http1::BodyError;
use crate::gateway::server::session::is_waiting_for_client;
use crate::gateway::server::tunnel_cut::ProcessExits;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::labels::UpstreamError;
use crate::gateway::upstream::read_timeout::UpstreamTimedOut;
use base::time::Timestamp;
use base::tls::certificate_error::{self, UNVERIFIED};
use decision::refusal::Refusal;

/// What has happened, without bytes of the peer's: Pingora's own text contains the whole of an invalid head.
pub fn describe(error: &Error) -> String {
    let kind = error.etype().as_str();
    match error.root_cause().downcast_ref::<io::Error>() {
        Some(cause) => format!("{kind}: {}", certificate_error::of_server(&cause.to_string())),
        // Of the peer's bytes it has the names of its certificate.
        None if *error.etype() == ErrorType::TLSHandshakeFailure => {
            let said = certificate_error::of_server(tls_context(error));
            // What Pingora says before the reason names no more than the kind.
            let reason = said.find(UNVERIFIED).and_then(|at| said.get(at..)).unwrap_or(&said);
            format!("{kind}: {reason}")
        }
        None => kind.to_owned(),
    }
}

/// What Pingora says of a handshake that has failed: of what rustls says it keeps the text.
fn tls_context(error: &Error) -> &str {
    error.context.as_ref().map_or("", |context| context.as_str())
}

/// Counts and logs why a request was not finished. Failures of the upstream are logged as often as `throttle` admits.
pub fn report(gateway: &GatewayState, throttle: &LogThrottle, error: &Error, code: u16, exchange: &Exchange) {
    let id = exchange.request_id.to_str().unwrap_or_default();
    match exchange.upstream_error {
        Some(kind) => {
            exchange.count_upstream_error(kind);
            let Some(requests) = throttle.admit(gateway.clock.now()) else { return };
            let upstream = exchange.upstream().map_or("", |one| one.upstream.name());
            // A socket has no port.
            let server = exchange.server().map_or_else(String::new, |(host, port)| match port {
                Some(port) => format!("{host}:{port}"),
                None => host.into_owned(),
            });
            let (kind, error) = (kind.name(), describe(error));
            log::warn!(upstream, server, kind, code, requests, request_id = id, error; "upstream failed");
        }
        None => log::debug!(code, request_id = id, error = describe(error); "request not finished"),
    }
}

/// The status of the response to a request that failed; 0 if the client has gone. Records how the upstream failed.
pub fn response_status(error: &Error, session: &mut Session, exchange: &mut Exchange, now: Timestamp) -> u16 {
    if let Some(invalid) = body_error(error) {
        return invalid.status();
    }
    if exchange.has_expired(|| now) && is_timeout(error) {
        if is_waiting_for_client(session) {
            return 408;
        }
        exchange.upstream_error = Some(UpstreamError::TotalTimeout);
        return 504;
    }
    if is_upstream_timeout(error) {
        exchange.upstream_error = Some(UpstreamError::ReadTimeout);
        return 504;
    }
    match (error.etype(), error.esource()) {
        (ErrorType::HTTPStatus(code), _) => *code,
        // The upstream was waiting for a part of the body, as the gateway was.
        (ErrorType::ReadTimedout, ErrorSource::Upstream) if is_waiting_for_client(session) => 408,
        (_, ErrorSource::Upstream) => {
            let failure = exchange.upstream_error.unwrap_or(upstream_error(error));
            exchange.upstream_error = Some(failure);
            match failure {
                UpstreamError::Busy => 503,
                UpstreamError::ConnectTimeout
                | UpstreamError::ReadTimeout
                | UpstreamError::WriteTimeout
                | UpstreamError::TotalTimeout => 504,
                _ => 502,
            }
        }
        (ErrorType::InvalidHTTPHeader, ErrorSource::Downstream) => 400,
        (_, ErrorSource::Downstream) => 0,
        _ => 500,
    }
}

/// What a response with this status refuses, if it is no fault.
pub fn refusal(status: u16, error: Option<UpstreamError>) -> Option<Refusal> {
    match (status, error) {
        (400 | 408 | 413, _) => Some(Refusal::bad_request(status)),
        (_, Some(UpstreamError::Busy)) => Some(Refusal::upstream_busy()),
        _ => None,
    }
}

/// Why the request's body could not be read to its end, if our stream has found that.
fn body_error(error: &Error) -> Option<BodyError> {
    stream_error(error)?.downcast_ref::<BodyError>().copied()
}

/// Whether the client's connection, to which the read timeout was delegated, has found that the upstream exceeded it.
pub fn is_upstream_timeout(error: &Error) -> bool {
    stream_error(error).is_some_and(|cause| cause.is::<UpstreamTimedOut>())
}

/// What the access log says of a response that we have not finished: a tunnel was cut because the process exits, or unread
/// responses took too much memory.
pub fn detail(error: &Error) -> Option<&'static str> {
    let cause = stream_error(error)?;
    if cause.is::<ProcessExits>() {
        return Some("shutdown");
    }
    cause.is::<BuffersFull>().then_some("response_buffers")
}

/// Whether the upstream has been waited for too long, on a connection to it.
pub fn is_timeout(error: &Error) -> bool {
    let timed_out = matches!(error.etype(), ErrorType::ReadTimedout | ErrorType::WriteTimedout);
    is_upstream_timeout(error) || timed_out && *error.esource() == ErrorSource::Upstream
}

/// The error that our stream has returned to Pingora.
fn stream_error(error: &Error) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
    error.root_cause().downcast_ref::<io::Error>()?.get_ref()
}

/// How the upstream has failed.
pub fn upstream_error(error: &Error) -> UpstreamError {
    if stream_error(error).is_some_and(|cause| cause.is::<rustls::Error>()) {
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
