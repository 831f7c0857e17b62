//! Combines the reports of the connections to all nodes into the events of the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::directory::{Directory, NodeId};
use crate::breaker::Change;
use crate::error::{Fault, StoreError};
use crate::events::{Event, EventSink, NodeChange};
use crate::worker::Worker;
use base::host_port::HostPort;

/// The eviction policy under which a node keeps every bucket.
const NO_EVICTION: &str = "noeviction";

#[derive(Debug)]
pub(super) struct Health {
    workers: usize,
    events: EventSink,
    reports: Mutex<Reports>,
}

#[derive(Debug, Default)]
struct Reports {
    nodes: BTreeMap<NodeId, NodeReport>,
    /// The nodes that have a hash tag.
    required: Vec<NodeId>,
    /// The reason why some hash tags are on no node.
    uncovered: Option<Fault>,
    /// The last reported state of each worker. `None` before the first report.
    reported: Vec<Option<WorkerState>>,
}

/// The state of a node.
#[derive(Debug)]
struct NodeReport {
    address: Arc<str>,
    /// For each worker, the reason why its connection is down.
    down: Vec<Option<Fault>>,
    breaker: Breaker,
    /// Whether the last reply of the node said for every hash tag that the cluster is down.
    is_cut_off: Arc<AtomicBool>,
    eviction_policy: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Breaker {
    Open,
    Closed,
}

impl Health {
    pub(super) fn new(workers: usize, events: EventSink) -> Health {
        let reports = Reports { reported: vec![None; workers], ..Reports::default() };
        Health { workers, events, reports: Mutex::new(reports) }
    }

    /// Returns the sink for the events of one node. The sink reports them as events of the whole store.
    pub(crate) fn events_of(
        health: &Arc<Health>,
        node: NodeId,
        address: &HostPort,
        directory: Arc<Directory>,
    ) -> EventSink {
        let health = Arc::clone(health);
        let address: Arc<str> = address.to_string().into();
        let node_name = Arc::clone(&address);
        let named = move |fault: Fault| Fault { node: Some(Arc::clone(&address)), ..fault };
        let is_cut_off = health.reports.lock().nodes.get(&node).map(|report| Arc::clone(&report.is_cut_off));
        let is_cut_off = is_cut_off.unwrap_or_default();
        EventSink::new(move |event| match event {
            Event::Up { worker, .. } => health.record(node, worker, None),
            Event::Down { worker, fault } => {
                directory.outdated.notify_one();
                health.record(node, worker, Some(named(fault)));
            }
            Event::BreakerOpened => {
                directory.outdated.notify_one();
                health.record_breaker(node, Change::Opened);
            }
            Event::BreakerClosed => health.record_breaker(node, Change::Closed),
            Event::EvictionPolicy(policy) => health.record_eviction_policy(node, policy),
            Event::HeartbeatError(fault) => health.events.send(Event::HeartbeatError(named(fault))),
            Event::Unsent { requests, .. } => {
                health.events.send(Event::Unsent { requests, node: Some(Arc::clone(&node_name)) });
            }
            Event::RoundTripTooLong { fastest, needed, .. } => {
                let node = Some(Arc::clone(&node_name));
                health.events.send(Event::RoundTripTooLong { fastest, needed, node });
            }
            Event::CallEnded(mut report) => {
                let shown = match &report.fault {
                    _ if report.any_decided => Some(false),
                    None => Some(false),
                    Some(fault) if fault.error == StoreError::ClusterDown => Some(true),
                    Some(_) => None,
                };
                if let Some(shown) = shown.filter(|shown| *shown != is_cut_off.load(Ordering::Relaxed)) {
                    is_cut_off.store(shown, Ordering::Relaxed);
                }
                report.fault = report.fault.map(&named);
                health.events.send(Event::CallEnded(report));
            }
            event => health.events.send(event),
        })
    }

    pub(super) fn add(&self, node: NodeId, address: &HostPort) {
        let unknown = Fault::new(StoreError::Unreachable, "not connected yet");
        let report = NodeReport {
            address: address.to_string().into(),
            down: vec![Some(unknown); self.workers],
            breaker: Breaker::Closed,
            is_cut_off: Arc::default(),
            eviction_policy: None,
        };
        self.reports.lock().nodes.insert(node, report);
    }

    pub(super) fn remove(&self, node: NodeId) {
        self.record_breaker(node, Change::Closed);
        if let Some(NodeReport { address, .. }) = self.reports.lock().nodes.remove(&node) {
            self.events.send(Event::Node { address, change: NodeChange::Gone });
        }
    }

    /// Sets the nodes to which a worker must be connected to count as up.
    pub(super) fn require(&self, nodes: &[NodeId]) {
        let mut reports = self.reports.lock();
        nodes.clone_into(&mut reports.required);
        self.report(&mut reports);
    }

    /// Notes the reason why some hash tags are on no node. `None` if every hash tag has a node.
    pub(super) fn cover(&self, uncovered: Option<Fault>) {
        let mut reports = self.reports.lock();
        if reports.uncovered != uncovered {
            reports.uncovered = uncovered;
            self.report(&mut reports);
        }
    }

    /// Returns whether the cluster has lost a node that serves hash tags, or a hash tag has no node.
    pub(crate) fn is_troubled(&self) -> bool {
        let reports = self.reports.lock();
        reports.nodes.values().any(|report| report.breaker == Breaker::Open || report.is_cut_off())
            || (0..self.workers).any(|worker| reports.fault_of(worker).is_some())
    }

    /// Whether a node is lost: a worker has no connection to it, its breaker is open, or it is cut off from its
    /// cluster.
    pub(super) fn is_lost(&self, node: NodeId) -> bool {
        let is_lost = |report: &NodeReport| {
            report.breaker == Breaker::Open || report.is_cut_off() || report.down.iter().any(Option::is_some)
        };
        self.reports.lock().nodes.get(&node).is_none_or(is_lost)
    }

    /// Reports every worker as down, because no node could be asked for the topology.
    pub(super) fn unknown(&self, fault: &Fault) {
        for worker in (0..self.workers).map(Worker) {
            self.events.send(Event::Down { worker, fault: fault.clone() });
        }
    }

    fn record(&self, node: NodeId, worker: Worker, fault: Option<Fault>) {
        let mut reports = self.reports.lock();
        let is_required = reports.required.contains(&node);
        let Some(report) = reports.nodes.get_mut(&node) else { return };
        if let Some(down) = report.down.get_mut(worker.0) {
            down.clone_from(&fault);
        }
        let change = match fault {
            // Every failed attempt is reported, even if the node was down before.
            Some(fault) => Some(NodeChange::Down(fault)),
            None => report.down.iter().all(Option::is_none).then_some(NodeChange::Up),
        };
        if let Some(change) = change {
            let address = Arc::clone(&report.address);
            self.events.send(Event::Node { address, change });
        }
        if is_required {
            self.report(&mut reports);
        }
    }

    /// Reports the changes of the workers' states.
    fn report(&self, reports: &mut Reports) {
        for worker in 0..self.workers {
            let fault = reports.fault_of(worker);
            let state = if fault.is_none() { WorkerState::Up } else { WorkerState::Down };
            let Some(reported) = reports.reported.get_mut(worker) else { continue };
            // At the start, a worker is down only after a failed attempt to connect.
            let is_unknown = |fault: &Fault| fault.node.is_none() && fault.error == StoreError::Unreachable;
            let is_starting = reported.is_none() && fault.as_ref().is_some_and(is_unknown);
            if is_starting || reported.replace(state) == Some(state) {
                continue;
            }
            let worker = Worker(worker);
            self.events.send(match fault {
                None => Event::Up { worker, server: None },
                Some(fault) => Event::Down { worker, fault },
            });
        }
    }

    fn record_breaker(&self, node: NodeId, change: Change) {
        let mut reports = self.reports.lock();
        let before = reports.breakers_open();
        let Some(report) = reports.nodes.get_mut(&node) else { return };
        let (breaker, of_node) = match change {
            Change::Opened => (Breaker::Open, NodeChange::BreakerOpened),
            Change::Closed | Change::None => (Breaker::Closed, NodeChange::BreakerClosed),
        };
        if std::mem::replace(&mut report.breaker, breaker) == breaker {
            return;
        }
        let address = Arc::clone(&report.address);
        self.events.send(Event::Node { address, change: of_node });
        match (before, reports.breakers_open()) {
            (0, 1) => self.events.send(Event::BreakerOpened),
            (1, 0) => self.events.send(Event::BreakerClosed),
            _ => {}
        }
    }

    /// Reports the eviction policy of the cluster. If any node evicts keys, that node's policy is reported.
    fn record_eviction_policy(&self, node: NodeId, policy: String) {
        let mut reports = self.reports.lock();
        if let Some(report) = reports.nodes.get_mut(&node) {
            report.eviction_policy = Some(policy);
        }
        let mut policies = reports.nodes.values().filter_map(|report| report.eviction_policy.as_ref());
        let policy = policies.find(|policy| *policy != NO_EVICTION).map_or(NO_EVICTION, |policy| policy);
        self.events.send(Event::EvictionPolicy(policy.to_owned()));
    }
}

impl NodeReport {
    fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

impl Reports {
    /// Returns the reason why a worker cannot use the whole store.
    fn fault_of(&self, worker: usize) -> Option<Fault> {
        if let Some(fault) = &self.uncovered {
            return Some(fault.clone());
        }
        let unknown = || Fault::new(StoreError::Unreachable, "no node is known");
        if self.required.is_empty() {
            return Some(unknown());
        }
        let report = |node: &NodeId| match self.nodes.get(node) {
            Some(report) => report.down.get(worker).cloned().flatten(),
            None => Some(unknown()),
        };
        self.required.iter().find_map(report)
    }

    fn breakers_open(&self) -> usize {
        self.nodes.values().filter(|report| report.breaker == Breaker::Open).count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash_tags::HashTags;
    use super::super::settings::Place;
    use super::*;
    use crate::events::CallReport;
    use crate::span_links::SpanLinks;
    use base::time::Micros;

    /// Empties the log, and returns a short text for each of its events.
    fn names(log: &Mutex<Vec<Event>>) -> Vec<String> {
        let name = |event: Event| match event {
            Event::Up { .. } => "up".to_owned(),
            Event::Down { fault, .. } => format!("down by {}", fault.node.as_deref().unwrap_or("nobody")),
            Event::BreakerOpened => "breaker opened".to_owned(),
            Event::BreakerClosed => "breaker closed".to_owned(),
            Event::EvictionPolicy(policy) => policy,
            Event::Node { address, change } => match change {
                NodeChange::Up => format!("{address} up"),
                NodeChange::Down(_) => format!("{address} down"),
                NodeChange::BreakerOpened => format!("{address} breaker opened"),
                NodeChange::BreakerClosed => format!("{address} breaker closed"),
                NodeChange::Gone => format!("{address} gone"),
            },
            other => format!("{other:?}"),
        };
        std::mem::take(&mut *log.lock()).into_iter().map(name).collect()
    }

    fn ended(error: Option<StoreError>, any_decided: bool) -> Event {
        Event::CallEnded(CallReport {
            requests: 1,
            any_decided,
            took: Micros(0),
            healed: 0,
            fault: error.map(|error| Fault::new(error, "")),
            span_links: SpanLinks::of(std::iter::empty(), None),
        })
    }

    fn one_node() -> (Arc<Health>, EventSink) {
        let health = Arc::new(Health::new(2, EventSink::new(|_| ())));
        let (node, address) = (NodeId(0), HostPort::new("n", 1));
        health.add(node, &address);
        for worker in [0, 1].map(Worker) {
            health.record(node, worker, None);
        }
        let directory = Arc::new(Directory::new(HashTags::new("t", Place::DEFAULT)));
        let events = Health::events_of(&health, node, &address, directory);
        (health, events)
    }

    #[test]
    fn a_node_is_cut_off_while_it_only_says_that_the_cluster_is_down() {
        let (health, events) = one_node();
        let lost_after = |(error, any_decided)| {
            events.send(ended(error, any_decided));
            health.is_lost(NodeId(0))
        };
        let (down, busy) = (Some(StoreError::ClusterDown), Some(StoreError::Busy));
        // A busy node may still be cut off from its cluster.
        let calls =
            [(busy, false), (down, false), (busy, false), (None, true), (down, true), (down, false), (down, true)];
        assert_eq!(calls.map(lost_after), [false, true, true, false, false, true, false]);
    }

    #[test]
    fn a_store_is_up_when_every_node_is_and_each_node_is_reported_by_its_address() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&log);
        let health = Arc::new(Health::new(1, EventSink::new(move |event| sink.lock().push(event))));
        let directory = Arc::new(Directory::new(HashTags::new("t", Place::DEFAULT)));
        let nodes = [NodeId(0), NodeId(1)];
        let events = nodes.map(|node| {
            let address = HostPort::new("n", 1 + u16::try_from(node.0).unwrap());
            health.add(node, &address);
            Health::events_of(&health, node, &address, Arc::clone(&directory))
        });
        health.require(&nodes);
        // No attempt to connect has failed yet, so nothing is reported.
        assert_eq!(names(&log), [""; 0]);
        let [one, other] = &events;
        let worker = Worker(0);
        one.send(Event::Up { worker, server: None });
        assert_eq!(names(&log), ["n:1 up"]);
        other.send(Event::Up { worker, server: None });
        assert_eq!(names(&log), ["n:2 up", "up"]);
        other.send(Event::Down { worker, fault: Fault::new(StoreError::Closed, "") });
        other.send(Event::BreakerOpened);
        other.send(Event::BreakerOpened);
        assert_eq!(names(&log), ["n:2 down", "down by n:2", "n:2 breaker opened", "breaker opened"]);
        other.send(Event::EvictionPolicy("allkeys-lru".to_owned()));
        one.send(Event::EvictionPolicy(NO_EVICTION.to_owned()));
        assert_eq!(names(&log), ["allkeys-lru", "allkeys-lru"]);
        health.require(&nodes[..1]);
        health.remove(nodes[1]);
        assert_eq!(names(&log), ["up", "n:2 breaker closed", "breaker closed", "n:2 gone"]);
        let uncovered = || Some(Fault::new(StoreError::ClusterDown, "no node has slot 7"));
        health.cover(uncovered());
        health.cover(uncovered());
        assert!(health.is_troubled());
        health.cover(None);
        assert_eq!(names(&log), ["down by nobody", "up"]);
    }
}
