//! HOW IT RUNS: the sockets, the proxy behind them, and the life of the process.
//!
//! The only room that knows Pingora and metrics. Everything is bound before anything is started; one thread and one
//! runtime per core; one snapshot of the configuration per request.

mod admin;
pub mod echo;
mod enforcement;
mod process;
mod proxy;
mod response;
mod runtime;
pub mod server;
mod state;
mod telemetry;
mod upstream;

pub use admin::buckets;
pub use enforcement::retry_after;
pub use process::signals::hold_signals;
pub use process::upgrade;
pub use response::problem::Reason;
pub use runtime::fd_limit::raise as raise_open_files;
/// For `tests/fuzz`, which judges bodies by themselves.
#[cfg(feature = "test-hooks")]
pub use server::http1::body_framing;
pub use server::http1::request_head;
pub use telemetry::metrics::DEFAULT;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora::services::background::background_service;
use tokio::sync::Notify;

use crate::base::time::Clock;
use crate::config::access_log::{AccessLog, Destination};
use crate::config::{Config, Listener, Source, Threads};
use crate::store::{Report, Store, Worker};
use admin::Admin;
use admin::server::AdminServer;
use admin::status::Status;
use process::reload::Reload;
pub use process::reload::Relog;
use process::signals::{Housekeeping, Signals};
use process::upgrade::{InheritedSockets, Upgrade};
use proxy::Proxy;
use proxy::untrusted_forwarded_for::Hearsay;
use runtime::fd_limit::FdBudget;
use runtime::log_throttle::LogThrottle;
use server::http1::{Http1Server, PerClientConnections, StalledWrites};
use server::listener::{Bound, Thread};
use server::proxy_protocol::ProxyProtocol;
use state::GatewayState;
use state::snapshot::Snapshot;
use telemetry::access_log::AccessLogs;
use telemetry::events::{Events, Happened};
use telemetry::metrics::Metrics;
use telemetry::store_health::StoreHealth;
use telemetry::top_refused::TopRefused;
use telemetry::trace::{TraceSettings, Tracer};

/// Idle connections to the upstream, for each thread.
const UPSTREAM_POOL: usize = 256;

/// A gateway whose sockets are bound, and which is not started yet.
#[expect(missing_debug_implementations, reason = "it holds what changes the diagnostics, a plain function")]
pub struct Bootstrapped {
    gateway: Arc<GatewayState>,
    reload: Reload,
    http: Vec<(Bound, Listener)>,
    admin: Option<Bound>,
    threads: usize,
    handover: Upgrade,
    inherited: InheritedSockets,
}

/// An address that is listened on, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    pub name: &'static str,
    pub address: SocketAddr,
}

/// Why a gateway could not start.
#[derive(Debug)]
pub enum StartError {
    Bind {
        address: SocketAddr,
        error: io::Error,
    },
    Metrics(String),
    Upgrade(io::Error),
    AccessLog {
        file: PathBuf,
        error: io::Error,
    },
    /// A line for each variable that is wrong.
    Tracer(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind { address, error } => write!(f, "{address}: cannot listen: {error}"),
            StartError::Metrics(error) => write!(f, "metrics: {error}"),
            StartError::Upgrade(error) => write!(f, "sockets cannot be handed over: {error}"),
            StartError::AccessLog { file, error } => {
                write!(f, "{}: cannot be opened for the access log: {error}", file.display())
            }
            StartError::Tracer(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for StartError {}

/// Binds everything that the configuration names, or takes it over from the process before this one. `sources` is what the
/// configuration was read from.
pub fn bootstrap(config: Config, sources: Vec<Source>, relog: Relog) -> Result<Bootstrapped, StartError> {
    let wanted = TraceSettings::read().map_err(StartError::Tracer)?;
    let mut inherited = InheritedSockets::receive().map_err(StartError::Upgrade)?;
    let threads = match config.threads {
        Threads::Auto => std::thread::available_parallelism().map_or(1, usize::from),
        Threads::Exactly(threads) => threads,
    };
    let mut bind = |address, count| {
        Bound::bind(address, count, inherited.take(address)).map_err(|error| StartError::Bind { address, error })
    };
    let listeners = config.listeners.iter();
    let http = listeners.map(|listener| Ok((bind(listener.address, threads)?, *listener)));
    let http = http.collect::<Result<Vec<_>, _>>()?;
    let admin = config.admin.map(|address| bind(address, 1)).transpose()?;
    let bound = http.iter().map(|(bound, _)| bound).chain(&admin);
    let handover = Upgrade::new(bound).map_err(StartError::Upgrade)?;

    if let Some(AccessLog { to: to @ Destination::File(file), .. }) = &config.access_log {
        AccessLogs::probe(to).map_err(|error| StartError::AccessLog { file: file.clone(), error })?;
    }

    let clock = Clock::system();
    let metrics = Metrics::new().map_err(|error| StartError::Metrics(error.to_string()))?;
    metrics.config_loaded(&config.hash, &clock);
    let events = Arc::new(Events::new(clock.clone()));
    events.note(Happened::Started, &format!("{}, configuration {}", env!("CARGO_PKG_VERSION"), config.hash));
    let store_health = Arc::new(StoreHealth::new(&config.store, threads, &metrics, clock.clone(), Arc::clone(&events)));
    let traces = Tracer::start(wanted, &config, &metrics, &clock).map_err(StartError::Tracer)?;
    let (told, traced) = (Arc::clone(&store_health), traces.clone());
    let report = Report::new(move |event| {
        traced.hear(&event);
        told.hear(event);
    });
    let access_logs = AccessLogs::new(metrics.access_log_dropped.clone(), Arc::clone(&events));
    let file = sources.first().map(|source| source.path.as_path());
    let status = Status::new(&clock, file, admin.as_ref().map(|admin| admin.address));
    let room = FdBudget::here();
    room.tell(&config.bounds);
    let store = Store::open(&config.store, threads, clock.clone(), report);
    store.runs(&config.hash);
    let gateway = GatewayState {
        store,
        store_health,
        snapshot: ArcSwap::from_pointee(Snapshot::new(config, &metrics, &access_logs, &clock)),
        metrics,
        access_logs,
        events,
        refused_buckets: TopRefused::new(threads),
        status,
        clock,
        draining: AtomicBool::new(false),
        handed_over: AtomicBool::new(false),
        hangup: Notify::new(),
        upstream_failures: LogThrottle::default(),
        turned_away: LogThrottle::default(),
        clients_turned_away: LogThrottle::default(),
        hearsay: Hearsay::default(),
        untaken: StalledWrites::default(),
        room,
        traces,
    };
    let gateway = Arc::new(gateway);
    let reload = Reload::new(Arc::clone(&gateway), sources, relog);
    Ok(Bootstrapped { gateway, reload, http, admin, threads, handover, inherited })
}

impl Bootstrapped {
    /// What is listened on, in the order in which it is announced.
    pub fn listening(&self) -> Vec<Listening> {
        let http = self.http.iter().map(|(bound, _)| Listening { name: "http", address: bound.address });
        let admin = self.admin.as_ref().map(|admin| Listening { name: "admin", address: admin.address });
        http.chain(admin).collect()
    }

    /// Runs until the process is told to leave. `ready` is called when everything is in force.
    #[allow(clippy::indexing_slicing, reason = "remainders of the number of threads, which is how many there are")]
    pub fn run(self, ready: impl FnOnce() + Send + 'static) {
        let mut server = Server::new_with_opt_and_conf(None, server_conf(self.threads));
        server.bootstrap();

        let open = Arc::new(AtomicUsize::new(0));
        let (clients, told) = (Arc::new(PerClientConnections::default()), Arc::new(AtomicUsize::new(0)));
        let conf = Arc::clone(&server.configuration);
        let proxy =
            |thread| Arc::new(http_proxy(&conf, Proxy { gateway: Arc::clone(&self.gateway), lane: Worker(thread) }));
        let proxies: Vec<_> = (0..self.threads).map(proxy).collect();
        let thread = |number| {
            let gateway = Arc::clone(&self.gateway);
            Thread::new(format!("http {number}"), async move { gateway.store.run(Worker(number)).await })
        };
        let mut threads: Vec<_> = (0..self.threads).map(thread).collect();
        let alone = self.http.len() == 1;
        for (bound, listener) in self.http {
            // What one gateway is watched by should not hang on where it listens.
            let label = if alone { "http".to_owned() } else { bound.address.to_string() };
            let connections = self.gateway.metrics.connections(&label);
            let headers =
                listener.proxy_protocol.then(|| Arc::new(ProxyProtocol::new(Arc::clone(&self.gateway), &label)));
            let door = |number: usize| Http1Server {
                gateway: Arc::clone(&self.gateway),
                proxy: Arc::clone(&proxies[number % self.threads]),
                open: Arc::clone(&open),
                clients: Arc::clone(&clients),
                told: Arc::clone(&told),
                connections: connections.clone(),
                headers: headers.clone(),
            };
            // There may be more sockets than threads: where the process before this one had more of them.
            for (number, socket) in (0..).zip(bound.services("http", door)) {
                threads[number % self.threads].listen(socket);
            }
        }
        for thread in threads {
            server.add_service(thread);
        }
        if let Some(admin) = self.admin {
            let most = self.gateway.room.admin();
            for service in admin.services("admin", |_| AdminServer::new(Admin(Arc::clone(&self.gateway)), most)) {
                server.add_service(service);
            }
        }
        let reload = Mutex::new(Some(self.reload));
        let housekeeping = Housekeeping { gateway: Arc::clone(&self.gateway), open, reload };
        server.add_service(background_service("housekeeping", housekeeping));
        let inherited = self.inherited;
        let ready = move || {
            ready();
            if let Err(error) = inherited.ready() {
                log::warn!(error:% = error; "the process before this one has not waited");
            }
        };
        let signals =
            Signals { gateway: self.gateway, handover: self.handover, ready: Mutex::new(Some(Box::new(ready))) };
        server.run(RunArgs { shutdown_signal: Box::new(signals) });
    }
}

fn server_conf(threads: usize) -> ServerConf {
    ServerConf {
        threads: 1,
        work_stealing: false,
        // One pool serves all threads.
        upstream_keepalive_pool_size: UPSTREAM_POOL * threads,
        // Connecting is tried again at the next address; an idempotent request, when the pooled connection that it was
        // sent on turns out to have been closed by the upstream.
        max_retries: 8,
        // We leave by ourselves, after `drain.timeout`, which may change: this is never met.
        grace_period_seconds: Some(u64::MAX),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}
