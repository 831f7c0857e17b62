//! Does acts of leases on the nodes of a cluster: one call for each hash tag, all at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::Cluster;
use super::directory::NodeId;
use super::hash_tags::TagIndex;
use super::nodes::Node;
use crate::error::{Fault, StoreError};
use crate::lease_acts::{ActResults, BucketAct};
use crate::remote::acts::heard;
use crate::remote::{Route, WaitPeriod};
use crate::worker::Worker;
use base::time::Timestamp;
use ledger::bucket_key::BucketKey;

impl Cluster {
    /// Does acts of leases. Waits at most for the nodes' timeout. The time is the latest on the clocks of the nodes. An act whose
    /// node gave no answer has [`NoAnswer`](crate::ActResult::NoAnswer).
    ///
    /// # Errors
    ///
    /// When no node gave an answer.
    pub async fn act(&self, worker: Worker, acts: &[BucketAct]) -> Result<ActResults, Fault> {
        let tags = &self.nodes.directory.tags;
        let mut tagged: Vec<(TagIndex, usize)> = acts.iter().map(|act| tags.of(&act.key)).zip(0..).collect();
        tagged.sort_unstable();
        let waiting = WaitPeriod { since: self.nodes.clock.now(), until: None };
        let mut calls = JoinSet::new();
        for part in tagged.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((tag, _)) = part.first().copied() else { continue };
            let (places, own): (Vec<usize>, Vec<BucketAct>) =
                part.iter().filter_map(|(_, index)| Some((*index, *acts.get(*index)?))).unzip();
            let cluster = self.clone();
            calls.spawn(async move { (places, cluster.act_under_tag(worker, waiting, tag, &own).await) });
        }
        let (mut all, mut first_fault) = (ActResults::without_answers(acts.len()), None);
        let mut is_answered = acts.is_empty();
        while let Some(call) = calls.join_next().await {
            match call {
                Ok((places, Ok(done))) => {
                    is_answered = true;
                    all.join(&places, done);
                }
                Ok((places, Err(fault))) => {
                    all.join(&places, ActResults::unanswered(fault.error, places.len()));
                    first_fault.get_or_insert(fault);
                }
                // Never happens, because the task is not cancelled and does not panic.
                Err(_) => {}
            }
        }
        match first_fault {
            Some(fault) if !is_answered => Err(fault),
            _ => Ok(all),
        }
    }

    async fn act_under_tag(
        &self,
        worker: Worker,
        waiting: WaitPeriod,
        tag: TagIndex,
        acts: &[BucketAct],
    ) -> Result<ActResults, Fault> {
        let is_whole = acts.len() == 1 || !self.nodes.directory.is_moving(tag, self.nodes.clock.now());
        if is_whole && let Some(done) = self.act_together(worker, waiting, tag, acts).await? {
            return Ok(done);
        }
        let mut all = ActResults::without_answers(acts.len());
        for (place, act) in acts.iter().enumerate() {
            let done = self.act_together(worker, waiting, tag, std::slice::from_ref(act)).await;
            match done {
                Ok(Some(done)) => all.join(&[place], done),
                Ok(None) => {}
                Err(fault) => all.join(&[place], ActResults::unanswered(fault.error, 1)),
            }
        }
        Ok(all)
    }

    /// Does acts under one hash tag in one call. `None` if nothing was done, because their hash slot is moving and each bucket may be
    /// on another node.
    async fn act_together(
        &self,
        worker: Worker,
        waiting: WaitPeriod,
        tag: TagIndex,
        acts: &[BucketAct],
    ) -> Result<Option<ActResults>, Fault> {
        let last_fault = Mutex::new(None);
        let last = &last_fault;
        let ask = |node: Arc<Node>, route| async move {
            if route == Route::Next && acts.len() > 1 {
                // The next node would not do acts on several buckets if one of them has not moved yet.
                return Ok(None);
            }
            match node.remote.act(worker, acts, route).await {
                Ok(done) => Ok(Some(done)),
                Err(fault) if fault.error == StoreError::TryAgain && acts.len() > 1 => Ok(None),
                Err(fault) => {
                    let error = fault.error;
                    *last.lock() = Some(fault);
                    Err(error)
                }
            }
        };
        let done = self.ask_owner(tag, worker, waiting, ask).await;
        done.map_err(|error| {
            let known = last_fault.into_inner().filter(|fault| fault.error == error);
            known.unwrap_or_else(|| Fault::new(error, "no node has done the acts"))
        })
    }

    /// Whether the node with this bucket is known to give no answer, or no node is known. Not while the connection to the node is made
    /// again.
    pub fn is_away(&self, worker: Worker, key: &BucketKey) -> bool {
        match self.node_of(key) {
            // A node that was just found has no connection yet.
            Some(node) => self.nodes.get(node).is_some_and(|node| node.remote.is_away(worker)),
            None => true,
        }
    }

    /// Returns the node with this bucket, if it is known.
    pub(crate) fn node_of(&self, key: &BucketKey) -> Option<NodeId> {
        let directory = &self.nodes.directory;
        directory.owner(directory.tags.of(key))
    }

    /// Sends no heartbeats on new connections.
    pub fn silence(&self) {
        self.nodes.state.is_silent.store(true, Ordering::Relaxed);
    }

    /// Returns when a node last answered acts, or a question of a connection without heartbeats.
    pub fn heard(&self) -> Option<Timestamp> {
        heard(&self.nodes.state.heard)
    }
}
