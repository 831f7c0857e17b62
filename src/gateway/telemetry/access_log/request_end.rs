//! Holds the values that are known at the end of a request. Makes from them the fields that every access log line has.

use std::borrow::Cow;

use http::HeaderValue;

use crate::gateway::telemetry::labels;
use base::endpoint_address::EndpointAddress;
use base::time::{Clock, Micros, Timestamp};
use decision::access_log_line::{Kind, Line, LoggedAttempt, Origin};
use decision::reason::Reason;

/// The values that are known when a request has ended, for its line of the access log.
#[derive(Debug)]
pub(crate) struct RequestEnd<'a> {
    pub kind: Kind,
    pub request_id: &'a HeaderValue,
    /// The name of the request's route.
    pub route: &'a str,
    pub method: &'a str,
    pub code: u16,
    pub origin: Origin,
    pub duration: Micros,
    pub upstream: Option<Micros>,
    /// The endpoint of the last attempt. `None` if the request was not sent to an endpoint.
    pub endpoint: Option<&'a EndpointAddress>,
    /// The failed attempts before the last attempt.
    pub failed_attempts: Vec<LoggedAttempt<'a>>,
    pub request_bytes: usize,
    pub response_bytes: usize,
    /// The reason why the gateway ended the request early. `None` if the gateway did not do so.
    pub detail: Option<&'static str>,
}

impl<'a> RequestEnd<'a> {
    /// Returns the time at which the head of this request arrived, by the wall clock. To be called as soon as the
    /// request has ended.
    pub(crate) fn began(&self, clock: &Clock) -> Timestamp {
        Timestamp(clock.wall().0.saturating_sub(self.duration.0))
    }

    /// Returns the log line of a request whose head could not be read, so that no rule decided about it.
    pub(crate) fn headless_line(&self, reason: Option<Reason>, clock: &Clock) -> Line<'a> {
        Line { reason: reason.map(|reason| reason.name().into()), ..self.line(self.began(clock)) }
    }

    /// Returns the log line with the fields that every log line has. `began` is the time of the request's arrival.
    pub(crate) fn line(&self, began: Timestamp) -> Line<'a> {
        Line {
            time: began,
            // An id that was not plain text was replaced when the request arrived, so this does not fail.
            request_id: self.request_id.to_str().unwrap_or_default().into(),
            kind: self.kind,
            route: self.route.into(),
            method: labels::method(self.method).into(),
            code: self.code,
            origin: self.origin,
            duration_us: self.duration,
            upstream_us: self.upstream,
            endpoint: self.endpoint.cloned(),
            failed_attempts: self.failed_attempts.clone(),
            request_bytes: u64::try_from(self.request_bytes).unwrap_or(u64::MAX),
            response_bytes: u64::try_from(self.response_bytes).unwrap_or(u64::MAX),
            detail: self.detail.map(Cow::from),
            ..Line::UNDECIDED
        }
    }
}
