//! Runs several gateways on one shared store: each has its own store, and each worker of it has its own thread.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use base::host_port::HostPort;
use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use ledger::outcome::{Outcome, Verdict};
use stores::postgres;
use stores::redis;
use stores::redis::cluster;
use stores::redis::cluster::Place;
use stores::redis::fault_injection::{AHEAD, Hooks, ServerClock};
use stores::redis::{Login, Settings, Target};
use stores::{Event, EventSink, Store, StoreError, TakeFailure, TakeReply, Worker, breaker};

use super::{Answer, ClockOffset, History, Limit, Record, micros};
use crate::support::charge::{self, spend};
use crate::support::{Redis, now, print_measured};

/// The longest wait of a decision in tests that must not depend on how busy the machine is.
pub const PATIENT: Micros = Micros(5_000_000);

#[derive(Clone)]
pub struct Gateways {
    /// The hooks of each gateway.
    pub hooks: Vec<Hooks>,
    pub workers: usize,
    /// The number of callers on each worker.
    pub callers: usize,
    pub buckets: Vec<Limit>,
    /// Replaces a limit by the limit that a gateway wrongly uses. The first argument is the number of the gateway.
    pub mistaken: fn(usize, Limit) -> Limit,
    pub clocks: Clocks,
    /// Returns the next request of a caller: buckets, and costs in thousandths. The argument is the caller's number.
    pub request: fn(usize) -> Vec<(usize, u64)>,
    /// The mean pause of a caller after a grant, and after a refusal.
    pub pauses: [Duration; 2],
    pub lasting: Duration,
    /// The longest wait of a decision.
    pub timeout: Micros,
}

/// Returns a request for one to seven tokens from one to four buckets: the first; one of the next three; one of the next
/// eight, which belongs to the caller; and one of the `others` after these.
pub fn random_request(caller: usize, others: usize) -> Vec<(usize, u64)> {
    let cost = || if fastrand::bool() { fastrand::u64(1..=7) * 1000 } else { fastrand::u64(1_000..=7_000) };
    let mut charges = vec![(0, cost())];
    if fastrand::u8(0..4) > 0 {
        charges.push((1 + fastrand::usize(0..3), cost()));
    }
    if fastrand::u8(0..4) == 0 {
        charges.push((4 + caller % 8, cost()));
    }
    if fastrand::u8(0..3) == 0 {
        charges.push((12 + fastrand::usize(0..others), cost()));
    }
    charges
}

/// The clocks in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clocks {
    /// The time of Redis' clock when the load begins, in microseconds since the Unix epoch; `None` for the real time.
    pub begin: Option<i64>,
    /// By how many hours the clocks of the gateways are wrong. The fourth gateway begins again with the first number.
    pub hours_wrong: [i64; 3],
}

impl Clocks {
    /// Returns the clock of a gateway. It differs from Redis' clock only by the gateway's error.
    fn of(self, gateway: usize) -> Clock {
        let Clock::System { epoch, start, ahead } = Clock::system() else { panic!("a manual clock") };
        let wrong = self.ahead() + self.hours_wrong[gateway % self.hours_wrong.len()] * 3_600_000_000;
        Clock::System { epoch: Timestamp(epoch.0.saturating_add_signed(wrong)), start, ahead }
    }

    /// Returns how far Redis' clock is to be moved now, in microseconds.
    fn ahead(self) -> i64 {
        let now = i64::try_from(Clock::system().now().0).unwrap();
        self.begin.map_or(0, |begin| begin - now)
    }
}

/// The history of gateways under load.
pub struct Run {
    pub history: History,
    /// The number of calls to Redis.
    pub calls: u64,
}

/// Repeats the run, at most twice, if a clock of this machine was moved during it. A store with a wrong time shows this in
/// each run.
pub fn undisturbed(mut play: impl FnMut() -> Run) -> Run {
    for _ in 0..2 {
        let run = play();
        if !run.history.shows_a_moved_clock() {
            return run;
        }
        print_measured(&format!("history: a clock of this machine moved: {:?}", run.history.check()));
    }
    play()
}

impl Gateways {
    /// Runs the gateways. `port` is the port at which they reach Redis, perhaps through a relay. `begin` is called when all
    /// are connected and no request has been sent.
    pub fn play(&self, redis: &Redis, port: u16, begin: impl Fn() + Sync) -> Run {
        let start = now();
        let ahead = AtomicI64::new(0);
        let begin = || {
            if self.clocks.begin.is_some() {
                ahead.store(self.clocks.ahead(), Ordering::Relaxed);
                redis.command::<()>(&["SET", AHEAD, &ahead.load(Ordering::Relaxed).to_string()]);
            }
            begin();
        };
        let clock = ClockOffset::measure(redis.port, start);
        let open = |gateway, hooks, report| self.open(gateway, hooks, port, report);
        let mut run = self.play_in(&open, start, clock, &begin);
        run.history.clock.ahead += ahead.load(Ordering::Relaxed);
        run
    }

    /// Runs the gateways on a PostgreSQL server that uses the clock of this machine.
    pub fn play_on_postgres(&self, settings: &postgres::Settings, begin: impl Fn() + Sync) -> Run {
        let start = now();
        let open = |gateway, hooks, report| {
            let settings = postgres::Settings { timeout: self.timeout, ..settings.clone() };
            Store::Postgres(postgres::Postgres::open(hooks, settings, self.workers, self.clocks.of(gateway), report))
        };
        self.play_in(&open, start, ClockOffset::of_this_machine(start), &begin)
    }

    /// Runs the gateways on a Redis Cluster with these nodes, which use the clock of this machine.
    pub fn play_on_cluster(&self, nodes: &[HostPort], begin: impl Fn() + Sync) -> Run {
        let start = now();
        let cluster = cluster::Settings { nodes: nodes.to_vec(), place: Place::DEFAULT };
        let open = |gateway, hooks, report| {
            let target = Target::Cluster(Box::new(cluster.clone()));
            let settings = self.settings(target);
            let clock = self.clocks.of(gateway);
            Store::Cluster(cluster::Cluster::open(hooks, &cluster, settings, self.workers, clock, report))
        };
        self.play_in(&open, start, ClockOffset::of_this_machine(start), &begin)
    }

    fn play_in(
        &self,
        open: &dyn Fn(usize, Hooks, EventSink) -> Store,
        start: Instant,
        clock: ClockOffset,
        begin: &(dyn Fn() + Sync),
    ) -> Run {
        let calls = Arc::new(AtomicU64::new(0));
        let ready = Barrier::new(self.hooks.len() * self.workers);
        let begin = || {
            if ready.wait().is_leader() {
                begin();
            }
            ready.wait();
        };
        let records = std::thread::scope(|scope| {
            let mut workers = Vec::new();
            for (gateway, hooks) in self.hooks.iter().enumerate() {
                let calls = Arc::clone(&calls);
                let report = EventSink::new(move |event| {
                    if let Event::CallEnded(_) = event {
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let store = Arc::new(open(gateway, *hooks, report));
                for worker in 0..self.workers {
                    let (store, begin) = (Arc::clone(&store), &begin);
                    workers.push(scope.spawn(move || self.drive(store, (gateway, worker), start, begin)));
                }
            }
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        let history = History { buckets: self.buckets.clone(), records, clock };
        Run { history, calls: calls.load(Ordering::Relaxed) }
    }

    /// Drives a worker as the gateway does: one thread drives the worker's connection and all its callers.
    fn drive(&self, store: Arc<Store>, worker: (usize, usize), start: Instant, begin: &dyn Fn()) -> Vec<Record> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let driven = Arc::clone(&store);
            let link = tokio::spawn(async move { driven.run(Worker(worker.1)).await });
            store.first_attempt().await;
            // On a busy machine the first attempt may fail: the connection is there when a bucket of no history was charged.
            let algorithms: Vec<_> =
                self.buckets.iter().map(|limit| (self.mistaken)(worker.0, *limit).algorithm()).collect();
            let mut probe = plan(&algorithms, &[(0, 1)]);
            probe.enforced.iter_mut().for_each(|charge| charge.key = BucketKey([u8::MAX; 16]));
            while store.take(Worker(worker.1), &probe, None).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            begin();
            let numbers = Arc::new(AtomicU64::new(0));
            let end = now() + self.lasting;
            let callers: Vec<_> = (0..self.callers)
                .map(|caller| {
                    let caller = Caller {
                        index: (worker.0 * self.workers + worker.1) * self.callers + caller,
                        gateways: self.clone(),
                        algorithms: algorithms.clone(),
                        store: Arc::clone(&store),
                        worker,
                        numbers: Arc::clone(&numbers),
                        start,
                    };
                    tokio::spawn(caller.ask_until(end))
                })
                .collect();
            let mut records = Vec::new();
            for caller in callers {
                records.extend(caller.await.unwrap());
            }
            link.abort();
            records
        })
    }

    fn open(&self, gateway: usize, hooks: Hooks, port: u16, report: EventSink) -> Store {
        let server_clock = if self.clocks.begin.is_some() { ServerClock::Movable } else { hooks.server_clock };
        let hooks = Hooks { server_clock, ..hooks };
        let settings = self.settings(Target::at("127.0.0.1", port));
        Store::Redis(redis::Redis::open(hooks, settings, self.workers, self.clocks.of(gateway), report))
    }

    fn settings(&self, target: Target) -> Settings {
        Settings {
            target,
            login: Login::default(),
            timeout: self.timeout,
            prefix: "history".to_owned(),
            breaker: breaker::Settings::default(),
            gateways: 1,
        }
    }
}

/// Returns a plan for buckets by their index, and costs in thousandths.
pub fn plan(algorithms: &[Algorithm], charges: &[(usize, u64)]) -> Plan {
    charge::plan(charges.iter().map(|(index, cost)| {
        let key = BucketKey([u8::try_from(index + 1).unwrap(); 16]);
        spend(key, algorithms[*index], Cost::from_thousandths(*cost))
    }))
}

struct Caller {
    index: usize,
    gateways: Gateways,
    algorithms: Vec<Algorithm>,
    store: Arc<Store>,
    worker: (usize, usize),
    /// Counts the requests to this worker.
    numbers: Arc<AtomicU64>,
    start: Instant,
}

impl Caller {
    async fn ask_until(self, end: Instant) -> Vec<Record> {
        let mut records = Vec::new();
        while now() < end {
            let charges = (self.gateways.request)(self.index);
            let plan = plan(&self.algorithms, &charges);
            let number = self.numbers.fetch_add(1, Ordering::Relaxed);
            let sent = micros(self.start);
            let taken = self.store.take(Worker(self.worker.1), &plan, None).await;
            let answered = micros(self.start) + 1;
            let answer = answer(taken);
            let pause = self.gateways.pauses[usize::from(!matches!(answer, Answer::Granted { .. }))];
            records.push(Record { worker: self.worker, number, sent, answered, charges, answer });
            match pause {
                Duration::ZERO => tokio::task::yield_now().await,
                pause => tokio::time::sleep(pause.mul_f64(2.0 * fastrand::f64())).await,
            }
        }
        records
    }
}

fn answer(taken: Result<Option<TakeReply>, TakeFailure>) -> Answer {
    match taken {
        Ok(Some(TakeReply { now, settlement, source, .. })) => {
            let reported =
                |outcome: &Outcome| (outcome.verdict != Verdict::Unasked).then(|| outcome.remaining.thousandths());
            let (now, remaining) = (i64::try_from(now.0).unwrap(), settlement.enforced.iter().map(reported).collect());
            if settlement.is_granted() {
                Answer::Granted { now, remaining, delay: i64::try_from(settlement.delay.0).unwrap() }
            } else {
                Answer::Refused { now, remaining, source }
            }
        }
        Err(failure) => match failure.error {
            StoreError::Timeout | StoreError::Closed | StoreError::UnexpectedReply => Answer::Unknown,
            _ => Answer::Unasked,
        },
        Ok(None) => Answer::Unasked,
    }
}
