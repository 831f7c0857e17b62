//! What a store reports beside its answers.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::error::Fault;
use super::span_links::SpanLinks;
use super::worker::Worker;
use crate::base::time::Micros;

/// For how long a gateway counts that is not heard of any more: three times in vain, and a little.
pub const GATEWAY_COUNTS: Micros = Micros(7_000_000);

/// What happens to a store beside the answers that it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// One call has ended, however it did.
    Called(Called),
    /// A lane's link can be asked.
    Up(Worker),
    /// Nobody asks for a while.
    BreakerOpened,
    /// Everybody asks again.
    BreakerClosed,
    /// A lane's link could not be made, or was lost.
    Down { lane: Worker, fault: Fault },
    /// So many gateways share the limits, and of these others it is known what they run.
    Gateways { alive: u64, others: Vec<Running> },
    /// How many there are could not be heard.
    Unheard(Fault),
}

/// A gateway, as it tells the others of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Running {
    /// What its machine is called.
    pub host: String,
    /// The hash of its gateway.yaml.
    pub configuration: String,
}

/// One call of a store that is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub requests: usize,
    pub took: Micros,
    /// Buckets that held something else than a state, and now have nothing left.
    pub healed: u64,
    pub fault: Option<Fault>,
    pub marks: SpanLinks,
}

/// Who is told of events, on whichever thread they happen.
#[derive(Clone)]
pub struct Report(Arc<dyn Fn(Event) + Send + Sync>);

impl Report {
    pub fn new(report: impl Fn(Event) + Send + Sync + 'static) -> Report {
        Report(Arc::new(report))
    }

    pub(super) fn tell(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Report")
    }
}
