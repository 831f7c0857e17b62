//! Asks stores for slots, for tests that call a store without a gateway.

use std::time::Duration;

use ledger::algorithm::Algorithm;
use ledger::algorithm::concurrency::Concurrency;
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan};
use ledger::cost::Cost;
use stores::{Reservation, Store, StoreError, Worker};

use super::charge::spend;
use super::now;

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
