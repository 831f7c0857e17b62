//! Defines the failure of a take, with the charges that some of several servers have granted.

use std::fmt;

use super::error::StoreError;
use super::reply::TakeReply;
use super::reply_in_parts::{PartPositions, ReplyInParts};
use ledger::charge::Plan;

/// The error of a store, with the part of the plan that was decided.
#[derive(Debug)]
pub struct TakeFailure {
    pub error: StoreError,
    /// The charges that some of several servers have granted. `None` if no charge is known to be granted.
    pub partial: Option<Box<PartialTake>>,
}

/// A plan that some servers have granted in part, while other servers gave no answer. Dropping this value gives the
/// granted charges back.
#[derive(Debug)]
pub struct PartialTake {
    unanswered: Plan,
    positions: PartPositions,
    reply: ReplyInParts,
    granted: Box<dyn ProvisionalCharges>,
}

/// Charges that are given back when this value is dropped.
pub trait ProvisionalCharges: fmt::Debug + Send {
    /// Keeps the charges.
    fn keep(self: Box<Self>);
}

impl PartialTake {
    /// Makes a partial take. `unanswered` are the charges without an answer, and `positions` their positions in the
    /// whole plan. `reply` has the replies to the other charges. `granted` gives these charges back when it is dropped.
    pub fn new(
        unanswered: Plan,
        positions: PartPositions,
        reply: ReplyInParts,
        granted: Box<dyn ProvisionalCharges>,
    ) -> PartialTake {
        PartialTake { unanswered, positions, reply, granted }
    }

    /// Returns the enforced charges without an answer.
    pub fn unanswered(&self) -> &Plan {
        &self.unanswered
    }

    /// Returns the reply for the whole plan. `rest` is the reply to the unanswered charges. If it is a refusal, the
    /// granted charges are given back.
    pub fn settle(self, plan: &Plan, rest: TakeReply) -> TakeReply {
        let PartialTake { positions, mut reply, granted, .. } = self;
        if rest.settlement.is_granted() {
            granted.keep();
        } else {
            reply.refuse(plan);
        }
        reply.add(&positions, rest);
        reply.into_reply()
    }
}

impl From<StoreError> for TakeFailure {
    fn from(error: StoreError) -> TakeFailure {
        TakeFailure { error, partial: None }
    }
}
