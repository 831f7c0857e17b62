//! Holds the state of one request and its response, from the head to the end. Every exchange ends exactly once.
//!
//! An [`Exchange`] gathers what is reported of a request. The functions that handle the request pass it on. When it is
//! dropped, the request is counted and logged; this happens nowhere else.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use http::request::Parts;

use super::fault::Fault;
use super::forwarder::Forwarder;
use super::own_response_settings::OwnResponses;
use crate::gateway::enforcement::RequestPurpose;
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use crate::gateway::server::connection_guard::CountGuard;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::state::destinations::{Destination, UpstreamOfRoute};
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::labels::{Origin, UpstreamError};
use crate::gateway::telemetry::trace::{EndedRequest, RequestTrace, UpstreamCall};
use crate::gateway::upstream::BalanceKey;
use crate::gateway::upstream::endpoint::Attempt;
use base::endpoint_address::EndpointAddress;
use base::time::{Micros, Timestamp};
use base::tls::client_certificate_properties::ClientCertificate;
use decision::access_log_line::{Kind, LoggedAttempt};
use decision::cors::CorsAnswer;
use decision::error_pages::ErrorPage;
use request::scheme::{Scheme, SchemeSource};
use rules::route::forwarding::{FieldChanges, ForwardedCertificate, Forwarding, Rewrite};
use rules::route::overrides::Overrides;

/// One request and its response, from the head to the end: what the gateway knows of them, and what it reports at the end.
pub(super) struct Exchange<'f> {
    pub forwarder: &'f Forwarder,
    pub head: Parts,
    pub started: Timestamp,
    pub request_id: HeaderValue,
    pub peer: IpAddr,
    /// Whether the peer is trusted. Only a trusted peer's fields, such as `X-Forwarded-For`, determine who the client is.
    pub trusted_peer: bool,
    pub connection: ConnectionHandle,
    /// The route that was chosen for the request, with its upstream or answer. `None` before the decision.
    pub destination: Option<Arc<Destination>>,
    /// The rate-limit fields to be added to the response, if there are any.
    pub rate_limits: Option<Box<RateLimitFields>>,
    pub own_responses: Option<Box<OwnResponses>>,
    pub field_changes: Option<Box<FieldChanges>>,
    /// The value by which the upstream selects the endpoint. `None` if the upstream does not select by a value, or the request
    /// lacks the value.
    pub balance_key: Option<BalanceKey>,
    /// The guard that counts the connection to the upstream. `None` for a client of HTTP/1, whose connection is counted
    /// together with one to an upstream, and for a stream on a shared connection.
    pub upstream_connection: Option<CountGuard>,
    pub record: Option<Box<RequestRecord>>,
    pub trace: RequestTrace,
    pub report: Report,
}

/// An attempt that failed and was followed by another attempt.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    pub endpoint: EndpointAddress,
    pub error: UpstreamError,
    /// The time from the arrival of the request's head to the failure.
    pub failed_after: Micros,
}

/// The values that are reported when a request has ended: in metrics, in logs and in traces.
#[derive(Debug)]
pub(super) struct Report {
    /// The status code of the response. `None` before the response has begun.
    pub code: Option<u16>,
    pub origin: Origin,
    /// Whether the gateway has answered in the place of an upstream, as configured: with a fixed response, a redirect or the
    /// answer to a preflight.
    pub answered: bool,
    /// Whether the decision let the request go to its upstream.
    pub passed: bool,
    /// The current or last attempt, with its endpoint.
    pub attempt: Option<Attempt>,
    /// The earlier attempts. All of them failed.
    pub failed: Vec<FailedAttempt>,
    /// The time at which the request got the connection on which it was sent. `None` if the request was not sent.
    pub forwarded: Option<Timestamp>,
    pub fault: Option<Fault>,
    pub request_bytes: usize,
    pub response_bytes: usize,
}

impl Default for Report {
    fn default() -> Report {
        Report {
            code: None,
            origin: Origin::Gateway,
            answered: false,
            passed: false,
            attempt: None,
            failed: Vec::new(),
            forwarded: None,
            fault: None,
            request_bytes: 0,
            response_bytes: 0,
        }
    }
}

impl Exchange<'_> {
    pub(super) fn scheme(&self) -> Scheme {
        self.connection.scheme()
    }

    /// Returns where the scheme of the request is known from: a trusted proxy, or the connection.
    pub(super) fn scheme_source(&self) -> SchemeSource {
        let scheme = self.scheme();
        if self.trusted_peer { SchemeSource::TrustedProxy(scheme) } else { SchemeSource::Connection(scheme) }
    }

    pub(super) fn cors(&self) -> Option<&CorsAnswer> {
        self.own_responses.as_ref()?.cors()
    }

    pub(super) fn purpose(&self) -> RequestPurpose {
        match self.cors() {
            Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::Preflight,
            _ => RequestPurpose::Ordinary,
        }
    }

    /// Returns the operator's error page for a response with this status. `None` if no page applies.
    pub(super) fn page(&self, status: u16) -> Option<&ErrorPage> {
        let tls = self.connection.tls().map(|tls| tls.identity());
        self.own_responses.as_ref()?.page(&self.head, tls, self.destination.as_deref(), status)
    }

    pub(super) fn upstream(&self) -> Option<&UpstreamOfRoute> {
        self.destination.as_ref()?.upstream.as_ref()
    }

    fn forwarding(&self) -> Option<&Forwarding> {
        self.destination.as_ref()?.forwarding.as_deref()
    }

    /// Returns how the route rewrites the host and the path for the upstream. `None` if the destination has no settings for
    /// forwarding.
    pub(super) fn rewrite(&self) -> Option<&Rewrite> {
        Some(&self.forwarding()?.rewrite)
    }

    /// Returns the settings, such as timeouts, with which the route replaces the settings of the upstream.
    pub(super) fn overrides(&self) -> Option<&Overrides> {
        Some(&self.forwarding()?.overrides)
    }

    /// Returns the certificate of the client, if the route forwards it to the upstream.
    pub(super) fn forwarded_certificate(&self) -> Option<&ClientCertificate> {
        match self.forwarding()?.client_certificate {
            ForwardedCertificate::No => None,
            ForwardedCertificate::Yes => self.connection.tls()?.identity().certificate.as_ref(),
        }
    }

    /// Returns the longest allowed duration of the whole request, set by the route or else by the upstream. `None` if the
    /// duration is not limited.
    pub(super) fn total_timeout(&self) -> Option<Micros> {
        match self.overrides().and_then(|overrides| overrides.timeouts.total) {
            Some(own) => own.micros(),
            None => self.upstream()?.upstream.total_timeout(),
        }
    }

    pub(super) fn count_upstream_error(&self, error: UpstreamError) {
        if let Some(one) = self.upstream() {
            one.metrics.count_error(error);
        }
    }

    pub(super) fn count_retry(&self, error: UpstreamError) {
        if let Some(one) = self.upstream() {
            one.metrics.count_retry(error);
        }
    }

    /// The host and the port to which the request was sent, or would have been sent. For a Unix domain socket, the path
    /// without a port.
    fn server(&self) -> Option<(Cow<'_, str>, Option<u16>)> {
        let upstream = &self.upstream()?.upstream;
        match &self.report.attempt {
            Some(Attempt { endpoint, .. }) => Some(match &endpoint.address {
                EndpointAddress::Inet(address) => (Cow::from(&endpoint.host), Some(address.port())),
                EndpointAddress::Unix(path) => (path.to_string_lossy(), None),
            }),
            None => upstream.first_endpoint().map(|endpoint| match &endpoint.socket {
                None => (Cow::from(&endpoint.host), Some(endpoint.port)),
                Some(path) => (path.to_string_lossy(), None),
            }),
        }
    }

    /// Counts and logs why a request was not completed. The throttle limits how often failures of the upstream are logged.
    fn report_fault(&self, fault: &Fault, code: u16) {
        let Forwarder { gateway, logs, .. } = self.forwarder;
        let (id, error) = (self.request_id.to_str().unwrap_or_default(), fault.detail());
        match fault.upstream_error() {
            Some(kind) => {
                self.count_upstream_error(kind);
                let Some(requests) = logs.upstream_failures.admit(gateway.clock.now()) else { return };
                let upstream = self.upstream().map_or("", |one| one.upstream.name());
                // A Unix domain socket has no port.
                let server = self.server().map_or_else(String::new, |(host, port)| match port {
                    Some(port) => format!("{host}:{port}"),
                    None => host.into_owned(),
                });
                let kind = kind.name();
                log::warn!(upstream, server, kind, code, requests, request_id = id, error; "upstream failed");
            }
            None => log::debug!(code, request_id = id, error; "request not finished"),
        }
    }

    /// Returns the attempts before the last one, for the access log.
    fn failed_attempts(&self) -> Vec<LoggedAttempt<'static>> {
        let logged = |failed: &FailedAttempt| LoggedAttempt {
            endpoint: failed.endpoint.clone(),
            error: failed.error.name().into(),
            failed_us: failed.failed_after,
        };
        self.report.failed.iter().map(logged).collect()
    }
}

/// The end of every request.
impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        let gateway = &self.forwarder.gateway;
        let now = gateway.clock.now();
        let Report { code, forwarded, request_bytes, response_bytes, answered, .. } = self.report;
        let code = code.unwrap_or_else(|| {
            // The client has left: 499 is the code that nginx logs for this. If the upstream has seen the request, the
            // response counts as the upstream's.
            self.report.origin = if forwarded.is_some() { Origin::Upstream } else { Origin::Gateway };
            499
        });
        let origin = self.report.origin;
        let destination = match &self.destination {
            Some(destination) => Arc::clone(destination),
            // The request failed before its route was chosen.
            None => Arc::clone(gateway.snapshot.load().destinations.unrouted()),
        };
        let route = &destination.route;
        route.count_response(self.head.method.as_str(), code, origin);
        let duration = now.since(self.started);
        route.duration(origin).record(duration.seconds());
        let upstream = forwarded.map(|forwarded| now.since(forwarded));
        if let (Some(upstream), Some(one)) = (upstream, &destination.upstream) {
            one.metrics.duration.record(upstream.seconds());
            if let Some(attempt) = &self.report.attempt {
                attempt.add_duration(upstream);
            }
        }
        if let Some(fault) = &self.report.fault {
            self.report_fault(fault, code);
        }
        let Some(record) = &self.record else { return };
        let fault = self.report.fault.as_ref();
        let whole = fault.is_none() && (origin == Origin::Upstream || answered);
        let end = RequestEnd {
            kind: record.kind(if whole { Kind::Allowed } else { Kind::Error }),
            request_id: &self.request_id,
            route: route.route(),
            method: self.head.method.as_str(),
            code,
            origin,
            duration,
            upstream,
            endpoint: self.report.attempt.as_ref().map(|attempt| &attempt.endpoint.address),
            failed_attempts: self.failed_attempts(),
            request_bytes,
            response_bytes,
            detail: fault.and_then(Fault::logged_detail),
        };
        record.write(&end, &self.head, &gateway.clock);
        gateway.tracer.end(&self.trace, || EndedRequest {
            line: record.line(&end, &self.head, end.began(&gateway.clock)),
            scheme: self.scheme().name(),
            server: self.connection.socket().and_then(|socket| socket.local()),
            upstream: self.server().filter(|_| self.report.passed).map(|(host, port)| UpstreamCall {
                host,
                port,
                status: self.report.code.filter(|_| origin == Origin::Upstream),
                error: fault.and_then(Fault::upstream_error),
            }),
        });
    }
}
