//! Defines the failure of a take: the reason, and the charges that some of several servers have granted.

use std::fmt;

use super::error::StoreError;
use super::reply::TakeReply;
use super::reply_in_parts::{PartPositions, ReplyInParts};
use ledger::charge::Plan;

/// The error for a plan that was not decided.
#[derive(Debug)]
pub struct TakeFailure {
    pub error: StoreError,
    /// The charges that other servers have granted, if buckets are on several servers. `None`: no charge is known.
    pub partial: Option<Box<PartialTake>>,
}

/// A plan of which some servers have granted their part, and others gave no answer. Dropping it gives the granted charges back;
/// charges without an answer count as spent.
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
    /// Makes a partial take. `unanswered` are the charges without an answer, which have these positions in the whole plan;
    /// `reply` has the others.
    pub fn new(
        unanswered: Plan,
        positions: PartPositions,
        reply: ReplyInParts,
        granted: Box<dyn ProvisionalCharges>,
    ) -> PartialTake {
        PartialTake { unanswered, positions, reply, granted }
    }

    /// The enforced charges without an answer.
    pub fn unanswered(&self) -> &Plan {
        &self.unanswered
    }

    /// The reply for the whole plan, once the rest was decided elsewhere. If the rest is refused, the granted charges are given
    /// back.
    pub fn settle(self, plan: &Plan, rest: &TakeReply) -> TakeReply {
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
