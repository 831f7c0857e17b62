//! Holds the end of a request, and makes the part of an access log line that every request has.

use std::borrow::Cow;

use http::HeaderValue;

use crate::gateway::telemetry::labels;
use base::endpoint_address::EndpointAddress;
use base::time::{Clock, Micros, Timestamp};
use decision::access_log_line::{Kind, Line, LoggedAttempt, Origin};
use decision::reason::Reason;

/// The end of a request.
#[derive(Debug)]
pub struct RequestEnd<'a> {
    pub kind: Kind,
    pub request_id: &'a HeaderValue,
    /// The name of its route.
    pub route: &'a str,
    pub method: &'a str,
    pub code: u16,
    pub origin: Origin,
    pub duration: Micros,
    pub upstream: Option<Micros>,
    /// The endpoint of the last attempt.
    pub endpoint: Option<&'a EndpointAddress>,
    /// The attempts before it.
    pub failed_attempts: Vec<LoggedAttempt<'a>>,
    pub request_bytes: usize,
    pub response_bytes: usize,
    /// The reason why the gateway has ended it early, if it has.
    pub detail: Option<&'static str>,
}

impl<'a> RequestEnd<'a> {
    /// The arrival of the head of a request that has just ended: by the wall clock, as in other logs of this machine.
    pub fn began(&self, clock: &Clock) -> Timestamp {
        Timestamp(clock.wall().0.saturating_sub(self.duration.0))
    }

    /// The line of a request whose head could not be read, and which was not decided.
    pub fn headless_line(&self, reason: Option<Reason>, clock: &Clock) -> Line<'a> {
        Line { reason: reason.map(|reason| reason.name().into()), ..self.line(self.began(clock)) }
    }

    /// The fields that every line has.
    pub fn line(&self, began: Timestamp) -> Line<'a> {
        Line {
            time: began,
            // An id that is not plain text was replaced when the request arrived.
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
