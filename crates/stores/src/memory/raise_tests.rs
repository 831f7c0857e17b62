//! Tests raises in memory.

use smallvec::smallvec;

use super::*;
use base::time::Micros;
use ledger::algorithm::State;
use ledger::algorithm::budget::Budget;
use ledger::algorithm::concurrency::Concurrency;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::bucket_key::LimitTag;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const BUCKET: BucketKey = BucketKey([1; 16]);

fn memory(max_buckets: usize) -> (Arc<Memory>, Clock) {
    let clock = Clock::manual(Timestamp(1_000 * HOUR));
    (Memory::new(&Settings { max_buckets, ..Settings::default() }, clock.clone()), clock)
}

fn window(limit: u64) -> FixedWindow {
    FixedWindow::new(limit, Window::Epoch(Micros(HOUR))).unwrap()
}

fn plan(key: BucketKey, algorithm: Algorithm) -> Plan {
    Plan { enforced: smallvec![Charge::new(key, algorithm, Cost::ONE)], shadow: smallvec![] }
}

/// Raises the bucket by 5 for this time.
fn raise(memory: &Memory, algorithm: &Algorithm, length: u64) {
    let end = memory.now().plus(Micros(length));
    let raise = Raise { id: RaiseId(1), amount: Cost::from_tokens(5), end };
    let entry = |state: Option<&[u64]>, time: StoreTime| algorithm.set_raise(state, raise, time.of(algorithm)).unwrap();
    memory.change(&BUCKET, LimitTag(1), entry);
}

fn stored(memory: &Memory) -> Option<State> {
    memory.states_of(&[BUCKET]).1.pop().unwrap()
}

fn raised_by(memory: &Memory, algorithm: &Algorithm) -> u64 {
    algorithm.raised_by(stored(memory).as_deref(), memory.now()).whole()
}

#[test]
fn a_full_bucket_with_a_raise_is_stored_until_the_raise_ends() {
    let (memory, clock) = memory(1_000);
    let limit = Algorithm::FixedWindow(window(10));
    raise(&memory, &limit, 2 * HOUR);
    clock.set(clock.now().plus(Micros(2 * HOUR - 1)));
    memory.sweep();
    assert_eq!((raised_by(&memory, &limit), memory.buckets()), (5, 1));
    clock.set(clock.now().plus(Micros(1)));
    memory.sweep();
    assert_eq!((raised_by(&memory, &limit), memory.buckets()), (0, 0));
}

#[test]
fn what_is_held_is_raised_too_and_stays_beside_the_raise() {
    let limits =
        [Algorithm::Concurrency(Concurrency::new(10).unwrap()), Algorithm::Budget(Budget::of_fixed_window(window(10)))];
    for limit in limits {
        let (memory, _) = memory(1_000);
        raise(&memory, &limit, HOUR / 2);
        let taken = || memory.take(&plan(BUCKET, limit));
        let mut held: Vec<_> = (0..15).map(|_| taken()).collect();
        assert!(held.iter().all(|reply| reply.settlement.is_granted()), "{limit:?}");
        let refused = taken().settlement;
        assert_eq!((refused.is_granted(), refused.enforced[0].raised.whole()), (false, 5), "{limit:?}");
        let state = stored(&memory);
        let holders = limit.holders(state.as_deref(), memory.now());
        assert_eq!((holders.len(), holders[0].held.whole(), raised_by(&memory, &limit)), (1, 15, 5), "{limit:?}");
        for reply in &mut held {
            reply.reservation.settle(&BUCKET, Cost::ONE);
        }
        drop(held);
        assert_eq!(raised_by(&memory, &limit), 5, "{limit:?}");
        assert_eq!(taken().settlement.is_granted(), limit.slots().is_some(), "{limit:?}");
    }
}

#[test]
fn a_reset_keeps_raises() {
    let (memory, _) = memory(1_000);
    let limit = Algorithm::FixedWindow(window(10));
    raise(&memory, &limit, HOUR / 2);
    let count = || (0..20).filter(|_| memory.take(&plan(BUCKET, limit)).settlement.is_granted()).count();
    assert_eq!(count(), 15);
    memory.remove(&[BUCKET]);
    assert_eq!((count(), memory.buckets()), (15, 1));
}

#[test]
fn a_bucket_with_a_raise_is_evicted_with_the_drained_ones() {
    let (memory, _) = memory(20);
    let limit = Algorithm::FixedWindow(window(10));
    raise(&memory, &limit, HOUR);
    let others = |numbers: std::ops::Range<u16>, limit: Algorithm| {
        for number in numbers {
            let mut key = [2; 16];
            key[..2].copy_from_slice(&number.to_le_bytes());
            memory.take(&plan(BucketKey(key), limit));
        }
    };
    others(0..1_000, Algorithm::FixedWindow(window(100)));
    assert_eq!((raised_by(&memory, &limit), memory.buckets()), (5, 20));
    // A charge of little keeps the bucket with the drained ones.
    assert!(memory.take(&plan(BUCKET, limit)).settlement.is_granted());
    others(1_000..2_000, Algorithm::FixedWindow(window(2)));
    assert_eq!((raised_by(&memory, &limit), memory.buckets()), (5, 20));
}
