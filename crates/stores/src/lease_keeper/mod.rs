//! Keeps the purses of a region filled: asks home for leases, credits what it gives, and returns what nobody uses.
//!
//! Requests tell the keeper which purses are low or empty. One task of the process carries the words, many in one call. Over
//! all gateways of a region only one lease of a purse is under way, because the purse itself is marked. What the task forgets at
//! the end of the process is in the purse: the next gateway that marks the purse gets the same word again.

mod asked_purses;
mod fault_injection;
mod filled_purses;
mod home_call;
mod limit_numbers;
mod round_queue;
mod rounds;
mod schedule;
mod used_purses;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;

use crate::error::Fault;
use crate::lease_store::LeaseStore;
use crate::purse_index::IndexedPurse;
use crate::redis::cluster::NodeId;
use asked_purses::AskedPurses;
use base::time::{Clock, Micros, Timestamp, sleep};
use fault_injection::KeeperHooks;
use filled_purses::FilledPurses;
use ledger::algorithm::Algorithm;
use ledger::algorithm::lease::Purse;
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
pub use limit_numbers::{LimitNumbers, NumberChange};
use round_queue::RoundQueue;
use rounds::RoundEnd;
use schedule::Schedule;
use used_purses::UsedPurses;

/// How long the background waits for other purses, to ask for many of them in one call.
const TOGETHER: Micros = Micros(20_000);

/// How long an answer of the region's own store is expected, if its own timeout is longer.
const REGION_TIMEOUT: Micros = Micros(5_000_000);

/// For how long after a reload purses ask home again soon if it has nothing: what lay in purses of other numbers is on its way there.
const RELOAD: Micros = Micros(10_000_000);

/// How soon.
const SOON: Micros = Micros(1_000_000);

/// The most calls to home at a time. A reload can have many purses to return, on a connection that requests use too.
const MOST_ROUNDS: usize = 32;

/// The most purses in one call.
const MOST_IN_CALL: usize = 128;

/// The settings of a keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperSettings {
    /// The name of this region.
    pub region: Arc<str>,
    /// The number of all regions.
    pub regions: u64,
    /// How long an answer of home is expected.
    pub timeout: Micros,
}

/// The purse of a limit, for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurseBucket {
    pub key: BucketKey,
    pub purse: Purse,
    pub tag: LimitTag,
}

impl PurseBucket {
    /// Returns the purse that a charge pays from. `None` for a limit of one region.
    pub fn of(charge: &Charge) -> Option<PurseBucket> {
        match &charge.algorithm {
            Algorithm::Purse(purse) => Some(PurseBucket { key: charge.key, purse: *purse, tag: charge.tag }),
            _ => None,
        }
    }

    /// Returns the key of the bucket at home.
    fn home_key(&self) -> BucketKey {
        self.key.across(&self.purse)
    }
}

/// What a request that has waited for a purse learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AskAnswer {
    /// Home has answered: the request can be charged again.
    Answered,
    /// A word is under way to home: that of another gateway of the region, or one that had no answer in time.
    UnderWay,
    /// The region's own store gives no answer.
    NoStore,
    /// Home is known to give no answer, or refuses.
    NoHome,
}

/// What a keeper has done, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// A call to home with this number of words has ended. It has replaced this number of buckets that had an invalid state.
    Called { words: usize, took: Micros, healed: u64, fault: Option<Fault> },
    /// A purse has got an amount from home.
    Leased { tag: LimitTag, amount: Cost },
    /// A purse has given back an amount to home.
    Returned { tag: LimitTag, amount: Cost },
    /// Home has given an amount, for which no purse waits any more.
    Stranded { tag: LimitTag, amount: Cost },
    /// What lay in the purses when this gateway filled them last, by the tag of their buckets. A limit may have several tags.
    Held(HashMap<LimitTag, Cost>),
}

/// The function to which a keeper passes its events.
#[derive(Clone)]
pub struct LeaseSink(Arc<dyn Fn(LeaseEvent) + Send + Sync>);

impl LeaseSink {
    pub fn new(events: impl Fn(LeaseEvent) + Send + Sync + 'static) -> LeaseSink {
        LeaseSink(Arc::new(events))
    }

    fn send(&self, event: LeaseEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for LeaseSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSink")
    }
}

/// Keeps the purses of this region filled.
#[derive(Debug)]
pub struct LeaseKeeper {
    /// The store of this region, with the purses.
    region: LeaseStore,
    home: LeaseStore,
    settings: Mutex<KeeperSettings>,
    clock: Clock,
    asked: Mutex<AskedPurses>,
    used: UsedPurses,
    filled: Mutex<FilledPurses>,
    /// Until when nodes of home are expected to refuse words, as without memory. They have refused all words of the last call. A home with
    /// one server is the node `None`.
    refused_until: Mutex<HashMap<Option<NodeId>, Timestamp>>,
    /// The reloads that the task has not seen yet.
    changes: Mutex<Vec<NumberChange>>,
    /// Until when purses ask home again soon, as a time of the clock.
    asks_soon_until: AtomicU64,
    hooks: KeeperHooks,
    /// Wakes the task, when a purse was asked for.
    woken: Notify,
    /// Whether the task shall do nothing, and whether it does nothing.
    pause: watch::Sender<bool>,
    is_paused: watch::Sender<bool>,
    events: LeaseSink,
}

impl LeaseKeeper {
    pub fn new(
        region: LeaseStore,
        home: LeaseStore,
        settings: KeeperSettings,
        clock: Clock,
        events: LeaseSink,
    ) -> LeaseKeeper {
        let (settings, asked, woken) = (Mutex::new(settings), Mutex::default(), Notify::new());
        let (used, filled, hooks) = (UsedPurses::new(), Mutex::default(), KeeperHooks::of_process());
        let (pause, is_paused) = (watch::Sender::new(false), watch::Sender::new(false));
        let refused_until = Mutex::default();
        let (changes, asks_soon_until) = (Mutex::default(), AtomicU64::new(0));
        LeaseKeeper {
            region,
            home,
            settings,
            clock,
            asked,
            used,
            filled,
            refused_until,
            changes,
            asks_soon_until,
            hooks,
            woken,
            pause,
            is_paused,
            events,
        }
    }

    /// Uses other settings from now on.
    pub fn replace_settings(&self, settings: KeeperSettings) {
        *self.settings.lock() = settings;
    }

    /// Returns at once what lies in purses that no limit has any more after a reload, as far as this process knows them.
    pub fn change_numbers(&self, change: NumberChange) {
        self.asks_soon_until.store(self.clock.now().plus(RELOAD).0, Ordering::Relaxed);
        self.changes.lock().push(change);
        self.woken.notify_one();
    }

    /// Returns the store of home.
    pub fn home(&self) -> &LeaseStore {
        &self.home
    }

    /// Whether home is known to give no answer about this purse. Of a cluster, one node can be away.
    pub fn is_home_away(&self, purse: &PurseBucket) -> bool {
        self.home.is_away(&purse.home_key())
    }

    /// Makes the task do nothing, and waits until it does nothing: before another process gets the purses. Does not return while
    /// [`LeaseKeeper::run`] has not been called.
    pub async fn pause(&self) {
        self.pause.send_replace(true);
        // The sender lives as long as this keeper.
        let _ = self.is_paused.subscribe().wait_for(|is_paused| *is_paused).await;
    }

    /// Makes the task go on after [`LeaseKeeper::pause`].
    pub fn resume(&self) {
        self.pause.send_replace(false);
    }

    /// Says that a purse is low after a request of this cost. Nothing waits for that.
    pub fn is_low(&self, purse: PurseBucket, cost: Cost) {
        if self.asked.lock().add_low(purse, cost, self.clock.now()) {
            self.woken.notify_one();
        }
    }

    /// Says that a request with this plan was charged. So the purses that an earlier process has filled are returned too, when nobody
    /// uses them any more.
    pub fn is_used(&self, plan: &Plan) {
        for purse in plan.charges().filter_map(PurseBucket::of) {
            if self.used.add(purse, self.clock.now()) {
                self.woken.notify_one();
            }
        }
    }

    /// Looks at these purses later, which an earlier process has filled, and returns what nobody uses.
    pub fn adopt(&self, purses: &[PurseBucket]) {
        self.used.report(purses);
        self.woken.notify_one();
    }

    /// Returns purses that this process has filled, for the index of purses, each once for as long as it lasts. `ends` is by the clock
    /// of this process.
    pub fn take_filled(&self) -> Vec<IndexedPurse> {
        self.filled.lock().take()
    }

    /// Returns these purses again later: they are not in the index.
    pub fn put_back(&self, purses: &[IndexedPurse]) {
        self.filled.lock().put_back(purses);
    }

    /// Asks home for what these purses need to pay a request with these costs, and waits for the answers. Returns the worst of them.
    /// There is no answer while the keeper does not run.
    pub async fn ask(&self, purses: impl IntoIterator<Item = (PurseBucket, Cost)>) -> AskAnswer {
        let now = self.clock.now();
        let mut answers: SmallVec<[oneshot::Receiver<AskAnswer>; 1]> = SmallVec::new();
        for (purse, cost) in purses {
            let (sender, answer) = oneshot::channel();
            if self.asked.lock().add_waiting(purse, cost, sender, now) {
                self.woken.notify_one();
            }
            answers.push(answer);
        }
        let mut worst = AskAnswer::Answered;
        for answer in answers {
            // The sender is dropped without an answer only when a round breaks off.
            worst = worst.max(answer.await.unwrap_or(AskAnswer::NoHome));
        }
        worst
    }

    /// Carries words between the region and home, until the future is dropped. What is under way then stays marked in its purse.
    pub async fn run(self: Arc<Self>) {
        let mut rounds: JoinSet<RoundEnd> = JoinSet::new();
        let mut schedule = Schedule::default();
        // A home that does one call at a time gets the next round when the last one has ended. Meanwhile words gather for it.
        let most_rounds = if self.home.is_serial() { 1 } else { MOST_ROUNDS };
        let mut waiting = RoundQueue::default();
        let mut pause = self.pause.subscribe();
        loop {
            if *pause.borrow_and_update() {
                while let Some(Ok(end)) = rounds.try_join_next() {
                    schedule.add(end);
                }
                // Whatever is under way stays marked in its purse.
                rounds.shutdown().await;
                waiting.clear();
                self.asked.lock().clear();
                schedule.look_again(self.clock.now());
                self.is_paused.send_replace(true);
                let _ = pause.wait_for(|pause| !*pause).await;
                self.is_paused.send_replace(false);
            }
            let now = self.clock.now();
            let changes = std::mem::take(&mut *self.changes.lock());
            changes.into_iter().for_each(|change| schedule.change_numbers(change, now));
            self.used.take().into_iter().for_each(|purse| schedule.adopt(purse, now));
            let next = self.asked.lock().next_call().into_iter().chain(schedule.next()).min();
            let next = next.filter(|_| rounds.len() < most_rounds);
            let until_next = next.map(|next| Duration::from(next.since(now)));
            tokio::select! {
                () = self.woken.notified() => {}
                _ = pause.changed() => continue,
                Some(ended) = rounds.join_next(), if !rounds.is_empty() => {
                    // A round that panicked has answered the requests that wait for it.
                    let ended = ended.ok().inspect(|end| self.filled.lock().add(&end.filled));
                    if let Some(event) = ended.and_then(|end| schedule.add(end)) {
                        self.events.send(event);
                    }
                }
                () = sleep(until_next.unwrap_or_default()), if until_next.is_some() => {}
            }
            if rounds.len() >= most_rounds {
                continue;
            }
            let now = self.clock.now();
            waiting.add(schedule.due(now));
            while rounds.len() < most_rounds
                && let Some(round) = waiting.next(&mut self.asked.lock(), now)
            {
                let keeper = Arc::clone(&self);
                rounds.spawn(async move { keeper.round(round).await });
            }
        }
    }
}
