//! Plays callers of two gateways on one budget, with a fault at a random moment.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::time::{Clock, Micros};
use ledger::algorithm::budget::Budget;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use stores::redis::fault_injection::{Flaw, Hooks};
use stores::redis::{self, Login, Settings, Target};
use stores::{EventSink, Store, Worker, breaker};

use super::books::{Books, Finding, Refill, StoreBooks, Usage};
use crate::support::budgets::{books, daily, owners, reserve};
use crate::support::charge::plan;
use crate::support::slots::{Member, ask};
use crate::support::{Redis, eventually, now};

/// The longest time until a gateway has reported a cost, if nothing is broken.
const LATE: Duration = Duration::from_millis(400);
/// The longest time until a gateway has reported a cost after a fault has ended.
const RECOVERED: Duration = Duration::from_secs(4);
/// How long a hold counts whose gateway does not report any more.
const HOLD: Duration = Duration::from_secs(7);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// Connections end.
    Disconnect,
    /// A gateway is killed.
    Kill,
    Flush,
    /// A replica becomes the server. It lacks what was written in the last moments.
    Failover,
}

impl Fault {
    pub const ALL: [Fault; 5] = [Fault::Nothing, Fault::Disconnect, Fault::Kill, Fault::Flush, Fault::Failover];
}

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub seed: u64,
    pub fault: Fault,
    pub limit: u64,
    pub refill: Refill,
    pub callers: u64,
    /// A deliberate mistake of both gateways.
    pub flaw: Option<Flaw>,
    /// What a request costs that is cut, in place of what it has used until then.
    pub cut_costs: Option<u64>,
}

impl Setup {
    /// Returns the setup of a random run. Each fault comes in turn.
    pub fn random(seed: u64) -> Setup {
        let mut random = fastrand::Rng::with_seed(seed);
        Setup {
            seed,
            fault: Fault::ALL[usize::try_from(seed).unwrap() % Fault::ALL.len()],
            limit: random.u64(100..=3_000),
            refill: Refill(if random.bool() { 0 } else { random.u64(20..=2_000) }),
            callers: random.u64(4..=48),
            flaw: None,
            cut_costs: None,
        }
    }

    fn budget(&self) -> Budget {
        if self.refill.0 == 0 {
            return daily(self.limit);
        }
        let rate = Rate { amount: Cost::from_tokens(self.refill.0), period: Micros(1_000_000) };
        Budget::of_token_bucket(TokenBucket::new(rate, self.limit).unwrap())
    }
}

/// What a run has shown.
pub struct Run {
    pub setup: Setup,
    pub books: Books,
    pub after: StoreBooks,
}

impl Run {
    pub fn findings(&self) -> Vec<Finding> {
        let Setup { fault, limit, refill, .. } = self.setup;
        // What is held is forgotten as well: at most all of the limit.
        let extra = if matches!(fault, Fault::Flush | Fault::Failover) { limit } else { 0 };
        let late = if fault == Fault::Nothing { LATE } else { RECOVERED };
        self.books.compare(self.after, refill, late, limit, extra)
    }
}

/// A server and its replica, behind one address.
pub struct Pair {
    servers: [Redis; 2],
    door: Door,
}

impl Pair {
    pub fn start() -> Pair {
        let servers = [(); 2].map(|()| Redis::start_with(&["--repl-diskless-sync-delay", "0"]));
        let door = Door::start(servers[0].port);
        Pair { servers, door }
    }

    pub fn play(&mut self, setup: &Setup) -> Run {
        self.servers[0].command::<()>(&["FLUSHALL"]);
        if setup.fault == Fault::Failover {
            self.servers[1].command::<()>(&["REPLICAOF", "127.0.0.1", &self.servers[0].port.to_string()]);
            eventually("the replica is in step", || self.servers[1].role().contains("connected"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let played = runtime.block_on(self.play_once(setup));
        if setup.fault == Fault::Failover {
            self.servers.swap(0, 1);
        }
        played
    }

    async fn play_once(&self, setup: &Setup) -> Run {
        let mut random = fastrand::Rng::with_seed(setup.seed ^ 0x00bd_6e75);
        let start = now();
        let (key, budget) = (BucketKey(random.u128(..).to_le_bytes()), setup.budget());
        let settings = settings(self.door.port);
        let mut members = Vec::new();
        for _ in 0..2 {
            let hooks = Hooks { flaw: setup.flaw, ..Hooks::default() };
            let silent = EventSink::new(|_| ());
            let store = redis::Redis::open(hooks, settings.clone(), 1, Clock::system(), silent);
            members.push(Some(Member::with(Store::Redis(store)).await));
        }
        let callers = Callers::new(start, *setup, (key, budget));
        let tasks: Vec<_> = (0..setup.callers)
            .map(|caller| {
                let gateway = usize::try_from(caller % 2).unwrap();
                tokio::spawn(callers.clone().call(
                    caller,
                    gateway,
                    Arc::clone(&members[gateway].as_ref().unwrap().store),
                ))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(random.u64(150..700))).await;
        let forgotten = self.happen(setup.fault, &callers, &mut members, start, &mut random).await;
        tokio::time::sleep(Duration::from_millis(random.u64(100..500))).await;
        callers.done.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        if setup.fault == Fault::Failover {
            // What the successor lacks is charged with the next report of each gateway.
            for member in members.iter().flatten() {
                let reservation = member.store.hold(Worker(0), &plan([reserve(key, budget, 1)]));
                reservation.release();
            }
        }
        let reported = async {
            for member in members.iter().flatten() {
                member.store.all_reported().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reported).await.expect("everything is reported");
        let shared = settings.into();
        let until = now() + HOLD + Duration::from_secs(2);
        let mut found = books(&shared, key, budget).await;
        // What a killed gateway held, and what was asked in a call without an answer.
        while found.1 > 0 && now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
            found = books(&shared, key, budget).await;
        }
        let after = StoreBooks { at: start.elapsed(), spent: found.0, held: found.1 };
        let books = Books { forgotten, ..callers.books.lock().unwrap().clone() };
        Run { setup: *setup, books, after }
    }

    /// Returns which costs the store may have forgotten.
    async fn happen(
        &self,
        fault: Fault,
        callers: &Callers,
        members: &mut [Option<Member>],
        start: Instant,
        random: &mut fastrand::Rng,
    ) -> Option<(Option<usize>, [Duration; 2])> {
        let began = start.elapsed();
        let [server, replica] = &self.servers;
        match fault {
            Fault::Nothing => None,
            Fault::Disconnect => {
                for _ in 0..5 {
                    server.command::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                    tokio::time::sleep(Duration::from_millis(random.u64(10..100))).await;
                }
                None
            }
            Fault::Kill => {
                members[0] = None;
                callers.is_killed.store(true, Ordering::Relaxed);
                // Its callers settle what nobody reports any more.
                Some((Some(0), [began.saturating_sub(LATE), Duration::MAX]))
            }
            Fault::Flush => {
                server.command::<()>(&["FLUSHALL"]);
                Some((None, [Duration::ZERO, start.elapsed()]))
            }
            Fault::Failover => {
                replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
                let (key, budget) = callers.budget;
                let known = owners(&settings(replica.port).into(), key, budget).await;
                tokio::time::sleep(Duration::from_millis(random.u64(0..150))).await;
                self.door.turn_to(replica.port);
                // If the successor knows the sums of both gateways, their next reports charge what it lacks.
                let forgets = known < 2;
                forgets.then(|| (None, [Duration::ZERO, start.elapsed() + LATE]))
            }
        }
    }
}

fn settings(port: u16) -> Settings {
    Settings {
        target: Target::at("127.0.0.1", port),
        login: Login::default(),
        timeout: Micros(1_000_000),
        prefix: "books".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 2,
    }
}

#[derive(Clone)]
struct Callers {
    start: Instant,
    setup: Setup,
    budget: (BucketKey, Budget),
    books: Arc<Mutex<Books>>,
    done: Arc<AtomicBool>,
    /// Whether the first gateway is killed.
    is_killed: Arc<AtomicBool>,
}

impl Callers {
    fn new(start: Instant, setup: Setup, budget: (BucketKey, Budget)) -> Callers {
        let [done, is_killed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        Callers { start, setup, budget, books: Arc::default(), done, is_killed }
    }

    /// Makes requests one after the other: each reserves 1 to 20 tokens, and uses at most as many.
    async fn call(self, caller: u64, gateway: usize, store: Arc<Store>) {
        let mut random = fastrand::Rng::with_seed(self.setup.seed << 8 | caller);
        let gone = || gateway == 0 && self.is_killed.load(Ordering::Relaxed);
        while !self.done.load(Ordering::Relaxed) && !gone() {
            let reserved = random.u64(1..=20);
            let Ok(Some(mut reservation)) = ask(&store, &plan([reserve(self.budget.0, self.budget.1, reserved)])).await
            else {
                self.books.lock().unwrap().refused += 1;
                tokio::time::sleep(Duration::from_millis(random.u64(2..20))).await;
                continue;
            };
            tokio::time::sleep(Duration::from_millis(random.u64(0..60))).await;
            if gone() {
                return;
            }
            // One of four is cut, and has used at least one token.
            let (is_cut, used) = (random.u8(..4) == 0, random.u64(1..=reserved));
            let cost = if is_cut { self.setup.cut_costs.unwrap_or(used) } else { used };
            reservation.settle(&self.budget.0, Cost::from_tokens(cost));
            let settled = Usage { at: self.start.elapsed(), gateway, tokens: used };
            self.books.lock().unwrap().settled.push(settled);
        }
    }
}

/// An address whose connections go to one server, and then to another one.
struct Door {
    port: u16,
    server: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<std::net::TcpStream>>>,
}

impl Door {
    fn start(port: u16) -> Door {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let door = Door {
            port: listener.local_addr().unwrap().port(),
            server: Arc::new(AtomicU16::new(port)),
            open: Arc::default(),
        };
        let (server, open) = (Arc::clone(&door.server), Arc::clone(&door.open));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = std::net::TcpStream::connect(("127.0.0.1", server.load(Ordering::Relaxed))) else {
                    continue;
                };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                for (mut from, mut to) in [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server.try_clone().unwrap(), client.try_clone().unwrap()),
                ] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
                open.lock().unwrap().push(client);
            }
        });
        door
    }

    /// Ends all connections. New ones go to this server.
    fn turn_to(&self, port: u16) {
        self.server.store(port, Ordering::Relaxed);
        for client in self.open.lock().unwrap().drain(..) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }
}
