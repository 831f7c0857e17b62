//! Spends one limit in two regions, each with a real Redis of its own, and with a third one as home: all of it is granted, and no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
use stores::redis::LeaseLink;
use stores::{ActResult, BucketAct, Clock, EventSink, Micros, Settings, Store, StoreError, Worker, breaker, redis};
use tempfile::TempDir;
use tokio::task::JoinHandle;

const SECOND: u64 = 1_000_000;
const LIMIT: u64 = 40;

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

    fn settings(&self) -> redis::Settings {
        redis::Settings {
            target: redis::Target::at("127.0.0.1", self.port),
            login: redis::Login::default(),
            timeout: Micros(SECOND),
            prefix: "lease".to_owned(),
            breaker: breaker::Settings::default(),
            gateways: 1,
        }
    }

    fn run(&self, command: &[&str]) {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5)).unwrap();
        let mut words = ::redis::cmd(command[0]);
        command[1..].iter().for_each(|word| {
            words.arg(*word);
        });
        words.exec(&mut connection).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// 40 in this year, for three regions.
fn limit() -> SpentLimit {
    let (anchor, zone) = (Anchor::default_of(CalendarUnit::Year), Zone::parse("UTC").unwrap());
    let year = Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone));
    SpentLimit::FixedWindow(FixedWindow::new(LIMIT, year).unwrap())
}

fn home() -> Algorithm {
    Algorithm::Home(Home::new(limit(), 3, Micros(0)).unwrap())
}

fn purse() -> Algorithm {
    let (largest, timeout, return_after) = (Cost::from_tokens(8), Micros(SECOND), Micros(60 * SECOND));
    Algorithm::Purse(Purse::new(limit(), largest, timeout, return_after).unwrap())
}

/// A plan of one request to the purse, and to a bucket of the region with this burst.
fn plan(burst: u64) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(86_400 * SECOND) };
    let tokens = Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap());
    let mut plan = Plan::default();
    plan.enforce(Charge::new(BucketKey([1; 16]), purse(), Cost::ONE));
    plan.enforce(Charge::new(BucketKey([2; 16]), tokens, Cost::ONE));
    plan
}

/// A region with one gateway.
struct Region {
    id: RegionId,
    store: Arc<Store>,
    connection: JoinHandle<()>,
    purses: LeaseLink,
    tag: u64,
}

impl Region {
    async fn new(name: &str, server: &Server) -> Region {
        let settings = Settings::Redis(server.settings());
        let store = Arc::new(Store::open(&settings, 1, Clock::system(), EventSink::new(|_| {})));
        let driven = Arc::clone(&store);
        let connection = tokio::spawn(async move { driven.run(Worker(0)).await });
        store.first_attempt().await;
        let purses = LeaseLink::open(&server.settings()).await.unwrap();
        Region { id: RegionId::of(name), store, connection, purses, tag: 0 }
    }

    async fn act(&mut self, act: PurseAct) -> PurseReply {
        let act =
            BucketAct { key: BucketKey([1; 16]), limit: purse(), tag: LimitTag::default(), act: LeaseAct::Purse(act) };
        let done = self.purses.act(&[act], Micros(5 * SECOND)).await.unwrap();
        let [ActResult::Done(LeaseReply::Purse(reply))] = done.results[..] else { panic!("{done:?}") };
        reply
    }

    async fn mark(&mut self) -> Option<MarkedWord> {
        self.tag += 1;
        match self.act(PurseAct::Mark { cost: Cost::ONE, tag: self.tag }).await {
            PurseReply::Send(word) => Some(word),
            _ => None,
        }
    }

    /// Sends a word to home twice, and credits the answer twice.
    async fn lease(&mut self, home: &mut LeaseLink, marked: MarkedWord) {
        let word = BucketAct {
            key: BucketKey([1; 16]),
            limit: self::home(),
            tag: LimitTag::default(),
            act: LeaseAct::Word(self.id, marked.word),
        };
        let done = home.act(&[word, word], Micros(5 * SECOND)).await.unwrap();
        let [ActResult::Done(LeaseReply::Home(first)), ActResult::Done(LeaseReply::Home(second))] = done.results[..]
        else {
            panic!("{done:?}")
        };
        assert_eq!(first, second);
        let credit = |answer: HomeAnswer| PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::ONE };
        assert_eq!(self.act(credit(first)).await, PurseReply::Credited);
        assert_eq!(self.act(credit(second)).await, PurseReply::Nothing);
    }

    /// Makes a request. Returns whether it passes. If the purse cannot pay it, home is asked first.
    async fn request(&mut self, home: &mut LeaseLink, plan: &Plan) -> bool {
        for _ in 0..3 {
            let reply = self.store.take(Worker(0), plan, None).await.map_err(|failure| failure.error).unwrap().unwrap();
            if reply.settlement.is_granted() {
                return true;
            }
            let [purse, other] = &reply.settlement.enforced[..] else { panic!("{reply:?}") };
            if other.verdict == Verdict::Deny || purse.retry_after != ASK_HOME {
                return false;
            }
            let word = self.mark().await.unwrap();
            self.lease(home, word).await;
        }
        panic!("home gives, and the purse does not pay");
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

#[tokio::test]
async fn two_regions_spend_all_of_a_limit_and_no_more_though_words_are_doubled_and_scripts_forgotten() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut home = LeaseLink::open(&servers[0].settings()).await.unwrap();
    let mut regions = [Region::new("eu", &servers[1]).await, Region::new("us", &servers[2]).await];
    let (plan, mut passed) = (plan(1000), [0, 0]);
    for round in 0..60 {
        // The server is restarted behind a proxy, say.
        if round == 5 {
            servers.iter().for_each(|server| server.run(&["SCRIPT", "FLUSH"]));
        }
        for (region, passed) in regions.iter_mut().zip(&mut passed) {
            *passed += u64::from(region.request(&mut home, &plan).await);
        }
    }
    assert_eq!(passed.iter().sum::<u64>(), LIMIT, "{passed:?}");
    assert!(passed.iter().all(|passed| *passed > 10), "{passed:?}");
}

#[tokio::test]
async fn a_purse_is_paid_from_together_with_the_other_buckets_of_a_request_or_not_at_all() {
    let servers = [Server::start(), Server::start()];
    let mut home = LeaseLink::open(&servers[0].settings()).await.unwrap();
    let mut region = Region::new("eu", &servers[1]).await;
    // The other bucket pays two requests.
    let two = plan(2);
    let mut passed = 0;
    for _ in 0..10 {
        passed += u64::from(region.request(&mut home, &two).await);
    }
    assert_eq!(passed, 2);
    // The refused requests have spent nothing of the purse: 4 of the 6 that home has given are left.
    let mut alone = Plan::default();
    alone.enforce(Charge::new(BucketKey([1; 16]), purse(), Cost::ONE));
    let mut from_purse = 0;
    while region.store.take(Worker(0), &alone, None).await.unwrap().unwrap().settlement.is_granted() {
        from_purse += 1;
    }
    assert_eq!(from_purse, 4);
}

#[tokio::test]
async fn a_home_that_is_away_is_an_error_in_time_and_the_same_word_is_answered_later() {
    let servers = [Server::start(), Server::start()];
    let mut home = LeaseLink::open(&servers[0].settings()).await.unwrap();
    let mut region = Region::new("eu", &servers[1]).await;
    let marked = region.mark().await.unwrap();
    let word = BucketAct {
        key: BucketKey([1; 16]),
        limit: self::home(),
        tag: LimitTag::default(),
        act: LeaseAct::Word(region.id, marked.word),
    };
    servers[0].run(&["CLIENT", "PAUSE", "600", "ALL"]);
    let begin = Instant::now();
    let fault = home.act(&[word], Micros(SECOND / 10)).await.unwrap_err();
    assert!(fault.error == StoreError::Timeout && begin.elapsed() < Duration::from_millis(500), "{fault:?}");
    // The first try runs after the pause, and the second is answered as the first one.
    region.lease(&mut home, marked).await;
    assert!(region.store.take(Worker(0), &plan(9), None).await.unwrap().unwrap().settlement.is_granted());
}
