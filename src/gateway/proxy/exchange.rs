//! The state of one request and its response, as Pingora hands it from phase to phase.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::HeaderValue;
use pingora::proxy::Session;
use tokio::sync::watch::Receiver;

use super::own_responses::OwnResponses;
use crate::gateway::enforcement::Direction;
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::response::pending_fields::PendingFields;
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use crate::gateway::response::request_id;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::connection_limits::CountGuard;
use crate::gateway::server::session;
use crate::gateway::state::destinations::{Destination, UpstreamOfRoute};
use crate::gateway::telemetry::labels::{Origin, UpstreamError};
use crate::gateway::telemetry::trace::{RequestTrace, UpstreamCall};
use crate::gateway::upstream::BalanceKey;
use crate::gateway::upstream::endpoint::Attempt;
use base::endpoint_address::EndpointAddress;
use base::time::{Clock, Micros, Timestamp};
use base::tls::client_certificate::ClientCertificate;
use request::identity::Identity;
use request::request::Request;
use request::scheme::{Scheme, SchemeSource};
use rules::route::forwarding::{FieldChanges, ForwardedCertificate, Rewrite};
use rules::route::overrides::Overrides;

/// An endpoint that did not answer the request, which was then sent to another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    pub endpoint: EndpointAddress,
    pub error: UpstreamError,
    /// Since the head had been received.
    pub failed_after: Micros,
}

#[derive(Debug)]
pub struct Exchange {
    pub started: Timestamp,
    pub request_id: HeaderValue,
    pub peer: IpAddr,
    /// Whether what the peer says of the client is believed.
    pub trusted_peer: bool,
    /// For the upstream's response.
    pub fields: Option<Box<RateLimitFields>>,
    /// `None` for a session whose server hands none on.
    pub connection: Option<ConnectionHandle>,
    /// Where the request goes, once that has been decided.
    pub destination: Option<Arc<Destination>>,
    /// Whether it has been let through.
    pub passed: bool,
    /// Whether its route has answered it, in place of an upstream.
    pub answered: bool,
    /// The changes of header fields by its route.
    pub field_changes: Option<Box<FieldChanges>>,
    /// How much of a request body may still come, if its route bounds that.
    pub body_left: Option<u64>,
    pub origin: Origin,
    /// The endpoint that the request was sent to last.
    pub attempt: Option<Attempt>,
    /// Counts the connection to the upstream, if it is neither counted with the client's nor shared with other requests.
    pub upstream_connection: Option<CountGuard>,
    /// What its endpoint is chosen by, if the upstream does so.
    pub balance_key: Option<BalanceKey>,
    /// Where it has failed before.
    pub failed: Vec<FailedAttempt>,
    /// Whether the request has been sent a second time because the connection to the upstream had been closed.
    pub repeated: bool,
    /// When the request was sent to the upstream; `None` if it never was.
    pub forwarded: Option<Timestamp>,
    /// When the request has to have ended, once it has been sent, if its whole time is bounded.
    pub deadline: Option<Timestamp>,
    /// How many interim responses (1xx) have arrived.
    pub interim: u8,
    pub upstream_error: Option<UpstreamError>,
    /// `None` for a request that is neither logged nor traced. On the heap: the exchange is moved with each request's task.
    pub record: Option<Box<RequestRecord>>,
    pub trace: RequestTrace,
    /// `None` where the file says nothing of the gateway's own responses.
    pub own_responses: Option<Box<OwnResponses>>,
}

impl Exchange {
    pub fn new(started: Timestamp) -> Exchange {
        Exchange {
            started,
            request_id: HeaderValue::from_static(""),
            peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            trusted_peer: false,
            fields: None,
            connection: None,
            destination: None,
            passed: false,
            answered: false,
            field_changes: None,
            body_left: None,
            origin: Origin::Gateway,
            attempt: None,
            upstream_connection: None,
            balance_key: None,
            failed: Vec::new(),
            repeated: false,
            forwarded: None,
            deadline: None,
            interim: 0,
            upstream_error: None,
            record: None,
            trace: RequestTrace::NONE,
            own_responses: None,
        }
    }

    /// Learns of which connection the request is, and when its head had been read.
    pub fn begin(&mut self, session: &Session, clock: &Clock) {
        if self.connection.is_none() {
            self.connection = session::connection(session);
        }
        let accepted = self.connection.as_ref().and_then(ConnectionHandle::accepted);
        self.started = accepted.unwrap_or_else(|| clock.now());
    }

    /// The request is sent to its upstream.
    pub fn forward(&mut self, now: Timestamp) {
        self.forwarded = Some(now);
        if let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_http2()) {
            connection.note_forwarded(now);
        }
    }

    /// Gives the request its id, which is the one that was `sent` if it may be.
    pub fn identify(&mut self, sent: Option<&HeaderValue>) {
        self.request_id = request_id::keep_or_make(sent);
        if self.connection.as_ref().is_some_and(|connection| connection.keeps_request_id(self.started)) {
            self.request_id.set_sensitive(false);
        }
    }

    /// Where the connection writes fields as text. Where it does not, they go into the response's header.
    pub fn pending_fields(&self) -> Option<&PendingFields> {
        self.connection.as_ref().and_then(ConnectionHandle::pending_fields)
    }

    /// Ends the connection of the request after it: in HTTP/1 with the response, in HTTP/2 with the requests beside it.
    pub fn close_when_done(&self, session: &mut Session) {
        session.set_keepalive(None);
        if let Some(connection) = &self.connection {
            connection.close_when_done();
        }
    }

    /// The upstream of a request that has been let through.
    pub fn upstream(&self) -> Option<&UpstreamOfRoute> {
        self.destination.as_ref().filter(|_| self.passed)?.upstream.as_ref()
    }

    /// What its route gives the upstream in place of what was sent.
    pub fn rewrite(&self) -> Option<&Rewrite> {
        Some(&self.destination.as_ref()?.forwarding.as_ref()?.rewrite)
    }

    /// The certificate of the client, if its route forwards that.
    pub fn forwarded_certificate(&self) -> Option<&ClientCertificate> {
        match self.destination.as_ref()?.forwarding.as_ref()?.client_certificate {
            ForwardedCertificate::No => None,
            ForwardedCertificate::Yes => self.connection.as_ref()?.tls()?.identity().certificate.as_ref(),
        }
    }

    /// What its route says in place of the settings of its upstream.
    pub fn overrides(&self) -> Option<&Overrides> {
        Some(&self.destination.as_ref()?.forwarding.as_ref()?.overrides)
    }

    /// How long the request may take as a whole.
    pub fn total_timeout(&self) -> Option<Micros> {
        match self.overrides().and_then(|overrides| overrides.timeouts.total) {
            Some(own) => own.micros(),
            None => self.upstream()?.upstream.total_timeout(),
        }
    }

    /// Whether the request has taken longer than it may.
    pub fn has_expired(&self, now: impl FnOnce() -> Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now())
    }

    /// The upstream has accepted an upgrade: from now on the request ends when it is idle for too long.
    /// It lasts until `cut` says that the process exits.
    pub fn begin_tunnel(&mut self, cut: Receiver<bool>) {
        // What follows is no body.
        self.body_left = None;
        if let Some(tunnel_cut) = self.connection.as_ref().and_then(ConnectionHandle::tunnel_cut) {
            tunnel_cut.begin(|| cut);
        }
        if let Some(timeout) = self.connection.as_ref().and_then(ConnectionHandle::read_timeout)
            && let Some(one) = self.upstream()
        {
            timeout.begin_tunnel(one.stream_idle_timeout);
        }
        if self.deadline.take().is_some()
            && let Some(enforced) = self.connection.as_ref().and_then(ConnectionHandle::deadline)
        {
            enforced.clear();
        }
    }

    /// It has been decided that the request goes to its upstream.
    pub fn pass(&mut self) {
        self.passed = true;
    }

    /// Keeps what its endpoint is chosen by, if its upstream does so.
    pub fn note_balance_key(&mut self, destination: &Destination, request: &Request<'_>, identity: &Identity) {
        let Some(UpstreamOfRoute { upstream, .. }) = &destination.upstream else { return };
        let Some(attribute) = upstream.balance_attribute() else { return };
        let request = request.with_destination(destination.route.route(), upstream.name());
        let value = attribute.resolve_for_match(&request.with_identity(identity));
        self.balance_key = value.single().map(BalanceKey::new);
    }

    pub fn count_retry(&self, error: UpstreamError) {
        if let Some(one) = self.upstream() {
            one.metrics.count_retry(error);
        }
    }

    pub fn count_upstream_error(&self, error: UpstreamError) {
        if let Some(one) = self.upstream() {
            one.metrics.count_error(error);
        }
    }

    /// The host that the request was sent to, or would have been sent to, with the port. A socket has only a path.
    pub fn server(&self) -> Option<(Cow<'_, str>, Option<u16>)> {
        let upstream = &self.upstream()?.upstream;
        match &self.attempt {
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

    /// The index in the configuration of the listener on which the request arrived.
    pub fn listener(&self) -> usize {
        self.connection.as_ref().map_or(0, ConnectionHandle::listener)
    }

    /// Whether the request may be sent on its connection.
    pub fn direction(&self, request: &Request<'_>) -> Direction {
        let tls = self.connection.as_ref().and_then(ConnectionHandle::tls);
        if tls.is_none_or(|tls| tls.serves(request.host())) { Direction::Right } else { Direction::Misdirected }
    }

    /// What became of the request at its upstream, for its trace; `None` if it was not let through.
    pub fn upstream_call(&self, session: &Session) -> Option<UpstreamCall<'_>> {
        let status = session::response_code(session).filter(|_| self.origin == Origin::Upstream);
        self.server().map(|(host, port)| UpstreamCall { host, port, status, error: self.upstream_error })
    }

    /// The scheme of the client's connection.
    pub fn scheme(&self, session: &Session) -> Scheme {
        self.connection.as_ref().map_or_else(|| session::scheme(session), ConnectionHandle::scheme)
    }

    /// From what the scheme of the request is known.
    pub fn scheme_source(&self, session: &Session) -> SchemeSource {
        let scheme = self.scheme(session);
        if self.trusted_peer { SchemeSource::TrustedProxy(scheme) } else { SchemeSource::Connection(scheme) }
    }
}
