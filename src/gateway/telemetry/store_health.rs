//! Tracks the health of the store: counts its calls, knows whether it is connected, and reports changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::events::{EventKind, Events};
use super::metrics::{Metrics, StoreMetrics, whole_number};
use super::server_notices::ServerNotices;
use crate::gateway::runtime::log_throttle::LogThrottle;
use base::host_port::HostPort;
use base::time::{Clock, Micros, Timestamp};
use stores::{CallReport, Event, Fault, NodeChange, RunningGateway, Settings, StoreError, gateway_ttl};

/// The only eviction policy with which Redis never evicts a bucket.
pub(super) const NO_EVICTION: &str = "noeviction";

/// The interval between reports of calls that take too long.
const LONG_ROUND_TRIPS: Micros = Micros(60_000_000);

#[derive(Debug)]
pub(crate) struct StoreHealth {
    metrics: StoreMetrics,
    events: Arc<Events>,
    clock: Clock,
    /// The address in the settings; empty for the embedded store.
    address: String,
    links: Mutex<Links>,
    /// The server to which a worker connected most recently.
    server: Mutex<Option<HostPort>>,
    /// What the limits do while the store gives no answer, in words.
    meanwhile: Mutex<String>,
    other_gateways: Mutex<OtherGateways>,
    /// The state of each server, by its address. Empty if the store has only one server.
    nodes: Mutex<BTreeMap<Arc<str>, NodeState>>,
    /// The eviction policy that was last reported.
    eviction_policy: Mutex<Option<String>>,
    failures: LogThrottle,
    healings: LogThrottle,
    notices: ServerNotices,
    lost_costs: LogThrottle,
    unsent: LogThrottle,
    /// The number of unsent requests since the last log line about them.
    unsent_requests: AtomicUsize,
    long_round_trips: LogThrottle,
}

/// The other gateways and their configurations, as they were read from the store at the time `at`.
#[derive(Debug, Default)]
struct OtherGateways {
    at: Timestamp,
    others: Vec<RunningGateway>,
}

/// Whether all threads are connected to one of the store's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    Up,
    Down,
}

#[derive(Debug)]
struct Links {
    /// The error of each worker that should have a connection, but has none.
    down: Vec<Option<StoreError>>,
    /// The last state that was reported; `None` before the first report.
    reported: Option<Result<(), StoreError>>,
}

impl StoreHealth {
    pub(crate) fn new(
        settings: &Settings,
        workers: usize,
        metrics: &Metrics,
        clock: Clock,
        events: Arc<Events>,
    ) -> StoreHealth {
        let down = vec![Some(StoreError::Unreachable); settings.connections(workers)];
        let metrics = StoreMetrics::new(settings, &metrics.registry);
        metrics.gateways.set(whole_number(settings.gateways()));
        metrics.up.set(if down.is_empty() { 1.0 } else { 0.0 });
        StoreHealth {
            metrics,
            events,
            clock,
            address: settings.endpoint().map_or_else(String::new, |endpoint| endpoint.to_string()),
            server: Mutex::default(),
            meanwhile: Mutex::default(),
            other_gateways: Mutex::default(),
            nodes: Mutex::default(),
            eviction_policy: Mutex::default(),
            links: Mutex::new(Links { down, reported: None }),
            failures: LogThrottle::default(),
            healings: LogThrottle::default(),
            notices: ServerNotices::default(),
            lost_costs: LogThrottle::default(),
            unsent: LogThrottle::default(),
            unsent_requests: AtomicUsize::new(0),
            long_round_trips: LogThrottle::default(),
        }
    }

    /// Sets the words that say what the limits do while the store gives no answer.
    pub(crate) fn set_meanwhile(&self, words: String) {
        *self.meanwhile.lock() = words;
    }

    /// Returns whether every thread is connected to the store.
    pub(crate) fn is_up(&self) -> bool {
        self.links.lock().down.iter().all(Option::is_none)
    }

    /// Returns the servers of the store to which a thread is not connected, and the number of all its servers. Only a store
    /// with several servers reports them.
    pub(crate) fn nodes_down(&self) -> (Vec<Arc<str>>, usize) {
        let nodes = self.nodes.lock();
        let down = nodes.iter().filter(|(_, state)| **state == NodeState::Down);
        (down.map(|(address, _)| Arc::clone(address)).collect(), nodes.len())
    }

    /// Returns the address of the store's server. `None` if the store has several servers, or if a thread is not connected.
    pub(crate) fn server(&self) -> Option<String> {
        let server = self.server.lock();
        server.as_ref().filter(|_| self.is_up()).map(ToString::to_string)
    }

    /// Returns the other gateways whose configuration differs from `configuration`. Empty while the announcements of other
    /// gateways cannot be read.
    pub(crate) fn others(&self, configuration: &str) -> Vec<RunningGateway> {
        let other_gateways = self.other_gateways.lock();
        // The list may be old even if the store is up, because the call that reads this list may fail.
        if !self.is_up() || self.clock.now().since(other_gateways.at) >= gateway_ttl() {
            return Vec::new();
        }
        other_gateways.others.iter().filter(|other| other.configuration != configuration).cloned().collect()
    }

    pub(crate) fn record(&self, event: Event) {
        match event {
            Event::CallEnded(called) => self.record_call(called),
            Event::BreakerOpened => {
                self.metrics.breaker_open.set(1.0);
                if !self.has_nodes() {
                    self.note_breaker_opened("");
                }
            }
            Event::BreakerClosed => {
                self.metrics.breaker_open.set(0.0);
                if !self.has_nodes() {
                    self.note_breaker_closed("");
                }
            }
            Event::Unsent { requests, node } => {
                self.unsent_requests.fetch_add(requests, Ordering::Relaxed);
                if self.unsent.admit(self.clock.now()).is_some() {
                    let requests = self.unsent_requests.swap(0, Ordering::Relaxed);
                    let server = self.server_named(node.as_deref().unwrap_or_default());
                    log::warn!(server, requests; "requests were not sent to the store in time");
                }
            }
            Event::RoundTripTooLong { fastest, needed, node } => {
                if self.long_round_trips.admit_every(LONG_ROUND_TRIPS, self.clock.now()).is_some() {
                    let server = self.server_named(node.as_deref().unwrap_or_default());
                    let (took_ms, timeout_ms) = (fastest.0.div_ceil(1_000), needed.0.div_ceil(1_000));
                    let hint = "set the store's `timeout` to more than `timeout_ms`, or bring it nearer";
                    log::warn!(server, took_ms, timeout_ms, hint; "the store takes too long for its timeout");
                }
            }
            Event::Node { address, change } => self.record_node(address, change),
            Event::Gateways { alive, others } => {
                self.metrics.gateways.set(whole_number(alive));
                *self.other_gateways.lock() = OtherGateways { at: self.clock.now(), others };
            }
            Event::EvictionPolicy(policy) => self.record_eviction_policy(policy),
            Event::ServerNotice(notice) => self.notices.record(&self.address, &notice, self.clock.now()),
            Event::TableMeasured(size) => self.metrics.set_table_size(&size),
            Event::HeartbeatError(fault) => self.record_failure(&fault),
            Event::CostLost => self.record_lost_cost(),
            Event::Up { worker, server } => {
                let named = server.as_ref().map_or(String::new(), ToString::to_string);
                *self.server.lock() = server;
                self.record_change(worker.0, Ok(()), &named);
            }
            Event::Down { worker, fault } => {
                // An error that names a server was already counted with the event `Node`.
                if fault.node.is_none() {
                    self.metrics.count_error(&fault);
                }
                self.record_change(worker.0, Err(fault.error), &fault.detail);
            }
        }
    }

    /// Whether the store has several servers, whose states are reported separately.
    fn has_nodes(&self) -> bool {
        !self.nodes.lock().is_empty()
    }

    fn record_node(&self, address: Arc<str>, change: NodeChange) {
        let node = &*address;
        let mut nodes = self.nodes.lock();
        match change {
            NodeChange::Up => {
                self.metrics.set_node_up(node, 1.0);
                if nodes.insert(Arc::clone(&address), NodeState::Up) != Some(NodeState::Up) {
                    self.events.note(EventKind::StoreUp, node);
                    log::info!(server = node; "store is up");
                }
            }
            NodeChange::Down(fault) => {
                self.metrics.count_error(&fault);
                self.metrics.set_node_up(node, 0.0);
                if nodes.insert(Arc::clone(&address), NodeState::Down) != Some(NodeState::Down) {
                    self.events.note(EventKind::StoreDown, &format!("{node}: {}", fault.error.name()));
                    let meanwhile = self.meanwhile.lock().clone();
                    let (kind, detail) = (fault.error.name(), fault.detail);
                    log::warn!(server = node, kind, detail, meanwhile; "store is down");
                }
            }
            NodeChange::BreakerOpened => {
                self.metrics.set_node_breaker_open(node, 1.0);
                self.note_breaker_opened(node);
            }
            NodeChange::BreakerClosed => {
                self.metrics.set_node_breaker_open(node, 0.0);
                self.note_breaker_closed(node);
            }
            NodeChange::Gone => {
                nodes.remove(node);
                self.metrics.forget_node(node);
            }
        }
    }

    /// Reports that the breaker of a server has opened. `node` is empty if the store has one server.
    fn note_breaker_opened(&self, node: &str) {
        self.events.note(EventKind::BreakerOpened, node);
        let server = self.server_named(node);
        log::warn!(server; "circuit breaker opened, the store did not answer in time");
    }

    /// Reports that the breaker of a server has closed. `node` is empty if the store has one server.
    fn note_breaker_closed(&self, node: &str) {
        self.events.note(EventKind::BreakerClosed, node);
        let server = self.server_named(node);
        log::info!(server; "circuit breaker closed, the store answers again");
    }

    fn server_named<'n>(&'n self, node: &'n str) -> &'n str {
        if node.is_empty() { &self.address } else { node }
    }

    fn record_eviction_policy(&self, policy: String) {
        let may_evict = policy != NO_EVICTION;
        self.metrics.set_may_evict(may_evict);
        let mut last = self.eviction_policy.lock();
        if last.as_ref() == Some(&policy) {
            return;
        }
        if may_evict {
            self.events.note(EventKind::StoreMayEvict, &policy);
            let hint = "an evicted bucket is full again: set `maxmemory-policy noeviction`";
            log::warn!(maxmemory_policy = policy, hint; "the store may evict buckets");
        } else if last.is_some() {
            self.events.note(EventKind::StoreEvictsNothing, "");
            log::info!("the store evicts no buckets any more");
        }
        *last = Some(policy);
    }

    fn record_call(&self, called: CallReport) {
        self.metrics.calls.increment(1);
        self.metrics.duration.record(called.took.seconds());
        self.metrics.batch.record(f64::from(u32::try_from(called.requests).unwrap_or(u32::MAX)));
        if called.healed > 0 {
            self.metrics.healed.increment(called.healed);
            if let Some(calls) = self.healings.admit(self.clock.now()) {
                let hint = "something else writes to keys of this prefix";
                log::warn!(buckets = called.healed, calls, hint; "impossible buckets were reset, with nothing left");
            }
        }
        if let Some(fault) = &called.fault {
            self.record_failure(fault);
        }
    }

    fn record_lost_cost(&self) {
        self.metrics.lost_costs.increment(1);
        if let Some(costs) = self.lost_costs.admit(self.clock.now()) {
            let hint = "the costs of no more buckets are kept while the store gives no answer";
            log::warn!(server = self.address, costs, hint; "costs of requests are lost");
        }
    }

    fn record_failure(&self, fault: &Fault) {
        self.metrics.count_error(fault);
        if let Some(calls) = self.failures.admit(self.clock.now()) {
            let server = fault.node.as_deref().unwrap_or(&self.address);
            log::warn!(server, kind = fault.error.name(), calls, detail = fault.detail; "store call failed");
        }
    }

    /// Records the state of a worker's connection. Reports only a change of the common state of all workers.
    fn record_change(&self, worker: usize, now: Result<(), StoreError>, detail: &str) {
        let mut links = self.links.lock();
        if let Some(link) = links.down.get_mut(worker) {
            *link = now.err();
        }
        let up = links.down.iter().all(Option::is_none);
        self.metrics.up.set(if up { 1.0 } else { 0.0 });
        if links.reported == Some(now) || (now.is_ok() && !up) {
            return;
        }
        links.reported = Some(now);
        if self.has_nodes() {
            return;
        }
        match now {
            Ok(()) => {
                self.events.note(EventKind::StoreUp, detail);
                log::info!(server = detail; "store is up");
            }
            Err(error) => {
                self.events.note(EventKind::StoreDown, error.name());
                let meanwhile = self.meanwhile.lock().clone();
                log::warn!(server = self.address, kind = error.name(), detail, meanwhile; "store is down");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_gateways_are_forgotten_after_seven_seconds_without_an_announcement() {
        let at = |seconds: u64| Timestamp((1_000 + seconds) * 1_000_000);
        let clock = Clock::manual(at(0));
        let (metrics, events) = (Metrics::new(&Settings::default()), Arc::new(Events::new(clock.clone())));
        let health = StoreHealth::new(&Settings::default(), 1, &metrics, clock.clone(), events);
        let other = RunningGateway { host: "b".to_owned(), configuration: "2".to_owned() };
        let record = || health.record(Event::Gateways { alive: 2, others: vec![other.clone()] });
        assert!(health.is_up() && health.others("1").is_empty());
        record();
        assert_eq!((health.others("1").len(), health.others("2").len()), (1, 0));
        // After one failed heartbeat the other gateway still counts as running.
        clock.set(at(6));
        health.record(Event::HeartbeatError(Fault::new(StoreError::Forbidden, "no permission")));
        assert_eq!(health.others("1"), std::slice::from_ref(&other));
        clock.set(at(7));
        assert!(health.is_up() && health.others("1").is_empty());
        record();
        assert_eq!(health.others("1").len(), 1);
    }
}
