//! Buckets in a Redis Cluster: nothing is granted twice while nodes are lost or promoted and slots are moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::host_port::HostPort;
use base::time::{Clock, Micros};
use ledger::algorithm::Algorithm;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::redis::cluster::Place;
use stores::redis::{Login, Settings, Target, cluster};
use stores::{EventSink, Source, Store, StoreError, TakeReply, Worker, breaker};

use crate::support::charge::{plan, spend, tagged_key, unrefilled};
use crate::support::{Lateness, Redis, RedisCluster, Replicas, eventually, now, print_measured};

/// The longest wait for a decision in tests in which a node hangs or is lost.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait in other tests. It is long, because the tests load the machine and no call may fail for that reason.
pub const PATIENT: Duration = Duration::from_secs(10);
/// The largest delay of a timer on a busy machine.
pub const LATE: Duration = Duration::from_millis(1500);

/// Returns a charge to a bucket under this hash tag. Nothing is refilled during a test.
pub fn charge(bucket: u8, tag: u8, burst: u64) -> Charge {
    spend(tagged_key(bucket, tag), unrefilled(burst), Cost::ONE)
}

/// Makes a gateway's store on this cluster. It knows one node, and waits for this long for a node.
pub fn gateway(servers: &RedisCluster, seed: usize, timeout: Duration) -> Arc<Store> {
    gateway_at([&servers.masters[seed]], timeout, EventSink::new(|_| ()))
}

/// Makes a gateway's store that knows these nodes.
pub fn gateway_at<'r>(nodes: impl IntoIterator<Item = &'r Redis>, timeout: Duration, events: EventSink) -> Arc<Store> {
    Arc::new(Store::open(&settings_at(nodes, timeout).into(), 1, Clock::system(), events))
}

/// Returns the settings of a store that knows these nodes.
pub fn settings_at<'r>(nodes: impl IntoIterator<Item = &'r Redis>, timeout: Duration) -> Settings {
    let nodes = nodes.into_iter().map(|node| HostPort::new("127.0.0.1", node.port)).collect();
    Settings {
        target: Target::Cluster(Box::new(cluster::Settings { nodes, place: Place::DEFAULT })),
        login: Login::default(),
        timeout: timeout.into(),
        prefix: "test".to_owned(),
        breaker: breaker::Settings::default(),
        gateways: 1,
    }
}

/// The results of the requests of a load.
#[derive(Debug, Default)]
pub struct Counts {
    pub granted: u64,
    pub refused: u64,
    pub failed: Vec<StoreError>,
    pub longest: Duration,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.granted += other.granted;
        self.refused += other.refused;
        self.failed.extend(other.failed);
        self.longest = self.longest.max(other.longest);
    }
}

pub async fn ask(store: &Store, plan: &Plan, counts: &mut Counts) {
    let started = now();
    let reply = store.take(Worker(0), plan, None).await;
    counts.longest = counts.longest.max(started.elapsed());
    match reply {
        Ok(Some(reply)) if reply.settlement.is_granted() => counts.granted += 1,
        Ok(_) => counts.refused += 1,
        Err(failure) => counts.failed.push(failure.error),
    }
}

pub fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

pub async fn started(store: Arc<Store>) -> Arc<Store> {
    let driven = Arc::clone(&store);
    tokio::spawn(async move { driven.run(Worker(0)).await });
    store.first_attempt().await;
    store
}

/// Runs eight callers for each gateway. They ask for these plans in turn, until `done`.
async fn load(stores: &[Arc<Store>], plans: &[Plan], done: Arc<AtomicBool>) -> Counts {
    let callers: Vec<_> = (0..8 * stores.len())
        .map(|caller| {
            let (store, plans, done) = (Arc::clone(&stores[caller % stores.len()]), plans.to_vec(), Arc::clone(&done));
            tokio::spawn(async move {
                let mut counts = Counts::default();
                while !done.load(Ordering::Relaxed) {
                    for plan in &plans {
                        ask(&store, plan, &mut counts).await;
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                counts
            })
        })
        .collect();
    let mut counts = Counts::default();
    for caller in callers {
        counts.add(caller.await.unwrap());
    }
    counts
}

/// Runs a fault under the load of two gateways. `fault` runs on a separate thread, and its end stops the load.
fn under_load(cluster: &RedisCluster, plans: &[Plan], timeout: Duration, fault: impl FnOnce() + Send) -> Counts {
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ended = Arc::clone(&done);
        let fault = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            // The load ends even if the fault fails.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(fault));
            std::thread::sleep(Duration::from_millis(300));
            ended.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        let counts = run(async {
            let stores = [started(gateway(cluster, 0, timeout)).await, started(gateway(cluster, 1, timeout)).await];
            load(&stores, plans, done).await
        });
        fault.join().unwrap();
        counts
    })
}

/// Repeats the question until the answer is yes.
pub async fn eventually_async(mut question: impl AsyncFnMut() -> bool) {
    let deadline = now() + Duration::from_secs(20);
    while !question().await {
        assert!(now() < deadline, "it never happened");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns a plan for a bucket under each hash tag.
pub fn everywhere(burst: u64) -> Vec<Plan> {
    (0..16).map(|tag| plan([charge(1, tag, burst)])).collect()
}

#[test]
fn two_gateways_on_a_cluster_grant_what_each_bucket_holds() {
    let cluster = RedisCluster::start(Replicas::None);
    let counts = under_load(&cluster, &everywhere(10), PATIENT, || ());
    assert_eq!((counts.granted, &counts.failed[..]), (160, &[][..]), "{counts:?}");
    assert!(counts.refused > 0);
    // Every master has some.
    let buckets: Vec<usize> = cluster.masters.iter().map(|node| node.keys().len()).collect();
    assert_eq!(buckets, [5, 6, 5]);
}

#[test]
fn a_request_that_one_of_its_nodes_refuses_gets_back_what_it_paid_on_the_others() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 0, PATIENT)).await;
        // The first is on the first master, the second on the last.
        let (large, small) = (charge(1, 0, 100), charge(2, 15, 5));
        let both = plan([small, large.clone()]);
        let mut counts = Counts::default();
        for _ in 0..40 {
            ask(&store, &both, &mut counts).await;
        }
        assert_eq!((counts.granted, counts.refused, &counts.failed[..]), (5, 35, &[][..]));
        let mut alone = Counts::default();
        // What was given back is there within a round trip. Five of each bucket are spent.
        eventually_async(async || spent(&cluster) == 10).await;
        for _ in 0..120 {
            ask(&store, &plan([large.clone()]), &mut alone).await;
        }
        assert_eq!(alone.granted, 95);
    });
}

#[test]
fn a_refused_request_has_spent_at_most_what_comes_back_during_its_round_trips() {
    const PER_SECOND: u64 = 1_000;
    const REQUESTS: u32 = 100;
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 0, PATIENT)).await;
        let rate = Rate { amount: Cost::from_tokens(PER_SECOND), period: Micros(1_000_000) };
        let algorithm = Algorithm::TokenBucket(TokenBucket::new(rate, 100_000).unwrap());
        let large = |cost| Charge { algorithm, cost: Cost::from_tokens(cost), ..charge(1, 0, 1) };
        // More than the other bucket can ever hold.
        let never = Charge { cost: Cost::from_tokens(2), ..charge(2, 15, 1) };
        let ask = async |plan: Plan| store.take(Worker(0), &plan, None).await.unwrap().unwrap();
        let first = ask(plan([large(50_000)])).await;
        let mut round_trips = Duration::ZERO;
        for _ in 0..REQUESTS {
            let sent = now();
            let refused = ask(plan([large(200), never.clone()])).await;
            round_trips += sent.elapsed();
            assert!(!refused.settlement.is_granted());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let last = ask(plan([large(1)])).await;
        let left = |reply: &TakeReply| reply.settlement.enforced[0].remaining.thousandths();
        let due = left(&first) + last.now.since(first.now).0 * PER_SECOND / 1_000 - 1_000;
        let lost = due - left(&last);
        let per_request = Duration::from_micros(lost * 1_000 / PER_SECOND) / REQUESTS;
        let round_trip = round_trips / REQUESTS;
        print_measured(&format!(
            "a refused request has lost what comes back in {per_request:?}, its own round trips took {round_trip:?}"
        ));
        // It is undone after its answer, which takes one more round trip.
        assert!(per_request < round_trip * 2 + Duration::from_millis(20), "{per_request:?} {round_trip:?}");
    });
}

#[test]
fn a_request_over_a_dead_node_is_charged_where_a_node_answers() {
    let mut cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 1, TIMEOUT)).await;
        cluster.masters[0].kill();
        let both = plan([charge(2, 15, 5), charge(1, 0, 100)]);
        let partial = async || {
            let failure = store.take(Worker(0), &both, None).await.unwrap_err();
            assert!(matches!(failure.error, StoreError::Unreachable | StoreError::Closed), "{failure:?}");
            *failure.partial.expect("the other node has answered")
        };
        // More often than the bucket that is left could pay: each time it gets back what it paid.
        for _ in 0..12 {
            let answered = partial().await;
            assert_eq!(answered.unanswered().enforced.len(), 1);
            drop(answered);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        eventually_async(async || spent_on(&cluster.masters[2]) == 0).await;
        for left in (0..5).rev() {
            let answered = partial().await;
            let rest = store.take_fallback(Worker(0), answered.unanswered());
            let reply = answered.settle(&both, rest);
            assert!(reply.settlement.is_granted(), "{reply:?}");
            assert_eq!(reply.settlement.enforced[0].remaining, Cost::from_tokens(left), "{reply:?}");
            assert_eq!(reply.source, Source::Fallback);
        }
        // Now that it is empty, it refuses whatever the other one would say.
        let reply = store.take(Worker(0), &both, None).await.unwrap().unwrap();
        assert!(!reply.settlement.is_granted(), "{reply:?}");
    });
}

#[test]
fn what_is_known_of_a_bucket_counts_only_while_its_node_can_be_asked() {
    let mut cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 1, PATIENT)).await;
        let short = plan([charge(1, 0, 5)]);
        let is_refused_here = async || {
            let reply = store.take(Worker(0), &short, None).await.unwrap().unwrap();
            reply.source == Source::Cached && !reply.settlement.is_granted()
        };
        eventually_async(is_refused_here).await;
        cluster.masters[0].kill();
        // The same node.
        let other = plan([charge(2, 0, 5)]);
        eventually_async(async || store.take(Worker(0), &other, None).await.is_err()).await;
        // Less than a second after it was seen.
        assert!(store.take(Worker(0), &short, None).await.is_err());
    });
}

#[test]
fn slots_move_under_load_and_nothing_is_granted_twice_or_lost() {
    let mut cluster = RedisCluster::start(Replicas::None);
    cluster.add_master();
    let late = Lateness::measure();
    let counts = under_load(&cluster, &everywhere(1_000_000), PATIENT, || {
        eventually("its buckets are there", || tag_slots(&cluster.masters[0]).len() == 5);
        // 64 slots, with those of two hash tags among them.
        let slots = tag_slots(&cluster.masters[0]);
        let others = (0..5461).filter(|slot| !slots[..2].contains(slot)).take(62);
        cluster.reshard(slots[..2].iter().copied().chain(others), 0, 3);
    });
    assert_eq!(counts.failed, [], "{counts:?}");
    assert!(counts.longest < TIMEOUT + LATE + late.of_a_request(), "{counts:?}");
    assert_eq!(cluster.masters[3].keys().len(), 2);
    assert_eq!(spent(&cluster), counts.granted);
    print_measured(&format!("64 slots moved under load: {counts:?}"));
}

#[test]
fn a_failover_under_load_grants_nothing_twice() {
    let cluster = RedisCluster::start(Replicas::OneEach);
    let late = Lateness::measure();
    let counts = under_load(&cluster, &everywhere(1_000_000), TIMEOUT, || {
        let () = cluster.replicas[0].command(&["CLUSTER", "FAILOVER"]);
        std::thread::sleep(Duration::from_millis(1500));
    });
    assert!(counts.longest < TIMEOUT + LATE + late.of_a_request(), "{counts:?}");
    let nodes = [&cluster.replicas[0], &cluster.masters[1], &cluster.masters[2]];
    let spent: u64 = nodes.into_iter().map(spent_on).sum();
    // A call that was not answered may have been charged; no charge was lost.
    assert!(counts.granted <= spent && spent <= counts.granted + counts.failed.len() as u64, "{spent}: {counts:?}");
    print_measured(&format!("CLUSTER FAILOVER under load: {spent} spent, {counts:?}"));
}

#[test]
fn a_killed_master_is_replaced_and_the_others_decide_all_the_time() {
    let mut cluster = RedisCluster::start(Replicas::OneEach);
    let plans = everywhere(1_000_000);
    run(async {
        let store = started(gateway(&cluster, 1, TIMEOUT)).await;
        let mut counts = Counts::default();
        for plan in &plans {
            ask(&store, plan, &mut counts).await;
        }
        assert_eq!((counts.granted, &counts.failed[..]), (16, &[][..]));
        let (lost, others): (Vec<_>, Vec<_>) = plans.iter().partition(|plan| plan.enforced[0].key.0[3] < 5);
        cluster.masters[0].kill();
        let (killed, late) = (now(), Lateness::measure());
        let (mut promoted, mut elsewhere) = (None, Counts::default());
        loop {
            for plan in &others {
                ask(&store, plan, &mut elsewhere).await;
            }
            if promoted.is_none() {
                let role: String = cluster.replicas[0].command(&["INFO", "replication"]);
                promoted = role.contains("role:master").then(now);
            }
            let mut counts = Counts::default();
            for plan in &lost {
                ask(&store, plan, &mut counts).await;
            }
            assert!(counts.longest < TIMEOUT + LATE + late.of_a_request(), "{counts:?}");
            if counts.failed.is_empty() {
                break;
            }
            assert!(killed.elapsed() < Duration::from_secs(20), "{counts:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(elsewhere.failed, [], "one lost master stops the others");
        let back = promoted.unwrap().elapsed();
        print_measured(&format!("back {back:?} after the promotion, {:?} after the kill", killed.elapsed()));
        assert!(back < Duration::from_secs(1) + LATE + late.of_a_request(), "{back:?}");
    });
}

#[test]
fn a_node_that_hangs_makes_no_answer_late_and_stops_no_other_node() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 1, TIMEOUT)).await;
        cluster.masters[0].signal("STOP");
        let late = Lateness::measure();
        let (mut counts, mut elsewhere) = (Counts::default(), Counts::default());
        for _ in 0..10 {
            ask(&store, &plan([charge(1, 0, 100)]), &mut counts).await;
            ask(&store, &plan([charge(1, 15, 100)]), &mut elsewhere).await;
        }
        assert!(counts.longest < TIMEOUT + LATE + late.of_a_request(), "{counts:?}");
        assert_eq!((counts.granted, elsewhere.granted), (0, 10), "{counts:?} {elsewhere:?}");
        cluster.masters[0].signal("CONT");
        eventually_async(async || store.take(Worker(0), &plan([charge(1, 0, 100)]), None).await.is_ok()).await;
        // The node that hangs is asked first, and leaves the other one enough time.
        let mut shortest = Duration::MAX;
        for bucket in 3..8 {
            cluster.masters[0].signal("STOP");
            let started = now();
            let both = plan([charge(bucket, 15, 5), charge(bucket, 0, 5)]);
            let failure = store.take(Worker(0), &both, None).await.unwrap_err();
            let took = started.elapsed();
            assert!(took < TIMEOUT + LATE + late.of_a_request(), "{took:?}");
            assert_eq!(failure.error, StoreError::Timeout);
            let answered = failure.partial.expect("the other node has answered");
            assert_eq!(answered.unanswered().enforced[0].key, charge(bucket, 0, 5).key);
            cluster.masters[0].signal("CONT");
            // However busy the machine is, it is not so all the time.
            shortest = shortest.min(took);
            if shortest < TIMEOUT * 3 / 2 {
                return;
            }
            eventually_async(async || store.take(Worker(0), &plan([charge(1, 0, 100)]), None).await.is_ok()).await;
        }
        panic!("longer than half of the timeout beyond it: {shortest:?}");
    });
}

#[test]
fn a_refused_request_gets_back_what_a_slow_node_charged_after_the_refusal() {
    let cluster = RedisCluster::start(Replicas::None);
    run(async {
        let store = started(gateway(&cluster, 1, TIMEOUT)).await;
        // Another bucket each time, in case that the machine was too busy: the slow node must answer before the deadline.
        for bucket in 1.. {
            let slow = charge(bucket, 0, 100);
            let never = Charge { cost: Cost::from_tokens(2), ..charge(bucket, 15, 1) };
            assert!(store.take(Worker(0), &plan([charge(bucket, 1, 100)]), None).await.is_ok());
            cluster.masters[0].signal("STOP");
            let asked = now();
            let reply = store.take(Worker(0), &plan([slow.clone(), never]), None).await;
            cluster.masters[0].signal("CONT");
            let is_in_time = asked.elapsed() < TIMEOUT * 3 / 4;
            assert!(!reply.unwrap().unwrap().settlement.is_granted());
            tokio::time::sleep(TIMEOUT).await;
            if !is_in_time && bucket < 20 {
                continue;
            }
            let alone = store.take(Worker(0), &plan([slow]), None).await.unwrap().unwrap();
            assert_eq!(alone.settlement.enforced[0].remaining, Cost::from_tokens(99));
            break;
        }
    });
}

/// Returns the slots of the hash tags of a master's buckets.
pub fn tag_slots(master: &Redis) -> Vec<u16> {
    let keys = master.keys();
    let slot =
        |key: &Vec<u8>| redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query::<u16>(&mut master.connection()).unwrap();
    let mut slots: Vec<u16> = keys.iter().map(slot).collect();
    slots.sort_unstable();
    slots
}

/// Returns the spent amount of all buckets on a node, in whole tokens. A token bucket stores this amount with its unit.
fn spent_on(node: &Redis) -> u64 {
    let spent = |key: Vec<u8>| {
        let value: Vec<u8> = redis::cmd("GET").arg(key).query(&mut node.connection()).unwrap();
        let words: Vec<u64> = value.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        // Less than half of a token has come back.
        (words[0] + 500 * words[1]) / (1000 * words[1])
    };
    node.keys().into_iter().map(spent).sum()
}

fn spent(cluster: &RedisCluster) -> u64 {
    cluster.masters.iter().map(spent_on).sum()
}
