//! Decides plans in memory while the store gives no answer, by this gateway's share of each limit.
//!
//! A share is the limit divided by the number of live gateways that the store last reported. A bucket starts with this
//! gateway's part of the level that the store last showed. So an outage does not refill it. Charges during an outage
//! are remembered until the next outage.
//!
//! A ban that the store has shown refuses requests until its end. No ban begins here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;

use super::error::StoreError;
use super::memory;
use super::memory::Memory;
use super::memory::local_holds::SlotBook;
use super::reply::{Source, TakeReply};
use super::reservation::Reservation;
use super::store_clock::StoreClock;
use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::State;
use ledger::algorithm::ban::BanPeriod;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, Settlement};
use ledger::cost::Cost;
use ledger::outcome::{BanNotice, Outcome, Verdict};
use smallvec::SmallVec;

/// The maximum number of buckets whose last level is remembered.
const MAX_OBSERVED: usize = 65_536;
/// The level of a bucket that is full again within this time is not remembered.
const MIN_RESET_AFTER: Micros = Micros(10_000);

/// The number of older gateways before a heartbeat has told it.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
pub struct FallbackShare {
    clock: Clock,
    memory: Memory,
    observed: Cache<BucketKey, Observation>,
    /// The bans that the store has shown. Their ends are times of this process's clock.
    bans: Cache<BucketKey, BanPeriod>,
    /// The number of gateways in gateway.yaml. Limits are never divided among fewer gateways.
    at_least: u64,
    gateways: AtomicU64,
    /// How many live gateways do not read the newest format of states, by the last heartbeat; [`UNKNOWN`] before the first.
    older_gateways: AtomicU64,
}

/// A bucket's level as the store last showed it.
#[derive(Clone, Debug)]
struct Observation {
    state: State,
    /// The time at which the bucket had this level, on the store's clock.
    decided: Timestamp,
    /// The time at which the bucket had this level, on this process's clock, as nearly as it is known.
    at: Timestamp,
}

impl FallbackShare {
    /// Makes the shares for a store. `at_least` is the number of gateways from the configuration, and `store_clock`
    /// shows the time of the store.
    pub fn new(at_least: u64, clock: Clock, store_clock: Arc<StoreClock>) -> FallbackShare {
        FallbackShare::bounded(&memory::Settings::default(), at_least, clock, store_clock)
    }

    fn bounded(
        settings: &memory::Settings,
        at_least: u64,
        clock: Clock,
        store_clock: Arc<StoreClock>,
    ) -> FallbackShare {
        FallbackShare {
            memory: Memory::in_place_of_store(settings, clock.clone(), store_clock),
            clock,
            observed: Cache::new(MAX_OBSERVED),
            bans: Cache::new(MAX_OBSERVED),
            at_least,
            gateways: AtomicU64::new(at_least),
            older_gateways: AtomicU64::new(UNKNOWN),
        }
    }

    /// Sets the number of gateways among which the limits are divided, and returns this number. It is the number of
    /// live gateways, but at least the number from the configuration.
    pub(crate) fn set_gateways(&self, gateways: u64) -> u64 {
        let gateways = gateways.max(self.at_least);
        self.gateways.store(gateways, Ordering::Relaxed);
        gateways
    }

    /// Notes how many live gateways do not read the newest format of states.
    pub(crate) fn set_older_gateways(&self, older: u64) {
        self.older_gateways.store(older, Ordering::Relaxed);
    }

    /// Whether states of the newest format may be written: a heartbeat has shown no gateway that would find them invalid.
    pub(crate) fn writes_newest_format(&self) -> bool {
        self.older_gateways.load(Ordering::Relaxed) == 0
    }

    /// Checks that all live gateways read the states of buckets with timed holds, as far as a heartbeat has shown.
    ///
    /// # Errors
    /// If one does not.
    pub(crate) fn allow_timed_holds(&self) -> Result<(), StoreError> {
        match self.older_gateways.load(Ordering::Relaxed) {
            0 | UNKNOWN => Ok(()),
            _ => Err(StoreError::OlderGateway),
        }
    }

    pub fn gateways(&self) -> u64 {
        self.gateways.load(Ordering::Relaxed)
    }

    /// Remembers the state of a bucket in the store. `decided` is the time of that state on the store's clock, and `at`
    /// the same time on this process's clock. The bucket is full again after `reset_after`.
    pub fn observe(&self, key: BucketKey, state: State, decided: Timestamp, reset_after: Micros, at: Timestamp) {
        if reset_after >= MIN_RESET_AFTER {
            self.observed.insert(key, Observation { state, decided, at });
        }
    }

    /// Forgets what is spent of a bucket, because a request of this gateway has reset it. A ban stays.
    pub(crate) fn forget(&self, key: &BucketKey) {
        drop(self.observed.remove(key));
        if self.memory.buckets() > 0 {
            self.memory.remove(&[*key]);
        }
    }

    /// Remembers the ban of a bucket in the store, or that no ban runs. `decided` is the time on the store's clock, and
    /// `at` the same time on this process's clock.
    pub fn observe_ban(&self, key: BucketKey, ban: Option<BanPeriod>, decided: Timestamp, at: Timestamp) {
        match ban {
            Some(BanPeriod { end, step }) => {
                self.bans.insert(key, BanPeriod { end: at.plus(end.since(decided)), step })
            }
            None if self.bans.is_empty() => {}
            None => drop(self.bans.remove(&key)),
        }
    }

    /// Refuses a plan if one of its buckets is known to be banned. `None` if no such ban is known.
    pub fn refuse_banned(&self, plan: &Plan) -> Option<TakeReply> {
        if self.bans.is_empty() {
            return None;
        }
        let now = self.clock.now();
        let outcome = |charge: &Charge| {
            let known = charge.algorithm.ban().and_then(|_| self.bans.get(&charge.key));
            known.filter(|ban| ban.end > now).map_or(Outcome::UNASKED, |BanPeriod { end, step }| Outcome {
                verdict: Verdict::Banned,
                retry_after: end.since(now),
                reset_after: end.since(now),
                ban: Some(BanNotice { step, begins: false }),
                ..Outcome::UNASKED
            })
        };
        let enforced: SmallVec<[Outcome; 2]> = plan.enforced.iter().map(outcome).collect();
        let is_banned = enforced.iter().any(|outcome| outcome.verdict == Verdict::Banned);
        is_banned.then(|| TakeReply {
            now: self.memory.time().date,
            settlement: Settlement::refused(enforced),
            evicted: 0,
            source: Source::Fallback,
            reservation: Reservation::default(),
        })
    }

    /// Decides a plan in this process, with this gateway's shares of the limits. The remaining tokens in the answer are
    /// those of the shares. `slots` keeps what the requests of this gateway hold and have settled. What the store has
    /// granted counts in this decision too. What this decision grants is reported to the store. Settled costs that the
    /// store has not accepted are charged to the shares.
    pub(crate) fn take(&self, plan: &Plan, slots: &impl SlotBook) -> TakeReply {
        let gateways = self.gateways();
        let mut evicted = 0;
        let mut share = |charge: &Charge| {
            let (algorithm, cost) = charge.algorithm.share(charge.cost, gateways);
            let share = Charge { algorithm, cost, ..charge.clone() };
            evicted += self.begin(charge, &share);
            share
        };
        let shares = Plan {
            enforced: plan.enforced.iter().map(&mut share).collect(),
            shadow: plan.shadow.iter().map(&mut share).collect(),
        };
        let mut taken = self.memory.take_shares(plan, &shares, gateways, slots);
        let outcomes = taken.settlement.enforced.iter_mut().chain(&mut taken.settlement.shadow);
        // A share of slots has fewer slots, so its remaining slots are not divided. A share of another limit has the
        // whole burst, but each request has a multiplied cost, so the remaining amount is divided.
        for (outcome, _) in outcomes.zip(plan.charges()).filter(|(_, charge)| charge.algorithm.slots().is_none()) {
            outcome.remaining = Cost::from_thousandths(outcome.remaining.thousandths() / gateways);
        }
        TakeReply { source: Source::Fallback, evicted: taken.evicted + evicted, ..taken }
    }

    /// Lowers this gateway's share of a bucket to the gateway's part of the last known level, plus the refill since
    /// then. Returns how many other buckets were evicted to make room for this bucket.
    fn begin(&self, charge: &Charge, share: &Charge) -> u64 {
        let Some(observed) = self.observed.get(&charge.key) else { return 0 };
        let now = observed.decided.plus(self.clock.now().since(observed.at));
        let level = charge.algorithm.step(Some(&observed.state), charge.cost, now).untouched;
        let missing = charge.algorithm.ceiling().thousandths().saturating_sub(level.remaining.thousandths());
        let left = share.algorithm.ceiling().thousandths().saturating_sub(missing);
        self.memory.lower(share, Cost::from_thousandths(left), &observed.state)
    }

    pub fn sweep(&self) {
        self.memory.sweep();
    }

    pub fn buckets(&self) -> usize {
        self.memory.buckets()
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::no_slots::NoSlots;
    use super::*;
    use ledger::algorithm::sliding_log::SlidingLog;
    use ledger::algorithm::sliding_window::SlidingWindow;
    use ledger::algorithm::{Algorithm, ChargeResult};
    use ledger::charge::settle;
    use smallvec::smallvec;

    const SECOND: u64 = 1_000_000;

    /// A plan over token buckets, each given by its number and its burst. Each bucket gains one token per second.
    fn plan(buckets: &[(u8, u64)]) -> Plan {
        let charge = |(bucket, burst): &(u8, u64)| Charge::of_token_bucket(*bucket, *burst, 1);
        Plan { enforced: buckets.iter().map(charge).collect(), shadow: smallvec![] }
    }

    fn fallback(at_least: u64) -> (FallbackShare, Clock) {
        let clock = Clock::manual(Timestamp(1_000 * SECOND));
        (FallbackShare::new(at_least, clock.clone(), Arc::default()), clock)
    }

    /// Counts the requests that are granted at this moment.
    fn passing(fallback: &FallbackShare, plan: &Plan) -> usize {
        (0..1000).take_while(|_| fallback.take(plan, &NoSlots).settlement.is_granted()).count()
    }

    /// Reports the state of a bucket to the fallback after `tokens` were taken from it. The store's clock differs
    /// from this process's clock.
    fn show(fallback: &FallbackShare, plan: &Plan, tokens: u64, at: Timestamp) {
        let mut spent = plan.clone();
        spent.enforced[0].cost = Cost::from_tokens(tokens);
        let there = Timestamp(77_000 * SECOND);
        let entry = settle(&spent, &[None::<State>], there).1[0].clone().unwrap();
        fallback.observe(plan.enforced[0].key, entry.state, there, entry.kept_until.since(there), at);
    }

    #[test]
    fn a_gateway_has_its_share_and_at_least_one_request() {
        for (gateways, burst, share) in [(1, 12, 12), (3, 12, 4), (5, 12, 2), (100, 12, 1)] {
            let (fallback, clock) = fallback(gateways);
            let plan = plan(&[(1, burst)]);
            assert_eq!(passing(&fallback, &plan), share, "{gateways}");
            let wait = fallback.take(&plan, &NoSlots).settlement.enforced[0].retry_after;
            assert!(wait <= Micros(gateways * SECOND), "{gateways}: {wait:?}");
            clock.set(clock.now().plus(wait));
            assert_eq!(passing(&fallback, &plan), 1, "{gateways}");
        }
    }

    #[test]
    fn the_remaining_level_is_that_of_the_share() {
        let (fallback, _) = fallback(2);
        let left = fallback.take(&plan(&[(1, 12)]), &NoSlots).settlement.enforced[0].remaining;
        assert_eq!(left, Cost::from_tokens(5));
    }

    #[test]
    fn a_limit_is_divided_by_the_live_gateways_and_at_least_by_those_configured() {
        let (fallback, _) = fallback(2);
        assert_eq!(fallback.set_gateways(4), 4);
        assert_eq!(passing(&fallback, &plan(&[(1, 12)])), 3);
        assert_eq!(fallback.set_gateways(1), 2);
        assert_eq!(passing(&fallback, &plan(&[(2, 12)])), 6);
    }

    #[test]
    fn a_bucket_begins_with_its_share_of_the_last_known_level() {
        let (fallback, clock) = fallback(2);
        let plan = plan(&[(1, 12)]);
        show(&fallback, &plan, 10, clock.now());
        clock.set(clock.now().plus(Micros(2 * SECOND)));
        // Two tokens were left in the share, and two were refilled.
        assert_eq!(passing(&fallback, &plan), 2);
    }

    #[test]
    fn the_number_of_remembered_buckets_is_bounded() {
        let (fallback, clock) = fallback(2);
        let one = plan(&[(1, 12)]);
        show(&fallback, &one, 6, clock.now());
        let observed = fallback.observed.get(&BucketKey([1; 16])).unwrap();
        let key = |number: u32| BucketKey(std::array::from_fn(|at| number.to_le_bytes()[at % 4]));
        for number in 0..200_000 {
            fallback.observe(key(number), observed.state.clone(), observed.decided, Micros(SECOND), clock.now());
        }
        assert!((MAX_OBSERVED / 2..=MAX_OBSERVED).contains(&fallback.observed.len()), "{}", fallback.observed.len());
    }

    #[test]
    fn the_number_of_shares_in_memory_is_bounded() {
        let settings = memory::Settings { max_buckets: 2000, ..memory::Settings::default() };
        let fallback = FallbackShare::bounded(&settings, 2, Clock::manual(Timestamp(1_000 * SECOND)), Arc::default());
        let (mut one, mut evicted) = (plan(&[(1, 12)]), 0);
        for number in 0..10_000_u32 {
            one.enforced[0].key = BucketKey(std::array::from_fn(|at| number.to_le_bytes()[at % 4]));
            let taken = fallback.take(&one, &NoSlots);
            assert!(taken.settlement.is_granted());
            evicted += taken.evicted;
        }
        assert_eq!((fallback.buckets(), evicted), (settings.max_buckets, 8000));
        assert_eq!(memory::Settings::default().max_buckets, 1_000_000);
    }

    #[test]
    fn evictions_by_a_lowered_share_are_counted() {
        let settings = memory::Settings { max_buckets: 1, ..memory::Settings::default() };
        let clock = Clock::manual(Timestamp(1_000 * SECOND));
        let fallback = FallbackShare::bounded(&settings, 2, clock.clone(), Arc::default());
        assert_eq!(fallback.take(&plan(&[(1, 12)]), &NoSlots).evicted, 0);
        let two = plan(&[(2, 12)]);
        show(&fallback, &two, 12, clock.now());
        let taken = fallback.take(&two, &NoSlots);
        // The share is empty. Lowering the share stores the bucket before the decision, and the bucket then refuses.
        assert_eq!((taken.settlement.is_granted(), taken.evicted, fallback.buckets()), (false, 1, 1));
    }

    #[test]
    fn a_second_outage_does_not_refill_a_share() {
        let (fallback, clock) = fallback(2);
        let plan = plan(&[(1, 12)]);
        assert_eq!(passing(&fallback, &plan), 6);
        show(&fallback, &plan, 4, clock.now());
        assert_eq!(passing(&fallback, &plan), 0);
        clock.set(clock.now().plus(Micros(6 * SECOND)));
        assert_eq!(passing(&fallback, &plan), 3);
        show(&fallback, &plan, 12, clock.now());
        assert_eq!(passing(&fallback, &plan), 0);
    }

    #[test]
    fn several_buckets_are_charged_all_or_none() {
        let (fallback, _) = fallback(2);
        assert_eq!(passing(&fallback, &plan(&[(1, 12), (2, 4)])), 2);
        assert_eq!(passing(&fallback, &plan(&[(1, 12)])), 4);
    }

    /// Makes a fallback and a plan with one limit, and reports earlier grants of the store to the fallback. Each of
    /// `grants` is a number of requests, and the number of seconds since they were granted.
    fn begun(algorithm: Algorithm, grants: &[(u64, u64)]) -> (FallbackShare, Clock, Plan) {
        let clock = Clock::manual(Timestamp(1_000 * SECOND));
        let store_clock = Arc::new(StoreClock::default());
        let there = Timestamp(77_000 * SECOND);
        store_clock.observe(there, clock.now(), clock.now());
        let fallback = FallbackShare::new(2, clock.clone(), store_clock);
        let mut plan = plan(&[(1, 12)]);
        plan.enforced[0].algorithm = algorithm;
        let mut state = None;
        for (tokens, ago) in grants {
            let now = Timestamp(there.0 - ago * SECOND);
            let step = algorithm.step(state.as_deref(), Cost::from_tokens(*tokens), now);
            let ChargeResult::Fits { entry, .. } = step.charge else { panic!("{tokens} do not fit") };
            state = Some(entry.state);
        }
        let seen = algorithm.excerpt(state.unwrap());
        fallback.observe(plan.enforced[0].key, seen, there, Micros(11 * SECOND), clock.now());
        (fallback, clock, plan)
    }

    #[test]
    fn what_a_window_or_a_log_has_granted_leaves_a_share_when_it_leaves_the_whole() {
        let window = SlidingWindow::new(12, Micros(10 * SECOND), 10).unwrap();
        let log = SlidingLog::new(12, Micros(10 * SECOND)).unwrap();
        for (algorithm, leaves) in [(Algorithm::SlidingWindow(window), 6), (Algorithm::SlidingLog(log), 5)] {
            // The limit is twelve: six requests were granted five seconds ago, and four now.
            let (fallback, clock, plan) = begun(algorithm, &[(6, 5), (4, 0)]);
            assert_eq!(passing(&fallback, &plan), 1);
            clock.set(clock.now().plus(Micros(leaves * SECOND - 1)));
            assert_eq!(passing(&fallback, &plan), 0);
            clock.set(clock.now().plus(Micros(1)));
            assert_eq!(passing(&fallback, &plan), 3);
            assert_eq!(fallback.buckets(), 1);
        }
    }

    #[test]
    fn of_a_long_log_a_share_knows_the_first_sixteen_grants_and_the_last_exactly() {
        let log = SlidingLog::new(60, Micros(100 * SECOND)).unwrap();
        // One grant each second, the last one now.
        let grants: Vec<_> = (0..60).map(|ago| (1, 59 - ago)).collect();
        let (fallback, clock, plan) = begun(Algorithm::SlidingLog(log), &grants);
        let start = clock.now();
        let passes_at = |seconds: u64| {
            clock.set(start.plus(Micros(seconds * SECOND)));
            passing(&fallback, &plan)
        };
        assert_eq!(passes_at(40), 0);
        // The share is half of the limit. So this gateway can grant one request when two grants have left the log.
        assert_eq!((passes_at(41), passes_at(42), passes_at(56)), (0, 1, 7));
        // The fallback remembers the times of the first sixteen grants and of the last grant. All grants in between
        // count until the last grant leaves the log.
        assert_eq!((passes_at(99), passes_at(100)), (0, 22));
    }

    #[test]
    fn limits_of_one_meter_share_their_share() {
        let (fallback, _) = fallback(2);
        let (free, pro) = (plan(&[(1, 6)]), plan(&[(1, 10)]));
        assert_eq!(passing(&fallback, &free), 3);
        assert_eq!(passing(&fallback, &pro), 2);
        assert_eq!((passing(&fallback, &free), passing(&fallback, &pro)), (0, 0));
    }

    #[test]
    fn charges_to_one_bucket_take_their_sum_from_its_share() {
        let (fallback, _) = fallback(2);
        let mut both = Plan::default();
        for (bucket, burst) in [(1, 12), (1, 14)] {
            both.enforce(plan(&[(bucket, burst)]).enforced[0].clone());
        }
        assert_eq!(passing(&fallback, &both), 3);
        assert_eq!(passing(&fallback, &plan(&[(1, 14)])), 1);
    }
}
