//! The times at which a shared leaky bucket forwards requests: no window has more of them than allowed.

use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::leaky_bucket::{LeakyBucket, Settings};
use ledger::algorithm::token_bucket::Rate;
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use ledger::cost::Cost;
use stores::memory::{self, Memory};
use stores::redis;
use stores::redis::fault_injection::{Flaw, Hooks};
use stores::redis::{Login, Settings as RedisSettings, Target};
use stores::{EventSink, Source, Store, Worker, breaker};

use super::history::gateways::PATIENT;
use crate::support::charge::{plan_of, spend};
use crate::support::{Redis, short_or_long};

/// The first three requests do not wait.
const DELAY_AFTER: u32 = 2;

/// Returns a plan with a leaky bucket: one place in each interval of microseconds, and 33 places.
fn plan(interval: u64) -> Plan {
    let rate = Rate { amount: Cost::ONE, period: Micros(interval) };
    let settings = Settings { rate, queue: 30, max_wait: Micros(25 * interval), delay_after: DELAY_AFTER };
    let algorithm = Algorithm::LeakyBucket(LeakyBucket::new(settings).unwrap());
    plan_of(spend(BucketKey([1; 16]), algorithm, Cost::ONE))
}

fn on_redis(redis: &Redis, hooks: Hooks) -> Arc<Store> {
    let settings = RedisSettings {
        target: Target::at("127.0.0.1", redis.port),
        login: Login::default(),
        timeout: PATIENT,
        prefix: "queue".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    };
    Arc::new(Store::Redis(redis::Redis::open(hooks, settings, 1, Clock::system(), EventSink::new(|_| ()))))
}

/// The answer to one request: the time of the decision, and the delay; `None` if the request is refused.
type Answer = (u64, Option<u64>);

/// Returns the answers of these gateways to requests that come in bursts and one by one.
fn play(gateways: &[Arc<Store>], interval: u64, requests: usize) -> Vec<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for store in gateways {
            let driven = Arc::clone(store);
            tokio::spawn(async move { driven.run(Worker(0)).await });
            store.first_attempt().await;
            for caller in 0..12 {
                let store = Arc::clone(store);
                callers.spawn(async move {
                    let mut answers = Vec::new();
                    for number in 0..requests {
                        answers.push(ask(&store, &plan(interval)).await);
                        if (number + caller) % 3 == 0 {
                            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3 * interval))).await;
                        }
                    }
                    answers
                });
            }
        }
        callers.join_all().await.concat()
    })
}

async fn ask(store: &Store, plan: &Plan) -> Answer {
    let reply = store.take(Worker(0), plan, None).await.unwrap().unwrap();
    (reply.now.0, reply.settlement.is_granted().then_some(reply.settlement.delay.0))
}

/// Returns the first window with too many forwarded requests: their number, and the length of the window in microseconds.
fn excess(answers: &[Answer], interval: u64) -> Option<(u64, u64)> {
    let mut moments: Vec<u64> = answers.iter().filter_map(|(now, delay)| Some(now + (*delay)?)).collect();
    moments.sort_unstable();
    moments.iter().enumerate().find_map(|(first, begin)| {
        let mut windows = (1..).zip(&moments[first..]).map(|(count, end)| (count, end - begin));
        windows.find(|(count, window)| *count > 1 + u64::from(DELAY_AFTER) + window / interval)
    })
}

#[test]
fn gateways_on_one_redis_share_one_schedule() {
    const INTERVAL: u64 = 20_000;
    let redis = Redis::start();
    let gateways = [(); 3].map(|()| on_redis(&redis, Hooks::default()));
    let answers = play(&gateways, INTERVAL, short_or_long(30, 1000));
    let granted = answers.iter().filter_map(|(_, delay)| *delay).collect::<Vec<_>>();
    assert!(granted.len() > 25 && granted.len() < answers.len(), "{} of {}", granted.len(), answers.len());
    assert!(granted.iter().all(|delay| *delay <= 25 * INTERVAL), "{answers:?}");
    assert_eq!(excess(&answers, INTERVAL), None, "{answers:?}");
}

/// The interval for variants that are known to be wrong. It is one second, so that no request leaves the queue during the
/// test. The same judge finds each of these variants.
const SLOW: u64 = 1_000_000;

#[test]
fn a_schedule_of_each_gateway_its_own_is_noticed() {
    let own = || Arc::new(Store::Memory(Memory::new(&memory::Settings::default(), Clock::system())));
    let one = own();
    let together = [Arc::clone(&one), one];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let burst = |gateways: [Arc<Store>; 2]| {
        runtime.block_on(async {
            let mut answers = Vec::new();
            for number in 0..40 {
                answers.push(ask(&gateways[number % 2], &plan(SLOW)).await);
            }
            answers
        })
    };
    assert_eq!(excess(&burst(together), SLOW), None);
    assert!(excess(&burst([own(), own()]), SLOW).is_some());
}

#[test]
fn a_schedule_by_the_clocks_of_gateways_is_noticed() {
    let ahead = Micros(20 * SLOW);
    let by_its_clock = Hooks { flaw: Some(Flaw::ClientTime { ahead }), ..Hooks::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The first gateway fills the queue, then the second one asks.
    let burst = |hooks: Hooks| {
        let redis = Redis::start();
        let moved = if hooks.flaw.is_some() { ahead.0 } else { 0 };
        let gateways = [(on_redis(&redis, Hooks::default()), 0), (on_redis(&redis, hooks), moved)];
        runtime.block_on(async {
            let mut answers = Vec::new();
            for (store, moved) in gateways {
                let driven = Arc::clone(&store);
                tokio::spawn(async move { driven.run(Worker(0)).await });
                store.first_attempt().await;
                for _ in 0..40 {
                    let (now, delay) = ask(&store, &plan(SLOW)).await;
                    // By Redis' clock, by which the requests go on.
                    answers.push((now - moved, delay));
                }
            }
            answers
        })
    };
    assert_eq!(excess(&burst(Hooks::default()), SLOW), None);
    assert!(excess(&burst(by_its_clock), SLOW).is_some());
}

/// The first request can be admitted only after some time, because places are never given back. A request that can wait is
/// still sent to the store.
#[test]
fn a_request_that_cannot_wait_is_refused_again_without_a_call() {
    let redis = Redis::start();
    let store = on_redis(&redis, Hooks::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let driven = Arc::clone(&store);
        tokio::spawn(async move { driven.run(Worker(0)).await });
        store.first_attempt().await;
        let (patient, mut hurried) = (plan(600 * SLOW), plan(600 * SLOW));
        hurried.limit_delay(Micros(0));
        for _ in 0..3 {
            assert_eq!(ask(&store, &hurried).await.1, Some(0));
        }
        let mut sources = Vec::new();
        // What is known counts for a second: a busy machine may take longer.
        while sources.len() < 20 && sources.last() != Some(&Source::Cached) {
            let refused = store.take(Worker(0), &hurried, None).await.unwrap().unwrap();
            assert!(!refused.settlement.is_granted() && refused.settlement.enforced[0].remaining.whole() > 1);
            sources.push(refused.source);
        }
        assert_eq!((sources.first(), sources.last()), (Some(&Source::Store), Some(&Source::Cached)), "{sources:?}");
        assert!(ask(&store, &patient).await.1 > Some(0));
    });
}

/// If clients waited for a free place outside of the queue, they would all return at the same time.
#[test]
fn waiting_for_a_free_place_instead_of_in_one_is_noticed() {
    let waited: Vec<Answer> = (0..20).map(|number| (0, Some(if number < 3 { 0 } else { SLOW }))).collect();
    assert!(excess(&waited, SLOW).is_some());
    let in_line: Vec<Answer> = (0..20).map(|number: u64| (0, Some(number.saturating_sub(2) * SLOW))).collect();
    assert_eq!(excess(&in_line, SLOW), None);
}
