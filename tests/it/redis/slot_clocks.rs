//! Slots in one Redis whose clock is set forward and back while two gateways use it: what that costs, and for how long.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use base::time::{Clock, Micros};
use ledger::bucket_key::BucketKey;
use ledger::charge::Plan;
use stores::redis::fault_injection::{AHEAD, Hooks, ServerClock};
use stores::redis::{self, Settings};
use stores::{EventSink, Store};

use super::cluster::{LATE, run};
use crate::support::charge::plan_of;
use crate::support::slots::{EndOfLoad, Member, ask, crowd, slot, take, take_all};
use crate::support::{Redis, now, print_measured, short_or_long};

/// The time after which the owners of slots have repeated all reports.
const REPEATED: Duration = Duration::from_secs(2);

/// How long a gateway that reports nothing any more holds its slots.
const HELD: Duration = Duration::from_secs(7);

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3_600 * SECOND;

/// Starts two gateways that see the clock of the server as [`set`] sets it.
async fn gateways(redis: &Redis) -> [Member; 2] {
    let hooks = Hooks { server_clock: ServerClock::Movable, ..Hooks::default() };
    let open = || {
        let settings = Settings { timeout: Micros(2_000_000), ..redis.settings() };
        Store::Redis(redis::Redis::open(hooks, settings, 1, Clock::system(), EventSink::new(|_| ())))
    };
    [Member::with(open()).await, Member::with(open()).await]
}

/// Sets the clock of the server this far ahead of the machine's clock.
fn set(redis: &Redis, ahead: i64) {
    redis.command::<()>(&["SET", AHEAD, &ahead.to_string()]);
}

fn slots_of(slots: u64) -> Plan {
    plan_of(slot(BucketKey([1; 16]), slots))
}

/// Waits until a moment, and asserts until then that no slot is free.
async fn expect_held(member: &Member, plan: &Plan, until: Instant) {
    while now() < until {
        assert!(ask(&member.store, plan).await.unwrap().is_none(), "{:?} early", until - now());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_clock_that_is_set_forward_frees_slots_until_they_are_reported_again() {
    for ahead in [8 * SECOND, HOUR] {
        let redis = Redis::start();
        run(async {
            let [one, other] = gateways(&redis).await;
            let three = slots_of(3);
            let held = take(&one.store, &three, 3).await;
            assert_eq!(held.len(), 3);
            set(&redis, ahead);
            let start = now();
            let beyond = take(&other.store, &three, 9).await;
            assert!(beyond.len() <= 3, "{}", beyond.len());
            drop(beyond);
            // All that is held now is that of the first gateway.
            other.store.all_reported().await;
            while ask(&other.store, &three).await.unwrap().is_some() {
                assert!(start.elapsed() < REPEATED + LATE);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            print_measured(&format!("a clock set forward by {ahead} us: counted again after {:?}", start.elapsed()));
            expect_held(&other, &three, now() + Duration::from_secs(3)).await;
            drop(held);
            take_all(&other.store, &three, 3).await;
        });
    }
}

#[test]
fn a_clock_that_is_set_back_frees_no_slot_of_a_gateway_that_lives() {
    for back in [-5 * SECOND, -HOUR] {
        let redis = Redis::start();
        run(async {
            let [one, other] = gateways(&redis).await;
            let three = slots_of(3);
            let mut held = take(&one.store, &three, 3).await;
            set(&redis, back);
            expect_held(&other, &three, now() + Duration::from_secs(9)).await;
            // Slots are given back at once, as before.
            held.pop();
            let (again, after) = take_all(&other.store, &three, 1).await;
            assert!(after < LATE, "{after:?}");
            drop((held, again));
            take_all(&one.store, &three, 3).await;
        });
    }
}

/// A small step delays the end of what a killed gateway holds by the step, a longer one does not.
#[test]
fn a_clock_that_is_set_back_delays_the_end_of_a_killed_gateway_by_a_small_step_at_most() {
    for (back, longest) in [(-5 * SECOND, HELD + Duration::from_secs(5)), (-HOUR, HELD)] {
        let redis = Redis::start();
        run(async {
            let [one, other] = gateways(&redis).await;
            let three = slots_of(3);
            let held = take(&one.store, &three, 3).await;
            drop(one);
            set(&redis, back);
            let (_, after) = take_all(&other.store, &three, 3).await;
            print_measured(&format!("a clock set back by {} us: slots are free after {after:?}", -back));
            assert!(after > Duration::from_secs(4) && after < longest + LATE, "{after:?}");
            drop(held);
        });
    }
}

/// The owners repeat their reports every two seconds, so a step of up to four seconds ends no hold of seven.
#[test]
fn no_more_run_than_there_are_slots_while_the_clock_is_set_back_and_a_little_forward() {
    let redis = Redis::start();
    run(async {
        let [one, other] = gateways(&redis).await;
        let (five, done) = (slots_of(5), Arc::new(AtomicBool::new(false)));
        // A long request holds a slot all the time.
        let long = ask(&one.store, &five).await.unwrap();
        assert!(long.is_some());
        let steps = async {
            let _ends = EndOfLoad(Arc::clone(&done));
            let mut ahead = 0;
            for _ in 0..short_or_long(1, 6) {
                for step in [-3 * SECOND, 3 * SECOND, -9 * SECOND, -HOUR, 2 * SECOND] {
                    ahead += step;
                    set(&redis, ahead);
                    // Until everything has been reported at the new time.
                    tokio::time::sleep(REPEATED + Duration::from_millis(300)).await;
                }
            }
        };
        let (counts, ()) = tokio::join!(crowd([&one.store, &other.store], &five, 32, Arc::clone(&done)), steps);
        assert!(counts.most == 4 && counts.granted > 200, "{} ran at once, {} in all", counts.most, counts.granted);
        take_all(&other.store, &five, 4).await;
        assert!(ask(&one.store, &five).await.unwrap().is_none(), "no slot was lost");
        drop(long);
    });
}
