//! Starts a bootstrapped gateway: a thread for each core, the admin listener, housekeeping and the signals.

use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;

use super::admin::Admin;
use super::admin::server::AdminServer;
use super::admin::write_access::AdminListener;
use super::bootstrap::{BoundGateway, ListenAddress};
use super::decision_api::{DecisionApi, SharedParts};
use super::enforcement::running_holds::RunningHolds;
use super::forward::http2_pool::Http2Pool;
use super::forward::upstream_pool::UpstreamPool;
use super::forward::{ForwardLogs, Forwarder};
use super::process::drain::SecondSignal;
use super::process::housekeeping::Housekeeping;
use super::process::signals::SignalWatch;
use super::runtime::supervise;
use super::runtime::write_backpressure::WriteBackpressure;
use super::server::connection::{ConnectionServer, Http2Stage};
use super::server::connection_limits::{ConnectionLimits, Purpose};
use super::server::decision_clients::DecisionClients;
use super::server::http1::Http1Server;
use super::server::http2::Http2Server;
use super::server::listener::{FileFilter, ListeningSockets, Thread};
use super::server::proxy_protocol_stage::ProxyProtocol;
use super::server::queued_connections::AcceptingSockets;
use super::server::server_state::ServerState;
use super::server::tls::TlsStage;
use super::state::GatewayState;
use super::telemetry::metrics::registry::Reader;
use super::telemetry::metrics::{Http2Errors, HttpMetrics};
use base::http_protocol::HttpProtocol;
use config::Listener;
use stores::Worker;

impl BoundGateway {
    /// Returns the addresses on which the gateway listens, in the order in which they are announced.
    pub(crate) fn listening(&self) -> Vec<ListenAddress> {
        let http = self.http.iter().map(|(bound, listener)| {
            let name = if listener.tls.is_some() { "https" } else { "http" };
            ListenAddress { name, address: bound.address.clone() }
        });
        let admin = self.admin.as_ref();
        let admin = admin.into_iter().chain(&self.admin_socket);
        let admin = admin.map(|admin| ListenAddress { name: "admin", address: admin.address.clone() });
        http.chain(admin).collect()
    }

    /// Runs the gateway until the process exits. `ready` is called when signals are listened for and requests are answered.
    pub(crate) fn run(self, ready: impl FnOnce() + Send + 'static) {
        let mut server = Server::new_with_opt_and_conf(None, server_conf());
        server.bootstrap();

        let (limits, accepting) = (Arc::new(ConnectionLimits::new(self.fd_budget)), AcceptingSockets::default());
        let running_holds = Arc::new(RunningHolds::default());
        let shared = SharedByThreads { limits: &limits, accepting: &accepting, running_holds: &running_holds };
        for thread in http_threads(&self.gateway, self.http, self.threads, shared, &server.configuration) {
            server.add_service(thread);
        }
        let admin = self.admin.map(|admin| (admin, AdminListener::Address));
        let socket = self.admin_socket.map(|socket| (socket, AdminListener::Socket));
        for (admin, listener) in admin.into_iter().chain(socket) {
            let most = self.fd_budget.admin();
            let app = |_| {
                let admin = Admin { gateway: Arc::clone(&self.gateway), status: Arc::clone(&self.status), listener };
                AdminServer::new(admin, most)
            };
            for service in admin.services_of(&self.gateway.lifecycle, "admin", &accepting, None, app) {
                server.add_service(service);
            }
        }
        let reload = Mutex::new(Some(self.reload));
        let (gateway, bucket_saver) = (Arc::clone(&self.gateway), self.bucket_saver.clone());
        let measured = Arc::clone(&self.gateway);
        self.gateway.metric_export.start(move || measured.exposition(Reader::Collector));
        let recorded = Arc::clone(&self.gateway);
        supervise::before_leaving(move || {
            recorded.lifecycle.leave();
            recorded.records.finish();
        });
        let second_signal = SecondSignal::default();
        let housekeeping = Housekeeping {
            gateway,
            status: self.status,
            limits,
            accepting,
            second_signal: Arc::clone(&second_signal),
            reload,
            bucket_saver,
            running_holds: Arc::clone(&running_holds),
        };
        server.add_service(background_service("housekeeping", housekeeping));
        let signals = SignalWatch {
            gateway: self.gateway,
            upgrade: self.upgrade,
            inherited: Mutex::new(self.inherited),
            bucket_saver: self.bucket_saver,
            ready: Mutex::new(Some(Box::new(ready))),
            second_signal,
            running_holds,
        };
        server.run(RunArgs { shutdown_signal: Box::new(signals) });
    }
}

/// What the threads share beside the state of the gateway.
#[derive(Clone, Copy)]
struct SharedByThreads<'s> {
    limits: &'s Arc<ConnectionLimits>,
    accepting: &'s AcceptingSockets,
    running_holds: &'s Arc<RunningHolds>,
}

/// Makes one service for each thread. Each has a socket of every listener, and passes connections to its application.
#[allow(clippy::indexing_slicing, reason = "remainders of the number of threads, which is how many there are")]
fn http_threads(
    gateway: &Arc<GatewayState>,
    listeners: Vec<(ListeningSockets, Listener)>,
    count: usize,
    SharedByThreads { limits, accepting, running_holds }: SharedByThreads<'_>,
    conf: &Arc<ServerConf>,
) -> Vec<Thread> {
    let write_backpressure = WriteBackpressure::new(Arc::clone(&gateway.response_buffers));
    let logs = Arc::new(ForwardLogs::default());
    let forwarder = |thread| {
        let (gateway, write_backpressure) = (Arc::clone(gateway), write_backpressure.clone());
        let pool = UpstreamPool::new(conf, gateway.clock.clone(), limits);
        let http2_pool = Http2Pool::new(gateway.clock.clone(), limits);
        let logs = Arc::clone(&logs);
        Arc::new(Forwarder { gateway, worker: Worker(thread), write_backpressure, logs, pool, http2_pool })
    };
    let forwarders: Vec<_> = (0..count).map(forwarder).collect();
    let thread = |number| {
        let gateway = Arc::clone(gateway);
        Thread::new(format!("http {number}"), async move { gateway.store.run(Worker(number)).await })
    };
    let mut threads: Vec<_> = (0..count).map(thread).collect();
    let state = ServerState {
        snapshot: Arc::clone(&gateway.snapshot),
        metrics: Arc::clone(&gateway.metrics.http),
        clock: gateway.clock.clone(),
        certificates_changed: gateway.certificates_changed.clone(),
    };
    let has_tls = listeners.iter().any(|(_, listener)| listener.tls.is_some());
    let handshakes = has_tls.then(|| Arc::new(state.metrics.handshakes()));
    let decides = listeners.iter().any(|(_, listener)| listener.decide.is_some());
    let decision_apis = if decides { decision_apis(gateway, running_holds, count) } else { Vec::new() };
    for (index, (bound, listener)) in listeners.into_iter().enumerate() {
        // A listener without a name is named by its bound address, because its port may have been chosen when it was
        // bound.
        let is_named = listener.name != listener.address.to_string();
        let label = if is_named { listener.name.clone() } else { bound.address.to_string() };
        let proxy_protocol = ProxyProtocol::new(&listener.proxy_protocol, &state.metrics, state.clock.clone(), &label);
        let handshakes = handshakes.as_ref().filter(|_| listener.tls.is_some());
        let gauges = ProtocolGauges::new(&state.metrics, &label, &listener.protocols);
        let errors = gauges.http2.as_ref().map(|_| Arc::new(state.metrics.http2_errors(&label)));
        let closed = listener.decide.is_some().then(|| state.metrics.decision_connections_closed(&label));
        let stages = Stages {
            state: state.clone(),
            listener: index,
            limits: Arc::clone(limits),
            gauges,
            proxy_protocol: proxy_protocol.map(Arc::new),
            decision_clients: closed.map(|closed| Arc::new(DecisionClients::new(index, closed))),
            http2_errors: errors,
            tls: handshakes.map(|handshakes| Arc::new(TlsStage::new(index, Arc::clone(handshakes)))),
            write_backpressure: write_backpressure.clone(),
        };
        let purpose = if listener.decide.is_some() { Purpose::Deciding } else { Purpose::Proxying };
        let files = Arc::new(FileFilter { purpose, limits: Arc::clone(limits), clock: gateway.clock.clone() });
        let life = &gateway.lifecycle;
        // If the sockets are inherited from a process with more threads, there are more sockets than threads.
        if listener.decide.is_some() {
            let server = |number: usize| stages.before(&decision_apis[number % count]);
            for (number, socket) in (0..).zip(bound.services_of(life, "http", accepting, Some(&files), server)) {
                threads[number % count].listen(socket);
            }
        } else {
            let server = |number: usize| stages.before(&forwarders[number % count]);
            for (number, socket) in (0..).zip(bound.services_of(life, "http", accepting, Some(&files), server)) {
                threads[number % count].listen(socket);
            }
        }
    }
    threads
}

/// Makes the decision API of each thread.
fn decision_apis(
    gateway: &Arc<GatewayState>,
    running_holds: &Arc<RunningHolds>,
    count: usize,
) -> Vec<Arc<DecisionApi>> {
    let shared = Arc::new(SharedParts::new(&gateway.metrics.registry, Arc::clone(running_holds)));
    let api = |thread| {
        let (gateway, shared) = (Arc::clone(gateway), Arc::clone(&shared));
        Arc::new(DecisionApi { gateway, worker: Worker(thread), shared })
    };
    (0..count).map(api).collect()
}

/// The stages that the connections of one listener pass before they reach an application.
struct Stages {
    state: ServerState,
    /// The index of the listener in the configuration.
    listener: usize,
    limits: Arc<ConnectionLimits>,
    gauges: ProtocolGauges,
    proxy_protocol: Option<Arc<ProxyProtocol>>,
    decision_clients: Option<Arc<DecisionClients>>,
    /// The counters of HTTP/2 errors. `None` on a listener without HTTP/2.
    http2_errors: Option<Arc<Http2Errors>>,
    tls: Option<Arc<TlsStage>>,
    write_backpressure: WriteBackpressure,
}

impl Stages {
    /// Returns these stages, followed by an application.
    fn before<A>(&self, app: &Arc<A>) -> ConnectionServer<A> {
        let (state, write_backpressure) = (&self.state, &self.write_backpressure);
        ConnectionServer {
            state: state.clone(),
            listener: self.listener,
            limits: Arc::clone(&self.limits),
            gauge: self.gauges.unknown.clone(),
            proxy_protocol: self.proxy_protocol.clone(),
            decision_clients: self.decision_clients.clone(),
            tls: self.tls.clone(),
            http1: Http1Server {
                app: Arc::clone(app),
                state: state.clone(),
                write_backpressure: write_backpressure.clone(),
            },
            http2: self.gauges.http2.clone().zip(self.http2_errors.clone()).map(|(gauge, errors)| Http2Stage {
                server: Http2Server {
                    app: Arc::clone(app),
                    state: state.clone(),
                    limits: Arc::clone(&self.limits),
                    write_backpressure: write_backpressure.clone(),
                    errors,
                },
                gauge,
                http1_gauge: self.gauges.http1.clone(),
            }),
        }
    }
}

/// The number of open connections of one listener, by protocol.
struct ProtocolGauges {
    /// Connections whose protocol is not known yet. A listener with one protocol has none.
    unknown: Gauge,
    http1: Option<Gauge>,
    http2: Option<Gauge>,
}

impl ProtocolGauges {
    fn new(metrics: &HttpMetrics, listener: &str, protocols: &[HttpProtocol]) -> ProtocolGauges {
        let gauge = |protocol: HttpProtocol| metrics.connections(listener, protocol.name());
        let (http1, http2): (Vec<_>, Vec<_>) =
            protocols.iter().copied().partition(|protocol| *protocol == HttpProtocol::Http1);
        let (http1, http2) = (http1.into_iter().next().map(gauge), http2.into_iter().next().map(gauge));
        let unknown = match (&http1, &http2) {
            (Some(only), None) | (None, Some(only)) => only.clone(),
            _ => metrics.connections(listener, "unknown"),
        };
        ProtocolGauges { unknown, http1, http2 }
    }
}

fn server_conf() -> ServerConf {
    ServerConf {
        threads: 1,
        work_stealing: false,
        // Each upstream has its own certificate authorities. Pingora would read the system's authorities for every
        // thread, and panic if it could not use one of them. This file contains no authorities, and exists even without
        // a /dev.
        ca_file: Some("/proc/self/comm".to_owned()),
        // This time is never reached: the process exits after `drain.timeout`, which a reload may change.
        grace_period_seconds: Some(u64::MAX),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}
