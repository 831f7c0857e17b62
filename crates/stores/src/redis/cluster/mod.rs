//! Stores buckets in a Redis Cluster: on several masters, each of which decides about the buckets in its hash slots.
//!
//! Each bucket is under one of a few hash tags, so that one call serves many requests. Each worker has one connection
//! and one queue for each node. When a node is lost, the other nodes decide as before.
//!
//! The cluster client of the redis crate is not used. It sends a command again after a timeout or a lost connection,
//! which would charge twice. Here a call is sent again only after the reply MOVED, ASK or TRYAGAIN. Such a reply proves
//! that the call did not run.

mod acts;
mod apart;
mod directory;
mod hash_tags;
mod health;
pub(crate) mod inspect;
mod latest_links;
mod node_server;
mod nodes;
mod read;
mod redirection;
pub(super) mod settings;
mod slots;
mod timed_holds;
mod topology;
mod undo;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::caller::Caller;
use crate::events::EventSink;
use crate::fallback::FallbackShare;
use crate::redis;
use crate::redis::fault_injection::Hooks;
use crate::remote;
use crate::remote::{StoreState, WaitPeriod};
use crate::reply::{Source, TakeReply};
use crate::reservation::Reservation;
use crate::take_failure::TakeFailure;
use crate::worker::Worker;
use base::time::{Clock, Micros, Timestamp};
use directory::Directory;
pub(crate) use directory::NodeId;
use hash_tags::{HashTags, TagIndex};
use ledger::charge::{Charge, LimitId, Plan, Settlement};
use ledger::holds::TimedHold;
use nodes::Nodes;
pub use settings::{DEFAULT_PORT, MOST_HASH_TAGS, Place, Settings};

/// How long the start of the process waits for the topology and the connections.
const LONGEST_START: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Cluster {
    /// Decides requests in this process while a node gives no answer.
    pub fallback: Arc<FallbackShare>,
    nodes: Arc<Nodes>,
}

/// A request on its way to the nodes.
#[derive(Clone, Debug)]
struct Take<'p> {
    worker: Worker,
    plan: &'p Plan,
    caller: Option<Arc<dyn Caller>>,
    waiting: WaitPeriod,
    /// The timed hold that takes, in the place of the worker.
    hold: Option<TimedHold>,
}

impl Cluster {
    /// Opens a store on a cluster, without connecting yet. `settings` apply to every node, except for the address.
    /// `hooks` are the faults that a test injects.
    pub fn open(
        hooks: Hooks,
        cluster: &Settings,
        settings: redis::Settings,
        workers: usize,
        clock: Clock,
        events: EventSink,
    ) -> Cluster {
        let redis::Settings { timeout, breaker, gateways, .. } = settings;
        let settings_of_all = remote::Settings { timeout, breaker, gateways };
        let state = StoreState::new(&settings_of_all, &clock, hooks);
        let fallback = Arc::clone(&state.fallback);
        let directory = Directory::new(HashTags::new(&settings.prefix, cluster.place));
        let nodes = Nodes::new(cluster.nodes.clone(), settings, directory, state, workers, clock, events);
        Cluster { fallback, nodes: Arc::new(nodes) }
    }

    pub async fn run(&self, worker: Worker) {
        self.nodes.run(worker).await;
    }

    pub async fn first_attempt(&self) {
        // The connections may be ready after the timeout.
        let _ = tokio::time::timeout(LONGEST_START, self.nodes.first_attempt()).await;
    }

    /// Decides a plan. Returns `None` if the client disconnected before the plan was sent. Waits at most
    /// `answer_within`, and at most the nodes' timeout.
    ///
    /// # Errors
    /// Returns the reason why the store has not decided.
    pub async fn take(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        answer_within: Option<Micros>,
    ) -> Result<Option<TakeReply>, TakeFailure> {
        let since = self.nodes.clock.now();
        if let Some((now, settlement)) = self.nodes.state.deny_cache.refuse(plan, since)
            && self.still_refuses(worker, plan, &settlement)
        {
            let reservation = Reservation::default();
            return Ok(Some(TakeReply { now, settlement, evicted: 0, source: Source::Cached, reservation }));
        }
        let waiting = WaitPeriod { since, until: answer_within.map(|most| since.plus(most)) };
        let take = Take { worker, plan, caller, waiting, hold: None };
        match self.only_tag(plan) {
            Some(tag) => Ok(self.take_together(&take, tag).await?),
            None => self.take_apart(&take).await,
        }
    }

    /// Holds the slots that a plan asks for although no node has granted them.
    pub fn hold(&self, worker: Worker, plan: &Plan) -> Reservation {
        self.nodes.slots(worker).hold_all(plan)
    }

    /// Ends all slots of this gateway, and waits until the nodes know it.
    pub async fn end_all_slots(&self) {
        self.nodes.end_all_slots().await;
    }

    /// Waits until the nodes know what the requests of this gateway hold.
    pub async fn all_reported(&self) {
        self.nodes.all_reported().await;
    }

    /// Decides a plan in this process, with this gateway's share of each limit.
    pub fn take_fallback(&self, worker: Worker, plan: &Plan) -> TakeReply {
        self.fallback.take(plan, &self.nodes.slots(worker))
    }

    /// Whether one of the buckets that the cache knows as short is on a node that can be asked. If not, the fallback
    /// decides.
    fn still_refuses(&self, worker: Worker, plan: &Plan, refused: &Settlement) -> bool {
        let Nodes { directory, .. } = &*self.nodes;
        let can_be_asked = |charge: &Charge| {
            let node = directory.owner(directory.tags.of(&charge.key)).and_then(|owner| self.nodes.get(owner));
            node.is_some_and(|node| node.remote.usable(worker).is_ok())
        };
        let mut charges = plan.enforced.iter().zip(&refused.enforced);
        charges.any(|(charge, outcome)| outcome.verdict.is_refusal() && can_be_asked(charge))
    }

    /// Returns the hash tag of all buckets of a plan. `None` if they are under several tags.
    fn only_tag(&self, plan: &Plan) -> Option<TagIndex> {
        let tags = &self.nodes.directory.tags;
        let mut charges = plan.charges().map(|charge| tags.of(&charge.key));
        let first = charges.next().unwrap_or(TagIndex(0));
        charges.all(|tag| tag == first).then_some(first)
    }

    pub fn announce(&self, configuration: &str) {
        configuration.clone_into(&mut self.nodes.state.this_gateway.lock().configuration);
    }

    /// Applies the settings that can change without a restart. New connections use them, as does the next read of the
    /// topology.
    pub fn replace_login(&self, settings: &redis::Settings) {
        self.nodes.replace(settings);
    }

    /// Converts a time of this process's clock to the clocks of the nodes. If these clocks differ, the latest time is
    /// returned.
    pub fn clock_at(&self, ours: Timestamp) -> Timestamp {
        self.nodes.state.store_clock.at(ours)
    }

    /// Sets the limits whose charges may be undone, because another bucket of the same request may refuse. Charges are
    /// undone only if the store uses several hash tags.
    pub fn expect_undone_charges(&self, limits: HashSet<LimitId>) {
        if self.is_spread() && self.nodes.state.hooks.drops_undone() {
            self.nodes.state.deny_cache.expect_undone_charges(limits);
        }
    }

    fn is_spread(&self) -> bool {
        self.nodes.directory.tags.iter().nth(1).is_some()
    }

    /// Removes what is cached about buckets.
    pub fn invalidate(&self) {
        self.nodes.state.deny_cache.invalidate();
    }
}
