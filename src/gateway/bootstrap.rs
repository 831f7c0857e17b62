//! Binds every socket and makes the state that the threads share, before the threads are started.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::admin::status::Status;
use super::process::bucket_saver::BucketSaver;
use super::process::reload::{Reload, Relog};
use super::process::upgrade::{InheritedSockets, Upgrade};
use super::runtime::fd_limit::FdBudget;
use super::runtime::response_buffers::ResponseBuffers;
use super::server::listener::{BindError, ListeningSockets};
use super::state::lease_limits::{count_lease_event, keeper_settings};
use super::state::lifecycle::{AcceptPhase, Lifecycle};
use super::state::snapshot::Snapshot;
use super::state::{GatewayState, Leases};
use super::telemetry::CollectorsSettings;
use super::telemetry::access_log::AccessLogs;
use super::telemetry::events::{EventKind, Events};
use super::telemetry::held_buckets::HeldBuckets;
use super::telemetry::lease_health::LeaseHealth;
use super::telemetry::log_writers::LogWriters;
use super::telemetry::metric_export::MetricExport;
use super::telemetry::metrics::Metrics;
use super::telemetry::records::RecordWriters;
use super::telemetry::store_health::StoreHealth;
use super::telemetry::top_refused::TopRefused;
use super::telemetry::trace::Tracer;
use base::endpoint_address::EndpointAddress;
use base::time::Clock;
use config::access_log::{AccessLog, Destination};
use config::{Config, Listener, Records, SocketMode, Source, Threads};
use rules::without_store::without_store;
use stores::memory::bucket_file::LockError;
use stores::{EventSink, LeaseKeeper, LeaseSink, LeaseStore, Store};

/// A gateway whose sockets are bound. It is not started yet.
pub(crate) struct BoundGateway {
    pub(super) gateway: Arc<GatewayState>,
    pub(super) status: Arc<Status>,
    pub(super) reload: Reload,
    pub(super) fd_budget: FdBudget,
    pub(super) http: Vec<(ListeningSockets, Listener)>,
    pub(super) admin: Option<ListeningSockets>,
    /// The socket of `admin.write`.
    pub(super) admin_socket: Option<ListeningSockets>,
    pub(super) threads: usize,
    pub(super) upgrade: Upgrade,
    pub(super) inherited: InheritedSockets,
    pub(super) bucket_saver: Option<Arc<BucketSaver>>,
}

/// An address on which the gateway listens, with the kind of the listener, such as `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress {
    pub name: &'static str,
    pub address: EndpointAddress,
}

/// The reason why the gateway cannot start.
#[derive(Debug)]
pub(crate) enum StartError {
    Bind(BindError),
    Upgrade(io::Error),
    AccessLog {
        file: PathBuf,
        error: io::Error,
    },
    Records {
        file: PathBuf,
        error: io::Error,
    },
    BucketFile {
        file: PathBuf,
        error: LockError,
    },
    /// Variables about traces are invalid. Each line describes one variable.
    Variables(Vec<String>),
    Collector(String),
}

impl StartError {
    /// Returns the error as lines: one for each invalid variable, or a single line for any other error.
    pub(crate) fn lines(&self) -> Vec<String> {
        match self {
            StartError::Variables(lines) => lines.clone(),
            other => vec![other.to_string()],
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Bind(error) => write!(f, "{error}"),
            StartError::Upgrade(error) => write!(f, "sockets cannot be handed over: {error}"),
            StartError::AccessLog { file, error } => {
                write!(f, "{}: cannot be opened for the access log: {error}", file.display())
            }
            StartError::Records { file, error } => {
                write!(f, "{}: cannot be opened for records: {error}", file.display())
            }
            StartError::Variables(lines) => f.write_str(&lines.join("\n")),
            StartError::BucketFile { file, error } => {
                write!(f, "{}: cannot be used for buckets: {error}", file.display())
            }
            StartError::Collector(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for StartError {}

/// Binds the sockets of the configuration, or takes them over from the previous process. Makes the state that the
/// threads share. `sources` are the files from which the configuration was read.
///
/// # Errors
/// If an address, or the file of the access log or of the records, cannot be opened, or another process uses the file of
/// buckets. Also if the handover fails, or a variable about the collector of traces and metrics is invalid.
pub(crate) fn bootstrap(config: Config, sources: Vec<Source>, relog: Relog) -> Result<BoundGateway, StartError> {
    let collectors = CollectorsSettings::read().map_err(StartError::Variables)?;
    let mut inherited = InheritedSockets::receive().map_err(StartError::Upgrade)?;
    let threads = match config.threads {
        Threads::Auto => std::thread::available_parallelism().map_or(1, usize::from),
        Threads::Exactly(threads) => threads,
    };
    let Sockets { http, admin, admin_socket } = bind(&config, threads, &mut inherited)?;
    let bound = http.iter().map(|(bound, _)| bound).chain(&admin).chain(&admin_socket);
    let upgrade = Upgrade::new(bound).map_err(StartError::Upgrade)?;

    if let Some(AccessLog { to: to @ Destination::File(file), .. }) = &config.access_log {
        AccessLogs::probe(to).map_err(|error| StartError::AccessLog { file: file.clone(), error })?;
    }
    if let Some(Records { to: to @ Destination::File(file), .. }) = &config.records {
        RecordWriters::probe(to).map_err(|error| StartError::Records { file: file.clone(), error })?;
    }
    let fd_budget = fd_budget(&config);
    fd_budget.warn_if_clamped(&config.bounds);
    let gateway = Arc::new(state(config, collectors, threads)?);
    if inherited.is_upgrade() {
        gateway.lifecycle.set_accept_phase(AcceptPhase::NotYet);
    }
    let bucket_saver = bucket_saver(&gateway, &inherited)?.map(Arc::new);
    let status = Arc::new(Status::new(&gateway.clock, admin.as_ref().and_then(|admin| admin.address.inet())));
    let reload = Reload::new(Arc::clone(&gateway), fd_budget, sources, relog);
    Ok(BoundGateway {
        gateway,
        status,
        reload,
        fd_budget,
        http,
        admin,
        admin_socket,
        threads,
        upgrade,
        inherited,
        bucket_saver,
    })
}

/// Returns the number of connections that the open-file limit allows. Listeners for clients and `decide` listeners each
/// have their own share. If there is only one of these kinds, it has all connections.
fn fd_budget(config: &Config) -> FdBudget {
    let deciding = config.listeners.iter().filter(|listener| listener.decide.is_some()).count();
    let budget = FdBudget::here();
    if (1..config.listeners.len()).contains(&deciding) { budget.with_decisions() } else { budget }
}

/// Reads the buckets from their file. In an upgrade the previous process still uses the file, and sends its buckets later.
fn bucket_saver(gateway: &GatewayState, inherited: &InheritedSockets) -> Result<Option<BucketSaver>, StartError> {
    let saver = BucketSaver::new(&gateway.snapshot.load().config.store, &gateway.metrics);
    let Some(memory) = gateway.store.local_buckets() else { return Ok(None) };
    if let Some(saver) = saver.as_ref().filter(|_| !inherited.is_upgrade()) {
        saver.claim().map_err(|error| StartError::BucketFile { file: saver.settings().path.clone(), error })?;
        saver.load(memory);
    }
    Ok(saver)
}

/// The sockets of all listeners.
struct Sockets {
    http: Vec<(ListeningSockets, Listener)>,
    admin: Option<ListeningSockets>,
    /// The socket of `admin.write`.
    admin_socket: Option<ListeningSockets>,
}

/// The permissions of the socket of `admin.write`: its user and group may connect.
const ADMIN_SOCKET_MODE: u32 = 0o660;

/// Binds the sockets of the HTTP listeners, one for each thread, and the sockets of the admin listener.
fn bind(config: &Config, threads: usize, inherited: &mut InheritedSockets) -> Result<Sockets, StartError> {
    let mut bind = |address: EndpointAddress, mode: Option<u32>, count| {
        let inherited = inherited.take(&address);
        ListeningSockets::bind(address, mode, count, inherited).map_err(StartError::Bind)
    };
    let listeners = config.listeners.iter();
    let http = listeners.map(|listener| {
        let sockets = bind(listener.address.clone(), listener.socket_mode.map(SocketMode::bits), threads)?;
        Ok((sockets, listener.clone()))
    });
    let http = http.collect::<Result<_, _>>()?;
    let admin = config.admin.map(|address| bind(address.into(), None, 1)).transpose()?;
    let socket =
        config.admin_socket().map(|path| bind(EndpointAddress::Unix(Arc::clone(path)), Some(ADMIN_SOCKET_MODE), 1));
    Ok(Sockets { http, admin, admin_socket: socket.transpose()? })
}

/// Makes the keeper of the leases of this region. `None` without `store.home`.
fn leases(
    snapshot: &Arc<ArcSwap<Snapshot>>,
    store: &Arc<Store>,
    metrics: &Metrics,
    clock: &Clock,
    events: &Arc<Events>,
) -> Option<Leases> {
    let loaded = snapshot.load();
    let home = loaded.config.home.as_ref()?;
    let health = Arc::new(LeaseHealth::new(&home.store, metrics, clock.clone(), Arc::clone(events)));
    let of_home = Arc::clone(&health);
    let home_store = LeaseStore::open(&home.store, clock.clone(), EventSink::new(move |event| of_home.record(event)));
    let (counted, limits) = (Arc::clone(&health), Arc::clone(snapshot));
    let sink = LeaseSink::new(move |event| count_lease_event(&counted, &limits.load(), event));
    let region = LeaseStore::beside(Arc::clone(store));
    let keeper = LeaseKeeper::new(region, home_store, keeper_settings(home), clock.clone(), sink);
    Some(Leases { keeper: Arc::new(keeper), health })
}

/// Makes the state that the threads share. The store connects in the background, when the threads run.
fn state(config: Config, collectors: CollectorsSettings, threads: usize) -> Result<GatewayState, StartError> {
    let clock = Clock::system();
    let metrics = Metrics::new(&config.store);
    metrics.config.loaded(&config.hash, &clock);
    let events = Arc::new(Events::new(clock.clone()));
    events.note(EventKind::Started, &format!("{}, configuration {}", env!("CARGO_PKG_VERSION"), config.hash));
    let store_health = Arc::new(StoreHealth::new(&config.store, threads, &metrics, clock.clone(), Arc::clone(&events)));
    store_health.set_meanwhile(without_store(config.rules.limits()));
    let tracer = Tracer::start(collectors.traces, &config, &metrics, &clock).map_err(StartError::Collector)?;
    let metric_export = MetricExport::new(collectors.metrics, &metrics, &clock).map_err(StartError::Collector)?;
    let event_sink = {
        let (store_health, tracer) = (Arc::clone(&store_health), tracer.clone());
        EventSink::new(move |event| {
            tracer.store_event(&event);
            store_health.record(event);
        })
    };
    let access_logs = AccessLogs::new(metrics.access_log_dropped.clone(), Arc::clone(&events));
    let records = RecordWriters::new(threads, clock.clone(), &metrics.registry, Arc::clone(&events));
    let store = Arc::new(Store::open(&config.store, threads, clock.clone(), event_sink));
    store.announce(&config.hash);
    store.expect_undone_charges(config.limits_charged_beside_others());
    let response_buffers = ResponseBuffers::new(metrics.http.response_buffers(), clock.clone());
    let bounds = config.bounds;
    let writers = LogWriters { access_logs: &access_logs, records: &records };
    let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::new(config, &metrics, writers, &clock)));
    let leases = leases(&snapshot, &store, &metrics, &clock, &events);
    let state = GatewayState {
        store,
        leases,
        store_health,
        snapshot,
        metrics,
        access_logs,
        records,
        events,
        top_refused: TopRefused::new(threads),
        held_buckets: Arc::new(HeldBuckets::new()),
        response_buffers: Arc::new(response_buffers),
        inspected_bytes: Arc::default(),
        clock,
        lifecycle: Lifecycle::default(),
        tracer,
        metric_export,
        certificates_changed: watch::Sender::default(),
    };
    state.bound_response_buffers(&bounds);
    Ok(state)
}
