//! Asks stores for slots, for tests that call a store without a gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::time::Clock;
use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::{EventSink, Reservation, Settings, Store, StoreError, Worker};
use tokio::task::JoinHandle;

use super::charge::spend;
use super::now;

/// A gateway's store with one worker. Its connection ends with it, and then it reports nothing any more.
pub(crate) struct Member {
    pub store: Arc<Store>,
    connection: JoinHandle<()>,
}

impl Member {
    pub(crate) async fn of(settings: &Settings) -> Member {
        Member::with(Store::open(settings, 1, Clock::system(), EventSink::new(|_| ()))).await
    }

    pub(crate) async fn with(store: Store) -> Member {
        let store = Arc::new(store);
        let driven = Arc::clone(&store);
        let connection = tokio::spawn(async move { driven.run(Worker(0)).await });
        store.first_attempt().await;
        Member { store, connection }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Returns a charge of one slot to a bucket of so many slots.
pub(crate) fn slot(key: BucketKey, slots: u64) -> Charge {
    spend(key, Algorithm::Concurrency(Concurrency::new(slots).unwrap()), Cost::ONE)
}

/// Asks for a plan. Returns what the request holds; `None` if it is refused.
pub(crate) async fn ask(store: &Store, plan: &Plan) -> Result<Option<Reservation>, StoreError> {
    let reply = store.take(Worker(0), plan, None).await.map_err(|failure| failure.error)?.unwrap();
    assert!(reply.settlement.is_granted() || reply.reservation.is_empty());
    Ok(reply.settlement.is_granted().then_some(reply.reservation))
}

/// Makes this number of requests, one after the other. Returns the reservations of those that were granted.
pub(crate) async fn take(store: &Store, plan: &Plan, requests: usize) -> Vec<Reservation> {
    let mut held = Vec::new();
    for _ in 0..requests {
        held.extend(ask(store, plan).await.unwrap());
    }
    held
}

/// Makes requests until this number of slots is granted. Returns the slots, and how long it took to get them.
pub(crate) async fn take_all(store: &Store, plan: &Plan, slots: usize) -> (Vec<Reservation>, Duration) {
    let (began, mut held) = (now(), Vec::new());
    while held.len() < slots {
        assert!(began.elapsed() < Duration::from_secs(20), "{} of {slots}", held.len());
        match ask(store, plan).await {
            Ok(Some(slot)) => held.push(slot),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    (held, began.elapsed())
}

/// Asks until the store answers. Returns whether the request was granted. What it was granted is given back.
pub(crate) async fn is_granted(store: &Store, plan: &Plan) -> bool {
    let until = now() + Duration::from_secs(20);
    loop {
        match ask(store, plan).await {
            Ok(granted) => return granted.is_some(),
            Err(error) => assert!(now() < until, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ends a load when it is dropped, also after a panic.
pub(crate) struct EndOfLoad(pub Arc<AtomicBool>);

impl Drop for EndOfLoad {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The counts of a load: how many callers held a slot at the same time at most, and how many requests were granted.
pub(crate) struct CrowdCounts {
    pub most: usize,
    pub granted: usize,
}

/// Lets many callers of two gateways hold slots for some milliseconds each, until `done`.
pub(crate) async fn crowd(stores: [&Arc<Store>; 2], plan: &Plan, callers: usize, done: Arc<AtomicBool>) -> CrowdCounts {
    let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)));
    let caller = |caller: usize| {
        let (store, plan, done) = (Arc::clone(stores[caller % 2]), plan.clone(), Arc::clone(&done));
        let counts = Arc::clone(&counts);
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let (running, most, granted) = &*counts;
                if let Ok(Some(slot)) = ask(&store, &plan).await {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    granted.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(caller as u64 % 7)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(slot);
                } else {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        })
    };
    for caller in (0..callers).map(caller).collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    CrowdCounts { most: counts.1.load(Ordering::SeqCst), granted: counts.2.load(Ordering::SeqCst) }
}
