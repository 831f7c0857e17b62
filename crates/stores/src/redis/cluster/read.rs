//! Reads buckets on the nodes of a cluster, and changes nothing.

use std::sync::Arc;

use super::Cluster;
use super::hash_tags::TagIndex;
use super::nodes::Node;
use crate::error::StoreError;
use crate::remote::transport::ReadStates;
use crate::remote::{Route, WaitPeriod};
use crate::worker::Worker;
use base::time::{Timestamp, timeout};
use ledger::bucket_key::BucketKey;

impl Cluster {
    /// Reads the states of buckets: one read for each hash tag. The time is the latest on the clocks of the nodes. Waits at
    /// most for the nodes' timeout.
    ///
    /// # Errors
    /// Returns the reason why not all buckets could be read.
    pub async fn read(&self, worker: Worker, keys: &[BucketKey]) -> Result<ReadStates, StoreError> {
        let waiting = WaitPeriod { since: self.nodes.clock.now(), until: None };
        let reading = timeout(self.nodes.settings.timeout.into(), self.read_all(worker, waiting, keys));
        reading.await.unwrap_or(Err(StoreError::Timeout))
    }

    async fn read_all(
        &self,
        worker: Worker,
        waiting: WaitPeriod,
        keys: &[BucketKey],
    ) -> Result<ReadStates, StoreError> {
        let tags = &self.nodes.directory.tags;
        let mut tagged: Vec<(TagIndex, usize)> = keys.iter().map(|key| tags.of(key)).zip(0..).collect();
        tagged.sort_unstable();
        let (mut latest, mut states) = (Timestamp(0), vec![None; keys.len()]);
        for part in tagged.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((tag, _)) = part.first() else { continue };
            let own: Vec<BucketKey> = part.iter().filter_map(|(_, index)| keys.get(*index).copied()).collect();
            let read = match self.read_together(worker, waiting, *tag, &own).await? {
                Some(read) => read,
                None => self.read_singly(worker, waiting, *tag, &own).await?,
            };
            latest = latest.max(read.now);
            for ((_, index), state) in part.iter().zip(read.states) {
                if let Some(place) = states.get_mut(*index) {
                    *place = state;
                }
            }
        }
        Ok(ReadStates { now: latest, states })
    }

    /// Reads buckets under one hash tag together. `None` if their hash slot is moving, so that each may be on another node.
    async fn read_together(
        &self,
        worker: Worker,
        waiting: WaitPeriod,
        tag: TagIndex,
        keys: &[BucketKey],
    ) -> Result<Option<ReadStates>, StoreError> {
        let ask = |node: Arc<Node>, route| async move {
            if route == Route::Next && keys.len() > 1 {
                // The next node would answer that a bucket is full which has not moved yet.
                return Ok(None);
            }
            node.remote.read(worker, keys, route).await.map(Some)
        };
        self.ask_owner(tag, worker, waiting, ask).await
    }

    async fn read_singly(
        &self,
        worker: Worker,
        waiting: WaitPeriod,
        tag: TagIndex,
        keys: &[BucketKey],
    ) -> Result<ReadStates, StoreError> {
        let mut all = ReadStates { now: Timestamp(0), states: Vec::with_capacity(keys.len()) };
        for key in keys {
            let read = self.read_together(worker, waiting, tag, std::slice::from_ref(key)).await?;
            let ReadStates { now, states } = read.ok_or(StoreError::SlotMoving)?;
            all.now = all.now.max(now);
            all.states.extend(states);
        }
        Ok(all)
    }
}
