//! Caches *short* buckets, which cannot pay yet, so that requests for them are refused without a call.
//!
//! A reply contains the level of a bucket. Only buckets that time alone refills are cached. So the bucket holds at
//! most this level plus the refill since the call was *sent*. If that cannot pay a request, the store would refuse the
//! request too.
//!
//! The store's clock is assumed to run faster by a thousandth. The store is asked again after a second at the latest.
//! A lost entry costs only a call.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use quick_cache::sync::Cache;
use smallvec::SmallVec;

use crate::remote::undone_charges::UndoneCharges;
use base::interval::fixed_interval;
use base::time::{Micros, Timestamp};
use ledger::algorithm::{ChargeResult, Level, State, raise};
use ledger::bucket_key::BucketKey;
use ledger::charge::{LimitId, Plan, Settlement};
use ledger::outcome::{BanNotice, Outcome, Verdict};

/// The maximum number of entries.
const MAX_BUCKETS: usize = 65_536;
/// How long an entry is valid.
const MAX_AGE: Micros = Micros(1_000_000);
/// How long an entry is valid if charges to its bucket may be undone.
const MAX_AGE_WITH_UNDONE: Duration = Duration::from_millis(10);
/// The store's clock is assumed to be faster by at most 1 µs in this many µs.
const SKEW: u64 = 1_000;

/// A bucket that could not pay a charge, with its last known level.
#[derive(Clone, Debug)]
struct ShortBucket {
    state: State,
    /// The time of the level, on the store's clock.
    decided: Timestamp,
    /// The time just before the call for the level was sent, on this process's clock.
    sent: Timestamp,
    /// The number of invalidations when the call was sent.
    epoch: u64,
}

/// The time at which a call was sent, and the cache's number of invalidations at that time.
#[derive(Clone, Copy, Debug)]
pub struct SendStamp {
    at: Timestamp,
    epoch: u64,
}

/// A cache of *short* buckets, shared by all workers.
#[derive(Debug)]
pub struct DenyCache {
    short: Cache<BucketKey, ShortBucket>,
    undone: UndoneCharges,
    /// The limits whose charges other gateways may undo.
    undoable: ArcSwap<HashSet<LimitId>>,
    /// How long an entry for a bucket of an `undoable` limit is valid.
    max_age_with_undone: Micros,
    /// The number of invalidations.
    epoch: AtomicU64,
}

impl DenyCache {
    pub fn new() -> DenyCache {
        DenyCache {
            short: Cache::new(MAX_BUCKETS),
            undone: UndoneCharges::default(),
            undoable: ArcSwap::default(),
            max_age_with_undone: fixed_interval("undone_levels", MAX_AGE_WITH_UNDONE).into(),
            epoch: AtomicU64::new(0),
        }
    }

    /// Removes all entries, and ignores entries from the calls under way.
    pub fn invalidate(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the stamp for a call that is sent now. `at` is the present time on this process's clock.
    pub(crate) fn stamp(&self, at: Timestamp) -> SendStamp {
        SendStamp { at, epoch: self.epoch.load(Ordering::Acquire) }
    }

    /// Removes the entry of a bucket after a charge to the bucket was undone. Replies to calls that were sent before
    /// `now` make no new entry.
    pub fn forget(&self, key: BucketKey, now: Timestamp) {
        self.undone.add(key, now);
        self.short.remove(&key);
    }

    /// Sets the limits whose entries are valid for a shorter time, because their charges may be undone.
    pub fn expect_undone_charges(&self, limits: HashSet<LimitId>) {
        self.undoable.store(Arc::new(limits));
    }

    /// Adds the limits of this plan to those whose charges may be undone.
    pub(crate) fn expect_undone_charges_of(&self, plan: &Plan) {
        let limits = || plan.enforced.iter().map(|charge| charge.limit);
        let known = self.undoable.load();
        if !limits().all(|limit| known.contains(&limit)) {
            self.undoable.rcu(|known| known.iter().copied().chain(limits()).collect::<HashSet<_>>());
        }
    }

    /// How long an entry for a bucket of this limit is valid.
    fn max_age(&self, limit: LimitId) -> Micros {
        let undoable = self.undoable.load();
        if !undoable.is_empty() && undoable.contains(&limit) { self.max_age_with_undone } else { MAX_AGE }
    }

    /// Adds a bucket that could not pay its last charge, or could not pay it again.
    pub fn remember(&self, key: BucketKey, state: State, decided: Timestamp, sent: SendStamp) {
        if self.undone.contain(&key, sent.at) {
            return;
        }
        // The cache's time is ahead of the store's, so a raise that ends must not refuse here before it does there.
        let state = raise::without_ends(state, decided);
        self.short.insert(key, ShortBucket { state, decided, sent: sent.at, epoch: sent.epoch });
    }

    /// Refuses a plan that a short bucket cannot pay. `None` if the store must be asked.
    pub fn refuse(&self, plan: &Plan, now: Timestamp) -> Option<(Timestamp, Settlement)> {
        if self.short.is_empty() {
            return None;
        }
        let mut refused = None;
        let mut enforced: SmallVec<[Outcome; 2]> = SmallVec::new();
        for charge in &plan.enforced {
            let (short_stays, bans) = (charge.algorithm.frees_only_with_time(), charge.algorithm.ban().is_some());
            let known = (short_stays || bans).then(|| self.short.get(&charge.key)).flatten();
            let known = known
                .and_then(|known| known.at_most(self.epoch.load(Ordering::Acquire), self.max_age(charge.limit), now));
            let short = known.and_then(|(state, latest)| {
                // Another request may have refilled the bucket at the highest rate.
                let bound = charge.algorithm.at_fastest();
                let step = bound.step(Some(&state), charge.cost, latest);
                let step = match step.charge {
                    ChargeResult::Short { .. } if bound != charge.algorithm => {
                        charge.algorithm.step(Some(&state), charge.cost, latest)
                    }
                    _ => step,
                };
                let Level { remaining, reset_after } = step.untouched;
                let raised = charge.algorithm.raised_by(Some(&state), latest);
                let level = Outcome { remaining, reset_after, raised, ..Outcome::UNASKED };
                match step.charge {
                    ChargeResult::Banned { wait, step, begins: None } => {
                        let ban = Some(BanNotice { step, begins: false });
                        Some((latest, Outcome { verdict: Verdict::Banned, retry_after: wait, ban, ..level }))
                    }
                    // A request that is refused without a ban can begin one.
                    ChargeResult::Short { .. } if bans => None,
                    ChargeResult::Short { wait } if charge.algorithm.tells_until(&state, latest.plus(wait)) => {
                        Some((latest, Outcome { verdict: Verdict::Deny, retry_after: wait, ..level }))
                    }
                    _ => None,
                }
            });
            refused = short.map(|(latest, _)| latest).or(refused);
            enforced.push(short.map_or(Outcome::UNASKED, |(_, outcome)| outcome));
        }
        refused.map(|latest| (latest, Settlement::refused(enforced)))
    }
}

impl ShortBucket {
    /// Returns the state, and the latest possible time on the store's clock. `None` if the entry is outdated.
    fn at_most(self, epoch: u64, max_age: Micros, now: Timestamp) -> Option<(State, Timestamp)> {
        let passed = now.since(self.sent);
        let counts = self.epoch == epoch && passed <= max_age;
        counts.then(|| (self.state, self.decided.plus(passed).plus(Micros(passed.0 / SKEW + 1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::algorithm::leaky_bucket::{LeakyBucket, Settings};
    use ledger::algorithm::sliding_log::SlidingLog;
    use ledger::algorithm::token_bucket::{Rate, TokenBucket};
    use ledger::algorithm::{Algorithm, RequestNumbers};
    use ledger::bucket_key::LimitTag;
    use ledger::charge::{Charge, ChargePurpose, LimitId, settle};
    use ledger::cost::Cost;
    use proptest::prelude::*;
    use smallvec::smallvec;

    fn charge(bucket: u8, rate: u64, burst: u64, cost: u64) -> Charge {
        let rate = Rate { amount: Cost::from_thousandths(rate), period: Micros(1_000_000) };
        Charge {
            key: BucketKey([bucket; 16]),
            algorithm: Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap()),
            cost: Cost::from_thousandths(cost),
            limit: LimitId(0),
            variant: 0,
            tag: LimitTag::default(),
            purpose: ChargePurpose::Spend,
        }
    }

    fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
        Plan { enforced: charges.into_iter().collect(), shadow: smallvec![] }
    }

    /// Makes a cache with a bucket of 1 per second. It was drained at 5 s of the store's clock and 1000 s of ours.
    fn drained() -> (DenyCache, Timestamp) {
        let (deny_cache, sent) = (DenyCache::new(), Timestamp(1_000_000_000));
        let drained = plan([charge(1, 1000, 1, 1000)]);
        let (_, entries) = settle(&drained, &[None::<State>], Timestamp(5_000_000));
        let state = entries[0].clone().unwrap().state;
        deny_cache.remember(BucketKey([1; 16]), state, Timestamp(5_000_000), deny_cache.stamp(sent));
        (deny_cache, sent)
    }

    fn wait(deny_cache: &DenyCache, plan: &Plan, now: Timestamp) -> Option<Micros> {
        deny_cache.refuse(plan, now).map(|(_, settlement)| settlement.enforced[0].retry_after)
    }

    #[test]
    fn a_drained_bucket_is_refused_without_redis_until_it_could_pay() {
        let (deny_cache, sent) = drained();
        let one = plan([charge(1, 1000, 1, 1000)]);
        assert_eq!(wait(&deny_cache, &one, sent), Some(Micros(999_999)));
        assert_eq!(wait(&deny_cache, &one, sent.plus(Micros(500_000))), Some(Micros(499_499)));
        // The bucket counts as refilled up to a thousandth too early, and never too late.
        assert_eq!(wait(&deny_cache, &one, sent.plus(Micros(998_000))), Some(Micros(1_001)));
        assert_eq!(wait(&deny_cache, &one, sent.plus(Micros(999_500))), None);
        // The bucket can pay a smaller cost sooner.
        assert_eq!(wait(&deny_cache, &plan([charge(1, 1000, 1, 100)]), sent.plus(Micros(200_000))), None);
    }

    #[test]
    fn the_number_of_cached_buckets_is_bounded() {
        let (deny_cache, sent) = drained();
        let known = deny_cache.short.get(&BucketKey([1; 16])).unwrap();
        let key = |number: u32| BucketKey(std::array::from_fn(|at| number.to_le_bytes()[at % 4]));
        for number in 0..200_000 {
            deny_cache.remember(key(number), known.state.clone(), known.decided, deny_cache.stamp(sent));
        }
        // At least half of the places are in use.
        assert!((MAX_BUCKETS / 2..=MAX_BUCKETS).contains(&deny_cache.short.len()), "{}", deny_cache.short.len());
    }

    #[test]
    fn a_level_is_used_for_a_second_and_on_the_same_connection() {
        let (deny_cache, sent) = drained();
        let dear = plan([charge(1, 1, 1, 1000)]);
        assert!(wait(&deny_cache, &dear, sent.plus(MAX_AGE)).is_some());
        assert_eq!(wait(&deny_cache, &dear, sent.plus(Micros(MAX_AGE.0 + 1))), None);
        deny_cache.invalidate();
        assert_eq!(wait(&deny_cache, &dear, sent), None);
    }

    #[test]
    fn a_bucket_whose_charge_was_undone_is_cached_from_a_later_call_only() {
        let (deny_cache, sent) = drained();
        let one = plan([charge(1, 1000, 1, 1000)]);
        let known = deny_cache.short.get(&BucketKey([1; 16])).unwrap();
        let remember = |at| {
            let stamp = deny_cache.stamp(at);
            deny_cache.remember(BucketKey([1; 16]), known.state.clone(), known.decided, stamp);
        };
        deny_cache.forget(BucketKey([1; 16]), sent.plus(Micros(10)));
        assert_eq!(wait(&deny_cache, &one, sent.plus(Micros(20))), None);
        // This call may have been decided before the charge was undone.
        remember(sent.plus(Micros(10)));
        assert_eq!(wait(&deny_cache, &one, sent.plus(Micros(20))), None);
        remember(sent.plus(Micros(11)));
        assert!(wait(&deny_cache, &one, sent.plus(Micros(20))).is_some());
        deny_cache.expect_undone_charges_of(&one);
        assert!(wait(&deny_cache, &one, sent.plus(Micros(10_011))).is_some());
        assert_eq!(wait(&deny_cache, &one, sent.plus(Micros(10_012))), None);
    }

    #[test]
    fn an_entry_is_used_for_a_shorter_time_only_where_charges_may_be_undone() {
        let (deny_cache, sent) = drained();
        let (alone, beside) = (LimitId(1), LimitId(2));
        let of = |limit| plan([Charge { limit, ..charge(1, 1, 1, 1000) }]);
        let late = sent.plus(Micros(900_000));
        let is_refused = || [alone, beside].map(|limit| wait(&deny_cache, &of(limit), late).is_some());
        assert_eq!(is_refused(), [true, true]);
        deny_cache.expect_undone_charges(HashSet::from([beside]));
        assert_eq!(is_refused(), [true, false]);
        assert!(wait(&deny_cache, &of(beside), sent.plus(MAX_AGE_WITH_UNDONE.into())).is_some());
        // A request has charged both limits together.
        deny_cache.expect_undone_charges_of(&of(alone));
        assert_eq!(is_refused(), [false, false]);
        // Another configuration was loaded, whose charges are never undone.
        deny_cache.expect_undone_charges(HashSet::new());
        assert_eq!(is_refused(), [true, true]);
    }

    #[test]
    fn a_bucket_without_a_cached_level_is_reported_as_unasked() {
        let (deny_cache, sent) = drained();
        let both = plan([charge(2, 1000, 5, 1000), charge(1, 1000, 1, 1000)]);
        let (_, settlement) = deny_cache.refuse(&both, sent).unwrap();
        let verdicts: Vec<_> = settlement.enforced.iter().map(|outcome| outcome.verdict).collect();
        assert_eq!((settlement.verdict, verdicts), (Verdict::Deny, vec![Verdict::Unasked, Verdict::Deny]));
        assert_eq!(deny_cache.refuse(&plan([charge(2, 1000, 5, 1000)]), sent), None);
    }

    /// A charge of a request with its own rate, of at most 5 per second, in thousandths.
    fn charge_at(rate: u64, burst: u64, cost: u64) -> Charge {
        let rates = TokenBucket::with_rates_up_to(Cost::from_tokens(5), 1).unwrap();
        let ceiling = Some(Cost::from_tokens(burst));
        let numbers = RequestNumbers { rate: Some(Cost::from_thousandths(rate)), ceiling };
        let algorithm = Algorithm::TokenBucket(rates.for_request(numbers, Cost::default()));
        Charge { algorithm, ..charge(1, 1000, 1, cost) }
    }

    #[test]
    fn a_bucket_that_others_refill_faster_is_refused_as_long_as_they_could_not_pay_either() {
        let (deny_cache, sent) = (DenyCache::new(), Timestamp(1_000_000_000));
        let (_, entries) = settle(&plan([charge_at(1000, 10, 10_000)]), &[None::<State>], Timestamp(5_000_000));
        let state = entries[0].clone().unwrap().state;
        deny_cache.remember(BucketKey([1; 16]), state, Timestamp(5_000_000), deny_cache.stamp(sent));
        let slow = plan([charge_at(1000, 10, 1000)]);
        // At 5 per second, one token is back after 200 ms. The reported wait is by the request's own rate.
        assert_eq!(wait(&deny_cache, &slow, sent.plus(Micros(199_000))), Some(Micros(800_800)));
        assert_eq!(wait(&deny_cache, &slow, sent.plus(Micros(200_000))), None);
    }

    #[test]
    fn a_bucket_that_others_refill_faster_is_refused_only_while_it_could_not_pay_them() {
        let (deny_cache, sent) = drained();
        let (slow, fast) = (charge(1, 1000, 1, 1000), charge(1, 10_000, 10, 1000));
        let asked = plan([Charge { algorithm: slow.algorithm.alongside(&fast.algorithm), ..slow }]);
        // The reported wait is by the charge's own rate.
        assert_eq!(wait(&deny_cache, &asked, sent.plus(Micros(50_000))), Some(Micros(949_949)));
        assert_eq!(wait(&deny_cache, &asked, sent.plus(Micros(99_000))), Some(Micros(900_900)));
        // After 100 ms, a request at the fast rate may have refilled the bucket.
        assert_eq!(wait(&deny_cache, &asked, sent.plus(Micros(100_000))), None);
    }

    proptest! {
        /// Checks the invariant of the cache for requests that each have their own rate and burst.
        #[test]
        fn nothing_is_refused_that_redis_would_grant_at_any_rate(
            (rate, burst, cost) in (1u64..5_000, 5u64..50, 1u64..5_000),
            missing in 1u64..3_000,
            later in 0u64..1_000_000,
            others in prop::collection::vec((0u64..1_000_000, 1u64..5_000, 1u64..60, 1u64..300), 0..8),
        ) {
            // The missing amount is small, so the rate decides whether it is refilled in time.
            let asked = charge_at(rate, burst, cost);
            let spent = (burst * 1000 + missing).saturating_sub(cost).min(burst * 1000);
            let (_, entries) = settle(&plan([charge_at(5_000, burst, spent)]), &[None::<State>], Timestamp(1 << 50));
            let mut state = entries[0].clone().unwrap().state;
            let deny_cache = DenyCache::new();
            deny_cache.remember(asked.key, state.clone(), Timestamp(1 << 50), deny_cache.stamp(Timestamp(0)));
            if deny_cache.refuse(&plan([asked.clone()]), Timestamp(later)).is_some() {
                let there = Timestamp(1 << 50).plus(Micros(later));
                let mut others = others;
                others.sort_unstable();
                for (at, rate, burst, cost) in others {
                    let moment = Timestamp(1 << 50).plus(Micros(at)).min(there);
                    let (_, entries) = settle(&plan([charge_at(rate, burst, cost)]), &[Some(state.clone())], moment);
                    if let Some(Some(entry)) = entries.first() {
                        state = entry.state.clone();
                    }
                }
                let (settlement, _) = settle(&plan([asked]), &[Some(state)], there);
                prop_assert_eq!(settlement.verdict, Verdict::Deny);
            }
        }

        /// Checks that the store would also refuse what the cache refuses.
        #[test]
        fn nothing_is_refused_that_redis_would_grant(
            rate in 1u64..5_000,
            burst in 5u64..50,
            spent in 1u64..50_000,
            cost in 1u64..5_000,
            delay in 0u64..300_000,
            later in 0u64..1_000_000,
            others in prop::collection::vec((0u64..1_000_000, 1u64..3_000), 0..5),
            patience in prop::option::of(0u64..3_000_000),
        ) {
            // A leaky bucket may also refuse because of too long a wait.
            let queue = |patience| {
                let rate = Rate { amount: Cost::from_thousandths(rate), period: Micros(1_000_000) };
                let (queue, max_wait) = (u32::try_from(burst).unwrap() - 3, Micros(60_000_000));
                let bucket = LeakyBucket::new(Settings { rate, queue, max_wait, delay_after: 2 }).unwrap();
                Algorithm::LeakyBucket(bucket.within(Micros(patience)))
            };
            let charge = |patience: Option<u64>, cost| {
                let charge = charge(1, rate, burst, cost);
                Charge { algorithm: patience.map_or(charge.algorithm, queue), ..charge }
            };
            let (wanted, any) = (charge(patience, cost), patience.map(|_| u64::MAX));
            let took = charge(any, spent.min(burst * 1000));
            let start = Timestamp(1 << 50);
            // The call was sent at 0 on this process's clock. The script ran `delay` later.
            let ran = start.plus(Micros(delay));
            let (_, entries) = settle(&plan([took]), &[None::<State>], ran);
            let mut state = entries[0].clone().unwrap().state;
            let deny_cache = DenyCache::new();
            deny_cache.remember(wanted.key, state.clone(), ran, deny_cache.stamp(Timestamp(0)));
            let now = Timestamp(later);
            if deny_cache.refuse(&plan([wanted.clone()]), now).is_some() {
                let there = start.plus(Micros(later.max(delay)));
                let mut others = others;
                others.sort_unstable();
                for (at, other) in others {
                    let moment = ran.plus(Micros(at)).min(there);
                    let (_, entries) = settle(&plan([charge(any, other)]), &[Some(state.clone())], moment);
                    if let Some(Some(entry)) = entries.first() {
                        state = entry.state.clone();
                    }
                }
                let (settlement, _) = settle(&plan([wanted]), &[Some(state)], there);
                prop_assert_eq!(settlement.verdict, Verdict::Deny);
            }
        }

        /// Checks the invariant for an excerpt of a log. Also checks that no reported wait is longer than the store's.
        #[test]
        fn an_excerpt_of_a_log_refuses_nothing_that_redis_would_grant(
            grants in prop::collection::vec((0u64..60_000, 1u64..3_000), 1..60),
            cost in 1u64..40_000,
            delay in 0u64..300_000,
            later in 0u64..1_000_000,
        ) {
            let log = Algorithm::SlidingLog(SlidingLog::new(40, Micros(1_000_000)).unwrap());
            let of = |cost| Charge { algorithm: log, ..charge(1, 1, 1, cost) };
            let (mut state, mut ran) = (None, Timestamp(1 << 50));
            for (after, cost) in grants {
                ran = ran.plus(Micros(after));
                let (_, entries) = settle(&plan([of(cost)]), &[state.clone()], ran);
                state = entries.into_iter().next().flatten().map(|entry| entry.state).or(state);
            }
            let deny_cache = DenyCache::new();
            let excerpt = log.excerpt(state.clone().unwrap());
            deny_cache.remember(BucketKey([1; 16]), excerpt, ran, deny_cache.stamp(Timestamp(0)));
            if let Some((_, refused)) = deny_cache.refuse(&plan([of(cost)]), Timestamp(later)) {
                let there = ran.plus(Micros(later.saturating_sub(delay)));
                let (settlement, _) = settle(&plan([of(cost)]), &[state], there);
                prop_assert_eq!(settlement.verdict, Verdict::Deny);
                prop_assert!(refused.enforced[0].retry_after <= settlement.enforced[0].retry_after);
            }
        }
    }
}
