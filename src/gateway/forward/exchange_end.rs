//! Handles the end of an exchange: tells the observer of the response, and counts, logs and traces the request.
//!
//! Dropping an [`Exchange`] makes its [`EndedExchange`], whichever stage the exchange has reached.

use std::borrow::Cow;

use super::attempts::{Attempts, FailedAttempt};
use super::exchange::{Exchange, ReceivedExchange};
use super::fault::Fault;
use super::forwarder::Forwarder;
use super::response_report::{BegunResponse, ResponseSource};
use crate::gateway::state::destinations::{Destination, UpstreamOfRoute};
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::labels::Origin;
use crate::gateway::telemetry::trace::{EndedRequest, UpstreamCall};
use crate::gateway::upstream::endpoint::Attempt;
use base::endpoint_address::EndpointAddress;
use base::time::Micros;
use decision::access_log_line::{Kind, LoggedAttempt};

/// The code that nginx logs for a client that has left before its response began.
const GONE: u16 = 499;

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        if self.response.observer.is_some() {
            let request = self.sent_request();
            self.response.end_observation(request);
        }
        match self.decided() {
            Some(decided) => EndedExchange::of(self, &decided.destination).settle(),
            None => {
                let snapshot = self.received.forwarder.gateway.snapshot.load_full();
                EndedExchange::of(self, snapshot.destinations.unrouted()).settle();
            }
        }
    }
}

/// A request and its response, both of which have ended.
struct EndedExchange<'e> {
    received: &'e ReceivedExchange<'e>,
    destination: &'e Destination,
    /// The attempts to send the request. `None` if the request was not forwarded.
    attempts: Option<&'e Attempts>,
    code: u16,
    origin: Origin,
    kind: Kind,
    /// The status of the upstream's response. `None` if no response of the upstream has begun.
    upstream_status: Option<u16>,
    fault: Option<&'e Fault>,
    duration: Micros,
    /// How long the upstream had the request. `None` if the request was not sent.
    upstream_duration: Option<Micros>,
    response_bytes: usize,
}

impl<'e> EndedExchange<'e> {
    fn of(exchange: &'e Exchange<'_>, destination: &'e Destination) -> EndedExchange<'e> {
        let Exchange { received, response, .. } = exchange;
        let attempts = exchange.attempts();
        let now = received.forwarder.gateway.clock.now();
        let sent = attempts.and_then(|attempts| attempts.sent);
        let (code, origin, kind) = match response.begun {
            Some(BegunResponse { code, source: ResponseSource::Upstream }) => (code, Origin::Upstream, Kind::Allowed),
            Some(BegunResponse { code, source: ResponseSource::Configuration }) => {
                (code, Origin::Gateway, Kind::Allowed)
            }
            Some(BegunResponse { code, source: ResponseSource::Gateway }) => (code, Origin::Gateway, Kind::Error),
            // The client has left before the response. If the request was sent, it is counted for the upstream.
            None if sent.is_some() => (GONE, Origin::Upstream, Kind::Error),
            None => (GONE, Origin::Gateway, Kind::Error),
        };
        let fault = response.fault.as_ref();
        EndedExchange {
            received,
            destination,
            attempts,
            code,
            origin,
            kind: if fault.is_some() { Kind::Error } else { kind },
            upstream_status: response.begun.filter(|_| origin == Origin::Upstream).map(|begun| begun.code),
            fault,
            duration: now.since(received.started),
            upstream_duration: sent.map(|sent| now.since(sent)),
            response_bytes: response.bytes,
        }
    }

    fn settle(&self) {
        self.count();
        if let Some(fault) = self.fault {
            self.report_fault(fault);
        }
        self.log();
    }

    fn count(&self) {
        let route = &self.destination.route;
        route.count_response(self.received.head.method.as_str(), self.code, self.origin);
        route.duration(self.origin).record(self.duration.seconds());
        if let (Some(duration), Some(one)) = (self.upstream_duration, self.upstream()) {
            one.metrics.duration.record(duration.seconds());
            if let Some(attempt) = self.attempt() {
                attempt.add_duration(duration);
            }
        }
    }

    /// Counts and logs why a request was not completed. The throttle limits how often failures of the upstream are logged.
    fn report_fault(&self, fault: &Fault) {
        let Forwarder { gateway, logs, .. } = self.received.forwarder;
        let (code, error) = (self.code, fault.detail());
        let id = self.received.request_id.to_str().unwrap_or_default();
        match fault.upstream_error() {
            Some(kind) => {
                if let Some(one) = self.upstream() {
                    one.metrics.count_error(kind);
                }
                let Some(requests) = logs.upstream_failures.admit(gateway.clock.now()) else { return };
                let upstream = self.destination.upstream_name();
                // A Unix domain socket has no port, so its path is logged alone.
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

    /// Writes the line of the access log, and the spans.
    fn log(&self) {
        let received = self.received;
        let Some(record) = &received.record else { return };
        let gateway = &received.forwarder.gateway;
        let end = RequestEnd {
            kind: record.kind(self.kind),
            request_id: &received.request_id,
            route: self.destination.route.route(),
            method: received.head.method.as_str(),
            code: self.code,
            origin: self.origin,
            duration: self.duration,
            upstream: self.upstream_duration,
            endpoint: self.attempt().map(|attempt| &attempt.endpoint.address),
            failed_attempts: self.failed_attempts(),
            request_bytes: self.attempts.map_or(0, |attempts| attempts.request_bytes),
            response_bytes: self.response_bytes,
            detail: self.fault.and_then(Fault::logged_detail),
        };
        record.write(&end, &received.head, &gateway.clock);
        gateway.tracer.end(&received.trace, || EndedRequest {
            line: record.line(&end, &received.head, end.began(&gateway.clock)),
            scheme: received.scheme().name(),
            server: received.connection.socket().and_then(|socket| socket.local()),
            upstream: self.server().filter(|_| self.attempts.is_some()).map(|(host, port)| UpstreamCall {
                host,
                port,
                status: self.upstream_status,
                error: self.fault.and_then(Fault::upstream_error),
            }),
        });
    }

    fn upstream(&self) -> Option<&'e UpstreamOfRoute> {
        self.destination.upstream.as_ref()
    }

    fn attempt(&self) -> Option<&'e Attempt> {
        self.attempts?.current.as_ref()
    }

    /// The host and the port to which the request was sent, or would have been sent. For a Unix domain socket, the path
    /// without a port.
    fn server(&self) -> Option<(Cow<'e, str>, Option<u16>)> {
        match self.attempt() {
            Some(Attempt { endpoint, .. }) => Some(match &endpoint.address {
                EndpointAddress::Inet(address) => (Cow::from(&endpoint.host), Some(address.port())),
                EndpointAddress::Unix(path) => (path.to_string_lossy(), None),
            }),
            None => self.upstream()?.upstream.first_endpoint().map(|endpoint| match &endpoint.socket {
                None => (Cow::from(&endpoint.host), Some(endpoint.port)),
                Some(path) => (path.to_string_lossy(), None),
            }),
        }
    }

    /// Returns the attempts before the last one, for the access log.
    fn failed_attempts(&self) -> Vec<LoggedAttempt<'static>> {
        let logged = |failed: &FailedAttempt| LoggedAttempt {
            endpoint: failed.endpoint.clone(),
            error: failed.failure.name().into(),
            failed_us: failed.failed_after,
        };
        self.attempts.map(|attempts| attempts.failed.iter().map(logged).collect()).unwrap_or_default()
    }
}
