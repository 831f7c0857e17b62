//! Holds the state of one call for a decision and of its answer, and reports the call at its end.
//!
//! A [`Call`] is counted and logged when it is dropped, and nowhere else.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderMap, HeaderValue};

use super::DecisionApi;
use super::grpc::Reply;
use crate::gateway::enforcement::request_record::RequestRecord;
use crate::gateway::response::own_response::OwnResponse;
use crate::gateway::response::request_id;
use crate::gateway::server::connection_handle::ConnectionHandle;
use crate::gateway::server::request_client::{AnsweredRequest, RequestClient, Rest, Reuse};
use crate::gateway::state::destinations::Destination;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::trace::{EndedRequest, RequestTrace};
use base::time::Timestamp;
use base::tls::server::Session;
use decision::access_log_line::{Kind, Origin};
use request::client_address::ClientAddress;
use request::door::Door;
use request::scheme::{Scheme, SchemeSource};
use request::sent_descriptor::SentDescriptor;
use stores::Caller;

/// The code that nginx logs for a client that has disconnected.
const GONE: u16 = 499;

/// One call of another proxy or of a service that asks for a decision, with the values that are reported when the call ends.
pub(crate) struct Call<'a> {
    pub api: &'a DecisionApi,
    pub head: Parts,
    pub started: Timestamp,
    pub request_id: HeaderValue,
    pub connection: ConnectionHandle,
    pub peer: Option<IpAddr>,
    /// The destination whose metrics count the call.
    destination: Arc<Destination>,
    /// Whether the answer to the call is a decision.
    pub answered: bool,
    /// The head of the request about which the call asks. `None` until this head has been read.
    pub described: Option<Box<Parts>>,
    /// The values to be logged and traced. `None` if the call is neither logged nor traced.
    pub record: Option<Box<RequestRecord>>,
    pub trace: RequestTrace,
    /// The status code of the answer; `None` before the answer has begun.
    code: Option<u16>,
    pub request_bytes: usize,
    response_bytes: usize,
}

impl<'a> Call<'a> {
    pub(crate) fn begin(
        api: &'a DecisionApi,
        head: Parts,
        connection: ConnectionHandle,
        snapshot: &Snapshot,
    ) -> Call<'a> {
        Call {
            api,
            started: connection.accepted().unwrap_or_else(|| api.gateway.clock.now()),
            request_id: request_id::keep_or_make(head.headers.get(request_id::NAME)),
            peer: connection.socket().and_then(|socket| socket.peer()),
            head,
            connection,
            destination: Arc::clone(snapshot.destinations.decided()),
            answered: false,
            described: None,
            record: None,
            trace: RequestTrace::NONE,
            code: None,
            request_bytes: 0,
            response_bytes: 0,
        }
    }

    /// Returns whether the certificates in force now admit the call's connection. A reload may have changed them since
    /// the handshake.
    pub(crate) fn admits_connection(&self, snapshot: &Snapshot) -> bool {
        let now = || self.api.gateway.clock.wall();
        self.connection.tls().is_none_or(|session| snapshot.admits_client(session, self.connection.listener(), now()))
    }

    /// Returns whether the peer of the connection has presented a certificate that was verified.
    pub(crate) fn has_verified_certificate(&self) -> bool {
        self.connection.tls().is_some_and(|tls: &Arc<Session>| tls.identity().certificate.is_some())
    }

    /// Returns a handle of the asking proxy, with which a store can check whether the proxy is still connected.
    pub(crate) fn caller(&self) -> Option<Arc<dyn Caller>> {
        self.trace.link(self.connection.socket().cloned().map(|socket| socket as Arc<dyn Caller>))
    }

    /// Returns a copy of the descriptors for the access log. Empty if the log contains no values of descriptors.
    pub(crate) fn logged<'d, 'm: 'd>(
        &self,
        snapshot: &Snapshot,
        sent: impl IntoIterator<Item = &'d SentDescriptor<'m>>,
    ) -> Vec<SentDescriptor<'static>> {
        match &snapshot.config.access_log {
            Some(log) if log.has_descriptors() => sent.into_iter().map(SentDescriptor::to_static).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns whether the call is logged or traced.
    pub(crate) fn is_recorded(&self, snapshot: &Snapshot) -> bool {
        snapshot.access_log.is_some() || self.trace.is_sampled()
    }

    /// Makes the record of a call without a decision, such as a health check. Does nothing if the call has a record, or
    /// is neither logged nor traced.
    pub(crate) fn record_at_least(&mut self, snapshot: &Arc<Snapshot>, peer: IpAddr, door: Door) {
        if self.record.is_none() && self.is_recorded(snapshot) {
            let client = snapshot.config.client_ip.client(peer, &HeaderMap::new());
            let record = self.new_record(snapshot, door, client, SchemeSource::Connection(self.scheme()));
            self.record = Some(Box::new(record));
        }
    }

    /// Returns the scheme of the connection on which the call arrived.
    pub(crate) fn scheme(&self) -> Scheme {
        self.connection.scheme()
    }

    /// Converts a gRPC reply to a response. Also notes whether the reply is a decision.
    pub(crate) fn reply(&mut self, reply: Reply) -> OwnResponse {
        self.answered = matches!(reply, Reply::Message(_));
        reply.into()
    }

    /// Writes the response to the call. Returns whether another call may follow on the connection.
    pub(crate) async fn write<C: RequestClient>(&mut self, client: &mut C, response: OwnResponse) -> Reuse {
        self.code = Some(response.status);
        let reuse = if self.api.gateway.is_draining() { Reuse::Closed } else { Reuse::Kept };
        let request = AnsweredRequest { head: &self.head, request_id: &self.request_id, reuse };
        let written = client.write_own(request, response, Rest::Drained).await;
        self.response_bytes = written.body_bytes;
        self.answered &= written.fault.is_none();
        if written.reuse == Reuse::Kept { client.read_rest().await } else { written.reuse }
    }

    /// Makes the record of a call about which nothing has been decided yet.
    pub(crate) fn new_record(
        &self,
        snapshot: &Arc<Snapshot>,
        door: Door,
        client: ClientAddress,
        scheme: SchemeSource,
    ) -> RequestRecord {
        let destination = snapshot.destinations.decided();
        RequestRecord::undecided(snapshot, destination, client, scheme, self.connection.listener(), door)
    }
}

/// Counts and logs every call at its end.
impl Drop for Call<'_> {
    fn drop(&mut self) {
        let (gateway, route) = (&self.api.gateway, &self.destination.route);
        let duration = gateway.clock.now().since(self.started);
        let code = self.code.unwrap_or(GONE);
        let head: &Parts = self.described.as_deref().unwrap_or(&self.head);
        route.count_response(head.method.as_str(), code, Origin::Gateway);
        route.duration(Origin::Gateway).record(duration.seconds());
        let Some(record) = &self.record else { return };
        let end = RequestEnd {
            kind: record.kind(if self.answered { Kind::Allowed } else { Kind::Error }),
            request_id: &self.request_id,
            route: route.route(),
            method: head.method.as_str(),
            code,
            origin: Origin::Gateway,
            duration,
            upstream: None,
            endpoint: None,
            failed_attempts: Vec::new(),
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            detail: None,
        };
        record.write(&end, head, &gateway.clock);
        gateway.tracer.end(&self.trace, || EndedRequest {
            line: record.line(&end, head, end.began(&gateway.clock)),
            scheme: self.scheme().name(),
            server: self.connection.socket().and_then(|socket| socket.local()),
            upstream: None,
        });
    }
}
