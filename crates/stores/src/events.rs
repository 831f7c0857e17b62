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

/// The time for which a gateway counts as alive after its last heartbeat: three intervals of heartbeats, and a little more.
pub fn gateway_ttl() -> Micros {
    Micros::from(fixed_interval("gateway_ttl", GATEWAY_TTL))
}

/// An event of a store, for metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call has ended, successfully or not.
    CallEnded(CallReport),
    /// Requests whose deadline passed before they could be sent; `node` is the server, of a store on several.
    Unsent { requests: usize, node: Option<Arc<str>> },
    /// The last calls on a connection all took so long that requests are lost: the duration of the fastest, and the `timeout`
    /// that they need; `node` is the server, of a store on several.
    RoundTripTooLong { fastest: Micros, needed: Micros, node: Option<Arc<str>> },
    /// A worker's connection is ready; `server` is its address, for a store on one server.
    Up { worker: Worker, server: Option<HostPort> },
    /// The circuit breaker has opened: no calls for a while.
    BreakerOpened,
    /// The circuit breaker has closed: calls are made again.
    BreakerClosed,
    /// A worker's connection could not be made, or was lost.
    Down { worker: Worker, fault: Fault },
    /// The number of gateways that share the limits, and the others that announced their configuration.
    Gateways { alive: u64, others: Vec<RunningGateway> },
    /// A change of one server, of a store on several.
    Node { address: Arc<str>, change: NodeChange },
    /// The server's policy of which keys it evicts when its memory is full, by its name.
    EvictionPolicy(String),
    /// A warning of the server, in its words.
    ServerWarning(String),
    /// The size of the database table of the buckets.
    TableMeasured(TableSize),
    /// The heartbeat was refused, so the number of gateways is unknown.
    HeartbeatError(Fault),
}

/// A change of one server of a store that has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Every worker is connected to the server.
    Up,
    /// A worker is not connected to the server.
    Down(Fault),
    BreakerOpened,
    BreakerClosed,
    /// The server has no buckets any more.
    Gone,
}

/// A gateway, as it announces itself to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningGateway {
    /// The host name of the gateway.
    pub host: String,
    /// The hash of the gateway's gateway.yaml.
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

/// A finished call to a remote store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    pub requests: usize,
    /// Whether the server has decided any request of the call.
    pub any_decided: bool,
    pub took: Micros,
    /// The number of *healed* buckets: their stored value was not a valid state, and was replaced by that of an empty bucket.
    pub healed: u64,
    pub fault: Option<Fault>,
    pub span_links: SpanLinks,
}

/// Receives the events of a store, on the thread on which they happen.
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
