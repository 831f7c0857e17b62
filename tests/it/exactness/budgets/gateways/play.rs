//! Plays clients of several gateways on one budget, with faults at random moments.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::time::Clock;

use super::super::books::Finding;
use super::books::{Books, Entry, Loss, LossOf, Shown};
use crate::support::model_calls::{Call, CallResult, Model, make};
use crate::support::sentinel::{SentinelGroup, SentinelSetup};
use crate::support::slots::EndOfLoad;
use crate::support::{Gateway, Orphan, Redis, eventually, now, tollgate};

/// The longest time until a gateway has reported a cost, if nothing is broken.
pub const LATE: Duration = Duration::from_secs(1);
/// How long a hold counts whose gateway does not report any more, and the time in which the test notices.
const HELD: Duration = Duration::from_secs(7 + 3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Nothing,
    /// `kill -9` of a gateway, which is started again.
    Kill,
    Flush,
    /// SIGUSR2: another process takes over, and the previous one ends its calls.
    Upgrade,
    /// `kill -9` of the master. Sentinels promote its replica.
    Failover,
}

impl Fault {
    pub const ALL: [Fault; 5] = [Fault::Nothing, Fault::Kill, Fault::Flush, Fault::Upgrade, Fault::Failover];
}

/// A limit of the file, by its name.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub name: &'static str,
    pub tokens: u64,
    reserve: &'static str,
    /// The least and the most that it reserves for a call.
    reserved: fn(&Call) -> [u64; 2],
}

const WORST: &str = "{worst: {default_output: 100}}";
pub const LIMITS: [Limit; 5] = [
    Limit { name: "small", tokens: 1_500, reserve: WORST, reserved: |call| [call.prompt + call.most; 2] },
    Limit { name: "large", tokens: 30_000, reserve: WORST, reserved: |call| [call.prompt + call.most; 2] },
    Limit { name: "number", tokens: 4_000, reserve: "30", reserved: |_| [30; 2] },
    Limit { name: "much", tokens: 8_000, reserve: "1000", reserved: |_| [1_000; 2] },
    Limit {
        name: "learned",
        tokens: 4_000,
        reserve: "{learn: 90%, min: 5, max: 200, default: 60}",
        reserved: |call| [5, 200.min(call.prompt + call.most)],
    },
];

#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    /// In this order. Only a failover needs sentinels, and no other fault is with one.
    pub faults: Vec<Fault>,
    pub limit: Limit,
    pub clients: u64,
}

impl Setup {
    /// Returns the setup of a random run. Each fault comes in turn, some with another one.
    pub fn random(seed: u64) -> Setup {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut faults = vec![Fault::ALL[usize::try_from(seed).unwrap() % Fault::ALL.len()]];
        if faults[0] != Fault::Failover && random.u8(..3) == 0 {
            faults.push([Fault::Kill, Fault::Flush, Fault::Upgrade][random.usize(..3)]);
        }
        faults.dedup();
        Setup { seed, faults, limit: LIMITS[random.usize(..LIMITS.len())], clients: random.u64(6..=24) }
    }
}

pub struct Run {
    pub setup: Setup,
    pub books: Books,
    pub after: Shown,
    /// What the gateways have logged, if a call has ended in an odd way.
    pub logs: String,
}

impl Run {
    pub fn findings(&self) -> Vec<Finding> {
        self.books.compare(self.after, self.setup.limit.tokens)
    }
}

enum Store {
    One(Redis),
    Sentinels(SentinelGroup),
}

/// Gateways on one store, in front of one upstream.
pub struct Site {
    store: Store,
    model: Model,
    config: String,
    flaw: Option<&'static str>,
    gateways: Vec<Gateway>,
}

impl Site {
    /// Starts a site. `flaw` is a deliberate mistake of all gateways, and `more` are further lines of their file.
    pub fn start(fault: Fault, flaw: Option<&'static str>, more: &str) -> Site {
        let store = if fault == Fault::Failover {
            Store::Sentinels(SentinelGroup::with(&SentinelSetup::default()))
        } else {
            Store::One(Redis::start())
        };
        let section = match &store {
            Store::One(redis) => redis.patient_store(),
            Store::Sentinels(group) => group.store("deny"),
        };
        let rule = |limit: &Limit| {
            let Limit { name, tokens, reserve, .. } = limit;
            format!(
                "\n  - {{name: {name}, match: {{header:x-limit: {name}}}, limit_keys: [header:x-user], algorithm: fixed_window, \
                 algorithm_config: {{limit: {tokens}, window: 366d, cost_source: llm_tokens, reserve: {reserve}}}}}"
            )
        };
        let config = format!("{section}{more}rules:{}", LIMITS.iter().map(rule).collect::<String>());
        let mut site = Site { store, model: Model::start(), config, flaw, gateways: Vec::new() };
        site.gateways = (0..3).map(|_| site.gateway()).collect();
        site.gateways.iter().for_each(|gateway| gateway.expect("rate_limiter_store_up", &[], 1.0));
        site
    }

    fn gateway(&self) -> Gateway {
        let builder = Gateway::before(&self.model.upstream).with(&self.config);
        match self.flaw {
            Some(flaw) => builder.variable("TOLLGATE_TEST_FLAW", flaw).start(),
            None => builder.start(),
        }
    }

    pub fn play(&mut self, setup: &Setup) -> Run {
        let mut random = fastrand::Rng::with_seed(setup.seed ^ 0x006d_6f64);
        let wait = |milliseconds: u64| std::thread::sleep(Duration::from_millis(milliseconds));
        let clients = Clients::new(self, setup);
        let mut losses = Vec::new();
        std::thread::scope(|scope| {
            let _end = EndOfLoad(Arc::clone(&clients.done));
            for client in 0..setup.clients {
                let clients = &clients;
                scope.spawn(move || clients.call(client));
            }
            // Costs that were charged shortly before a fault are uncertain, so that some must be older.
            wait(random.u64(800..2000));
            eventually("some calls have ended", || clients.admitted() > 12);
            for fault in &setup.faults {
                losses.extend(self.happen(*fault, clients.start));
                wait(random.u64(300..1000));
            }
        });
        let mut books = Books { entries: clients.entries.into_inner().unwrap(), losses };
        for entry in &mut books.entries {
            entry.sent = self.model.sent(&entry.call);
        }
        let after = self.shown_at_last(setup, &books);
        let logs = if books.unexplained().is_empty() { String::new() } else { self.logs(clients.start) };
        if setup.faults.contains(&Fault::Upgrade) {
            assert!(self.gateways[1].wait().0.success(), "{}", self.gateways[1].errors());
            self.gateways[1] = self.gateway();
        }
        Run { setup: setup.clone(), books, after, logs }
    }

    fn logs(&self, start: Instant) -> String {
        let began = Clock::system().now().0 / 1000 - u64::try_from(start.elapsed().as_millis()).unwrap();
        let logs = self.gateways.iter().map(|gateway| format!("--- {}\n{}", gateway.http, gateway.errors()));
        format!("began at {} ms of a minute\n", began % 60_000) + &logs.collect::<String>()
    }

    /// Returns what the store says when everything is reported, and says again a moment later.
    fn shown_at_last(&self, setup: &Setup, books: &Books) -> Shown {
        let end = now();
        while !books.compare(self.shown(setup), setup.limit.tokens).is_empty() && end.elapsed() < HELD {
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_millis(300));
        self.shown(setup)
    }

    fn shown(&self, setup: &Setup) -> Shown {
        let file = self.gateways[0].file("gateway.yaml");
        let user = format!("header:x-user={}", setup.seed);
        let words = ["bucket", "show", "--json", "-c", file.to_str().unwrap(), setup.limit.name, &user];
        let document = tollgate(&words).json();
        // A bucket of which the store knows nothing has spent nothing.
        let number = |name: &str| document["buckets"][0][name].as_u64().unwrap_or_default();
        Shown { spent: number("spent"), held: number("held") }
    }

    /// Lets a fault happen. Returns what it may have changed.
    fn happen(&mut self, fault: Fault, start: Instant) -> Vec<Loss> {
        let before = start.elapsed().saturating_sub(LATE);
        match (fault, &self.store) {
            (Fault::Nothing, _) => Vec::new(),
            (Fault::Kill, _) => {
                self.gateways[0].signal("KILL");
                self.gateways[0].wait();
                self.gateways[0].start_again();
                // Also what its clients could not ask it meanwhile.
                vec![Loss { gateway: Some(0), of: LossOf::Calls, time: [before, start.elapsed()] }]
            }
            (Fault::Flush, Store::One(redis)) => {
                redis.command::<()>(&["FLUSHALL"]);
                vec![Loss { gateway: None, of: LossOf::Costs, time: [Duration::ZERO, start.elapsed()] }]
            }
            (Fault::Upgrade, _) => {
                self.gateways[1].signal("USR2");
                Orphan::of(&self.gateways[1], 1);
                Vec::new()
            }
            (Fault::Failover, Store::Sentinels(group)) => {
                // What was written until now has reached the replica.
                let mut master = group.servers[0].connection();
                ::redis::cmd("SET").arg("mark").arg(1).exec(&mut master).unwrap();
                let reached: u64 = ::redis::cmd("WAIT").arg(1).arg(5_000).query(&mut master).unwrap();
                assert_eq!(reached, 1, "the replica is in step");
                let Store::Sentinels(group) = &mut self.store else { unreachable!("it was one") };
                group.servers[0].kill();
                let costs = Loss { gateway: None, of: LossOf::Costs, time: [before, start.elapsed()] };
                eventually("the successor decides", || {
                    group.is_named(1)
                        && self.gateways.iter().all(|gateway| gateway.metric("rate_limiter_store_up", &[]) == 1.0)
                });
                vec![costs]
            }
            _ => panic!("{fault:?} needs another store"),
        }
    }
}

struct Clients {
    start: Instant,
    setup: Setup,
    model: Model,
    gateways: Vec<SocketAddr>,
    done: Arc<AtomicBool>,
    entries: Mutex<Vec<Entry>>,
}

impl Clients {
    fn new(site: &Site, setup: &Setup) -> Clients {
        let gateways = site.gateways.iter().map(|gateway| gateway.http).collect();
        let (done, entries) = (Arc::default(), Mutex::default());
        Clients { start: now(), setup: setup.clone(), model: site.model.clone(), gateways, done, entries }
    }

    fn admitted(&self) -> usize {
        let is_admitted =
            |entry: &&Entry| matches!(entry.seen, CallResult::Whole | CallResult::Broken(_) | CallResult::Left(_));
        self.entries.lock().unwrap().iter().filter(is_admitted).count()
    }

    /// Makes calls one after the other.
    fn call(&self, client: u64) {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let mut random = fastrand::Rng::with_seed(self.setup.seed << 8 | client);
        let fields = format!("X-Limit: {}\r\nX-User: {}\r\n", self.setup.limit.name, self.setup.seed);
        while !self.done.load(Ordering::Relaxed) {
            let call = Call::random(CALLS.fetch_add(1, Ordering::Relaxed), &mut random);
            let gateway = random.usize(..self.gateways.len());
            self.model.expect(&call);
            let sent = self.start.elapsed();
            let seen = make(&call, self.gateways[gateway], &fields, &self.model);
            let time = [sent, self.start.elapsed()];
            let is_refused = matches!(seen, CallResult::Refused(..) | CallResult::NoConnection);
            let reserved = (self.setup.limit.reserved)(&call);
            self.entries.lock().unwrap().push(Entry { call, gateway, time, seen, sent: None, reserved });
            if is_refused {
                std::thread::sleep(Duration::from_millis(random.u64(5..40)));
            }
        }
    }
}
