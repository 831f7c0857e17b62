//! Carries one request through: Pingora's phases, in their order.
//!
//! Invariant: a request lives under the snapshot that it began with: whatever later phases need of it is kept in the
//! request's [`Exchange`], and none of them loads another. A refusal is written in `request_filter` and never
//! reaches the upstream.

mod forwarded_headers;
mod hop_by_hop;
mod proxy_error;
pub mod request_record;
mod session;
mod untrusted_forwarded_for;

use std::any::Any;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use async_trait::async_trait;
use http::request::Parts;
use http::{HeaderValue, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};

use super::enforcement::{Arrival, Decided, Decision, PaymentRecord, decide};
use super::response::pending_fields::{PendingFields, RawFields};
use super::response::problem::ProblemResponse;
use super::response::ratelimit_fields::RateFields;
use super::response::request_id;
use super::runtime::log_throttle::LogThrottle;
use super::runtime::stalled_writes::StalledWrites;
use super::runtime::supervise;
use super::state::GatewayState;
use super::telemetry::access_log::request_end::RequestEnd;
use super::telemetry::labels::{DEFAULT, Origin, UpstreamError};
use super::telemetry::trace::{EndedRequest, RequestTrace, UpstreamCall};
use super::upstream::{Upstream, Window};
use crate::access_log_line::Kind;
use crate::base::time::Timestamp;
use crate::decision::refusal::Refusal;
use crate::limit::request::Request;
use crate::store::{Caller, Worker};
use forwarded_headers::{Client, Said};
use proxy_error::{is_silence, upstream_error, violation, words};
use request_record::RequestRecord;
use session::{answered, is_all_there, is_waiting_for_client};
use untrusted_forwarded_for::Hearsay;

/// Of answers before the answer. An honest upstream has one or two; nothing else ends a flood of them.
const MOST_INTERIM: u8 = 32;

/// One thread's proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub gateway: Arc<GatewayState>,
    /// Which of the threads it is.
    pub lane: Worker,
    pub stalled_writes: StalledWrites,
    pub logged: Arc<ProxyLogs>,
}

/// What keeps the proxy's log lines few, for all threads.
#[derive(Debug, Default)]
pub struct ProxyLogs {
    pub upstream_failures: LogThrottle,
    pub untrusted_forwarded_for: Hearsay,
}

/// What is known of one request.
#[derive(Debug)]
pub struct Exchange {
    started: Timestamp,
    request_id: HeaderValue,
    peer: IpAddr,
    /// Whether that peer is believed about the client.
    trusted_peer: bool,
    /// For the upstream's answer.
    fields: Option<Box<RateFields>>,
    /// Of its connection.
    addendum: PendingFields,
    /// Where it goes, once it has been let through.
    upstream: Option<Arc<Upstream>>,
    origin: Origin,
    /// How many addresses have been tried in vain.
    attempts: usize,
    addresses: usize,
    /// Whether it has been sent a second time.
    repeated: bool,
    /// When the request went to the upstream; none if it never did.
    forwarded: Option<Timestamp>,
    /// How many 1xx have come.
    interim: u8,
    upstream_error: Option<UpstreamError>,
    /// None: it is neither written down nor traced.
    record: Option<RequestRecord>,
    trail: RequestTrace,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Exchange;

    fn new_ctx(&self) -> Exchange {
        Exchange {
            started: self.gateway.clock.now(),
            request_id: HeaderValue::from_static(""),
            trusted_peer: false,
            peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            fields: None,
            addendum: PendingFields::NOWHERE,
            upstream: None,
            origin: Origin::Gateway,
            attempts: 0,
            addresses: 0,
            repeated: false,
            forwarded: None,
            interim: 0,
            upstream_error: None,
            record: None,
            trail: RequestTrace::NONE,
        }
    }

    /// The front door hands this on, which writes the answer's head.
    fn on_connection_reuse(&self, _: &mut Session, passage: &mut Exchange, context: Box<dyn Any + Send + Sync>) {
        if let Ok(addendum) = context.downcast::<PendingFields>() {
            passage.addendum = *addendum;
        }
    }

    /// None: what is not built in costs nothing.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, _: &mut Exchange) -> Result<()> {
        if self.gateway.is_draining() {
            session.set_keepalive(None);
        }
        // The stream behind the session keeps the time.
        session.set_read_timeout(None);
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, passage: &mut Exchange) -> Result<bool> {
        let snapshot = self.gateway.snapshot.load();
        let head = session.req_header();
        supervise::stumble(head.uri.path());
        let said = Said::by(&head.headers);
        passage.request_id = request_id::keep_or_make(said.request_id);
        passage.peer = session
            .client_addr()
            .and_then(|address| address.as_inet())
            .map_or(passage.peer, |address| address.ip().to_canonical());
        passage.trusted_peer = snapshot.config.client_ip.trusts(passage.peer);
        if !passage.trusted_peer && said.forwarded_for && self.logged.untrusted_forwarded_for.is_news(passage.peer) {
            let hint = "if this is a proxy of yours, name it in client_ip.trusted_proxies";
            log::info!(peer:% = passage.peer, hint; "X-Forwarded-For of an untrusted peer is ignored");
        }
        let client = snapshot.config.client_ip.client(passage.peer, &head.headers);
        let request = Request { head, client, claims: None, key: None, route: DEFAULT, upstream: DEFAULT };
        let caller = session.digest().and_then(|digest| digest.socket_digest.clone());
        let caller = caller.map(|socket| socket as Arc<dyn Caller>);
        passage.trail = self.gateway.tracer.begin(&head.headers, passage.started);
        let arrival = Arrival { lane: self.lane, at: passage.started, caller: passage.trail.link(caller) };
        let recorded = snapshot.access_log.is_some() || passage.trail.is_sampled();
        let payment = if recorded { PaymentRecord::Keep } else { PaymentRecord::Discard };
        let Decided { decision, identity, payment } =
            decide(&self.gateway, &snapshot, &request, arrival, payment).await;
        passage.record = recorded.then(|| RequestRecord {
            snapshot: Arc::clone(&snapshot),
            client,
            identity,
            payment,
            decision: self.gateway.clock.now().since(passage.started),
            refusal: None,
        });
        match decision {
            Decision::Pass(fields) => {
                passage.fields = fields;
                passage.upstream = Some(Arc::clone(&snapshot.upstream));
                Ok(false)
            }
            Decision::Refuse(response) => {
                let refusal = &response.refusal;
                self.gateway.metrics.http.count_refusal(refusal.reason);
                if let Some(record) = &mut passage.record {
                    record.refusal = Some((refusal.reason, refusal.retry_after));
                }
                let (id, addendum) = (&passage.request_id, &passage.addendum);
                response.problem().write(session, id, addendum, self.gateway.is_draining()).await?;
                Ok(true)
            }
            Decision::Gone => Err(Error::new_down(ErrorType::ConnectionClosed)),
        }
    }

    async fn upstream_peer(&self, session: &mut Session, passage: &mut Exchange) -> Result<Box<HttpPeer>> {
        // Looked for first without waiting: that is every request but the first few.
        let window = self.window();
        let found = match &passage.upstream {
            Some(upstream) => match upstream.known_peer(window) {
                Some(found) => Some(found),
                None => upstream.first_peer(window).await,
            },
            None => None,
        };
        let Some((mut peer, addresses)) = found else {
            passage.upstream_error = Some(UpstreamError::Unresolved);
            return Err(Error::new_up(ErrorType::ConnectError));
        };
        passage.addresses = addresses;
        if is_all_there(session) {
            // The front door keeps the time.
            peer.options.read_timeout = None;
        }
        Ok(peer)
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        _reused: bool,
        _: &HttpPeer,
        _: std::os::fd::RawFd,
        _: Option<&Digest>,
        passage: &mut Exchange,
    ) -> Result<()> {
        passage.forwarded = Some(self.gateway.clock.now());
        Ok(())
    }

    /// Nothing has been sent yet, so another address may be tried.
    fn fail_to_connect(
        &self,
        _: &mut Session,
        peer: &HttpPeer,
        passage: &mut Exchange,
        mut error: Box<Error>,
    ) -> Box<Error> {
        if let Some(upstream) = &passage.upstream {
            upstream.avoid(peer);
        }
        passage.attempts += 1;
        error.set_retry(passage.attempts < passage.addresses);
        error
    }

    /// A pooled connection may have been closed by the upstream just as we sent on it. Then a request that may be repeated
    /// is, once: the upstream can have seen it twice, which is counted as its error.
    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        passage: &mut Exchange,
        reused: bool,
    ) -> Box<Error> {
        let repeatable = session.req_header().method.is_idempotent() && !session.as_ref().retry_buffer_truncated();
        if repeatable && !passage.repeated {
            error.retry.decide_reuse(reused);
        } else {
            error.set_retry(false);
        }
        if error.retry() {
            passage.repeated = true;
            self.gateway.metrics.http.count_upstream_error(upstream_error(error.etype()));
        }
        error
    }

    /// Runs again for each address that is tried, on a fresh copy of the request.
    async fn upstream_request_filter(
        &self,
        _: &mut Session,
        request: &mut RequestHeader,
        passage: &mut Exchange,
    ) -> Result<()> {
        // Taken apart and put together again: header names go out in lower case, as Envoy and HAProxy send them, and
        // three quarters of what keeping their case would cost are saved. A target that its URI does not spell
        // (absolute, or not UTF-8) lives outside of the parts, and has to be carried over.
        let spelt = request.uri.path_and_query().map(|target| target.as_str().as_bytes()) == Some(request.raw_path());
        let target = (!spelt).then(|| request.raw_path().to_vec());
        let mut parts =
            Parts::from(std::mem::replace(request, RequestHeader::from(http::Request::new(()).into_parts().0)));
        let client = Client { peer: passage.peer, trusted_peer: passage.trusted_peer, request_id: &passage.request_id };
        forwarded_headers::apply(&mut parts.headers, client);
        passage.trail.inject(&mut parts.headers);
        *request = RequestHeader::from(parts);
        match target {
            Some(target) => request.set_raw_path(&target),
            None => Ok(()),
        }
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        passage: &mut Exchange,
    ) -> Result<()> {
        if self.gateway.is_draining() {
            // Also for what was under way when draining began.
            session.set_keepalive(None);
        }
        if response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS {
            passage.interim += 1;
            let endless = passage.interim > MOST_INTERIM;
            return if endless { Err(Error::new_up(ErrorType::InvalidHTTPHeader)) } else { Ok(()) };
        }
        // Without having been asked for, it would make a tunnel of a connection on which the client sends requests.
        if response.status == StatusCode::SWITCHING_PROTOCOLS && !session.is_upgrade_req() {
            return Err(Error::new_up(ErrorType::InvalidHTTPHeader));
        }
        // An upgrade is agreed on from end to end.
        if response.status != StatusCode::SWITCHING_PROTOCOLS {
            hop_by_hop::take_off(response);
        }
        passage.origin = Origin::Upstream;
        response.remove_header(&request_id::NAME);
        let mut lines = RawFields::default();
        lines.field("X-Request-Id", &passage.request_id);
        if let Some(fields) = &passage.fields {
            fields.write(response, &mut lines);
        }
        passage.addendum.put(lines);
        Ok(())
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, passage: &mut Exchange) -> FailToProxy {
        let status = self.status_of(error, session, passage);
        let too_late = answered(session).is_some();
        if status > 0 && !too_late {
            // A request that the upstream has begun to see counts as its, whatever the client made of it then.
            let begun = passage.forwarded.is_some() && matches!(status, 400 | 408 | 413);
            passage.origin = if begun { Origin::Upstream } else { Origin::Gateway };
            // What is left of the request cannot be told from a next one.
            session.set_keepalive(None);
            let refusal = matches!(status, 400 | 408 | 413).then(|| Refusal::bad_request(status));
            let reply = match &refusal {
                Some(refusal) => {
                    self.gateway.metrics.http.count_refusal(refusal.reason);
                    if let Some(record) = &mut passage.record {
                        record.refusal = Some((refusal.reason, refusal.retry_after));
                    }
                    ProblemResponse::refusal(refusal)
                }
                None => ProblemResponse::fault(status),
            };
            // What was charged stays charged, and is shown.
            let reply = ProblemResponse { fields: passage.fields.as_deref(), ..reply };
            let (id, addendum) = (&passage.request_id, &passage.addendum);
            if let Err(error) = reply.write(session, id, addendum, self.gateway.is_draining()).await {
                log::debug!(error = words(&error); "answer not written");
            }
        }
        FailToProxy { error_code: status, can_reuse_downstream: false }
    }

    /// We log what is ours to say, with fields and without the client's data.
    fn suppress_error_log(&self, _: &Session, _: &Exchange, _: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _: &Session,
        _: &Exchange,
        _: &Error,
        _: pingora::proxy::ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, passage: &mut Exchange) {
        let now = self.gateway.clock.now();
        let metrics = &self.gateway.metrics;
        let code = match answered(session) {
            Some(code) => code,
            // The client went away: the code that nginx logs for it. If the upstream saw the request, it counts as its.
            None => {
                passage.origin = if passage.forwarded.is_some() { Origin::Upstream } else { Origin::Gateway };
                499
            }
        };
        metrics.http.count_response(session.req_header().method.as_str(), code, passage.origin);
        let duration = now.since(passage.started);
        metrics.http.request_duration(passage.origin).record(duration.seconds());
        let upstream = passage.forwarded.map(|forwarded| now.since(forwarded));
        if let Some(upstream) = upstream {
            metrics.http.upstream_duration.record(upstream.seconds());
        }
        if let Some(error) = error {
            self.report(error, code, passage);
        }
        if let Some(record) = &passage.record {
            let whole = error.is_none() && passage.origin == Origin::Upstream;
            let end = RequestEnd {
                kind: record.kind(if whole { Kind::Allowed } else { Kind::Error }),
                request_id: &passage.request_id,
                method: session.req_header().method.as_str(),
                code,
                origin: passage.origin,
                duration,
                upstream,
                request_bytes: session.body_bytes_read(),
                response_bytes: session.body_bytes_sent(),
            };
            record.write(&end, session.req_header(), &self.gateway.clock);
            self.gateway.tracer.end(&passage.trail, || EndedRequest {
                line: record.line(&end, session.req_header(), end.began(&self.gateway.clock)),
                server: session.as_downstream().server_addr().and_then(|address| address.as_inet()).copied(),
                upstream: passage.upstream.as_ref().map(|upstream| UpstreamCall {
                    host: upstream.host(),
                    port: upstream.port(),
                    status: answered(session).filter(|_| passage.origin == Origin::Upstream),
                    error: passage.upstream_error,
                }),
            });
        }
    }
}

impl Proxy {
    /// How far ahead of its client a response is read.
    fn window(&self) -> Window {
        if self.stalled_writes.are_many() { Window::Narrow } else { Window::Whole }
    }

    /// What the client is told of an error; 0 when there is nobody to tell.
    fn status_of(&self, error: &Error, session: &mut Session, passage: &mut Exchange) -> u16 {
        if let Some(violation) = violation(error) {
            return violation.status();
        }
        if is_silence(error) {
            passage.upstream_error = Some(UpstreamError::ReadTimeout);
            return 504;
        }
        match (error.etype(), error.esource()) {
            (ErrorType::HTTPStatus(code), _) => *code,
            // The upstream has waited for a part of the body, as we have.
            (ErrorType::ReadTimedout, ErrorSource::Upstream) if is_waiting_for_client(session) => 408,
            (kind, ErrorSource::Upstream) => {
                let failure = passage.upstream_error.unwrap_or(upstream_error(kind));
                passage.upstream_error = Some(failure);
                match failure {
                    UpstreamError::ConnectTimeout | UpstreamError::ReadTimeout | UpstreamError::WriteTimeout => 504,
                    _ => 502,
                }
            }
            (ErrorType::InvalidHTTPHeader, ErrorSource::Downstream) => 400,
            (_, ErrorSource::Downstream) => 0,
            _ => 500,
        }
    }

    fn report(&self, error: &Error, code: u16, passage: &Exchange) {
        let id = passage.request_id.to_str().unwrap_or_default();
        match passage.upstream_error {
            Some(kind) => {
                self.gateway.metrics.http.count_upstream_error(kind);
                let Some(requests) = self.logged.upstream_failures.say(self.gateway.clock.now()) else { return };
                log::warn!(kind = kind.name(), code, requests, request_id = id, error = words(error); "upstream failed");
            }
            None => log::debug!(code, request_id = id, error = words(error); "request not finished"),
        }
    }
}
