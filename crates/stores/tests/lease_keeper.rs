//! Runs keepers of leases in several regions, each with a real Redis of its own, and with another one as home, behind relays that delay
//! and cut. The regions together grant the limit, and no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]

mod relay;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::lease::purse::ASK_HOME;
use ledger::algorithm::lease::{LeaseSize, Purse};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use parking_lot::Mutex;
use relay::Relay;
use stores::{
    AskAnswer, Clock, EventSink, KeeperSettings, LeaseEvent, LeaseKeeper, LeaseSink, LeaseStore, Micros, PurseBucket,
    Settings, Store, Worker, breaker, redis,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const SECOND: u64 = 1_000_000;

/// A redis-server, which is killed at the end of its test.
struct Server {
    port: u16,
    child: Child,
    _directory: TempDir,
}

impl Server {
    fn start() -> Server {
        // Another program could take the free port in this moment.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = TempDir::new().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        let child = command.current_dir(directory.path()).stdout(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Server { port, child, _directory: directory }
    }

    fn flush(&self) {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5)).unwrap();
        ::redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn settings(port: u16) -> Settings {
    Settings::Redis(redis::Settings {
        target: redis::Target::at("127.0.0.1", port),
        login: redis::Login::default(),
        timeout: Micros(SECOND),
        prefix: "lease".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    })
}

/// A limit in this year.
fn purse(limit: u64, share: u64, return_after: u64) -> Purse {
    let (anchor, zone) = (Anchor::default_of(CalendarUnit::Year), Zone::parse("UTC").unwrap());
    let year = Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone));
    let limit = SpentLimit::FixedWindow(FixedWindow::new(limit, year).unwrap());
    let size = LeaseSize::new(share * 10_000, Cost::ONE);
    Purse::sized(limit, size, Micros(SECOND / 2), Micros(return_after)).unwrap()
}

fn plan(purse: &Purse, home: u8) -> Plan {
    let mut plan = Plan::default();
    let key = BucketKey([home; 16]).across(purse);
    plan.enforce(Charge { tag: LimitTag(7), ..Charge::new(key, Algorithm::Purse(*purse), Cost::ONE) });
    plan
}

/// What the keeper of a gateway has reported, in tokens.
#[derive(Debug, Default)]
struct Amounts {
    leased: AtomicU64,
    returned: AtomicU64,
    stranded: AtomicU64,
    held: AtomicU64,
    calls: AtomicU64,
}

/// A gateway of a region.
struct Gateway {
    store: Arc<Store>,
    keeper: Arc<LeaseKeeper>,
    amounts: Arc<Amounts>,
    waits: Mutex<Vec<Duration>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Passed,
    Refused,
    NoHome,
}

impl Gateway {
    async fn new(region: &str, store: &Settings, home: u16, regions: u64) -> Gateway {
        let clock = Clock::system();
        let store = Arc::new(Store::open(store, 1, clock.clone(), EventSink::new(|_| {})));
        let home = LeaseStore::open(&settings(home), clock.clone(), EventSink::new(|_| {}));
        let amounts = Arc::new(Amounts::default());
        let counted = Arc::clone(&amounts);
        let sink = LeaseSink::new(move |event| {
            let (counter, amount) = match event {
                LeaseEvent::Called { .. } => (&counted.calls, 1),
                LeaseEvent::Leased { amount, .. } => (&counted.leased, amount.whole()),
                LeaseEvent::Returned { amount, .. } => (&counted.returned, amount.whole()),
                LeaseEvent::Stranded { amount, .. } => (&counted.stranded, amount.whole()),
                LeaseEvent::Held(held) => {
                    let held = held.values().map(|amount| amount.whole()).sum();
                    return counted.held.store(held, Ordering::SeqCst);
                }
            };
            counter.fetch_add(amount, Ordering::SeqCst);
        });
        let own = KeeperSettings { region: Arc::from(region), regions, timeout: Micros(SECOND / 2) };
        let keeper = LeaseKeeper::new(LeaseStore::beside(Arc::clone(&store)), home.clone(), own, clock, sink);
        let keeper = Arc::new(keeper);
        let (driven, kept, connected) = (Arc::clone(&store), Arc::clone(&keeper), home.clone());
        let tasks = vec![
            tokio::spawn(async move { driven.run(Worker(0)).await }),
            tokio::spawn(async move { connected.run().await }),
            tokio::spawn(kept.run()),
        ];
        store.first_attempt().await;
        home.first_attempt().await;
        Gateway { store, keeper, amounts, waits: Mutex::default(), tasks }
    }

    /// Makes a request as the gateway does: it waits for home at most half a second.
    async fn request(&self, plan: &Plan) -> Answer {
        self.request_within(plan, Duration::from_millis(500)).await
    }

    async fn request_within(&self, plan: &Plan, most: Duration) -> Answer {
        let begin = Instant::now();
        let answer = self.decide(plan, begin + most).await;
        self.waits.lock().push(begin.elapsed());
        answer
    }

    async fn decide(&self, plan: &Plan, deadline: Instant) -> Answer {
        loop {
            let taken = self.store.take(Worker(0), plan, None).await.map_err(|failure| failure.error).unwrap().unwrap();
            let charge = &plan.enforced[0];
            let (purse, outcome) = (PurseBucket::of(charge).unwrap(), taken.settlement.enforced[0]);
            if taken.settlement.is_granted() {
                if outcome.is_low {
                    self.keeper.is_low(purse, charge.cost);
                }
                return Answer::Passed;
            }
            if outcome.verdict != Verdict::Deny || outcome.retry_after != ASK_HOME {
                return Answer::Refused;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, self.keeper.ask([(purse, charge.cost)])).await {
                Ok(AskAnswer::Answered | AskAnswer::NoStore) => {}
                Ok(AskAnswer::UnderWay) => tokio::time::sleep(Duration::from_millis(5)).await,
                Ok(AskAnswer::NoHome) | Err(_) => return Answer::NoHome,
            }
        }
    }

    fn slowest_of_all_but(&self, most: usize) -> Duration {
        let mut waits = self.waits.lock().clone();
        waits.sort_unstable();
        waits[waits.len() - 1 - most]
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

const AWAY: Duration = Duration::from_millis(40);
/// Longer than a busy machine stands still.
const PATIENCE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_regions_grant_all_of_a_limit_and_no_more_and_few_requests_wait() {
    let servers = [(); 4].map(|()| Server::start());
    let mut regions = Vec::new();
    let mut relays = Vec::new();
    for (name, server) in ["eu", "us", "ap"].iter().zip(&servers) {
        let relay = Relay::to(servers[3].port, AWAY).await;
        regions.push(Gateway::new(name, &settings(server.port), relay.port, 3).await);
        relays.push(relay);
    }
    let plan = plan(&purse(3000, 5, 60 * SECOND), 1);
    let passed = AtomicU64::new(0);
    let requests = |region| {
        let (plan, passed) = (&plan, &passed);
        async move {
            let region: &Gateway = region;
            let mut refused_first = None;
            for number in 0..1600 {
                match region.request_within(plan, PATIENCE).await {
                    Answer::Passed => _ = passed.fetch_add(1, Ordering::SeqCst),
                    Answer::Refused => _ = refused_first.get_or_insert(passed.load(Ordering::SeqCst)),
                    Answer::NoHome => panic!("home does not answer request {number}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            refused_first.unwrap_or(3000)
        }
    };
    let (eu, us, ap) = tokio::join!(requests(&regions[0]), requests(&regions[1]), requests(&regions[2]));
    assert_eq!(passed.load(Ordering::SeqCst), 3000);
    assert!([eu, us, ap].iter().all(|first| *first >= 2850), "a region refused early: {eu} {us} {ap}");
    for region in &regions {
        // One in a hundred may wait for home.
        let wait = region.slowest_of_all_but(16);
        assert!(wait < AWAY, "{wait:?}");
        assert!(region.amounts.calls.load(Ordering::SeqCst) < 400, "{:?}", region.amounts);
        assert_eq!(region.amounts.stranded.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_region_alone_gets_almost_all_of_a_limit_before_its_first_refusal_also_with_two_gateways() {
    let servers = [Server::start(), Server::start()];
    let relay = Relay::to(servers[1].port, AWAY).await;
    let one = Gateway::new("eu", &settings(servers[0].port), relay.port, 3).await;
    let two = Gateway::new("eu", &settings(servers[0].port), relay.port, 3).await;
    let plan = plan(&purse(1000, 5, 60 * SECOND), 1);
    let (passed, first) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let requests = |gateway| {
        let (plan, passed, first) = (&plan, &passed, &first);
        async move {
            let gateway: &Gateway = gateway;
            for _ in 0..700 {
                match gateway.request_within(plan, PATIENCE).await {
                    Answer::Passed => _ = passed.fetch_add(1, Ordering::SeqCst),
                    Answer::Refused => _ = first.fetch_min(passed.load(Ordering::SeqCst), Ordering::SeqCst),
                    Answer::NoHome => panic!("home does not answer"),
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::join!(requests(&one), requests(&two));
    assert_eq!(passed.load(Ordering::SeqCst), 1000);
    assert!(first.load(Ordering::SeqCst) >= 970, "{first:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_is_cut_off_spends_its_purse_and_what_it_has_not_used_comes_back() {
    let servers = [(); 3].map(|()| Server::start());
    let relay = Relay::to(servers[2].port, Duration::from_millis(1)).await;
    let eu = Gateway::new("eu", &settings(servers[0].port), relay.port, 2).await;
    let us = Gateway::new("us", &settings(servers[1].port), servers[2].port, 2).await;
    let plan = plan(&purse(100, 20, SECOND), 1);
    assert_eq!(eu.request(&plan).await, Answer::Passed);
    relay.cut(true);
    // 20 are leased at most, and one of them is spent.
    let mut passed = 1;
    loop {
        match eu.request(&plan).await {
            Answer::Passed => passed += 1,
            Answer::NoHome => break,
            Answer::Refused => panic!("a region that is cut off knows nothing of home"),
        }
    }
    assert!(passed <= 20, "{passed}");
    relay.cut(false);
    let until = Instant::now() + Duration::from_secs(20);
    // The region connects again, and resends its word.
    while eu.request(&plan).await != Answer::Passed {
        assert!(Instant::now() < until, "{:?}", eu.amounts);
    }
    passed += 1;
    // What the region holds is returned after a second, and the other region gets all of the rest.
    while eu.amounts.held.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < until, "{:?}", eu.amounts);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(eu.amounts.returned.load(Ordering::SeqCst) > 0);
    while passed < 100 {
        match us.request(&plan).await {
            Answer::Passed => passed += 1,
            answer => assert!(Instant::now() < until, "{answer:?} after {passed}, {:?} {:?}", eu.amounts, us.amounts),
        }
    }
    assert_ne!(us.request(&plan).await, Answer::Passed);
    assert_ne!(eu.request(&plan).await, Answer::Passed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_whose_store_is_flushed_never_spends_again_what_it_had() {
    let servers = [(); 2].map(|()| Server::start());
    let eu = Gateway::new("eu", &settings(servers[0].port), servers[1].port, 2).await;
    let plan = plan(&purse(100, 10, 60 * SECOND), 1);
    let mut passed = 0;
    for round in 0..200 {
        if round % 15 == 14 {
            servers[0].flush();
        }
        passed += u64::from(eu.request(&plan).await == Answer::Passed);
    }
    assert!((50..=100).contains(&passed), "{passed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ends_between_debit_and_credit_loses_nothing_and_spends_nothing_twice() {
    let servers = [(); 2].map(|()| Server::start());
    let relay = Relay::to(servers[1].port, Duration::from_millis(60)).await;
    let plan = plan(&purse(60, 100, 60 * SECOND), 1);
    let mut passed = 0;
    for _ in 0..4 {
        let gateway = Arc::new(Gateway::new("eu", &settings(servers[0].port), relay.port, 1).await);
        let (asking, asked) = (Arc::clone(&gateway), plan.clone());
        let request = tokio::spawn(async move { asking.request(&asked).await });
        // Home has debited after 60 ms, and the answer is on its way.
        tokio::time::sleep(Duration::from_millis(90)).await;
        gateway.tasks.iter().for_each(JoinHandle::abort);
        request.abort();
        passed += u64::from(matches!(request.await, Ok(Answer::Passed)));
    }
    let last = Gateway::new("eu", &settings(servers[0].port), relay.port, 1).await;
    let until = Instant::now() + Duration::from_secs(20);
    while passed < 60 {
        match last.request(&plan).await {
            Answer::Passed => passed += 1,
            answer => assert!(Instant::now() < until, "{answer:?} after {passed}, {:?}", last.amounts),
        }
    }
    assert_eq!(last.request(&plan).await, Answer::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purses_in_memory_are_filled_too_and_a_keeper_that_pauses_answers_nobody() {
    let home = Server::start();
    let memory = Settings::default();
    let eu = Gateway::new("eu", &memory, home.port, 2).await;
    let us = Gateway::new("us", &memory, home.port, 2).await;
    let plan = plan(&purse(50, 10, 60 * SECOND), 1);
    let mut passed = 0;
    for _ in 0..40 {
        passed += u64::from(eu.request(&plan).await == Answer::Passed);
        passed += u64::from(us.request(&plan).await == Answer::Passed);
    }
    assert_eq!(passed, 50);
    let other = self::plan(&purse(50, 10, 60 * SECOND), 2);
    eu.keeper.pause().await;
    assert_eq!(eu.request(&other).await, Answer::NoHome);
    eu.keeper.resume();
    assert_eq!(eu.request(&other).await, Answer::Passed);
}
