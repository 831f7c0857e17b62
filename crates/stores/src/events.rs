//! Lists the events that a store reports besides its answers: calls, connections, the breaker, other gateways.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::error::Fault;
use super::span_links::SpanLinks;
use super::worker::Worker;
use base::host_port::HostPort;
use base::interval::fixed_interval;
use base::time::Micros;

const GATEWAY_TTL: Duration = Duration::from_secs(7);

/// Returns the time for which a gateway counts as alive after its last heartbeat: a little more than three heartbeats.
pub fn gateway_ttl() -> Micros {
    Micros::from(fixed_interval("gateway_ttl", GATEWAY_TTL))
}

/// An event of a store, for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call has ended, successfully or not.
    CallEnded(CallReport),
    /// The deadline of this number of requests passed before they could be sent. `node` is the address of the server,
    /// if there are several.
    Unsent { requests: usize, node: Option<Arc<str>> },
    /// The last calls on a connection all took so long that requests miss their deadline. `fastest` is the duration of
    /// the fastest of these calls, and `needed` the setting `timeout` that a call of this duration needs. `node` is
    /// the server's address, if there are several.
    RoundTripTooLong { fastest: Micros, needed: Micros, node: Option<Arc<str>> },
    /// A worker's connection is ready. `server` is the address of the server, if the store has only one server.
    Up { worker: Worker, server: Option<HostPort> },
    /// The circuit breaker has opened, so no calls are made for a while.
    BreakerOpened,
    /// The circuit breaker has closed, so calls are made again.
    BreakerClosed,
    /// A worker's connection could not be made, or was lost. `fault` is the reason.
    Down { worker: Worker, fault: Fault },
    /// A heartbeat has returned the gateways that share the limits. `others` are the other gateways that have announced
    /// their configuration.
    Gateways { alive: u64, others: Vec<RunningGateway> },
    /// The state of one of several servers has changed.
    Node { address: Arc<str>, change: NodeChange },
    /// The name of the server's eviction policy.
    EvictionPolicy(String),
    /// A message that the server has sent beside its answers.
    ServerNotice(ServerNotice),
    /// The size of the database table with the buckets has been measured.
    TableMeasured(TableSize),
    /// A request has ended with a cost that the store will never charge. The store gives no answer, and the worker
    /// already keeps the uncharged costs of [`MOST_SUMS`](ledger::holds::MOST_SUMS) buckets.
    CostLost,
    /// A heartbeat has failed, so the number of live gateways is unknown.
    HeartbeatError(Fault),
}

/// A message that the server has sent beside its answers, in the server's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerNotice {
    pub level: NoticeLevel,
    pub text: String,
}

/// The level that the server has given to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeLevel {
    Warning,
    /// NOTICE, INFO and LOG.
    Notice,
    Debug,
}

/// A change of the state of one of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Every worker is connected to the server.
    Up,
    /// A worker is not connected to the server.
    Down(Fault),
    BreakerOpened,
    BreakerClosed,
    /// The server has no buckets any more, so it no longer belongs to the store.
    Gone,
}

/// What a gateway announces about itself to the other gateways that share its store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningGateway {
    /// The host name of the gateway.
    pub host: String,
    /// The hash of the gateway.yaml with which the gateway runs.
    pub configuration: String,
}

/// The size of the table with the buckets, as the database reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    pub table_bytes: u64,
    pub index_bytes: u64,
    /// The approximate number of rows.
    pub live_rows: u64,
    /// The approximate number of old versions of rows that the database has not reclaimed.
    pub dead_rows: u64,
}

/// A report about a finished call to a remote store, for metrics, logs and traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    pub requests: usize,
    /// Whether the server has decided at least one request of the call.
    pub any_decided: bool,
    pub took: Micros,
    /// The number of *healed* buckets.
    pub healed: u64,
    pub fault: Option<Fault>,
    pub span_links: SpanLinks,
}

/// The function to which a store passes its events, on the thread of the event.
#[derive(Clone)]
pub struct EventSink(Arc<dyn Fn(Event) + Send + Sync>);

impl ServerNotice {
    /// Returns the level in the word that messages begin with.
    pub fn level_name(&self) -> &'static str {
        match self.level {
            NoticeLevel::Warning => "warning",
            NoticeLevel::Notice => "notice",
            NoticeLevel::Debug => "debug",
        }
    }
}

impl EventSink {
    pub fn new(events: impl Fn(Event) + Send + Sync + 'static) -> EventSink {
        EventSink(Arc::new(events))
    }

    pub(super) fn send(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventSink")
    }
}
