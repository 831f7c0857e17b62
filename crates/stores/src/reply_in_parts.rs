//! Combines the replies for the parts of a plan into one reply. The parts are charged one after the other.

use smallvec::SmallVec;

use super::reply::{Source, TakeReply};
use base::time::{Micros, Timestamp};
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
        self.count_from(now);
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

    /// Makes `now` the time of the reply. The parts so far were decided at another time, and perhaps by another clock. What is left
    /// of their periods counts from `now` too, so that each still ends at the same moment.
    fn count_from(&mut self, now: Timestamp) {
        let before = std::mem::replace(&mut self.0.now, now);
        let Settlement { enforced, shadow, .. } = &mut self.0.settlement;
        let asked = enforced.iter_mut().chain(shadow).filter(|outcome| outcome.reset_after > Micros(0));
        for outcome in asked {
            outcome.reset_after = Micros(before.plus(outcome.reset_after).since(now).0.max(1));
        }
    }

    /// Notes that a part is refused, so the other parts pay nothing. Removes the outcomes of shadow charges.
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
            outcome.remaining =
                outcome.remaining.plus(charge.cost).min(charge.algorithm.raised(outcome.raised).ceiling());
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

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::bucket_key::BucketKey;
    use ledger::cost::Cost;
    use smallvec::smallvec;

    #[test]
    fn each_period_ends_at_the_same_moment_whichever_part_was_decided_last() {
        let mut plan = Plan::default();
        for bucket in [1, 2] {
            plan.enforce(Charge { key: BucketKey([bucket; 16]), ..Charge::of_token_bucket(bucket, 5, 1) });
        }
        let reply = |now, left| {
            let outcome = Outcome { verdict: Verdict::Allow, reset_after: Micros(left), ..Outcome::UNASKED };
            let (enforced, shadow) = (smallvec![outcome], smallvec![]);
            let settlement = Settlement { verdict: Verdict::Allow, delay: Micros(0), enforced, shadow };
            let (source, reservation) = (Source::Store, Default::default());
            TakeReply { now: Timestamp(now), settlement, evicted: 0, source, reservation }
        };
        let part = |position| PartPositions { enforced: smallvec![position], ..PartPositions::default() };
        for (second, left) in [(1_700, 300), (900, 1_100)] {
            let mut whole = ReplyInParts::of(&plan);
            whole.add(&part(0), reply(1_000, 1_000));
            whole.add(&part(1), reply(second, 50));
            let reply = whole.into_reply();
            let ends: Vec<_> = reply.settlement.enforced.iter().map(|one| reply.now.plus(one.reset_after).0).collect();
            assert_eq!((ends, reply.settlement.enforced[0].reset_after), (vec![2_000, second + 50], Micros(left)));
        }
        assert_eq!(plan.enforced[0].cost, Cost::ONE);
    }
}
