//! Settles what a service has held: tells the store the costs, and adds them to the records for billing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::recording::record_settled;
use super::running_holds::RunningHolds;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::records::HeldSubject;
use ledger::bucket_key::BucketKey;
use ledger::charge::LimitId;
use ledger::cost::Cost;
use ledger::holds::{Owner, TimedHoldCost};
use stores::{StoreError, TimedSettlement, Worker};

/// The most settlements without an answer that are kept.
const MOST_UNANSWERED: usize = 65_536;

/// What a service settles of its hold.
#[derive(Debug)]
pub(crate) struct SettledHold {
    pub owner: Owner,
    /// The costs, one for each bucket, each with its limit.
    pub costs: Vec<(LimitId, TimedHoldCost)>,
    /// Who is charged in records.
    pub subject: HeldSubject,
    pub unanswered: Arc<UnansweredSettlements>,
    pub running: Arc<RunningHolds>,
}

/// The settlements of this gateway to which the store gave no answer, so that they may have settled. If a repeated call shows that
/// one has, it is recorded then.
#[derive(Debug, Default)]
pub(crate) struct UnansweredSettlements(Mutex<Unanswered>);

#[derive(Debug, Default)]
struct Unanswered {
    costs: HashMap<(Owner, BucketKey), Cost>,
    /// The keys in the order in which they were added, to forget the oldest ones. Some are no longer there.
    order: VecDeque<(Owner, BucketKey)>,
}

impl UnansweredSettlements {
    /// Notes the result of a settlement. Returns the cost to record, if it has settled now or in an earlier call without an answer.
    fn conclude(
        &self,
        owner: Owner,
        TimedHoldCost { bucket, cost, .. }: &TimedHoldCost,
        result: Result<TimedSettlement, StoreError>,
    ) -> Option<Cost> {
        let mut unanswered = self.0.lock();
        let key = (owner, *bucket);
        match result {
            Ok(settled) => {
                let before = unanswered.costs.remove(&key);
                match settled {
                    TimedSettlement::Settled => Some(*cost),
                    TimedSettlement::SettledBefore => before,
                    TimedSettlement::Ended => None,
                }
            }
            Err(error) => {
                if may_have_run(error) && !unanswered.costs.contains_key(&key) {
                    unanswered.costs.insert(key, *cost);
                    unanswered.order.push_back(key);
                    if unanswered.order.len() > MOST_UNANSWERED
                        && let Some(oldest) = unanswered.order.pop_front()
                    {
                        unanswered.costs.remove(&oldest);
                    }
                }
                None
            }
        }
    }
}

/// Whether a call with this error may have settled.
fn may_have_run(error: StoreError) -> bool {
    matches!(error, StoreError::Timeout | StoreError::Moved | StoreError::Closed | StoreError::UnexpectedReply)
}

/// Settles a hold. What a bucket has settled is recorded, also if another one has not.
///
/// # Errors
/// When the store gave no answer about a bucket. Then the service may repeat its call.
pub(crate) async fn settle(
    gateway: Arc<GatewayState>,
    snapshot: Arc<Snapshot>,
    worker: Worker,
    SettledHold { owner, costs, subject, unanswered, running }: SettledHold,
) -> Result<TimedSettlement, StoreError> {
    let said: Vec<TimedHoldCost> = costs.iter().map(|(_, cost)| *cost).collect();
    let results = gateway.store.settle_timed(worker, owner, &said).await;
    let mut whole = Ok(if costs.is_empty() { TimedSettlement::Settled } else { TimedSettlement::Ended });
    for ((limit, settled), result) in costs.iter().zip(results) {
        if let Some(cost) = unanswered.conclude(owner, settled, result) {
            record_settled(&gateway, &snapshot, worker, *limit, settled, &subject, cost);
        }
        if matches!(result, Ok(TimedSettlement::Settled | TimedSettlement::SettledBefore)) {
            running.settle_bucket(owner, &settled.bucket);
        }
        whole = whole.and_then(|whole| result.map(|result| whole.max(result)));
    }
    if matches!(whole, Ok(TimedSettlement::Settled | TimedSettlement::SettledBefore)) {
        running.end(owner);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::concurrency::Concurrency;

    #[test]
    fn a_settlement_whose_answer_was_lost_is_recorded_once_with_its_first_cost() {
        let unanswered = UnansweredSettlements::default();
        let limit = Algorithm::Concurrency(Concurrency::new(1).unwrap());
        let conclude = |hold: u64, tokens, result| {
            let cost = TimedHoldCost { bucket: BucketKey([1; 16]), limit, cost: Cost::from_tokens(tokens) };
            unanswered.conclude(Owner::of_timed_hold(hold << 16), &cost, result).map(Cost::whole)
        };
        let (settled, before, ended) =
            (TimedSettlement::Settled, TimedSettlement::SettledBefore, TimedSettlement::Ended);
        // It had settled, had not, or had ended.
        for (hold, result, recorded) in [(1, before, Some(3)), (2, settled, Some(4)), (3, ended, None)] {
            assert_eq!(conclude(hold, 3, Err(StoreError::Timeout)), None);
            assert_eq!(conclude(hold, 9, Err(StoreError::Closed)), None);
            assert_eq!(conclude(hold, 4, Ok(result)), recorded, "{result:?}");
            assert_eq!(conclude(hold, 4, Ok(before)), None);
        }
        // A call that was not sent has not settled, so another gateway has.
        assert_eq!((conclude(4, 3, Err(StoreError::Unreachable)), conclude(4, 3, Ok(before))), (None, None));
        for hold in 10..=MOST_UNANSWERED as u64 + 10 {
            conclude(hold, 1, Err(StoreError::Timeout));
        }
        assert_eq!((conclude(10, 1, Ok(before)), conclude(11, 1, Ok(before))), (None, Some(1)));
        assert!(unanswered.0.lock().order.len() <= MOST_UNANSWERED);
    }
}
