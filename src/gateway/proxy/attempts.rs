//! Decides what happens when an endpoint fails: whether it is ejected, and whether the request is sent to another one.
//!
//! One decision and one charge cover all attempts. A request body that was begun is never sent twice.

use http::StatusCode;
use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType};

use super::exchange::{Exchange, FailedAttempt};
use super::proxy_error::{is_timeout, is_upstream_timeout, upstream_error};
use crate::gateway::server::session::is_waiting_for_client;
use crate::gateway::state::GatewayState;
use crate::gateway::state::destinations::UpstreamOfRoute;
use crate::gateway::telemetry::events::EventKind;
use crate::gateway::telemetry::labels::{Origin, UpstreamError};
use crate::gateway::upstream::{EndpointFailure, Retry, Upstream};
use decision::access_log_line::LoggedAttempt;

/// Whether a request may be sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatable {
    Yes,
    No,
}

/// The endpoint of the last attempt has failed. Returns whether the request is sent to another one.
pub fn fail(gateway: &GatewayState, exchange: &mut Exchange, error: UpstreamError, repeatable: Repeatable) -> bool {
    let expired = exchange.has_expired(|| gateway.clock.now());
    // An endpoint that had only the rest of a request's time is not to blame.
    if !expired || exchange.failed.is_empty() {
        note_failure(gateway, exchange, EndpointFailure::Error(error));
    }
    let retry = repeatable == Repeatable::Yes
        && !expired
        && may_retry(exchange, |upstream, max| upstream.retry(exchange.failed.len() + 1, max));
    if retry {
        exchange.count_retry(error);
        let failed_after = gateway.clock.now().since(exchange.started);
        exchange.trace.next_attempt();
        let endpoint = exchange.attempt.take().map(|attempt| attempt.endpoint.address.clone());
        exchange.failed.extend(endpoint.map(|endpoint| FailedAttempt { endpoint, error, failed_after }));
    }
    retry
}

/// An attempt has failed after the connection was made.
///
/// A pooled connection may have been closed by the upstream just as a request was sent on it. An idempotent request is then
/// sent once more, to whichever endpoint, if the upstream has retries and its budget allows one. The upstream may have seen it twice; it is counted as an error of the upstream, but
/// not as a failure of the endpoint. One that fails a second time, or that cannot be repeated, has failed as on a new connection.
pub fn fail_while_proxying(
    gateway: &GatewayState,
    session: &mut Session,
    mut error: Box<Error>,
    exchange: &mut Exchange,
    reused: bool,
) -> Box<Error> {
    let expired = exchange.has_expired(|| gateway.clock.now());
    let may_repeat = session.req_header().method.is_idempotent() && !expired;
    let repeatable = match may_repeat && session.body_bytes_read() == 0 && exchange.origin == Origin::Gateway {
        true => Repeatable::Yes,
        false => Repeatable::No,
    };
    error.retry.decide_reuse(reused);
    if error.retry() && repeatable == Repeatable::Yes && !exchange.repeated && may_retry(exchange, Upstream::repeat) {
        exchange.repeated = true;
        // Its place at the endpoint is free for the second time.
        exchange.attempt = None;
        let kind = upstream_error(&error);
        exchange.count_upstream_error(kind);
        exchange.count_retry(kind);
        return error;
    }
    let retry = if *error.etype() == ErrorType::ReadTimedout && is_waiting_for_client(session) {
        // The endpoint waited for the rest of the body, as the gateway did.
        false
    } else if expired && is_timeout(&error) {
        // A response that has begun may take its time, as far as the endpoint is concerned.
        exchange.origin == Origin::Gateway && fail(gateway, exchange, UpstreamError::TotalTimeout, Repeatable::No)
    } else if is_upstream_timeout(&error) {
        // It was the client's connection that noticed, and that cannot be used any more.
        fail(gateway, exchange, UpstreamError::ReadTimeout, Repeatable::No)
    } else if is_of_upstream(&error) {
        let repeatable = if *error.etype() == ErrorType::InvalidHTTPHeader { Repeatable::No } else { repeatable };
        fail(gateway, exchange, upstream_error(&error), repeatable)
    } else {
        false
    };
    error.set_retry(retry);
    error
}

/// Asks the upstream for a retry of a request, whose route may say how many there may be, and counts one that is over the budget.
fn may_retry(exchange: &Exchange, ask: impl FnOnce(&Upstream, Option<u32>) -> Retry) -> bool {
    let Some(UpstreamOfRoute { upstream, metrics, .. }) = exchange.upstream() else { return false };
    let retry = ask(upstream, exchange.overrides().and_then(|overrides| overrides.retries));
    if retry == Retry::OverBudget {
        metrics.retries_over_budget.increment(1);
    }
    retry == Retry::Yes
}

/// The endpoint of the last attempt has answered with this status.
pub fn answered(gateway: &GatewayState, exchange: &Exchange, status: StatusCode) {
    let is_failure = matches!(status.as_u16(), 502..=504);
    if is_failure {
        return note_failure(gateway, exchange, EndpointFailure::Status);
    }
    let (Some(UpstreamOfRoute { upstream, .. }), Some(attempt)) = (exchange.upstream(), &exchange.attempt) else {
        return;
    };
    if upstream.succeeded(&attempt.endpoint, || gateway.clock.now()) {
        log::info!(upstream = upstream.name(), endpoint:% = attempt.endpoint.address; "endpoint is used again");
    }
}

/// The attempts before the last one, for the access log.
pub fn logged(exchange: &Exchange) -> Vec<LoggedAttempt<'static>> {
    let logged = |failed: &FailedAttempt| LoggedAttempt {
        endpoint: failed.endpoint.clone(),
        error: failed.error.name().into(),
        failed_us: failed.failed_after,
    };
    exchange.failed.iter().map(logged).collect()
}

fn note_failure(gateway: &GatewayState, exchange: &Exchange, failure: EndpointFailure) {
    let (Some(UpstreamOfRoute { upstream, metrics, .. }), Some(attempt)) = (exchange.upstream(), &exchange.attempt)
    else {
        return;
    };
    attempt.count_failure(failure);
    if upstream.failed(&attempt.endpoint, gateway.clock.now()) {
        let (name, address) = (upstream.name(), &attempt.endpoint.address);
        metrics.ejections.increment(1);
        log::warn!(upstream = name, endpoint:% = address, last = failure.name(); "endpoint ejected");
        gateway.events.note(EventKind::EndpointEjected, &format!("{address} of {name}"));
    }
}

/// Whether the upstream is at fault, and not the client.
fn is_of_upstream(error: &Error) -> bool {
    *error.esource() == ErrorSource::Upstream
}
