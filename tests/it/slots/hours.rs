//! A request that runs for an hour keeps its slot in every store. The hour passes by a manual clock, which the gateways and
//! the store share.

use std::sync::Arc;

use base::time::{Clock, Micros, Timestamp};
use ledger::bucket_key::BucketKey;
use stores::memory::{self, Memory};
use stores::{EventSink, Settings, Store};

use crate::support::charge::plan_of;
use crate::support::slots::{Member, ask, slot};
use crate::support::{Postgres, Redis};

const START: Timestamp = Timestamp(1_764_000_000_000_000);
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A slot of one gateway is held for an hour, in which the other one gets none. When the first gateway dies, its slot is
/// free after seven seconds.
fn hold_for_an_hour(settings: &Settings) {
    let clock = Clock::manual(START);
    run(async {
        let open = || Member::with(Store::open(settings, 1, clock.clone(), EventSink::new(|_| ())));
        let [one, other] = [open().await, open().await];
        let [long, unrelated] = [1, 2].map(|bucket| plan_of(slot(BucketKey([bucket; 16]), 1)));
        let held = ask(&one.store, &long).await.unwrap();
        assert!(held.is_some());
        let mut passed = 0;
        while passed < HOUR {
            // A call for any bucket also has the reports that are due.
            passed += 2 * SECOND;
            clock.set(START.plus(Micros(passed)));
            drop(ask(&one.store, &unrelated).await.unwrap());
            if passed.is_multiple_of(30 * SECOND) {
                assert!(ask(&other.store, &long).await.unwrap().is_none(), "after {passed} us");
            }
        }
        drop(one);
        for (after, is_free) in [(6 * SECOND, false), (8 * SECOND, true)] {
            clock.set(START.plus(Micros(HOUR + after)));
            assert_eq!(ask(&other.store, &long).await.unwrap().is_some(), is_free, "{after} us after the end");
        }
        drop(held);
    });
}

#[test]
fn a_request_of_an_hour_keeps_its_slot_in_redis() {
    let redis = Redis::start();
    hold_for_an_hour(&Settings::Redis(redis.settings()));
}

#[test]
fn a_request_of_an_hour_keeps_its_slot_in_postgresql() {
    let postgres = Postgres::start();
    hold_for_an_hour(&Settings::Postgres(postgres.settings()));
}

/// Full buckets are freed every second, and other buckets come and go.
#[test]
fn a_request_of_an_hour_keeps_its_slot_in_memory() {
    let clock = Clock::manual(START);
    let memory = Memory::new(&memory::Settings { max_buckets: 16, ..memory::Settings::default() }, clock.clone());
    let store = Arc::new(Store::Memory(memory));
    let long = plan_of(slot(BucketKey([1; 16]), 1));
    run(async {
        let held = ask(&store, &long).await.unwrap();
        assert!(held.is_some());
        for passed in 1..=3_600 {
            clock.set(START.plus(Micros(passed * SECOND)));
            store.local_buckets().unwrap().sweep();
            let mut key = [2; 16];
            key[..8].copy_from_slice(&passed.to_le_bytes());
            drop(ask(&store, &plan_of(slot(BucketKey(key), 1))).await.unwrap());
            assert!(ask(&store, &long).await.unwrap().is_none(), "after {passed} s");
        }
        drop(held);
        assert!(ask(&store, &long).await.unwrap().is_some());
    });
}
