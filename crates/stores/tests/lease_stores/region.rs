//! A region whose requests pay from purses, and a home that it leases from.

use std::sync::Arc;
use std::time::Duration;

use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::lease::purse::ASK_HOME;
use ledger::algorithm::lease::{
    Home, HomeAnswer, LeaseAct, LeaseReply, MarkedWord, Purse, PurseAct, PurseReply, RegionId,
};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use stores::{ActResult, BucketAct, Clock, Event, EventSink, LeaseStore, Micros, Settings, Store, Worker};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) const SECOND: u64 = 1_000_000;
/// What may be spent of each limit, over all regions.
pub(crate) const LIMIT: u64 = 40;
/// Longer than any act takes.
pub(crate) const PATIENCE: Micros = Micros(20 * SECOND);

/// 40 in this year.
fn limit() -> SpentLimit {
    let (anchor, zone) = (Anchor::default_of(CalendarUnit::Year), Zone::parse("UTC").unwrap());
    let year = Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone));
    SpentLimit::FixedWindow(FixedWindow::new(LIMIT, year).unwrap())
}

pub(crate) fn purse() -> Algorithm {
    purse_that_returns_after(Micros(60 * SECOND))
}

pub(crate) fn purse_that_returns_after(return_after: Micros) -> Algorithm {
    let (largest, timeout) = (Cost::from_tokens(8), Micros(SECOND));
    Algorithm::Purse(Purse::new(limit(), largest, timeout, return_after).unwrap())
}

/// Returns the act in which home hears a word about this bucket.
pub(crate) fn at_home(key: u8, region: RegionId, marked: MarkedWord) -> BucketAct {
    let home = Algorithm::Home(Home::new(limit(), 3, Micros(0)).unwrap());
    let act = LeaseAct::Word(region, marked.word);
    BucketAct { key: BucketKey([key; 16]), limit: home, tag: LimitTag::default(), act }
}

/// Returns a plan of one request to the purse with this key, and to a bucket of the region with this burst.
pub(crate) fn plan(key: u8, burst: u64) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(86_400 * SECOND) };
    let tokens = Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap());
    let mut plan = purse_alone(key);
    plan.enforce(Charge::new(BucketKey([200; 16]), tokens, Cost::ONE));
    plan
}

/// Returns a plan of one request to the purse with this key.
pub(crate) fn purse_alone(key: u8) -> Plan {
    let mut plan = Plan::default();
    plan.enforce(Charge::new(BucketKey([key; 16]), purse(), Cost::ONE));
    plan
}

/// Opens a store for acts, and waits until it is up.
pub(crate) async fn open(settings: &Settings) -> LeaseStore {
    let (events, is_up) = connection_events(settings);
    let store = LeaseStore::open(settings, Clock::system(), events);
    let driven = store.clone();
    tokio::spawn(async move { driven.run().await });
    until_up(is_up).await;
    store
}

/// Returns a sink that follows whether a store is connected, which a cluster is when all of its nodes are.
fn connection_events(settings: &Settings) -> (EventSink, watch::Receiver<bool>) {
    let (sender, is_up) = watch::channel(!settings.is_shared());
    let events = EventSink::new(move |event| match event {
        Event::Up { .. } => _ = sender.send_replace(true),
        Event::Down { .. } => _ = sender.send_replace(false),
        _ => {}
    });
    (events, is_up)
}

async fn until_up(mut is_up: watch::Receiver<bool>) {
    let up = tokio::time::timeout(Duration::from_secs(20), is_up.wait_for(|is_up| *is_up)).await;
    up.expect("the store does not connect").unwrap();
}

/// Does one act.
pub(crate) async fn one(store: &LeaseStore, act: BucketAct) -> LeaseReply {
    let done = store.act(&[act], PATIENCE).await.unwrap();
    let [ActResult::Done(reply)] = done.results[..] else { panic!("{done:?}") };
    reply
}

/// Returns an answer of home as a text, without what changes with time.
pub(crate) fn without_times(reply: &LeaseReply) -> String {
    let LeaseReply::Home(answer) = reply else { panic!("{reply:?}") };
    format!("{answer:?}").split("remains").next().unwrap().to_owned()
}

/// A region with one gateway.
pub(crate) struct Region {
    pub id: RegionId,
    pub store: Arc<Store>,
    pub purses: LeaseStore,
    connection: JoinHandle<()>,
    tag: u64,
}

impl Region {
    pub(crate) async fn new(name: &str, settings: &Settings) -> Region {
        let (events, is_up) = connection_events(settings);
        let store = Arc::new(Store::open(settings, 1, Clock::system(), events));
        let driven = Arc::clone(&store);
        let connection = tokio::spawn(async move { driven.run(Worker(0)).await });
        until_up(is_up).await;
        let purses = LeaseStore::beside(Arc::clone(&store));
        Region { id: RegionId::of(name), store, purses, connection, tag: 0 }
    }

    pub(crate) async fn act(&self, key: u8, act: PurseAct) -> PurseReply {
        let act = LeaseAct::Purse(act);
        let act = BucketAct { key: BucketKey([key; 16]), limit: purse(), tag: LimitTag::default(), act };
        let LeaseReply::Purse(reply) = one(&self.purses, act).await else { panic!("{act:?}") };
        reply
    }

    pub(crate) async fn mark(&mut self, key: u8) -> MarkedWord {
        self.tag += 1;
        let reply = self.act(key, PurseAct::Mark { cost: Cost::ONE, tag: self.tag }).await;
        let PurseReply::Send(word) = reply else { panic!("{reply:?}") };
        word
    }

    /// Credits an answer of home. Returns what came of it.
    pub(crate) async fn credit(&self, key: u8, marked: &MarkedWord, answer: HomeAnswer) -> PurseReply {
        self.act(key, PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::ONE }).await
    }

    /// Sends a word to home twice, and credits the answer twice.
    pub(crate) async fn lease(&self, key: u8, home: &LeaseStore, marked: MarkedWord) {
        let word = at_home(key, self.id, marked);
        let done = home.act(&[word, word], PATIENCE).await.unwrap();
        let [ActResult::Done(LeaseReply::Home(first)), ActResult::Done(LeaseReply::Home(second))] = done.results[..]
        else {
            panic!("{done:?}")
        };
        assert_eq!(without_times(&LeaseReply::Home(first)), without_times(&LeaseReply::Home(second)));
        assert_eq!(self.credit(key, &marked, first).await, PurseReply::Credited);
        assert_eq!(self.credit(key, &marked, second).await, PurseReply::Nothing);
    }

    /// Returns what is left in a purse.
    pub(crate) async fn left(&self, key: u8) -> Cost {
        let Algorithm::Purse(purse) = purse() else { panic!("no purse") };
        let (now, states) = self.store.read(Worker(0), &[BucketKey([key; 16])]).await.unwrap();
        purse.left(states[0].as_deref(), now.date)
    }

    /// Takes a plan. Returns whether it passes, and whether its purse is empty and home can be asked.
    pub(crate) async fn take(&self, plan: &Plan) -> (bool, bool) {
        let reply = self.store.take(Worker(0), plan, None).await.map_err(|failure| failure.error).unwrap().unwrap();
        let purse = &reply.settlement.enforced[0];
        let others_pay = reply.settlement.enforced[1..].iter().all(|other| other.verdict != Verdict::Deny);
        let is_granted = reply.settlement.is_granted();
        (is_granted, !is_granted && others_pay && purse.retry_after == ASK_HOME)
    }

    /// Makes a request. Returns whether it passes. If the purse cannot pay it, home is asked first.
    pub(crate) async fn request(&mut self, key: u8, home: &LeaseStore, plan: &Plan) -> bool {
        for _ in 0..3 {
            let (is_granted, asks_home) = self.take(plan).await;
            if !asks_home {
                return is_granted;
            }
            let word = self.mark(key).await;
            self.lease(key, home, word).await;
        }
        panic!("home gives, and the purse does not pay");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
