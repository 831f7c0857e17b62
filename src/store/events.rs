//! What a store reports beside its answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::error::Fault;
use super::span_links::SpanLinks;
use super::worker::Worker;
use crate::base::interval::fixed_interval;
use crate::base::time::Micros;

const GATEWAY_TTL: Duration = Duration::from_secs(7);

/// How long a gateway counts as alive after its last heartbeat: three that are missed, and a little more.
pub fn gateway_ttl() -> Micros {
    Micros::from(fixed_interval("gateway_ttl", GATEWAY_TTL))
}

/// What happens to a store beside the answers that it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// One call has ended, however it did.
    CallEnded(CallReport),
    /// A worker's link can be asked.
    Up(Worker),
    /// Nobody asks for a while.
    BreakerOpened,
    /// Everybody asks again.
    BreakerClosed,
    /// A worker's link could not be made, or was lost.
    Down { worker: Worker, fault: Fault },
    /// So many gateways share the limits, and of these others it is known what they run.
    Gateways { alive: u64, others: Vec<RunningGateway> },
    /// How many there are could not be heard.
    HeartbeatError(Fault),
}

/// A gateway, as it tells the others of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningGateway {
    /// What its machine is called.
    pub host: String,
    /// The hash of its gateway.yaml.
    pub configuration: String,
}

/// One call of a store that is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    pub requests: usize,
    pub took: Micros,
    /// Buckets that held something else than a state, and now have nothing left.
    pub healed: u64,
    pub fault: Option<Fault>,
    pub span_links: SpanLinks,
}

/// Who is told of events, on whichever thread they happen.
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
