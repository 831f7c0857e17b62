//! Holds the state of one call and its answer, which Pingora passes from phase to phase, and reports the call at its end.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use pingora::Error;
use pingora::proxy::Session as ProxySession;

use super::DecisionApi;
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::response::pending_fields::PendingFields;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::session;
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::trace::{EndedRequest, RequestTrace};
use base::time::Timestamp;
use base::tls::server::Session;
use decision::access_log_line::{Kind, Origin};
use request::door::Door;
use request::identity::Identity;
use request::request::ClientAddress;
use request::scheme::{Scheme, SchemeSource};

/// The code that nginx logs for a client that has disconnected.
const GONE: u16 = 499;

#[derive(Debug)]
pub struct Call {
    pub started: Timestamp,
    pub request_id: HeaderValue,
    /// The connection; `None` for a session whose server passes none.
    pub connection: Option<ConnectionHandle>,
    /// The destination whose metrics count the call.
    pub destination: Option<Arc<Destination>>,
    /// Whether a whole answer has been sent.
    pub answered: bool,
    /// The head of the request about which it asks, once that was read.
    pub head: Option<Box<Parts>>,
    /// `None` for a call that is neither logged nor traced.
    pub record: Option<Box<RequestRecord>>,
    pub trace: RequestTrace,
}

impl Call {
    pub fn new(started: Timestamp) -> Call {
        Call {
            started,
            request_id: HeaderValue::from_static(""),
            connection: None,
            destination: None,
            answered: false,
            head: None,
            record: None,
            trace: RequestTrace::NONE,
        }
    }

    /// Ends the connection of the call after it: in HTTP/1 with the answer, in HTTP/2 with the calls beside it.
    pub fn close_when_done(&self, session: &mut ProxySession) {
        session.set_keepalive(None);
        if let Some(connection) = &self.connection {
            connection.close_when_done();
        }
    }

    /// The fields that the connection writes as text; `None` if they go into the answer's header.
    pub fn pending_fields(&self) -> Option<&PendingFields> {
        self.connection.as_ref().and_then(ConnectionHandle::pending_fields)
    }

    /// The index in the configuration of the listener on which it arrived.
    pub fn listener(&self) -> usize {
        self.connection.as_ref().map_or(0, ConnectionHandle::listener)
    }

    /// Whether the peer of its connection has presented a certificate that was verified.
    pub fn has_verified_certificate(&self) -> bool {
        self.tls().is_some_and(|tls| tls.identity().certificate.is_some())
    }

    /// The TLS session of its connection; `None` without encryption.
    pub fn tls(&self) -> Option<&Session> {
        self.connection.as_ref().and_then(ConnectionHandle::tls).map(|tls| &**tls)
    }

    /// Whether it is logged or traced.
    pub fn is_recorded(&self, snapshot: &Snapshot) -> bool {
        snapshot.access_log.is_some() || self.trace.is_sampled()
    }

    /// Records a call from this peer that nothing else has recorded: it asked for nothing that rules could decide.
    pub fn record_at_least(&mut self, snapshot: &Arc<Snapshot>, peer: IpAddr, door: Door) {
        if self.record.is_none() && self.is_recorded(snapshot) {
            let client = snapshot.config.client_ip.client(peer, &HeaderMap::new());
            let scheme = self.connection.as_ref().map_or(Scheme::Http, ConnectionHandle::scheme);
            let record = new_record(snapshot, self, door, client, SchemeSource::Connection(scheme));
            self.record = Some(Box::new(record));
        }
    }

    /// The scheme of its own connection.
    pub fn scheme(&self, session: &ProxySession) -> Scheme {
        self.connection.as_ref().map_or_else(|| session::scheme(session), ConnectionHandle::scheme)
    }

    /// Counts, logs and traces it.
    pub fn end(&self, api: &DecisionApi, session: &ProxySession, error: Option<&Error>) {
        let Some(destination) = &self.destination else { return };
        let (clock, route) = (&api.gateway.clock, &destination.route);
        let duration = clock.now().since(self.started);
        let code = session::response_code(session).unwrap_or(GONE);
        let head: &Parts = self.head.as_deref().unwrap_or(session.req_header());
        route.count_response(head.method.as_str(), code, Origin::Gateway);
        route.duration(Origin::Gateway).record(duration.seconds());
        let Some(record) = &self.record else { return };
        let whole = error.is_none() && self.answered;
        let end = RequestEnd {
            kind: record.kind(if whole { Kind::Allowed } else { Kind::Error }),
            request_id: &self.request_id,
            route: route.route(),
            method: head.method.as_str(),
            code,
            origin: Origin::Gateway,
            duration,
            upstream: None,
            endpoint: None,
            failed_attempts: Vec::new(),
            request_bytes: session.body_bytes_read(),
            response_bytes: session.body_bytes_sent(),
            detail: None,
        };
        record.write(&end, head, clock);
        api.gateway.tracer.end(&self.trace, || EndedRequest {
            line: record.line(&end, head, end.began(clock)),
            scheme: self.scheme(session).name(),
            server: session.as_downstream().server_addr().and_then(|address| address.as_inet()).copied(),
            upstream: None,
        });
    }
}

/// The record of a call before anything was decided.
pub fn new_record(
    snapshot: &Arc<Snapshot>,
    call: &Call,
    door: Door,
    client: ClientAddress,
    scheme: SchemeSource,
) -> RequestRecord {
    RequestRecord {
        snapshot: Arc::clone(snapshot),
        destination: Arc::clone(snapshot.destinations.decided()),
        client,
        scheme,
        listener: call.listener(),
        door,
        tls: None,
        descriptors: Vec::new(),
        identity: Identity::default(),
        payment: None,
        decision: None,
        waited: None,
        refusal: None,
        invalid_token: None,
        denied_by: None,
    }
}
