//! Does the acts of leases on buckets in memory.

use super::Memory;
use super::queue_id::{QueueId, SpentClass};
use crate::lease_acts::{ActResult, ActResults, BucketAct};

impl Memory {
    /// Does these acts, one after another. A reply may be sent as soon as this returns.
    pub fn act(&self, acts: &[BucketAct]) -> ActResults {
        let (mut now, mut healed) = (self.time().date, 0);
        let results = acts.iter().map(|BucketAct { key, limit, tag, act }| {
            let mut shard = self.shard(self.shard_of(key)).lock();
            // The clock is read under the lock, so that the times of a bucket's acts never go back.
            let time = self.time();
            now = time.date;
            let kept = shard.get(key).map(AsRef::as_ref);
            let is_healed = limit.correction(kept, time.of(limit)).is_some();
            let Some((entry, reply)) = act.apply(limit, kept, time.of(limit)) else { return ActResult::OtherLimit };
            if let Some(entry) = entry {
                // What is lost of a lease is lost for all regions, so such a bucket is evicted last.
                self.keep(&mut shard, *key, QueueId::new(*tag, SpentClass::Drained), entry, time.now);
                healed += u64::from(is_healed);
            }
            ActResult::Done(reply)
        });
        let results = results.collect();
        ActResults { now, healed, results }
    }
}

#[cfg(test)]
mod tests {
    use crate::lease_acts::{ActResult, BucketAct};
    use crate::memory::{Memory, Settings};
    use base::time::{Clock, Micros, Timestamp};
    use ledger::algorithm::Algorithm;
    use ledger::algorithm::budget::SpentLimit;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::algorithm::lease::{Home, LeaseAct, LeaseReply, Purse, PurseAct, PurseReply, RegionId};
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    use ledger::bucket_key::{BucketKey, LimitTag};
    use ledger::charge::{Charge, Plan};
    use ledger::cost::Cost;

    const HOUR: Micros = Micros(3_600_000_000);
    const PURSE: BucketKey = BucketKey([1; 16]);
    const HOME: BucketKey = BucketKey([2; 16]);

    fn limit() -> SpentLimit {
        SpentLimit::FixedWindow(FixedWindow::new(100, Window::Epoch(HOUR)).unwrap())
    }

    fn take(memory: &std::sync::Arc<Memory>, key: BucketKey, algorithm: Algorithm) -> bool {
        let mut plan = Plan::default();
        plan.enforce(Charge { tag: LimitTag(1), ..Charge::new(key, algorithm, Cost::ONE) });
        memory.take(&plan).settlement.is_granted()
    }

    #[test]
    fn a_purse_is_filled_from_its_home_and_a_flood_of_other_buckets_evicts_neither() {
        let clock = Clock::manual(Timestamp(1_763_672_400_000_000));
        let memory = Memory::new(&Settings { max_buckets: 64, ..Settings::default() }, clock);
        let home = Algorithm::Home(Home::new(limit(), 2, HOUR).unwrap());
        let purse = Purse::new(limit(), Cost::from_tokens(10), Micros(500_000), Micros(60_000_000)).unwrap();
        let purse = Algorithm::Purse(purse);
        let act = |key, limit, act| match memory.act(&[BucketAct { key, limit, tag: LimitTag(1), act }]).results[..] {
            [ActResult::Done(reply)] => reply,
            ref other => panic!("{other:?}"),
        };
        assert!(!take(&memory, PURSE, purse));
        let mark = LeaseAct::Purse(PurseAct::Mark { cost: Cost::ONE, tag: 3 });
        let LeaseReply::Purse(PurseReply::Send(marked)) = act(PURSE, purse, mark) else { panic!("no word") };
        let word = LeaseAct::Word(RegionId::of("eu"), marked.word);
        let LeaseReply::Home(answer) = act(HOME, home, word) else { panic!("no answer") };
        let credit = PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::ONE };
        assert_eq!(act(PURSE, purse, LeaseAct::Purse(credit)), LeaseReply::Purse(PurseReply::Credited));
        assert!(take(&memory, PURSE, purse));
        // Drained, and full again before the purse ends.
        let rate = Rate { amount: Cost::ONE, period: Micros(HOUR.0 / 2) };
        let flood = Algorithm::TokenBucket(TokenBucket::new(rate, 1).unwrap());
        for key in 0..500u128 {
            assert!(take(&memory, BucketKey((key + 1_000_000).to_le_bytes()), flood));
        }
        for _ in 0..9 {
            assert!(take(&memory, PURSE, purse));
        }
        assert!(!take(&memory, PURSE, purse));
        assert_eq!(act(HOME, home, word), LeaseReply::Home(answer));
        let wrong = BucketAct { key: PURSE, limit: home, tag: LimitTag(1), act: mark };
        assert_eq!(memory.act(&[wrong]).results, [ActResult::OtherLimit]);
    }
}
