//! Combines the replies for the parts of a plan into one reply. The parts are charged one after the other.

use smallvec::SmallVec;

use super::reply::{Source, TakeReply};
use ledger::charge::{Charge, ChargePurpose, Plan, Settlement};
use ledger::outcome::{Outcome, Verdict};

/// The positions that the charges of one part have in the whole plan.
#[derive(Clone, Debug, Default)]
pub struct PartPositions {
    pub enforced: SmallVec<[usize; 2]>,
    pub shadow: SmallVec<[usize; 0]>,
}

/// The reply to a plan, combined from the replies for its parts so far.
#[derive(Debug)]
pub struct ReplyInParts(TakeReply);

impl ReplyInParts {
    pub fn of(plan: &Plan) -> ReplyInParts {
        let enforced = plan.enforced.iter().map(|_| Outcome::UNASKED).collect();
        let shadow = plan.shadow.iter().map(|_| Outcome::UNASKED).collect();
        let settlement = Settlement { verdict: Verdict::Allow, delay: Default::default(), enforced, shadow };
        let (now, reservation) = (Default::default(), Default::default());
        ReplyInParts(TakeReply { now, settlement, evicted: 0, source: Source::Store, reservation })
    }

    /// Adds the reply for another part. `part` has the positions of its charges in the whole plan.
    pub fn add(&mut self, part: &PartPositions, reply: TakeReply) {
        let TakeReply { now, settlement, evicted, source, reservation } = reply;
        self.0.now = now;
        self.0.reservation.join(reservation);
        self.0.evicted += evicted;
        if source == Source::Fallback {
            self.0.source = Source::Fallback;
        }
        let whole = &mut self.0.settlement;
        whole.verdict = settlement.verdict;
        whole.delay = whole.delay.max(settlement.delay);
        put(&mut whole.enforced, &part.enforced, &settlement.enforced);
        put(&mut whole.shadow, &part.shadow, &settlement.shadow);
    }

    /// Notes that the next part is refused. Removes the outcomes of shadow charges.
    pub fn refuse(&mut self, plan: &Plan) {
        let settlement = &mut self.0.settlement;
        settlement.delay = Default::default();
        settlement.shadow.clear();
        std::mem::take(&mut self.0.reservation).release();
        let charges = settlement.enforced.iter_mut().zip(&plan.enforced);
        // A charge that was only checked has paid nothing.
        let paid = |(outcome, charge): &(&mut Outcome, &Charge)| {
            outcome.verdict == Verdict::Allow && charge.purpose == ChargePurpose::Spend
        };
        for (outcome, charge) in charges.filter(paid) {
            outcome.remaining = outcome.remaining.plus(charge.cost).min(charge.algorithm.ceiling());
        }
    }

    pub(crate) fn into_reply(self) -> TakeReply {
        self.0
    }
}

fn put(whole: &mut [Outcome], positions: &[usize], outcomes: &[Outcome]) {
    for (position, outcome) in positions.iter().zip(outcomes) {
        if let Some(one) = whole.get_mut(*position) {
            *one = *outcome;
        }
    }
}
