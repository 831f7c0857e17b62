//! The proxy: what it does with a request in each of Pingora's phases, in their order.
//!
//! Invariant: a request is served under the snapshot that it began with. What later phases need of that is kept in the
//! request's [`Exchange`], and none of them loads another. A refusal is written in `request_filter` and never reaches the
//! upstream.

mod attempt_peer;
mod attempts;
pub(in crate::gateway) mod client_certificate;
mod delay;
pub(in crate::gateway) mod exchange;
mod fault_response;
mod forwarded_headers;
mod http10;
pub(in crate::gateway) mod own_responses;
pub(in crate::gateway) mod proxy_error;
pub(in crate::gateway) mod request_target;
pub(in crate::gateway) mod response_head;
mod rewrites;
mod route_answers;
mod route_overrides;
mod total_timeout;
mod untrusted_forwarded_for;
mod upgrades;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{HOST, TE};
use http::{HeaderMap, HeaderValue, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use super::enforcement::request_record::{RecordedTls, RequestRecord};
use super::enforcement::{Arrival, Decision, DecisionFindings, Patience, PaymentRecord, RequestPurpose, decide};
use super::response::cors_fields::CorsFields;
use super::response::header_changes;
use super::response::problem::{ProblemResponse, Reuse};
use super::response::response_fields::ResponseFields;
use super::runtime::log_throttle::LogThrottle;
use super::runtime::supervise;
use super::runtime::write_backpressure::WriteBackpressure;
use super::server::connection_handle::ConnectionHandle;
use super::server::session::{self, response_code};
use super::state::GatewayState;
use super::telemetry::access_log::request_end::RequestEnd;
use super::telemetry::labels::Origin;
use super::telemetry::trace::EndedRequest;
use super::upstream::Window;
use attempts::Repeatable;
use base::time::Timestamp;
use base::tls::server::Session as TlsSession;
use decision::access_log_line::Kind;
use delay::delay;
use exchange::Exchange;
use forwarded_headers::{Client, IncomingFields};
use own_responses::{OwnResponses, answer_preflight};
use proxy_error::{report, upstream_error};
use request::door::Door;
use request::request::Request;
use stores::Worker;
use untrusted_forwarded_for::UntrustedForwardedFor;

/// One thread's proxy.
#[derive(Clone, Debug)]
pub struct Proxy {
    pub gateway: Arc<GatewayState>,
    /// Which of the threads it is.
    pub worker: Worker,
    pub write_backpressure: WriteBackpressure,
    pub logs: Arc<ProxyLogs>,
}

/// What bounds the proxy's log lines, for all threads.
#[derive(Debug, Default)]
pub struct ProxyLogs {
    pub upstream_failures: LogThrottle,
    pub untrusted_forwarded_for: UntrustedForwardedFor,
}

#[async_trait]
impl ProxyHttp for Proxy {
    /// On the heap: Pingora moves it from future to future.
    type CTX = Box<Exchange>;

    fn new_ctx(&self) -> Self::CTX {
        Box::new(Exchange::new(Timestamp::default()))
    }

    /// Takes what the server of HTTP/1 hands on with every request, the first one included.
    fn on_connection_reuse(&self, _: &mut Session, exchange: &mut Self::CTX, context: Box<dyn Any + Send + Sync>) {
        if let Ok(handle) = context.downcast::<ConnectionHandle>() {
            exchange.connection = Some(*handle);
        }
    }

    /// No modules but for [`http10`]: they cost time even if they do nothing.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, exchange: &mut Self::CTX) -> Result<()> {
        exchange.begin(session, &self.gateway.clock);
        if self.gateway.is_draining() {
            exchange.close_when_done(session);
        }
        http10::begin(session);
        if exchange.connection.is_some() {
            // The stream of the session enforces the timeout of the request's body.
            session.set_read_timeout(None);
        }
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, exchange: &mut Self::CTX) -> Result<bool> {
        let snapshot = self.gateway.snapshot.load();
        let head = session.req_header();
        supervise::fault_point(head.uri.path());
        let incoming = IncomingFields::of(&head.headers);
        exchange.identify(incoming.request_id);
        exchange.peer = session
            .client_addr()
            .and_then(|address| address.as_inet())
            .map_or(exchange.peer, |address| address.ip().to_canonical());
        exchange.trusted_peer = snapshot.config.client_ip.trusts(exchange.peer);
        if !exchange.trusted_peer
            && incoming.forwarded_for
            && self.logs.untrusted_forwarded_for.should_log(exchange.peer)
        {
            let hint = "if this is a proxy of yours, name it in client_ip.trusted_proxies";
            log::info!(peer:% = exchange.peer, hint; "X-Forwarded-For of an untrusted peer is ignored");
        }
        let client = snapshot.config.client_ip.client(exchange.peer, &head.headers);
        let scheme = exchange.scheme_source(session);
        let tls = exchange.connection.as_ref().and_then(ConnectionHandle::tls).cloned();
        let listener = exchange.listener();
        let request = Request::new(head, client).with_scheme(scheme).with_tls(tls.as_deref().map(TlsSession::identity));
        let request = request.with_listener(snapshot.config.listener_name(listener));
        let caller = session::caller(session, exchange.connection.as_ref());
        exchange.trace = self.gateway.tracer.begin(&head.headers, exchange.started);
        exchange.own_responses = OwnResponses::of(&snapshot.config, &request);
        let (at, caller) = (exchange.started, exchange.trace.link(caller));
        let (direction, purpose) = (exchange.direction(&request), exchange.purpose());
        let arrival = Arrival { worker: self.worker, at, caller, direction, purpose, patience: Patience::Unbounded };
        let recorded = snapshot.access_log.is_some() || exchange.trace.is_sampled();
        let payment = if recorded { PaymentRecord::Keep } else { PaymentRecord::Discard };
        let DecisionFindings { decision, identity, destination, payment } =
            decide(&self.gateway, &snapshot, &request, arrival, payment).await;
        if let Some(forwarding) = &destination.forwarding {
            let request = request.with_identity(&identity);
            let request = request.with_destination(destination.route.route(), destination.upstream_name());
            exchange.field_changes = forwarding.field_changes(&request);
            exchange.body_left = forwarding.overrides.body_bytes;
        }
        exchange.note_balance_key(&destination, &request, &identity);
        if recorded {
            exchange.record = Some(Box::new(RequestRecord {
                snapshot: Arc::clone(&snapshot),
                destination: Arc::clone(&destination),
                client,
                scheme,
                listener,
                door: Door::Proxy,
                tls: tls.map(RecordedTls::Own),
                descriptors: Vec::new(),
                identity,
                payment,
                decision: (purpose == RequestPurpose::Ordinary)
                    .then(|| self.gateway.clock.now().since(exchange.started)),
                waited: None,
                refusal: None,
                invalid_token: None,
                denied_by: None,
            }));
        }
        exchange.destination = Some(destination);
        match decision {
            Decision::Pass(fields) => {
                exchange.fields = fields;
                exchange.pass();
                route_answers::answer(self, session, exchange, scheme).await
            }
            Decision::Delay(delayed) => {
                // A request of an old configuration keeps what it needs of it, and not the whole.
                drop(snapshot);
                // What is rare is on the heap, so that it does not enlarge every request's task.
                Box::pin(delay(&self.gateway, session, exchange, *delayed)).await?;
                exchange.pass();
                route_answers::answer(self, session, exchange, scheme).await
            }
            Decision::Preflight => Box::pin(answer_preflight(self, session, exchange)).await,
            Decision::Refuse(response) => {
                let refusal = &response.refusal;
                self.gateway.metrics.http.count_refusal(refusal.reason);
                if let Some(record) = &mut exchange.record {
                    record.refuse(refusal, response.denied_by);
                }
                let page = exchange.page(session.req_header(), refusal.status);
                let problem = ProblemResponse { page, cors: exchange.cors(), ..response.problem() };
                let (id, pending) = (&exchange.request_id, exchange.pending_fields());
                Box::pin(problem.write(session, id, pending, self.reuse())).await?;
                Ok(true)
            }
            Decision::Gone => Err(Error::new_down(ErrorType::ConnectionClosed)),
        }
    }

    async fn upstream_peer(&self, session: &mut Session, exchange: &mut Self::CTX) -> Result<Box<HttpPeer>> {
        attempt_peer::select(self, session, exchange).await
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        reused: bool,
        peer: &HttpPeer,
        _: std::os::fd::RawFd,
        _: Option<&Digest>,
        exchange: &mut Self::CTX,
    ) -> Result<()> {
        attempt_peer::connected(exchange, peer, reused, self.gateway.clock.now());
        Ok(())
    }

    /// Tries another endpoint: nothing has been sent yet.
    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        exchange: &mut Self::CTX,
        mut error: Box<Error>,
    ) -> Box<Error> {
        let retry = attempts::fail(&self.gateway, exchange, upstream_error(&error), Repeatable::Yes);
        error.set_retry(retry);
        error
    }

    fn error_while_proxy(
        &self,
        _: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        exchange: &mut Self::CTX,
        reused: bool,
    ) -> Box<Error> {
        attempts::fail_while_proxying(&self.gateway, session, error, exchange, reused)
    }

    /// Runs again for each endpoint that is tried, on a new copy of the request.
    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        exchange: &mut Self::CTX,
    ) -> Result<()> {
        let scheme = exchange.scheme(session);
        let host =
            forwarded_headers::missing_host(session.req_header(), exchange.upstream().map(|one| &*one.upstream))?;
        let expects_trailers = forwarded_headers::expects_trailers(request, session.req_header());
        let Exchange { peer, trusted_peer, ref request_id, .. } = **exchange;
        let client = Client { peer, trusted_peer, scheme, request_id, connection: exchange.connection.as_ref() };
        upgrades::remove_others(session, request);
        forwarded_headers::edit(request, |headers| {
            forwarded_headers::apply(headers, client);
            exchange.trace.inject(headers);
            if let Some(host) = host {
                headers.insert(HOST, host);
            }
            if expects_trailers {
                headers.insert(TE, HeaderValue::from_static("trailers"));
            }
            if let Some(rewrite) = exchange.rewrite() {
                rewrites::rewrite_fields(rewrite, headers, client);
            }
            if let Some(field) = exchange.forwarded_certificate().and_then(client_certificate::field) {
                headers.insert(client_certificate::NAME, field);
            }
            if let Some(changes) = &exchange.field_changes {
                changes.request.apply(headers);
            }
        })?;
        match exchange.rewrite() {
            Some(rewrite) => rewrites::rewrite_target(rewrite, request),
            None => Ok(()),
        }
    }

    async fn request_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        _end_of_stream: bool,
        exchange: &mut Self::CTX,
    ) -> Result<()> {
        match &mut exchange.body_left {
            Some(left) => route_overrides::count(left, body.as_ref()),
            None => Ok(()),
        }
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        exchange: &mut Self::CTX,
    ) -> Result<()> {
        if self.gateway.is_draining() {
            // Also for requests that were in flight when draining began.
            exchange.close_when_done(session);
        }
        if response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS {
            return response_head::sanitise_interim(response, &mut exchange.interim);
        }
        upgrades::begin_tunnel(self, session, response, exchange)?;
        if exchange.connection.as_ref().is_some_and(ConnectionHandle::is_http2) {
            response_head::forget_spelling(response);
        }
        response_head::sanitise(response)?;
        http10::end_with_body(session, response);
        exchange.origin = Origin::Upstream;
        attempts::answered(&self.gateway, exchange, response.status);
        if let Some(changes) = &exchange.field_changes {
            header_changes::apply(&changes.response, response)?;
        }
        let rate_limits = exchange.fields.as_deref().map(|fields| fields.merge_with(response));
        let cors = exchange.cors().map(|answer| CorsFields::beside(answer, response));
        let fields = ResponseFields { request_id: &exchange.request_id, problem: None, rate_limits, cors };
        fields.add(response, exchange.pending_fields())
    }

    fn upstream_response_trailer_filter(
        &self,
        _: &mut Session,
        trailers: &mut HeaderMap,
        _: &mut Self::CTX,
    ) -> Result<()> {
        response_head::sanitise_trailers(trailers);
        Ok(())
    }

    fn response_body_filter(
        &self,
        _: &mut Session,
        _: &mut Option<Bytes>,
        end_of_stream: bool,
        exchange: &mut Self::CTX,
    ) -> Result<Option<Duration>> {
        match exchange.deadline {
            Some(deadline) if !end_of_stream => total_timeout::check(deadline, self.gateway.clock.now()),
            _ => Ok(()),
        }
        .map(|()| None)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, exchange: &mut Self::CTX) -> FailToProxy {
        fault_response::respond(self, session, error, exchange).await
    }

    /// The gateway logs its own lines, with fields and without the client's data.
    fn suppress_error_log(&self, _: &Session, _: &Self::CTX, _: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _: &Session,
        _: &Self::CTX,
        _: &Error,
        _: pingora::proxy::ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, exchange: &mut Self::CTX) {
        let now = self.gateway.clock.now();
        let code = match response_code(session) {
            Some(code) => code,
            // The client has gone: the code that nginx logs for it. If the upstream saw the request, it counts as the upstream's.
            None => {
                exchange.origin = if exchange.forwarded.is_some() { Origin::Upstream } else { Origin::Gateway };
                499
            }
        };
        if exchange.destination.is_none() {
            // It failed before anything was decided about it.
            exchange.destination = Some(Arc::clone(self.gateway.snapshot.load().destinations.unrouted()));
        }
        let Some(destination) = &exchange.destination else { return };
        let route = &destination.route;
        route.count_response(session.req_header().method.as_str(), code, exchange.origin);
        let duration = now.since(exchange.started);
        route.duration(exchange.origin).record(duration.seconds());
        let upstream = exchange.forwarded.map(|forwarded| now.since(forwarded));
        if let (Some(upstream), Some(one)) = (upstream, &destination.upstream) {
            one.metrics.duration.record(upstream.seconds());
            if let Some(attempt) = &exchange.attempt {
                attempt.add_duration(upstream);
            }
        }
        if let Some(error) = error {
            report(&self.gateway, &self.logs.upstream_failures, error, code, exchange);
        }
        if let Some(record) = &exchange.record {
            let whole = error.is_none() && (exchange.origin == Origin::Upstream || exchange.answered);
            let end = RequestEnd {
                kind: record.kind(if whole { Kind::Allowed } else { Kind::Error }),
                request_id: &exchange.request_id,
                route: route.route(),
                method: session.req_header().method.as_str(),
                code,
                origin: exchange.origin,
                duration,
                upstream,
                endpoint: exchange.attempt.as_ref().map(|attempt| &attempt.endpoint.address),
                failed_attempts: attempts::logged(exchange),
                request_bytes: session.body_bytes_read(),
                response_bytes: session.body_bytes_sent(),
                detail: error.and_then(proxy_error::detail),
            };
            record.write(&end, session.req_header(), &self.gateway.clock);
            self.gateway.tracer.end(&exchange.trace, || EndedRequest {
                line: record.line(&end, session.req_header(), end.began(&self.gateway.clock)),
                scheme: exchange.scheme(session).name(),
                server: session.as_downstream().server_addr().and_then(|address| address.as_inet()).copied(),
                upstream: exchange.upstream_call(session),
            });
        }
    }
}

impl Proxy {
    /// How far ahead of its client a response is read.
    fn window(&self, exchange: &Exchange) -> Window {
        let of_connection = exchange.connection.as_ref().and_then(ConnectionHandle::write_backpressure);
        let write_backpressure = of_connection.unwrap_or(&self.write_backpressure);
        if write_backpressure.is_above_threshold() { Window::Narrow } else { Window::Whole }
    }

    /// Responses close their connections while the process drains.
    fn reuse(&self) -> Reuse {
        if self.gateway.is_draining() { Reuse::Close } else { Reuse::Allowed }
    }
}
