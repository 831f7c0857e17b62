//! Events that a store reports besides its answers: calls, connections, the breaker, other gateways.

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

/// How long a gateway counts as alive after its last heartbeat: three that are missed, and a little more.
pub fn gateway_ttl() -> Micros {
    Micros::from(fixed_interval("gateway_ttl", GATEWAY_TTL))
}

/// Something that happened to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call has ended, successfully or not.
    CallEnded(CallReport),
    /// The time of requests passed before they could be sent; to this server, of several.
    Unsent { requests: usize, node: Option<Arc<str>> },
    /// The last calls on a connection all took so long that requests are lost: the fastest of them, and the `timeout` that
    /// they need; to this server, of several.
    RoundTripTooLong { fastest: Micros, needed: Micros, node: Option<Arc<str>> },
    /// A worker's connection is ready, to this server if it is one.
    Up { worker: Worker, server: Option<HostPort> },
    /// The circuit breaker has opened: no calls for a while.
    BreakerOpened,
    /// The circuit breaker has closed: calls are made again.
    BreakerClosed,
    /// A worker's connection could not be made, or was lost.
    Down { worker: Worker, fault: Fault },
    /// How many gateways share the limits, and the others that announced their configuration.
    Gateways { alive: u64, others: Vec<RunningGateway> },
    /// Of a store on several servers: what has happened to one of them.
    Node { address: Arc<str>, change: NodeChange },
    /// Which keys the server evicts when its memory is full, by its name for that.
    EvictionPolicy(String),
    /// The server has warned of something, in its words.
    ServerWarning(String),
    /// How large the table is in which a database keeps the buckets.
    TableMeasured(TableSize),
    /// The heartbeat was refused, so the number of gateways is unknown.
    HeartbeatError(Fault),
}

/// What has happened to one server of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Every worker is connected to it.
    Up,
    /// Some worker is not.
    Down(Fault),
    BreakerOpened,
    BreakerClosed,
    /// It has no buckets any more.
    Gone,
}

/// A gateway, as it announces itself to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningGateway {
    /// The name of its machine.
    pub host: String,
    /// The hash of its gateway.yaml.
    pub configuration: String,
}

/// The size of the table of the buckets, as the database reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    pub table_bytes: u64,
    pub index_bytes: u64,
    /// About how many rows it has.
    pub live_rows: u64,
    /// About how many old versions of rows the database has not reclaimed.
    pub dead_rows: u64,
}

/// A finished call to a remote store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    pub requests: usize,
    /// Whether the server has decided any of them.
    pub any_decided: bool,
    pub took: Micros,
    /// Buckets whose value was not a valid state; they were set to empty.
    pub healed: u64,
    pub fault: Option<Fault>,
    pub span_links: SpanLinks,
}

/// Receives events, on whichever thread they happen.
#[derive(Clone)]
pub struct EventSink(Arc<dyn Fn(Event) + Send + Sync>);

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
