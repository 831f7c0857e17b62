//! Tests slots that several gateways share in a real Redis.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]
#![allow(clippy::print_stdout, reason = "a child process says when it holds its slots")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::{Clock, EventSink, Micros, Reservation, Settings, Store, StoreError, Worker, breaker, memory, redis};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

/// A redis-server, which is killed at the end of its test.
struct Server {
    port: u16,
    child: Child,
    directory: TempDir,
}

impl Server {
    fn start() -> Server {
        // Another program could take the free port in this moment.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = TempDir::new().unwrap();
        let child = launch(port, &directory);
        let server = Server { port, child, directory };
        server.wait();
        server
    }

    /// Replaces the server by a new and empty one at the same address.
    fn replace(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = launch(self.port, &self.directory);
        self.wait();
    }

    fn wait(&self) {
        eventually(|| self.client().is_some_and(|mut client| ::redis::cmd("PING").exec(&mut client).is_ok()));
    }

    fn client(&self) -> Option<::redis::Connection> {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap();
        client.get_connection_with_timeout(Duration::from_secs(1)).ok()
    }

    fn run(&self, command: &str) -> String {
        let mut words = command.split(' ');
        let mut command = ::redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        let reply: ::redis::Value = command.query(&mut self.client().unwrap()).unwrap();
        ::redis::from_redis_value(reply).unwrap()
    }

    /// Returns how many calls of scripts the server has run.
    fn calls(&self) -> u64 {
        let all = self.run("INFO commandstats");
        let line = all.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(port: u16, directory: &TempDir) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.current_dir(directory.path()).stdout(Stdio::null()).spawn().unwrap()
}

#[track_caller]
fn eventually(mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "it never held");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A gateway with one worker.
struct Gateway {
    store: Arc<Store>,
    connection: JoinHandle<()>,
}

impl Gateway {
    async fn on(port: u16) -> Gateway {
        let settings = redis::Settings {
            target: redis::Target::at("127.0.0.1", port),
            login: redis::Login::default(),
            timeout: Micros(500_000),
            prefix: "slots".to_owned(),
            breaker: breaker::Settings::default(),
            gateways: 1,
        };
        Gateway::with(&Settings::Redis(settings)).await
    }

    async fn with(settings: &Settings) -> Gateway {
        let store = Arc::new(Store::open(settings, 1, Clock::system(), EventSink::new(|_| {})));
        let driven = Arc::clone(&store);
        let connection = tokio::spawn(async move { driven.run(Worker(0)).await });
        store.first_attempt().await;
        Gateway { store, connection }
    }

    async fn ask(&self, plan: &Plan) -> Result<Option<Reservation>, StoreError> {
        let reply = self.store.take(Worker(0), plan, None).await.map_err(|failure| failure.error)?.unwrap();
        assert!(reply.settlement.is_granted() || reply.reservation.is_empty());
        Ok(reply.settlement.is_granted().then_some(reply.reservation))
    }

    /// Makes this number of requests. Returns the reservations of the granted requests.
    async fn take(&self, plan: &Plan, requests: usize) -> Vec<Reservation> {
        let mut held = Vec::new();
        for _ in 0..requests {
            held.extend(self.ask(plan).await.unwrap());
        }
        held
    }

    /// Makes requests until this number of slots is granted. Returns the slots, and how long it took.
    async fn take_all(&self, plan: &Plan, slots: usize) -> (Vec<Reservation>, Duration) {
        let (began, mut held) = (Instant::now(), Vec::new());
        while held.len() < slots {
            assert!(began.elapsed() < Duration::from_secs(20), "{} of {slots}", held.len());
            match self.ask(plan).await {
                Ok(Some(slot)) => held.push(slot),
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        (held, began.elapsed())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn charge(bucket: u8, slots: u64) -> Charge {
    let algorithm = Algorithm::Concurrency(Concurrency::new(slots).unwrap());
    Charge::new(BucketKey([bucket; 16]), algorithm, Cost::ONE)
}

fn plan(charges: impl IntoIterator<Item = Charge>) -> Plan {
    let mut plan = Plan::default();
    charges.into_iter().for_each(|charge| plan.enforce(charge));
    plan
}

fn slots_of(slots: u64) -> Plan {
    plan([charge(1, slots)])
}

#[tokio::test]
async fn a_slot_that_is_given_back_is_free_everywhere_after_one_call() {
    let server = Server::start();
    let (one, other, three) = (Gateway::on(server.port).await, Gateway::on(server.port).await, slots_of(3));
    let mut held = one.take(&three, 4).await;
    assert_eq!(held.len(), 3);
    assert!(other.ask(&three).await.unwrap().is_none());
    let before = server.calls();
    held.pop().unwrap().release();
    eventually_async(async || server.calls() > before).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.calls(), before + 1);
    assert_eq!(other.take(&three, 2).await.len(), 1);
}

async fn eventually_async(mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < until, "it never held");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn slots_and_tokens_are_taken_together_or_not_at_all() {
    let server = Server::start();
    let memory = Settings::Memory(memory::Settings::default());
    for gateway in [Gateway::with(&memory).await, Gateway::on(server.port).await] {
        let rate = Rate { amount: Cost::ONE, period: Micros(3_600_000_000) };
        let tokens = |key, burst| {
            let bucket = Algorithm::TokenBucket(TokenBucket::new(rate, burst).unwrap());
            Charge::new(BucketKey([key; 16]), bucket, Cost::ONE)
        };
        // Two slots, and tokens for three requests.
        let both = plan([charge(1, 2), tokens(2, 3)]);
        let mut held = gateway.take(&both, 3).await;
        assert_eq!(held.len(), 2, "a refused slot spends no token");
        held.pop();
        assert_eq!(gateway.take_all(&both, 1).await.0.len(), 1);
        assert!(gateway.ask(&both).await.unwrap().is_none(), "no token is left");
        drop(held);
        // No token is left, but both slots are free again.
        let (all, _) = gateway.take_all(&slots_of(2), 2).await;
        assert_eq!(all.len(), 2);
    }
}

#[tokio::test]
async fn limits_of_one_bucket_share_its_slots_and_a_shadow_refuses_nobody() {
    let server = Server::start();
    let memory = Settings::Memory(memory::Settings::default());
    for gateway in [Gateway::with(&memory).await, Gateway::on(server.port).await] {
        let (free, paid) = (slots_of(2), slots_of(4));
        let mut held = gateway.take(&free, 3).await;
        assert_eq!(held.len(), 2);
        // One call may contain requests of both plans.
        let (more, none) = tokio::join!(gateway.take(&paid, 3), gateway.take(&free, 1));
        assert_eq!((more.len(), none.len()), (2, 0));
        held.extend(more);
        let mut shadowed = plan([charge(2, 9)]);
        shadowed.shadow.push(charge(3, 1));
        assert_eq!(gateway.take(&shadowed, 3).await.len(), 3);
    }
}

#[tokio::test]
async fn what_was_let_pass_without_the_store_is_held_too() {
    let server = Server::start();
    let (one, other, two) = (Gateway::on(server.port).await, Gateway::on(server.port).await, slots_of(2));
    let passed = [(); 3].map(|()| one.store.hold(Worker(0), &two));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(other.ask(&two).await.unwrap().is_none());
    let [first, second, third] = passed;
    drop((first, second));
    assert_eq!(other.take_all(&two, 1).await.0.len(), 1);
    drop(third);
}

#[tokio::test]
async fn a_slot_ends_after_its_longest_time_although_its_request_goes_on() {
    let server = Server::start();
    let memory = Settings::Memory(memory::Settings::default());
    for gateway in [Gateway::with(&memory).await, Gateway::on(server.port).await] {
        let short = Concurrency::new(1).unwrap().with_max_hold(Some(Micros(300_000)));
        let short = plan([Charge::new(BucketKey([1; 16]), Algorithm::Concurrency(short), Cost::ONE)]);
        let held = gateway.ask(&short).await.unwrap().unwrap();
        assert!(gateway.ask(&short).await.unwrap().is_none());
        let (again, after) = gateway.take_all(&short, 1).await;
        assert!(after > Duration::from_millis(150) && after < Duration::from_secs(2), "{after:?}");
        drop(held);
        assert!(gateway.ask(&short).await.unwrap().is_none(), "the first had nothing to give back");
        drop(again);
    }
}

#[tokio::test]
async fn a_store_that_forgets_is_told_again_within_two_seconds() {
    let mut server = Server::start();
    let (one, other, three) = (Gateway::on(server.port).await, Gateway::on(server.port).await, slots_of(3));
    let held = one.take(&three, 3).await;
    server.run("FLUSHALL");
    tokio::time::sleep(Duration::from_millis(2300)).await;
    assert!(other.ask(&three).await.unwrap().is_none());
    // A long request keeps its slot, because the gateway repeats its reports.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(other.ask(&three).await.unwrap().is_none());
    server.replace();
    eventually_async(async || one.ask(&plan([charge(9, 1)])).await.is_ok()).await;
    eventually_async(async || other.ask(&plan([charge(9, 1)])).await.is_ok()).await;
    assert!(other.ask(&three).await.unwrap().is_none(), "on the new connection all is said at once");
    drop(held);
    other.take_all(&three, 3).await;
}

/// Starts a relay to a server, and returns its port. The relay can lose the answer to a call, and then closes the
/// connection.
async fn relay(to: u16, loses: Arc<AtomicBool>) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let loses = Arc::clone(&loses);
            tokio::spawn(async move {
                let server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let there = tokio::io::copy(&mut from_client, &mut to_server);
                let back = async {
                    let mut bytes = vec![0; 65_536];
                    while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
                        if loses.swap(false, Ordering::Relaxed) || to_client.write_all(&bytes[..count]).await.is_err() {
                            break;
                        }
                    }
                };
                tokio::select! {
                    _ = there => {}
                    () = back => {}
                }
            });
        }
    });
    port
}

/// Many callers on three gateways hold a slot for some milliseconds each. Answers to two of the gateways are sometimes
/// lost.
#[tokio::test]
async fn no_more_run_than_there_are_slots_although_answers_are_lost() {
    const SLOTS: usize = 5;
    let server = Server::start();
    let loses = Arc::new(AtomicBool::new(false));
    let through = relay(server.port, Arc::clone(&loses)).await;
    let gateways = [through, server.port, through].map(|port| async move { Arc::new(Gateway::on(port).await) });
    let [one, two, three] = gateways;
    let gateways = [one.await, two.await, three.await];
    let (running, most, granted, failed) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let counts = Arc::new((running, most, granted, failed));
    let until = Instant::now() + Duration::from_secs(8);
    let callers: Vec<_> = (0..48)
        .map(|caller: usize| {
            let (gateway, counts) = (Arc::clone(&gateways[caller % 3]), Arc::clone(&counts));
            tokio::spawn(async move {
                let plan = plan([charge(1, SLOTS as u64), charge(2, 40)]);
                while Instant::now() < until {
                    let (running, most, granted, failed) = &*counts;
                    match gateway.ask(&plan).await {
                        Ok(Some(slot)) => {
                            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            granted.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(caller as u64 % 7)).await;
                            running.fetch_sub(1, Ordering::SeqCst);
                            drop(slot);
                        }
                        Ok(None) => tokio::time::sleep(Duration::from_millis(1)).await,
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                    }
                }
            })
        })
        .collect();
    while Instant::now() < until {
        loses.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    for caller in callers {
        caller.await.unwrap();
    }
    let (_, most, granted, failed) = &*counts;
    let count = |number: &AtomicUsize| number.load(Ordering::SeqCst);
    assert!(count(most) <= SLOTS, "{} ran at once", count(most));
    assert!(count(granted) > 500 && count(failed) > 10, "{} granted, {} failed", count(granted), count(failed));
    // In the end all slots can be granted again, so none was lost.
    loses.store(false, Ordering::Relaxed);
    let (_all, _) = gateways[1].take_all(&slots_of(SLOTS as u64), SLOTS).await;
}

/// The environment variable with the port of the server that a child process uses.
const CHILD: &str = "SLOTS_CHILD";

/// A gateway in a process of its own, which holds slots until it is killed.
#[tokio::test]
#[ignore = "run by other tests"]
async fn child() {
    let port = std::env::var(CHILD).unwrap().parse().unwrap();
    let gateway = Gateway::on(port).await;
    let _held = gateway.take_all(&slots_of(50), 50).await;
    println!("held");
    tokio::time::sleep(Duration::from_secs(60)).await;
}

fn child_that_holds(port: u16) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(CHILD, port.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("held")), "it holds nothing");
    child
}

#[tokio::test]
async fn a_killed_gateway_frees_its_slots_within_seven_seconds() {
    let server = Server::start();
    let (gateway, fifty) = (Gateway::on(server.port).await, slots_of(50));
    let mut child = tokio::task::spawn_blocking({
        let port = server.port;
        move || child_that_holds(port)
    })
    .await
    .unwrap();
    assert!(gateway.ask(&fifty).await.unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let (held, after) = gateway.take_all(&fifty, 50).await;
    assert!(after > Duration::from_secs(4) && after < Duration::from_millis(7500), "{after:?}");
    assert!(gateway.ask(&fifty).await.unwrap().is_none(), "{} are held", held.len());
}

#[tokio::test]
async fn a_gateway_that_was_stopped_says_again_what_it_holds() {
    let server = Server::start();
    let (gateway, sixty) = (Gateway::on(server.port).await, slots_of(60));
    let port = server.port;
    let mut child = tokio::task::spawn_blocking(move || child_that_holds(port)).await.unwrap();
    assert_eq!(gateway.take(&sixty, 11).await.len(), 10);
    let signal = |name: &str| Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(signal("-STOP").success());
    let (held, _) = gateway.take_all(&sixty, 60).await;
    assert!(signal("-CONT").success());
    tokio::time::sleep(Duration::from_millis(2300)).await;
    // 110 slots are held, although the limit is 60. So more than 50 must be given back before a request is granted.
    drop(held);
    let (held, _) = gateway.take_all(&sixty, 10).await;
    assert!(gateway.ask(&sixty).await.unwrap().is_none(), "{}", held.len());
    child.kill().unwrap();
    child.wait().unwrap();
}
