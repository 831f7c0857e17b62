//! Holds one request and its response as a value that goes through stages: received → decided → forwarding → ended.
//!
//! An [`Exchange`] owns what each stage has added. Only a method of one stage leads to the next stage: a
//! [`DecidedStage`] is made from a received exchange, and a [`ForwardedRequest`] from a decided exchange. The exchange
//! ends when it is dropped, wherever that happens. `exchange_end` then counts and logs the exchange.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Version};

use super::attempts::Attempts;
use super::fault::{Fault, Stage};
use super::forwarder::Forwarder;
use super::own_response_settings::OwnResponses;
use super::read_body::ReadBody;
use super::response_report::{ResponseReport, SentRequest};
use crate::gateway::enforcement::request_record::{RecordedTls, RequestRecord};
use crate::gateway::enforcement::{HeldSlots, RequestPurpose};
use crate::gateway::response::ratelimit_fields::RateLimitFields;
use crate::gateway::response::request_id;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::state::destinations::{Destination, UpstreamOfRoute};
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::labels::UpstreamError;
use crate::gateway::telemetry::trace::RequestTrace;
use crate::gateway::upstream::{BalanceKey, RetriedFailure};
use base::time::{Micros, Timestamp};
use base::tls::client_certificate_properties::ClientCertificate;
use base::tls::server::Session as TlsSession;
use decision::cors::CorsAnswer;
use decision::error_pages::ErrorPage;
use request::client_address::ClientAddress;
use request::door::Door;
use request::request::Request;
use request::scheme::{Scheme, SchemeSource};
use rules::route::error_format::ErrorFormat;
use rules::route::forwarding::{FieldChanges, ForwardedCertificate, Rewrite};
use rules::route::overrides::Overrides;

/// One request and its response, from the head to the end. The exchange ends when it is dropped, and is then counted
/// and logged.
pub(super) struct Exchange<'f> {
    pub received: ReceivedExchange<'f>,
    /// `None` until the decision about the request has been made.
    decided: Option<DecidedExchange>,
    /// `None` unless the request is sent to an upstream. Set only after `decided`.
    attempts: Option<Attempts>,
    pub response: ResponseReport,
}

/// What is known of a request as soon as its head has been read.
pub(super) struct ReceivedExchange<'f> {
    pub forwarder: &'f Forwarder,
    pub head: Parts,
    pub started: Timestamp,
    pub request_id: HeaderValue,
    pub peer: IpAddr,
    /// Whether the peer is trusted. Only a trusted peer's fields, such as `X-Forwarded-For`, determine who the client is.
    pub trusted_peer: bool,
    pub client: ClientAddress,
    pub connection: ConnectionHandle,
    /// The settings for the gateway's own responses. `None` if the configuration has no such settings.
    pub own_responses: Option<Box<OwnResponses>>,
    /// The values to be logged and traced. `None` if the request is neither logged nor traced.
    pub record: Option<Box<RequestRecord>>,
    pub trace: RequestTrace,
}

/// The values that the decision about a request has added to the request. An optional value is `None` if the
/// configuration or the request does not need the value.
#[derive(Debug)]
pub(super) struct DecidedExchange {
    /// The route that was chosen for the request, with its upstream or answer.
    pub destination: Arc<Destination>,
    /// The rate-limit fields to be added to the response.
    pub rate_limits: Option<Box<RateLimitFields>>,
    pub field_changes: Option<Box<FieldChanges>>,
    /// The value by which the upstream selects the endpoint.
    pub balance_key: Option<BalanceKey>,
    /// The slots that the request holds. They are given back when the gateway's own response has been written, or else
    /// when the exchange is dropped.
    pub held: HeldSlots,
    /// The body of the request, if the rules have read it. It is taken out when the request is forwarded.
    pub body: Option<Box<ReadBody>>,
}

/// A request about which a decision has been made, and which is answered or forwarded now.
pub(super) struct DecidedStage<'e, 'f> {
    pub received: &'e mut ReceivedExchange<'f>,
    pub decided: &'e mut DecidedExchange,
    pub response: &'e mut ResponseReport,
    attempts: &'e mut Option<Attempts>,
}

/// A request that is being sent to its upstream, with all data that are needed until its response has ended.
pub(super) struct ForwardedRequest<'e, 'f> {
    pub received: &'e mut ReceivedExchange<'f>,
    pub decided: &'e DecidedExchange,
    pub upstream: &'e UpstreamOfRoute,
    pub attempts: &'e mut Attempts,
    pub response: &'e mut ResponseReport,
}

impl<'f> Exchange<'f> {
    /// Begins the exchange of a request whose head has been read. `snapshot` is the configuration under which the request
    /// arrived.
    pub(super) fn begin(
        forwarder: &'f Forwarder,
        head: Parts,
        connection: ConnectionHandle,
        snapshot: &Arc<Snapshot>,
    ) -> Exchange<'f> {
        let gateway = &forwarder.gateway;
        let peer = connection.socket().and_then(|socket| socket.peer()).map(|peer| peer.to_canonical());
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let started = connection.accepted().unwrap_or_else(|| gateway.clock.now());
        let mut request_id = request_id::keep_or_make(head.headers.get(request_id::NAME));
        if connection.keeps_request_id(started) {
            request_id.set_sensitive(false);
        }
        let client_ip = &snapshot.config.client_ip;
        let mut received = ReceivedExchange {
            trusted_peer: client_ip.trusts(peer),
            client: client_ip.client(peer, &head.headers),
            trace: gateway.tracer.begin(&head.headers, started),
            own_responses: None,
            record: None,
            forwarder,
            head,
            started,
            request_id,
            peer,
            connection,
        };
        received.own_responses = OwnResponses::of(&snapshot.config, &received.request(snapshot));
        if snapshot.access_log.is_some() || received.trace.is_sampled() {
            received.record = Some(Box::new(received.new_record(snapshot)));
        }
        Exchange { received, decided: None, attempts: None, response: ResponseReport::default() }
    }

    /// Notes the decision about the request.
    pub(super) fn decide(&mut self, decided: DecidedExchange) -> DecidedStage<'_, 'f> {
        DecidedStage {
            received: &mut self.received,
            decided: self.decided.insert(decided),
            response: &mut self.response,
            attempts: &mut self.attempts,
        }
    }

    /// Returns what the decision has added. `None` before the decision.
    pub(super) fn decided(&self) -> Option<&DecidedExchange> {
        self.decided.as_ref()
    }

    /// Returns the attempts to send the request to its upstream. `None` if the request is not forwarded.
    pub(super) fn attempts(&self) -> Option<&Attempts> {
        self.attempts.as_ref()
    }

    /// Whether any byte of the request may have been sent to an upstream.
    pub(super) fn was_sent(&self) -> bool {
        self.attempts.as_ref().is_some_and(|attempts| attempts.sent.is_some())
    }

    /// Returns whether an upstream may have got any byte of the request. If the exchange is dropped during an attempt,
    /// nothing was noted about the attempt, so the answer is yes.
    pub(super) fn sent_request(&self) -> SentRequest {
        let is_dropped = self.response.begun.is_none() && self.response.fault.is_none();
        let has_attempt = self.attempts.as_ref().is_some_and(|attempts| attempts.current.is_some());
        let awaits_connection = self.attempts.as_ref().and_then(|attempts| attempts.discarded);
        match awaits_connection.or_else(|| self.discarded_status().filter(|_| self.has_failed_unsent())) {
            Some(status) => SentRequest::Discarded(status),
            _ if self.was_sent() || (is_dropped && has_attempt) => SentRequest::Possible,
            _ => SentRequest::None,
        }
    }

    /// Returns the status of the last response that was not passed on, because the request was to be sent again.
    fn discarded_status(&self) -> Option<u16> {
        self.attempts.as_ref()?.failed.iter().rev().find_map(|failed| match failed.failure {
            RetriedFailure::Status(status) => Some(status),
            RetriedFailure::Error(_) => None,
        })
    }

    /// Whether the last attempt has failed before an upstream processed the request.
    fn has_failed_unsent(&self) -> bool {
        let Some(Fault::Upstream(fault)) = &self.response.fault else { return false };
        matches!(fault.stage, Stage::Connecting | Stage::Refused)
    }

    /// Returns the rate-limit fields for the response. `None` if the decision has no such fields, or has not been made.
    pub(super) fn rate_limits(&self) -> Option<&RateLimitFields> {
        self.decided.as_ref()?.rate_limits.as_deref()
    }

    /// Returns the operator's error page for a response with this status. `None` if no page applies.
    pub(super) fn page(&self, status: u16) -> Option<&ErrorPage> {
        self.received.page(self.decided.as_ref().map(|decided| &*decided.destination), status)
    }
}

impl ReceivedExchange<'_> {
    /// Returns the request in the form that rules and error pages use. The claims of a token and the id of an API key
    /// are missing, because only the decision knows them.
    pub(super) fn request<'r>(&'r self, snapshot: &'r Snapshot) -> Request<'r> {
        let request = Request::new(&self.head, self.client).with_scheme(self.scheme_source());
        let request = request.with_tls(self.connection.tls().map(|tls| tls.identity()));
        request.with_listener(snapshot.config.listener_name(self.connection.listener()))
    }

    /// Makes the record of a request about which nothing has been decided yet.
    fn new_record(&self, snapshot: &Arc<Snapshot>) -> RequestRecord {
        let (scheme, listener) = (self.scheme_source(), self.connection.listener());
        let destination = snapshot.destinations.unrouted();
        let tls = self.connection.tls().map(|tls: &Arc<TlsSession>| RecordedTls::Own(Arc::clone(tls)));
        RequestRecord {
            tls,
            ..RequestRecord::undecided(snapshot, destination, self.client, scheme, listener, Door::Proxy)
        }
    }

    pub(super) fn scheme(&self) -> Scheme {
        self.connection.scheme()
    }

    /// Returns where the scheme of the request is known from: a trusted proxy, or the connection.
    pub(super) fn scheme_source(&self) -> SchemeSource {
        let scheme = self.scheme();
        if self.trusted_peer { SchemeSource::TrustedProxy(scheme) } else { SchemeSource::Connection(scheme) }
    }

    /// Whether the request came over HTTP/1.1, so that its client understands chunks and interim responses.
    pub(super) fn is_http11(&self) -> bool {
        self.head.version == Version::HTTP_11
    }

    pub(super) fn cors(&self) -> Option<&CorsAnswer> {
        self.own_responses.as_ref()?.cors()
    }

    /// Returns the format of the gateway's own error responses. `None` for problem documents and error pages.
    pub(super) fn error_format(&self) -> Option<ErrorFormat> {
        self.own_responses.as_ref()?.format()
    }

    pub(super) fn purpose(&self) -> RequestPurpose {
        match self.cors() {
            Some(CorsAnswer { preflight: Some(_), .. }) => RequestPurpose::Preflight,
            _ => RequestPurpose::Ordinary,
        }
    }

    fn page(&self, destination: Option<&Destination>, status: u16) -> Option<&ErrorPage> {
        let tls = self.connection.tls().map(|tls| tls.identity());
        self.own_responses.as_ref()?.page(&self.head, tls, destination, status)
    }
}

impl<'e, 'f> DecidedStage<'e, 'f> {
    /// Begins to forward the request.
    ///
    /// # Errors
    /// If the request has no upstream.
    pub(super) fn forward(self) -> Result<ForwardedRequest<'e, 'f>, Fault> {
        let DecidedStage { received, decided, response, attempts } = self;
        let attempts = attempts.insert(Attempts::default());
        attempts.body = decided.body.take();
        let decided: &'e DecidedExchange = decided;
        let upstream = decided.destination.upstream.as_ref();
        let upstream = upstream.ok_or_else(|| Fault::unconnected(UpstreamError::Unresolved))?;
        Ok(ForwardedRequest { received, decided, upstream, attempts, response })
    }

    /// Returns the operator's error page for a response with this status. `None` if no page applies.
    pub(super) fn page(&self, status: u16) -> Option<&ErrorPage> {
        self.received.page(Some(&self.decided.destination), status)
    }
}

impl ForwardedRequest<'_, '_> {
    /// Returns how the route rewrites the host and the path for the upstream. `None` if the destination has no settings for
    /// forwarding.
    pub(super) fn rewrite(&self) -> Option<&Rewrite> {
        Some(&self.decided.destination.forwarding.as_ref()?.rewrite)
    }

    /// Returns the settings, such as timeouts, with which the route replaces the settings of the upstream.
    pub(super) fn overrides(&self) -> Option<&Overrides> {
        Some(&self.decided.destination.forwarding.as_ref()?.overrides)
    }

    /// Returns whether the gateway has asked for the usage of the stream, and so takes the usage out of the response.
    pub(super) fn takes_usage_out(&self) -> bool {
        self.attempts.body.as_ref().is_some_and(|body| body.is_changed())
    }

    /// Returns the certificate of the client, if the route forwards it to the upstream.
    pub(super) fn forwarded_certificate(&self) -> Option<&ClientCertificate> {
        match self.decided.destination.forwarding.as_ref()?.client_certificate {
            ForwardedCertificate::No => None,
            ForwardedCertificate::Yes => self.received.connection.tls()?.identity().certificate.as_ref(),
        }
    }

    /// Returns the longest allowed duration of the whole request, set by the route or else by the upstream. `None` if the
    /// duration is not limited.
    pub(super) fn total_timeout(&self) -> Option<Micros> {
        match self.overrides().and_then(|overrides| overrides.timeouts.total) {
            Some(own) => own.micros(),
            None => self.upstream.upstream.total_timeout(),
        }
    }
}
