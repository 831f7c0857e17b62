//! Takes and settles for timed holds, whose buckets may be under several hash tags.

use std::sync::Arc;

use super::hash_tags::TagIndex;
use super::nodes::Node;
use super::{Cluster, Take};
use crate::caller::Caller;
use crate::error::StoreError;
use crate::remote::WaitPeriod;
use crate::reply::TakeReply;
use crate::take_failure::TakeFailure;
use crate::timed_settlement::{self, TimedSettlement};
use crate::worker::Worker;
use base::time::Micros;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use ledger::holds::{Owner, TimedHold, TimedHoldCost};

impl Cluster {
    /// Decides a plan as [`Cluster::take`] does, for a timed hold. What some nodes have granted is given back if the plan is not
    /// granted. If a node does not answer then, its part of the hold ends by itself.
    ///
    /// # Errors
    /// Returns the reason why the store has not decided.
    pub async fn take_timed(
        &self,
        worker: Worker,
        plan: &Plan,
        caller: Option<Arc<dyn Caller>>,
        answer_within: Option<Micros>,
        hold: TimedHold,
    ) -> Result<Option<TakeReply>, TakeFailure> {
        let since = self.nodes.clock.now();
        let waiting = WaitPeriod { since, until: answer_within.map(|most| since.plus(most)) };
        let take = Take { worker, plan, caller, waiting, hold: Some(hold) };
        if let Some(tag) = self.only_tag(plan) {
            return Ok(self.take_together(&take, tag).await?);
        }
        let taken = self.take_apart(&take).await;
        if !matches!(&taken, Ok(Some(reply)) if reply.settlement.is_granted()) {
            let (cluster, costs) = (self.clone(), nothing_of(plan));
            tokio::spawn(async move { cluster.settle_timed(worker, hold.owner, &costs).await });
        }
        taken
    }

    /// Settles these costs for a timed hold. Returns the result of each, in their order. Every node is asked, also if another one
    /// has not answered.
    ///
    /// # Errors
    /// Of a cost, if the node of its bucket gave no answer.
    pub async fn settle_timed(
        &self,
        worker: Worker,
        owner: Owner,
        costs: &[TimedHoldCost],
    ) -> Vec<Result<TimedSettlement, StoreError>> {
        let tags = &self.nodes.directory.tags;
        let settle = |tag: TagIndex, costs: Vec<TimedHoldCost>| {
            let call = TimedHold::settle(owner, &costs);
            let waiting = WaitPeriod { since: self.nodes.clock.now(), until: None };
            async move {
                let settle = |node: Arc<Node>, route| {
                    let call = call.clone();
                    async move { node.remote.settle_timed(worker, call, waiting, route).await }
                };
                self.ask_owner(tag, worker, waiting, settle).await
            }
        };
        by_tag(costs, |bucket| tags.of(bucket), settle).await
    }
}

/// Returns the settlement that gives back what a timed hold has taken for this plan.
pub(super) fn nothing_of(plan: &Plan) -> Vec<TimedHoldCost> {
    let nothing = |(_, charge, _): (usize, &Charge, _)| TimedHoldCost {
        bucket: charge.key,
        limit: charge.algorithm,
        cost: Cost::default(),
    };
    plan.asks().map(nothing).collect()
}

/// Calls `settle` once for each hash tag, with the costs of its buckets, and returns the result of each cost. An error counts for
/// the costs of its tag only.
async fn by_tag<F>(
    costs: &[TimedHoldCost],
    tag_of: impl Fn(&BucketKey) -> TagIndex,
    settle: impl Fn(TagIndex, Vec<TimedHoldCost>) -> F,
) -> Vec<Result<TimedSettlement, StoreError>>
where
    F: Future<Output = Result<Vec<TimedSettlement>, StoreError>>,
{
    let mut tagged: Vec<(TagIndex, usize, TimedHoldCost)> =
        costs.iter().enumerate().map(|(index, one)| (tag_of(&one.bucket), index, *one)).collect();
    tagged.sort_by_key(|(tag, index, _)| (*tag, *index));
    let mut results: Vec<(usize, Result<TimedSettlement, StoreError>)> = Vec::with_capacity(costs.len());
    for part in tagged.chunk_by(|(one, ..), (other, ..)| one == other) {
        let Some((tag, ..)) = part.first() else { continue };
        let answer = settle(*tag, part.iter().map(|(.., cost)| *cost).collect()).await;
        let of = |at| answer.as_ref().map(|results| timed_settlement::at(results, at)).map_err(|error| *error);
        results.extend(part.iter().enumerate().map(|(at, (_, index, _))| (*index, of(at))));
    }
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::concurrency::Concurrency;

    #[tokio::test]
    async fn a_node_without_an_answer_keeps_no_other_from_settling() {
        let limit = Algorithm::Concurrency(Concurrency::new(3).unwrap());
        let cost = |bucket: u8| TimedHoldCost { bucket: BucketKey([bucket; 16]), limit, cost: Cost::default() };
        let costs = [30, 10, 21, 20, 31].map(cost);
        let settle = |tag: TagIndex, costs: Vec<TimedHoldCost>| {
            std::future::ready(match tag {
                TagIndex(1) => Err(StoreError::Timeout),
                TagIndex(2) => Ok(vec![TimedSettlement::SettledBefore, TimedSettlement::Settled]),
                _ => Ok(costs.iter().map(|_| TimedSettlement::Settled).collect()),
            })
        };
        let settled = by_tag(&costs, |bucket| TagIndex((bucket.0[0] / 10).into()), settle).await;
        let (first, before) = (Ok(TimedSettlement::Settled), Ok(TimedSettlement::SettledBefore));
        assert_eq!(settled, [first, Err(StoreError::Timeout), before, first, first]);
    }
}
