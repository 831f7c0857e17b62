//! Spends budgets, for tests that call a store without a gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::bucket_key::BucketKey;
use ledger::charge::Charge;
use ledger::cost::Cost;
use stores::{Settings, Store};

use super::charge::{plan, spend};
use super::now;
use super::slots::ask;

/// Returns a budget whose period does not end during a test.
pub(crate) fn daily(limit: u64) -> Budget {
    Budget::of_fixed_window(FixedWindow::new(limit, Window::FirstRequest(Micros(86_400_000_000))).unwrap())
}

/// Returns a charge that reserves so many tokens of a budget.
pub(crate) fn reserve(key: BucketKey, budget: Budget, tokens: u64) -> Charge {
    spend(key, Algorithm::Budget(budget), Cost::from_tokens(tokens))
}

/// Returns how many tokens of a bucket are spent, and how many are held.
pub(crate) async fn books(settings: &Settings, key: BucketKey, budget: Budget) -> (u64, u64) {
    let (now, states) = settings.inspect().await.unwrap().states(&[key]).await.unwrap();
    let state = states[0].as_deref();
    (budget.spent(state, now).whole(), budget.held(state, now).whole())
}

/// Returns how many gateways hold something of a bucket.
pub(crate) async fn owners(settings: &Settings, key: BucketKey, budget: Budget) -> usize {
    let (now, states) = settings.inspect().await.unwrap().states(&[key]).await.unwrap();
    budget.holders(states[0].as_deref(), now).len()
}

/// Lets many callers of several gateways reserve one to five tokens each, spend at most what they reserved, or nothing, until
/// `done`. Returns the sum of what they have settled.
pub(crate) async fn spend_at_random(
    stores: &[Arc<Store>],
    (key, budget): (BucketKey, Budget),
    callers: u64,
    done: Arc<AtomicBool>,
) -> u64 {
    let sum = Arc::new(AtomicU64::new(0));
    let caller = |caller: u64| {
        let store = Arc::clone(&stores[usize::try_from(caller).unwrap() % stores.len()]);
        let (sum, done, mut random) = (Arc::clone(&sum), Arc::clone(&done), fastrand::Rng::with_seed(caller));
        tokio::spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let amount = random.u64(1..=5);
                if let Ok(Some(mut reservation)) = ask(&store, &plan([reserve(key, budget, amount)])).await {
                    tokio::time::sleep(Duration::from_millis(random.u64(0..8))).await;
                    // A reservation that is dropped has spent nothing.
                    if random.u8(..8) > 0 {
                        let cost = random.u64(0..=amount);
                        reservation.settle(&key, Cost::from_tokens(cost));
                        sum.fetch_add(cost, Ordering::Relaxed);
                    }
                } else {
                    tokio::time::sleep(Duration::from_millis(random.u64(1..8))).await;
                }
            }
        })
    };
    let callers: Vec<_> = (0..callers).map(caller).collect();
    for caller in callers {
        caller.await.unwrap();
    }
    sum.load(Ordering::Relaxed)
}

/// Waits until the gateways have reported all that they have settled, and asserts that the bucket has spent exactly this
/// sum and that nothing is held of it.
pub(crate) async fn assert_balanced(
    stores: &[Arc<Store>],
    settings: &Settings,
    (key, budget): (BucketKey, Budget),
    settled: u64,
) {
    let reported = async {
        for store in stores {
            store.all_reported().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reported).await.expect("everything is reported");
    let began = now();
    // A report without an answer may still count what was asked in its call, for at most seven seconds.
    let mut books_now = books(settings, key, budget).await;
    while books_now.1 > 0 && began.elapsed() < Duration::from_secs(9) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        books_now = books(settings, key, budget).await;
    }
    assert_eq!(books_now, (settled, 0), "what the store has spent and holds");
}
