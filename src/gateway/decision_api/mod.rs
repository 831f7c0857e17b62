//! Decides about requests that other proxies hold and ask about. Every call gets one answer, and nothing is forwarded.
//!
//! Invariant: the description of a request is trusted, so only known peers may ask: a call is answered only if its peer is one
//! of `clients` in the snapshot that the call runs under. Everything else is shared with the proxy: the server with its bounds,
//! `enforcement`, `decision`.

mod call;
mod doors;
pub mod ext_authz;
pub mod grpc;
mod http_door;
pub mod original_request;
pub mod rls;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::modules::http::HttpModules;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use super::response::problem::{ProblemResponse, Recipient, Reuse};
use super::response::request_id;
use super::runtime::log_throttle::LogThrottle;
use super::server::connection_handle::ConnectionHandle;
use super::server::session;
use super::state::GatewayState;
use super::state::snapshot::Snapshot;
use super::telemetry::metrics::registry::Registry;
use super::telemetry::metrics::{DoorDecisions, RateLimitMetrics};
use call::Call;
use config::RefuseWith;
use doors::CallTarget;
use grpc::envoy_call::EnvoyCall;
use grpc::{Reply, Status, gone};
use request::door::Door;
use stores::Worker;

/// The decision API on one thread.
#[derive(Clone, Debug)]
pub struct DecisionApi {
    pub gateway: Arc<GatewayState>,
    /// The thread's index.
    pub worker: Worker,
    pub shared: Arc<SharedParts>,
}

/// The parts of the API that all threads share.
#[derive(Debug)]
pub struct SharedParts {
    /// Decisions about calls of `/decide`.
    http: DoorDecisions,
    ext_authz: DoorDecisions,
    rate_limit: RateLimitMetrics,
    unusable_calls: LogThrottle,
}

impl SharedParts {
    /// Makes the counters of all doors, which exist from now on.
    pub fn new(registry: &Registry) -> SharedParts {
        SharedParts {
            http: DoorDecisions::new(Door::Http, registry),
            ext_authz: DoorDecisions::new(Door::ExtAuthz, registry),
            rate_limit: RateLimitMetrics::new(registry),
            unusable_calls: LogThrottle::default(),
        }
    }
}

#[async_trait]
impl ProxyHttp for DecisionApi {
    type CTX = Call;

    fn new_ctx(&self) -> Call {
        Call::new(self.gateway.clock.now())
    }

    /// Takes the handle that the server of HTTP/1 passes with every request, including the first.
    fn on_connection_reuse(&self, _: &mut Session, call: &mut Call, context: Box<dyn Any + Send + Sync>) {
        if let Ok(handle) = context.downcast::<ConnectionHandle>() {
            call.connection = Some(*handle);
        }
    }

    /// Adds no modules: they cost time even if they do nothing.
    fn init_downstream_modules(&self, _: &mut HttpModules) {}

    async fn early_request_filter(&self, session: &mut Session, call: &mut Call) -> Result<()> {
        if call.connection.is_none() {
            call.connection = session::connection(session);
        }
        if self.gateway.is_draining() {
            call.close_when_done(session);
        }
        if call.connection.is_some() {
            // The stream of the session enforces the timeout of the call's body.
            session.set_read_timeout(None);
        }
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, call: &mut Call) -> Result<bool> {
        let snapshot = self.gateway.snapshot.load();
        call.request_id = request_id::keep_or_make(session.req_header().headers.get(&request_id::NAME));
        call.destination = Some(Arc::clone(snapshot.destinations.decided()));
        let peer = session.client_addr().and_then(|address| address.as_inet()).map(|address| address.ip());
        if !self.admits_connection(&snapshot, call) {
            call.close_when_done(session);
            return Err(gone());
        }
        let settings = snapshot.config.decide(call.listener());
        let has_verified_certificate = call.has_verified_certificate();
        let admitted = peer.zip(settings).filter(|(peer, it)| it.admits_call(*peer, has_verified_certificate));
        // A reload may have removed the peer since it connected.
        let Some((peer, settings)) = admitted else { return Err(gone()) };
        let target = CallTarget::of(session, settings);
        if target.is_grpc() {
            call.trace = self.gateway.tracer.begin(&session.req_header().headers, call.started);
        }
        let envoy = EnvoyCall { api: self, snapshot: &snapshot, settings };
        match target {
            CallTarget::Http => http_door::answer(self, session, call, &snapshot, (peer, settings)).await?,
            CallTarget::ExtAuthz => ext_authz::answer(envoy, session, call).await?,
            CallTarget::Rls => rls::answer(envoy, session, call).await?,
            CallTarget::Health => grpc::health::answer(envoy, session, call).await?,
            CallTarget::UnknownMethod => {
                let reply = Reply::Failure(Status::Unimplemented, "no door of this listener has this method");
                envoy.reply(session, call, reply).await?;
            }
            CallTarget::NotFound => {
                let recipient = Recipient::Edge(RefuseWith::Decided);
                let problem = ProblemResponse { recipient, ..ProblemResponse::fault(404) };
                problem.write(session, &call.request_id, call.pending_fields(), self.reuse()).await?;
            }
        }
        call.record_at_least(&snapshot, peer, target.door(session.req_header().uri.path(), settings));
        Ok(true)
    }

    /// Never called, because every call has been answered before.
    async fn upstream_peer(&self, _: &mut Session, _: &mut Call) -> Result<Box<HttpPeer>> {
        Err(Error::new_in(ErrorType::InternalError))
    }

    /// Called only if the other proxy has disconnected: nothing is answered.
    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, call: &mut Call) -> FailToProxy {
        session.set_keepalive(None);
        let request_id = call.request_id.to_str().unwrap_or_default();
        log::debug!(request_id, error = error.etype().as_str(); "call not answered");
        FailToProxy { error_code: 0, can_reuse_downstream: false }
    }

    /// The gateway logs its own lines, with fields and without the client's data.
    fn suppress_error_log(&self, _: &Session, _: &Call, _: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(&self, _: &Session, _: &Call, _: &Error, _: ProxyWarnLogContext) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, call: &mut Call) {
        call.end(self, session, error);
    }
}

impl DecisionApi {
    /// Whether the certificates in force now would admit the connection of a call, which may be older than the present
    /// authorities or their revocation list.
    fn admits_connection(&self, snapshot: &Snapshot, call: &Call) -> bool {
        let Some(session) = call.tls() else { return true };
        let server = snapshot.config.listeners.get(call.listener()).and_then(|listener| listener.tls.as_ref());
        server.is_none_or(|server| session.is_admitted_by(&server.in_force(), self.gateway.clock.wall()))
    }

    /// Responses close their connections while the process drains.
    fn reuse(&self) -> Reuse {
        if self.gateway.is_draining() { Reuse::Close } else { Reuse::Allowed }
    }
}
