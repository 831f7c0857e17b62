//! Tests outages of a server, with a transport that has no server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::smallvec;

use super::fault_injection::Hooks;
use super::queue::Route;
use super::transport::{
    CallLimits, CallPart, CallReply, DrivenLink, LiveGateways, PartReply, ReadStates, Reply, Transport,
};
use super::{Remote, Settings};
use crate::breaker;
use crate::error::{Fault, StoreError};
use crate::events::{Event, EventSink, RunningGateway};
use crate::lease_acts::{ActResult, ActResults, BucketAct};
use crate::worker::Worker;
use base::time::{Clock, Micros, Timestamp};
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, State};
use ledger::bucket_key::{BucketKey, LimitTag};
use ledger::charge::{Charge, ChargePurpose, LimitId, Plan, settle};
use ledger::cost::Cost;
use ledger::holds::{Owner, TimedHold};

const TIMEOUT: Duration = Duration::from_millis(20);

/// The event that is sent when a connection is made.
const UP: Event = Event::Up { worker: Worker(0), server: None };

/// The behaviour of the server.
#[derive(Clone, Copy, Debug)]
enum Behaviour {
    /// The server accepts no connection.
    Refuses,
    Answers,
    /// The server answers each call after this time.
    Late(Duration),
    /// The server ends the connection at the next call.
    Closes,
    /// The server accepts no writes at the next call, and is replaced.
    Demoted,
    /// The server accepts no writes, and is not replaced.
    Replica,
}

/// An imitated server. On one connection, at most `AT_ONCE` calls may be under way.
#[derive(Debug)]
struct Fake<const AT_ONCE: usize = 1> {
    behaviour: Mutex<Behaviour>,
    clock: Clock,
    /// The number of plans that the server has received.
    received: AtomicUsize,
    /// The number of calls under way.
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl<const AT_ONCE: usize> Transport for Fake<AT_ONCE> {
    type Link = ();

    const CALLS: CallLimits = CallLimits { charges: 8, requests: 8, at_once: AT_ONCE, parted: false };

    async fn connect(&self) -> Result<DrivenLink<()>, Fault> {
        match *self.behaviour.lock() {
            Behaviour::Refuses => Err(Fault::new(StoreError::Unreachable, "a test")),
            _ => Ok(DrivenLink { link: (), driver: Box::pin(std::future::pending()), server: None }),
        }
    }

    async fn take(&self, (): &mut (), parts: &[CallPart<'_>], _near: Timestamp) -> Result<CallReply, Fault> {
        let plans = parts.first().map_or(&[][..], |part| part.plans);
        self.received.fetch_add(plans.len(), Ordering::Relaxed);
        let behaviour = *self.behaviour.lock();
        match behaviour {
            Behaviour::Late(after) => {
                let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
                self.most.fetch_max(under_way, Ordering::Relaxed);
                tokio::time::sleep(after).await;
                self.under_way.fetch_sub(1, Ordering::Relaxed);
            }
            Behaviour::Closes => return Err(Fault::new(StoreError::Closed, "a test")),
            Behaviour::Demoted => *self.behaviour.lock() = Behaviour::Answers,
            Behaviour::Replica | Behaviour::Refuses | Behaviour::Answers => {}
        }
        if matches!(behaviour, Behaviour::Demoted | Behaviour::Replica) {
            return Err(Fault::new(StoreError::Replica, "a test"));
        }
        let now = self.clock.now();
        let settlements = plans.iter().map(|plan| Some(settle(plan, &[None::<State>], now).0)).collect();
        let reply =
            Ok(Reply { now, healed: 0, settlements, left: Vec::new(), reports: Vec::new(), out_of_memory: false });
        Ok(smallvec![PartReply { plans: plans.len(), reply }])
    }

    async fn read(&self, (): &mut (), keys: &[BucketKey], _: Route) -> Result<ReadStates, Fault> {
        let behaviour = *self.behaviour.lock();
        if let Behaviour::Late(after) = behaviour {
            tokio::time::sleep(after).await;
        }
        Ok(ReadStates { now: self.clock.now(), states: vec![None; keys.len()] })
    }

    async fn act(&self, (): &mut (), acts: &[BucketAct], _: Timestamp, _: Route) -> Result<ActResults, Fault> {
        let behaviour = *self.behaviour.lock();
        match behaviour {
            Behaviour::Late(after) => tokio::time::sleep(after).await,
            Behaviour::Closes => return Err(Fault::new(StoreError::Closed, "a test")),
            Behaviour::Demoted | Behaviour::Replica => {
                *self.behaviour.lock() = Behaviour::Answers;
                return Err(Fault::new(StoreError::Replica, "a test"));
            }
            Behaviour::Refuses | Behaviour::Answers => {}
        }
        let results = vec![ActResult::OtherLimit; acts.len()];
        Ok(ActResults { now: self.clock.now(), healed: 0, results })
    }

    async fn beat(&self, (): &mut (), _: [u8; 8], _: &RunningGateway) -> Result<Option<LiveGateways>, Fault> {
        Ok(Some(LiveGateways { alive: 3, older: 0, others: Vec::new() }))
    }
}

fn plan() -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(1_000_000) };
    let charge = Charge {
        key: BucketKey([1; 16]),
        algorithm: Algorithm::TokenBucket(TokenBucket::new(rate, 10).unwrap()),
        cost: Cost::ONE,
        limit: LimitId(0),
        variant: 0,
        tag: LimitTag::default(),
        purpose: ChargePurpose::Spend,
    };
    Plan { enforced: smallvec![charge], shadow: smallvec![] }
}

type Store<const AT_ONCE: usize = 1> = Arc<Remote<Fake<AT_ONCE>>>;

async fn running(behaviour: Behaviour) -> (Store, Arc<Mutex<Vec<Event>>>) {
    running_within(TIMEOUT, behaviour).await
}

/// Makes a store with one worker and this timeout, and returns the store and its events.
async fn running_within<const AT_ONCE: usize>(
    timeout: Duration,
    behaviour: Behaviour,
) -> (Store<AT_ONCE>, Arc<Mutex<Vec<Event>>>) {
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    let sink = Arc::clone(&events);
    let sink = EventSink::new(move |event| sink.lock().push(event));
    let breaker = breaker::Settings { failures: 5, cooldown: Micros(40_000), max_cooldown: Micros(40_000) };
    let settings = Settings { timeout: timeout.into(), breaker, gateways: 1 };
    let clock = Clock::system();
    let (behaviour, received) = (Mutex::new(behaviour), AtomicUsize::new(0));
    let fake =
        Fake { behaviour, clock: clock.clone(), received, under_way: AtomicUsize::new(0), most: AtomicUsize::new(0) };
    let store = Arc::new(Remote::new(fake, settings, Hooks::default(), 1, clock, sink));
    let driven = Arc::clone(&store);
    tokio::spawn(async move { driven.run(Worker(0)).await });
    store.first_attempt().await;
    (store, events)
}

/// Sends one request. Returns whether it was granted.
async fn ask<const AT_ONCE: usize>(store: &Store<AT_ONCE>) -> Result<bool, StoreError> {
    let taken = store.take(Worker(0), &plan(), None, None).await;
    taken.map(|reply| reply.is_some_and(|reply| reply.settlement.is_granted()))
}

/// Sends requests until the answer is `wanted`. Returns the number of other answers.
async fn ask_until<const AT_ONCE: usize>(store: &Store<AT_ONCE>, wanted: Result<bool, StoreError>) -> usize {
    for asked in 0..1000 {
        if ask(store).await == wanted {
            return asked;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("never {wanted:?}")
}

fn reported(events: &Mutex<Vec<Event>>, wanted: &Event) -> usize {
    events.lock().iter().filter(|event| *event == wanted).count()
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_found_when_it_is_back() {
    let (store, events) = running(Behaviour::Refuses).await;
    assert_eq!(ask(&store).await, Err(StoreError::Unreachable));
    *store.transport.behaviour.lock() = Behaviour::Answers;
    ask_until(&store, Ok(true)).await;
    assert_eq!(reported(&events, &UP), 1);
    assert_eq!(store.fallback.gateways(), 3);
    // The request that was under way is not repeated.
    let received = store.transport.received.load(Ordering::Relaxed);
    *store.transport.behaviour.lock() = Behaviour::Closes;
    assert_eq!(ask(&store).await, Err(StoreError::Closed));
    assert_eq!(store.transport.received.load(Ordering::Relaxed), received + 1);
    *store.transport.behaviour.lock() = Behaviour::Answers;
    ask_until(&store, Ok(true)).await;
    assert_eq!(reported(&events, &UP), 2);
}

#[tokio::test]
async fn what_a_demoted_server_refused_is_sent_to_the_next_one_once() {
    let (store, events) = running(Behaviour::Answers).await;
    assert_eq!(ask(&store).await, Ok(true));
    let received = || store.transport.received.load(Ordering::Relaxed);
    let before = received();
    *store.transport.behaviour.lock() = Behaviour::Demoted;
    assert_eq!(ask(&store).await, Ok(true));
    assert_eq!(received(), before + 2);
    assert_eq!(reported(&events, &UP), 2);
    // Neither of the two calls ran. The request is not sent a third time.
    *store.transport.behaviour.lock() = Behaviour::Replica;
    assert_eq!(ask(&store).await, Err(StoreError::Replica));
    assert_eq!(received(), before + 4);
    *store.transport.behaviour.lock() = Behaviour::Answers;
    ask_until(&store, Ok(true)).await;
}

#[tokio::test]
async fn late_replies_open_the_breaker_and_one_probe_closes_it() {
    let (store, events) = running(Behaviour::Answers).await;
    assert_eq!(ask(&store).await, Ok(true));
    *store.transport.behaviour.lock() = Behaviour::Late(TIMEOUT * 6 + TIMEOUT / 2);
    let received = store.transport.received.load(Ordering::Relaxed);
    let started = store.clock.now();
    assert_eq!(ask(&store).await, Err(StoreError::Timeout));
    assert!(store.clock.now().since(started) < Micros::from(TIMEOUT * 5), "it waited longer than for its deadline");
    ask_until(&store, Err(StoreError::BreakerOpen)).await;
    assert_eq!(reported(&events, &Event::BreakerOpened), 1);
    // Requests that waited for the end of this call were never sent.
    assert_eq!(store.transport.received.load(Ordering::Relaxed), received + 1);
    *store.transport.behaviour.lock() = Behaviour::Answers;
    ask_until(&store, Ok(true)).await;
    assert_eq!(reported(&events, &Event::BreakerClosed), 1);
    assert_eq!(reported(&events, &UP), 1, "a probe closes it, no new connection");
    assert_eq!(ask(&store).await, Ok(true));
}

#[tokio::test]
async fn a_failed_attempt_to_connect_does_not_hide_that_a_call_stayed_unanswered() {
    const LATE: Behaviour = Behaviour::Late(Duration::from_secs(60));
    let (store, events) = running(Behaviour::Answers).await;
    assert_eq!(ask(&store).await, Ok(true));
    *store.transport.behaviour.lock() = LATE;
    ask_until(&store, Err(StoreError::BreakerOpen)).await;
    let happens = async |wanted: &dyn Fn(&Event) -> bool| {
        for _ in 0..1000 {
            if events.lock().iter().any(wanted) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it never happened: {:?}", events.lock());
    };
    // A later connection succeeds, but its server still does not answer in time.
    *store.transport.behaviour.lock() = Behaviour::Refuses;
    happens(&|event| matches!(event, Event::Down { fault, .. } if fault.error == StoreError::Unreachable)).await;
    events.lock().clear();
    *store.transport.behaviour.lock() = LATE;
    happens(&|event| *event == UP).await;
    assert_eq!(reported(&events, &Event::BreakerClosed), 0);
    *store.transport.behaviour.lock() = Behaviour::Answers;
    ask_until(&store, Ok(true)).await;
    assert_eq!(reported(&events, &Event::BreakerClosed), 1);
}

#[tokio::test]
async fn a_probe_closes_the_breaker_although_its_request_waits_no_longer() {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let (store, events) = running_within::<1>(TIMEOUT, Behaviour::Answers).await;
    *store.transport.behaviour.lock() = Behaviour::Late(TIMEOUT * 6 + TIMEOUT / 2);
    ask_until(&store, Err(StoreError::BreakerOpen)).await;
    // The reply is in time for the store, but too late for the requests.
    *store.transport.behaviour.lock() = Behaviour::Late(TIMEOUT / 5);
    let is_closed = || reported(&events, &Event::BreakerClosed) > 0;
    for _ in 0..1000 {
        let taken = store.take(Worker(0), &plan(), None, Some(Micros(1_000))).await;
        assert!(matches!(taken, Err(StoreError::Timeout | StoreError::BreakerOpen)), "{taken:?}");
        if is_closed() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_closed());
    assert_eq!(ask(&store).await, Ok(true));
}

#[tokio::test]
async fn a_transport_without_a_second_call_makes_one_at_a_time() {
    // With this timeout, even a busy machine answers all three calls in time.
    let (store, events) = running_within::<1>(Duration::from_secs(5), Behaviour::Late(TIMEOUT / 4)).await;
    let asked: Vec<_> = (0..20)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { ask(&store).await })
        })
        .collect();
    for answer in asked {
        assert_eq!(answer.await.unwrap(), Ok(true));
    }
    let calls = |event: &Event| match event {
        Event::CallEnded(call) => Some(call.requests),
        _ => None,
    };
    assert_eq!(events.lock().iter().filter_map(calls).collect::<Vec<_>>(), [8, 8, 4]);
}

#[tokio::test]
async fn a_further_call_leaves_while_one_takes_long_and_five_are_under_way_at_most() {
    let (store, events) = running_within::<5>(Duration::from_secs(20), Behaviour::Answers).await;
    // From this call, the store learns that calls are fast.
    assert_eq!(ask(&store).await, Ok(true));
    *store.transport.behaviour.lock() = Behaviour::Late(Duration::from_secs(1));
    let mut asked = Vec::new();
    while store.transport.under_way.load(Ordering::Relaxed) < 5 {
        let store = Arc::clone(&store);
        asked.push(tokio::spawn(async move { ask(&store).await }));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(asked.len() < 10_000, "five calls are never under way");
    }
    let more = asked.len() + 20;
    while asked.len() < more {
        let store = Arc::clone(&store);
        asked.push(tokio::spawn(async move { ask(&store).await }));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for answer in asked {
        assert!(answer.await.unwrap().is_ok());
    }
    assert_eq!(store.transport.most.load(Ordering::Relaxed), 5);
    assert!(events.lock().iter().all(|event| !matches!(event, Event::Unsent { .. })));
}

#[tokio::test]
async fn requests_whose_time_passes_before_they_are_sent_are_reported() {
    let (store, events) = running(Behaviour::Late(Duration::from_secs(60))).await;
    let first = Arc::clone(&store);
    let first = tokio::spawn(async move { ask(&first).await });
    while store.transport.received.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(ask(&store).await, Err(StoreError::Unsent));
    assert_eq!(first.await.unwrap(), Err(StoreError::Timeout));
    assert_eq!(reported(&events, &Event::Unsent { requests: 1, node: None }), 1);
    assert_eq!(store.transport.received.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn calls_that_are_all_answered_between_one_timeout_and_two_open_the_breaker() {
    const TIMEOUT: Duration = Duration::from_millis(100);
    let (store, events) = running_within::<5>(TIMEOUT, Behaviour::Answers).await;
    assert_eq!(ask(&store).await, Ok(true));
    *store.transport.behaviour.lock() = Behaviour::Late(TIMEOUT * 3 / 2);
    let asked = ask_until(&store, Err(StoreError::BreakerOpen)).await;
    assert!(asked <= 8, "{asked}");
    assert_eq!(reported(&events, &Event::BreakerOpened), 1);
}

#[tokio::test]
async fn other_requests_do_not_wait_for_many_timed_holds() {
    const CALL: Duration = Duration::from_millis(10);
    let (store, _) = running_within::<1>(Duration::from_secs(5), Behaviour::Late(CALL)).await;
    let mut plan = plan();
    plan.enforced[0].algorithm = Algorithm::Concurrency(Concurrency::new(100).unwrap());
    let ended = Arc::new(AtomicUsize::new(0));
    let holds: Vec<_> = (0..200)
        .map(|number| {
            let (store, plan, ended) = (Arc::clone(&store), plan.clone(), Arc::clone(&ended));
            let hold = TimedHold { owner: Owner::of_timed_hold(number << 16), life: Micros(60_000_000) };
            tokio::spawn(async move {
                let taken = store.take_timed(Worker(0), &plan, None, None, hold).await;
                assert!(taken.is_ok(), "{taken:?}");
                ended.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    // The first call is under way, and the others wait for it.
    tokio::time::sleep(CALL / 2).await;
    for asked in 1..4 {
        assert_eq!(ask(&store).await, Ok(true));
        let ended = ended.load(Ordering::Relaxed);
        assert!(ended <= 2 * asked, "{ended} timed holds were decided before {asked} requests");
    }
    for hold in holds {
        hold.await.unwrap();
    }
}
