//! Keeps each worker connected to each required node, and keeps the directory up to date.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::Cmd;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::directory::{Directory, NodeId};
use super::health::Health;
use super::node_server::NodeServer;
use super::redirection;
use super::topology::{Occasion, Topology, fault_of, order, read_topology};
use crate::breaker::Breaker;
use crate::error::{Fault, StoreError};
use crate::events::EventSink;
use crate::redis::handshake::send;
use crate::redis::settings::{Settings, Target};
use crate::remote;
use crate::remote::holds::{GatewaySlots, WorkerHolds};
use crate::remote::login::CurrentLogin;
use crate::remote::{Remote, StoreState};
use crate::store_clock::StoreClock;
use crate::worker::Worker;
use base::host_port::HostPort;
use base::time::{Clock, Micros, Timestamp};
use ledger::bucket_key::BucketKey;

/// The shortest time between two reads of the topology. Also the interval while a node is lost.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time between two reads of the topology.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);
/// The interval at which nodes are asked for the successors of lost nodes.
const QUESTIONS: Duration = Duration::from_millis(100);
/// The longest time that one node may take to return the topology.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long a node without hash tags is kept, because calls to it may be under way.
const UNUSED: Micros = Micros(3_000_000);
/// How long requests wait for the first connection to a node, within their own deadlines.
const NEW: Micros = Micros(1_000_000);

/// A node, with the connections to it.
#[derive(Debug)]
pub(super) struct Node {
    pub remote: Remote<NodeServer>,
    made: Timestamp,
    unused_since: Mutex<Option<Timestamp>>,
}

impl Node {
    /// Whether the node was found so recently that it may have no connections yet.
    pub(super) fn is_new(&self, now: Timestamp) -> bool {
        now.since(self.made) < NEW
    }
}

/// All nodes of a cluster, with the connections to them.
#[derive(Debug)]
pub(super) struct Nodes {
    pub directory: Arc<Directory>,
    /// The nodes from the configuration, which are asked for the topology when no other node is known.
    seeds: ArcSwap<Vec<HostPort>>,
    /// The settings of every node. Only the address differs from node to node.
    pub settings: Settings,
    pub login: Arc<CurrentLogin>,
    /// The state that all nodes share.
    pub state: StoreState,
    pub clock: Clock,
    /// The slots that the requests of each worker hold, with one part for each hash tag.
    holds: Vec<Arc<WorkerHolds>>,
    health: Arc<Health>,
    /// The nodes. The index of a node is its id.
    table: ArcSwap<Vec<Option<Arc<Node>>>>,
    /// Counts the changes of the table; 0 before the first topology.
    changes: watch::Sender<u64>,
}

impl Nodes {
    pub(super) fn new(
        seeds: Vec<HostPort>,
        settings: Settings,
        directory: Directory,
        state: StoreState,
        workers: usize,
        clock: Clock,
        events: EventSink,
    ) -> Nodes {
        let tags = directory.tags.iter().count();
        let holds =
            |worker| WorkerHolds::new(state.gateway_name, Worker(worker), tags, events.clone(), &state.fallback);
        let holds = (0..workers).map(holds).collect();
        let health = Arc::new(Health::new(workers, events));
        Nodes {
            holds,
            directory: Arc::new(directory),
            login: Arc::new(CurrentLogin::new(settings.login.clone())),
            seeds: ArcSwap::from_pointee(seeds),
            settings,
            state,
            clock,
            health,
            table: ArcSwap::default(),
            changes: watch::channel(0).0,
        }
    }

    /// Applies the login and the list of nodes, which can change without a restart.
    pub(super) fn replace(&self, settings: &Settings) {
        self.login.replace(&settings.login);
        if let Target::Cluster(cluster) = &settings.target {
            self.seeds.store(Arc::new(cluster.nodes.clone()));
            self.directory.outdated.notify_one();
        }
    }

    pub(super) fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.table.load().get(id.0 as usize)?.clone()
    }

    /// Ends all slots of this gateway, and waits until the nodes know it.
    pub(super) async fn end_all_slots(&self) {
        WorkerHolds::end_all(&self.holds).await;
    }

    /// Waits until the nodes know what the requests of this gateway hold.
    pub(super) async fn all_reported(&self) {
        WorkerHolds::all_reported(&self.holds).await;
    }

    /// Returns the slots of all workers, for a request of this worker.
    pub(super) fn slots(&self, Worker(worker): Worker) -> GatewaySlots<'_, impl Fn(&BucketKey) -> usize> {
        let part = |key: &BucketKey| usize::from(self.directory.tags.of(key).0);
        GatewaySlots { workers: &self.holds, worker, part, now: self.clock.now() }
    }

    fn all(&self) -> Vec<Arc<Node>> {
        self.table.load().iter().flatten().cloned().collect()
    }

    /// Drives a worker's connections to all nodes. Never returns.
    pub(super) async fn run(&self, worker: Worker) {
        let connections = self.connect_all(worker);
        if worker == Worker(0) {
            tokio::join!(connections, self.follow_topology());
        } else {
            connections.await;
        }
    }

    async fn connect_all(&self, worker: Worker) {
        let mut changes = self.changes.subscribe();
        // The tasks run on this thread. All of them end when the caller ends.
        let mut tasks = JoinSet::new();
        let mut running: HashMap<NodeId, (Arc<Node>, AbortHandle)> = HashMap::new();
        loop {
            changes.borrow_and_update();
            let table = self.table.load_full();
            let is_there = |id: &NodeId, node: &Arc<Node>| {
                let other = table.get(id.0 as usize).and_then(Option::as_ref);
                other.is_some_and(|other| Arc::ptr_eq(other, node))
            };
            running.retain(|id, (node, task)| {
                let stays = is_there(id, node);
                if !stays {
                    task.abort();
                }
                stays
            });
            for node in table.iter().flatten() {
                running.entry(node.remote.transport.id).or_insert_with(|| {
                    let driven = Arc::clone(node);
                    let task = tasks.spawn(async move { driven.remote.run(worker).await });
                    (Arc::clone(node), task)
                });
            }
            while tasks.try_join_next().is_some() {}
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits for the first topology, and for the first attempt to connect to each of its nodes.
    pub(super) async fn first_attempt(&self) {
        let mut changes = self.changes.subscribe();
        if changes.wait_for(|changes| *changes > 0).await.is_ok() {
            for node in self.all() {
                node.remote.first_attempt().await;
            }
        }
    }

    /// Reads the topology at intervals, and sooner when it may have changed.
    async fn follow_topology(&self) {
        let (mut last_source, mut occasion) = (None, Occasion::Schedule);
        let mut questions = 0;
        loop {
            match self.read_topology(last_source.as_ref(), occasion).await {
                Ok(Topology { source, ranges, uncovered }) => {
                    self.directory.follow(&ranges, self.clock.now());
                    self.health.cover(fault_of(&uncovered));
                    last_source = Some(source);
                }
                Err(fault) if self.all().is_empty() => self.health.unknown(&fault),
                // Each connection to a node reports its own faults.
                Err(_) => {}
            }
            self.adopt();
            let now = Instant::now();
            let [earliest, latest] = [SHORTEST_INTERVAL, LONGEST_INTERVAL].map(|interval| now + interval);
            let mut is_outdated = self.all().is_empty();
            let mut question = now + QUESTIONS;
            loop {
                let is_troubled = self.health.is_troubled();
                occasion = if is_outdated || is_troubled { Occasion::Doubt } else { Occasion::Schedule };
                let next = if is_outdated || is_troubled { earliest } else { latest };
                tokio::select! {
                    () = self.directory.outdated.notified() => {
                        // A redirection may have named a new node, which is added at once.
                        self.adopt();
                        is_outdated = true;
                    }
                    () = tokio::time::sleep_until(next) => break,
                    () = tokio::time::sleep_until(question), if is_troubled => {
                        self.ask_for_successors(questions).await;
                        questions += 1;
                        question = Instant::now() + QUESTIONS;
                    }
                }
            }
        }
    }

    /// Asks nodes for the successors of lost nodes, until one node knows them. `number` counts the searches, because
    /// each begins at another node.
    async fn ask_for_successors(&self, number: usize) {
        let mut nodes = self.all();
        nodes.retain(|node| !self.health.is_lost(node.remote.transport.id));
        let first = number.checked_rem(nodes.len()).unwrap_or_default();
        nodes.rotate_left(first);
        for node in nodes {
            if self.ask_for_successors_on(&node).await.is_some() {
                return;
            }
        }
    }

    /// Asks one node for a key under each hash tag of the lost nodes. A redirection names the successor. `None` if the
    /// node knows no successor, or gives no answer.
    async fn ask_for_successors_on(&self, node: &Node) -> Option<()> {
        let server = &node.remote.transport;
        let mut link = server.latest_link()?;
        let (mut knows, mut is_unserved) = (false, false);
        for (tag, own) in self.directory.tags.iter() {
            let owner = self.directory.owner(tag).filter(|owner| self.health.is_lost(*owner));
            let Some(known) = owner.and_then(|owner| self.directory.address(owner)) else { continue };
            let mut command = Cmd::new();
            command.arg("GET").arg(format!("{}:", own.prefix));
            let asked = tokio::time::timeout(PATIENCE, send(&mut link.connection, &command)).await.ok()?;
            let Err(error) = asked else {
                knows = true;
                continue;
            };
            // This hash slot has no node, but other hash slots may have one.
            if Fault::from(error.clone()).error == StoreError::ClusterDown {
                is_unserved = true;
                continue;
            }
            let (named, _) = error.redirect_node()?;
            knows = true;
            if let Some(address) = redirection::address(named, &server.address).filter(|address| *address != known) {
                self.directory.moved(tag, address);
            }
        }
        (knows || !is_unserved).then_some(())
    }

    async fn read_topology(&self, last_source: Option<&HostPort>, occasion: Occasion) -> Result<Topology, Fault> {
        let nodes = self.all();
        let address = |node: &Arc<Node>| node.remote.transport.address.clone();
        let lost = nodes.iter().filter(|node| self.health.is_lost(node.remote.transport.id));
        let lost: Vec<HostPort> = lost.map(address).collect();
        let seeds = self.seeds.load();
        let candidates = nodes.iter().map(address).chain(seeds.iter().cloned());
        let addresses = order(candidates, &lost, last_source, occasion);
        read_topology(addresses, PATIENCE, &self.directory.tags, &self.settings, &self.login).await
    }

    /// Adds the nodes that the directory names, and removes nodes without a hash tag after a while.
    fn adopt(&self) {
        let now = self.clock.now();
        let in_use = self.directory.nodes_in_use();
        let mut table: Vec<Option<Arc<Node>>> = self.table.load().to_vec();
        let mut changed = false;
        let count = in_use.iter().map(|id| id.0 as usize + 1).max().unwrap_or_default();
        if count > table.len() {
            table.resize(count, None);
        }
        for (index, place) in (0..).zip(&mut table) {
            let id = NodeId(index);
            match place {
                Some(node) if in_use.contains(&id) => *node.unused_since.lock() = None,
                Some(node) => {
                    let since = *node.unused_since.lock().get_or_insert(now);
                    if now.since(since) > UNUSED {
                        self.health.remove(id);
                        self.directory.links.remove(id);
                        (*place, changed) = (None, true);
                    }
                }
                None if in_use.contains(&id) => {
                    if let Some(address) = self.directory.address(id) {
                        (*place, changed) = (Some(self.make(id, address, now)), true);
                    }
                }
                None => {}
            }
        }
        self.health.require(&in_use);
        if changed {
            self.table.store(Arc::new(table));
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    fn make(&self, id: NodeId, address: HostPort, now: Timestamp) -> Arc<Node> {
        let Settings { timeout, breaker, gateways, .. } = self.settings;
        let (login, directory) = (Arc::clone(&self.login), Arc::clone(&self.directory));
        let hooks = self.state.hooks;
        self.health.add(id, &address);
        let events = Health::events_of(&self.health, id, &address, Arc::clone(&self.directory));
        let server = NodeServer::new(id, address, self.settings.clone(), login, directory, self.clock.clone(), hooks);
        let state = StoreState {
            breaker: Arc::new(Breaker::new(breaker)),
            store_clock: Arc::new(StoreClock::of_part(Arc::clone(&self.state.store_clock))),
            ..self.state.clone()
        };
        let settings = remote::Settings { timeout, breaker, gateways };
        let remote = Remote::sharing(state, server, settings, &self.holds, self.clock.clone(), events);
        Arc::new(Node { remote, made: now, unused_since: Mutex::new(None) })
    }
}
