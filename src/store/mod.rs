//! WHERE BUCKETS LIVE: takes plans, all or nothing, in one act.
//!
//! Every store answers with the time that it decided by and the level of every bucket that was asked. A store never logs
//! or counts: it returns what happened to those who asked, and reports what happens beside them.

pub mod breaker;
mod fallback;
pub mod memory;
pub mod redis;
pub mod span_links;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::base::time::{Clock, Micros, Timestamp};
use crate::limit::charge::{Plan, Settlement};
use memory::Memory;
use redis::Redis;
use span_links::SpanLinks;

/// For how long a gateway counts that is not heard of any more: three times in vain, and a little.
pub const GATEWAY_COUNTS: Micros = Micros(7_000_000);

/// Which store to open, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settings {
    Memory(memory::Settings),
    Redis(redis::Settings),
}

impl Settings {
    /// As the file calls it.
    pub fn name(&self) -> &'static str {
        match self {
            Settings::Memory(_) => "memory",
            Settings::Redis(_) => "redis",
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::Memory(memory::Settings::default())
    }
}

/// The stores. To add one: its file, and an arm in each `match` here.
#[derive(Debug)]
pub enum Store {
    Memory(Memory),
    Redis(Redis),
}

/// One of the gateway's threads. A store that is elsewhere has a link for each, driven on the thread that asks on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker(pub usize);

/// What a store did with a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The store's own clock, when it decided.
    pub now: Timestamp,
    pub settlement: Settlement,
    /// Buckets that had to be forgotten to make room, although something was still spent.
    pub evicted: u64,
    pub source: Source,
}

/// Where an answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Store,
    /// From what the store has shown before: it would have said the same.
    Cached,
    /// From this gateway's share: the store gave no answer.
    Local,
}

/// Who asked, as far as a store has to know.
pub trait Caller: fmt::Debug + Send + Sync {
    /// Whether nobody waits for the answer any more.
    fn has_left(&self) -> bool;

    /// What a trace calls the decision that asked; none where it is not traced.
    #[cfg(feature = "opentelemetry")]
    fn mark(&self) -> Option<span_links::SpanLink> {
        None
    }
}

/// Why a store gave no answer. The embedded store always answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No connection can be made.
    Unreachable,
    /// The user or the password is wrong.
    Unauthorized,
    /// The user lacks a permission.
    Forbidden,
    /// It is not the one that may be written to.
    Replica,
    /// It is still reading its data.
    Loading,
    /// It may not keep more than it does.
    OutOfMemory,
    /// It is kept by a script of somebody else's.
    Busy,
    /// It refused for a reason of its own.
    Refused,
    /// No answer in time. Whether it took the charge is not known.
    Timeout,
    /// The connection ended before the answer came. Whether it took the charge is not known.
    Closed,
    /// More requests wait for it than it can answer in time. It has not been asked.
    Backlog,
    /// It answered something else than what was asked.
    Garbled,
    /// It has failed so often that it is not asked for a while.
    BreakerOpen,
}

impl StoreError {
    pub const ALL: [StoreError; 13] = [
        StoreError::Unreachable,
        StoreError::Unauthorized,
        StoreError::Forbidden,
        StoreError::Replica,
        StoreError::Loading,
        StoreError::OutOfMemory,
        StoreError::Busy,
        StoreError::Refused,
        StoreError::Timeout,
        StoreError::Closed,
        StoreError::Backlog,
        StoreError::Garbled,
        StoreError::BreakerOpen,
    ];

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            StoreError::Unreachable => "unreachable",
            StoreError::Unauthorized => "unauthorized",
            StoreError::Forbidden => "forbidden",
            StoreError::Replica => "replica",
            StoreError::Loading => "loading",
            StoreError::OutOfMemory => "out_of_memory",
            StoreError::Busy => "busy",
            StoreError::Refused => "refused",
            StoreError::Timeout => "timeout",
            StoreError::Closed => "closed",
            StoreError::Backlog => "backlog",
            StoreError::Garbled => "garbled",
            StoreError::BreakerOpen => "breaker_open",
        }
    }
}

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

/// What went wrong: what is counted, and what an operator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub error: StoreError,
    pub detail: String,
}

impl Fault {
    pub fn new(error: StoreError, detail: impl Into<String>) -> Fault {
        Fault { error, detail: detail.into() }
    }
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

    fn tell(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Report")
    }
}

impl Store {
    /// Opens a store for so many lanes. One that is elsewhere is not asked for yet: that is for [`Store::run`].
    pub fn open(settings: &Settings, lanes: usize, clock: Clock, report: Report) -> Store {
        match settings {
            Settings::Memory(settings) => Store::Memory(Memory::new(settings, clock)),
            Settings::Redis(settings) => Store::Redis(Redis::new(settings.clone(), lanes, clock, report)),
        }
    }

    /// Keeps a lane's link up, for ever. To be run on the lane's own thread, once.
    pub async fn run(&self, lane: Worker) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.run(lane).await,
        }
    }

    /// Waits until every lane has been tried once, whatever came of it.
    pub async fn tried(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.tried().await,
        }
    }

    /// Decides a plan, all or nothing. None when the caller had gone before the store was asked: then it spends nothing.
    pub async fn take(
        &self,
        lane: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
    ) -> Result<Option<Taken>, StoreError> {
        match self {
            Store::Memory(memory) => Ok(Some(memory.take(plan))),
            Store::Redis(redis) => redis.take(lane, plan, caller).await,
        }
    }

    /// Decides a plan when [`Store::take`] has given no answer, by this gateway's share.
    pub fn take_locally(&self, plan: &Plan) -> Taken {
        match self {
            Store::Memory(memory) => memory.take(plan),
            Store::Redis(redis) => redis.local.take(plan),
        }
    }

    /// From here on this gateway runs the configuration with this hash, and tells the others.
    pub fn runs(&self, configuration: &str) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.runs(configuration),
        }
    }

    /// Forgets what it knows without asking: other numbers hold from here on. What was spent stays spent.
    pub fn forget(&self) {
        match self {
            Store::Memory(_) => {}
            Store::Redis(redis) => redis.forget(),
        }
    }

    /// Frees what need not be kept any more. To be called every second or so.
    pub fn sweep(&self) {
        match self {
            Store::Memory(memory) => memory.sweep(),
            Store::Redis(redis) => redis.local.sweep(),
        }
    }

    /// How many buckets are kept here.
    pub fn buckets(&self) -> usize {
        match self {
            Store::Memory(memory) => memory.buckets(),
            Store::Redis(redis) => redis.local.buckets(),
        }
    }

    /// Its name in gateway.yaml and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Store::Memory(_) => "memory",
            Store::Redis(_) => "redis",
        }
    }
}
