//! Tests the concurrency limit.

use super::*;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::holds::report::{LIFE, MOST_HELD, Owner, SettledSums};

const NOW: Timestamp = Timestamp(1_763_672_400_123_456);

fn limit(slots: u64) -> Concurrency {
    Concurrency::new(slots).unwrap()
}

fn after(seconds: u64) -> Timestamp {
    NOW.plus(Micros(seconds * 1_000_000))
}

fn report(owner: u64, sequence: u64, held: u64) -> Report {
    Report { owner: Owner(owner), sequence, held: Cost::from_tokens(held), settled: SettledSums::default(), life: LIFE }
}

/// A bucket whose state is kept as a store keeps it.
#[derive(Default)]
struct Bucket(Option<State>);

impl Bucket {
    /// Sends one report, and then asks `asks` times for one slot. Returns whether the report was accepted, and how many
    /// slots were granted.
    fn act(&mut self, limit: Concurrency, report: Report, asks: u64, now: Timestamp) -> (bool, u64) {
        let Some(entry) = limit.accept(self.0.as_deref(), report, now) else { return (false, 0) };
        self.0 = Some(entry.state);
        let mut admitted = 0;
        for _ in 0..asks {
            if let ChargeResult::Fits { entry, .. } = limit.step(self.0.as_deref(), Cost::ONE, now).charge {
                self.0 = Some(entry.state);
                admitted += 1;
            }
        }
        assert!(self.0.as_deref().is_some_and(is_stored), "{:?}", self.0);
        (true, admitted)
    }

    fn held(&self, now: Timestamp) -> u64 {
        limit(1).spent(self.0.as_deref(), now).whole()
    }
}

#[test]
fn the_packed_value_is_what_the_format_says() {
    let mut bucket = Bucket::default();
    bucket.act(limit(9), report(0x1122_3344_5566_7788, 5, 1), 2, NOW);
    let bytes: Vec<u8> = bucket.0.unwrap().iter().flat_map(|word| word.to_le_bytes()).collect();
    let (until, since) = (NOW.plus(LIFE).0.to_le_bytes(), (NOW.0 / 1_000_000).to_le_bytes());
    let head = [&[1, 0xb8, 0x0b, 0, 0, 0, 0, 0][..], &NOW.0.to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    let owner = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
    let entry = [&owner[..], &[5, 0, 0, 0, 0, 0], &[0xb8, 0x0b, 0, 0, 0, 0], &until[..7], &since[..5]].concat();
    assert_eq!(bytes, [head, entry].concat());
}

/// The state of a sliding window can look like a value of slots.
#[test]
fn a_value_of_a_sliding_window_is_not_taken_for_slots() {
    let window = SlidingWindow::new(1_000, Micros(60_000_000), 60).unwrap();
    let mut alike = 0;
    for cost in [1, 2, 5, 31, 255, 1000] {
        let mut state: Option<State> = None;
        for second in 0..120 {
            let cost = Cost::from_thousandths(if second % 7 == 0 { 1 } else { cost });
            if let ChargeResult::Fits { entry, .. } = window.step(state.as_deref(), cost, after(second)).charge {
                alike += usize::from(entry.state.len() % 4 == 3 && entry.state[0] & 0xff == 1);
                assert!(!is_stored(&entry.state), "{:?}", entry.state);
                state = Some(entry.state);
            }
        }
    }
    assert!(alike > 50, "{alike}");
}

#[test]
fn all_owners_share_the_slots_whatever_their_limits() {
    let (free, paid, mut bucket) = (limit(3), limit(5), Bucket::default());
    assert_eq!(bucket.act(free, report(1, 1, 0), 4, NOW), (true, 3));
    assert_eq!(bucket.act(free, report(2, 1, 0), 1, NOW), (true, 0));
    assert_eq!(bucket.act(paid, report(2, 2, 0), 4, NOW), (true, 2));
    assert_eq!(bucket.act(free, report(1, 2, 0), 1, NOW), (true, 1), "two of paid, one of three");
    assert_eq!(bucket.held(NOW), 3);
}

#[test]
fn a_refused_ask_waits_for_a_second_and_one_above_the_limit_for_ever() {
    let bucket = limit(1);
    let full = bucket.accept(None, report(1, 1, 1), NOW).unwrap().state;
    let step = bucket.step(Some(&full), Cost::ONE, NOW);
    assert_eq!(step.charge, ChargeResult::Short { wait: Micros(1_000_000) });
    assert_eq!(step.untouched, Level { remaining: Cost::default(), reset_after: Micros(1_000_000) });
    assert_eq!(bucket.step(Some(&full), Cost::from_tokens(2), NOW).charge, ChargeResult::Never);
    // No owner has sent a report, so no owner can be charged.
    assert_eq!(bucket.step(None, Cost::ONE, NOW).charge, ChargeResult::Short { wait: WAIT });
}

#[test]
fn an_old_report_changes_nothing() {
    let (limit, mut bucket) = (limit(5), Bucket::default());
    bucket.act(limit, report(1, 7, 2), 0, NOW);
    bucket.act(limit, report(2, 1, 1), 0, NOW);
    let before = bucket.0.clone();
    for sequence in [0, 6, 7] {
        assert_eq!(bucket.act(limit, report(1, sequence, 0), 1, NOW), (false, 0));
    }
    assert_eq!(bucket.0, before);
    assert_eq!(bucket.act(limit, report(1, 8, 0), 0, NOW), (true, 0));
    assert_eq!(bucket.held(NOW), 1);
}

#[test]
fn a_hold_ends_seven_seconds_after_its_report_and_its_sequence_ten_minutes_after() {
    let (limit, mut bucket) = (limit(2), Bucket::default());
    bucket.act(limit, report(1, 5, 2), 0, NOW);
    assert_eq!((bucket.held(Timestamp(after(7).0 - 1)), bucket.held(after(7))), (2, 0));
    assert_eq!(bucket.act(limit, report(2, 1, 0), 1, after(7)), (true, 1));
    assert_eq!(bucket.act(limit, report(1, 5, 2), 0, after(599)), (false, 0), "a call that is ten minutes late");
    assert_eq!(bucket.act(limit, report(2, 2, 1), 0, after(600)), (true, 0));
    assert_eq!(bucket.0.as_ref().map(|state| state.len()), Some(7), "one entry");
}

#[test]
fn the_clock_of_a_bucket_does_not_go_back() {
    let (limit, mut bucket) = (limit(1), Bucket::default());
    bucket.act(limit, report(1, 1, 1), 0, after(10));
    assert_eq!((bucket.held(NOW), bucket.held(after(16)), bucket.held(after(17))), (1, 1, 0));
    assert!(limit.correction(bucket.0.as_deref(), NOW).is_none(), "10 s ahead");
    // The stored moment is an hour ahead and is set back.
    bucket.act(limit, report(1, 2, 1), 0, after(3600));
    bucket.0 = limit.correction(bucket.0.as_deref(), NOW).map(|entry| entry.state);
    assert_eq!((bucket.held(Timestamp(after(7).0 - 1)), bucket.held(after(7))), (1, 0));
}

#[test]
fn an_invalid_state_holds_everything_until_its_owners_have_spoken() {
    let limit = limit(4);
    let full = limit.accept(None, report(1, 1, 1), NOW).unwrap().state;
    let with = |index: usize, value: u64| {
        let mut state = full.clone();
        state[index] = value;
        state
    };
    let cases = [State::new(), State::from_slice(&[1, 0, 0]), with(0, 0), with(0, 7), with(1, 1 << 53), with(2, 2)];
    for state in cases {
        assert_eq!(limit.spent(Some(&state), NOW), limit.limit(), "{state:?}");
        let entry = limit.accept(Some(&state), report(1, 1, 1), NOW).unwrap();
        assert_eq!(limit.spent(Some(&entry.state), after(6)).whole(), 5);
        let said = limit.accept(Some(&entry.state), report(1, 2, 1), after(6)).unwrap().state;
        assert_eq!(limit.spent(Some(&said), after(7)).whole(), 1);
    }
    assert_eq!(give_back(&full, Cost::ONE), Some(full));
    assert_eq!(give_back(&[7, 0, 0], Cost::ONE), None);
}

#[test]
fn a_bucket_lists_who_holds_how_much_and_since_when() {
    let (limit, mut bucket) = (limit(9), Bucket::default());
    bucket.act(limit, report(1, 1, 0), 2, NOW);
    bucket.act(limit, report(2, 1, 0), 0, NOW);
    bucket.act(limit, report(1, 2, 1), 1, after(5));
    bucket.act(limit, report(3, 1, 4), 0, after(6));
    let list = |bucket: &Bucket, now| -> Vec<_> {
        let holders = limit.holders(bucket.0.as_deref(), now);
        holders.iter().map(|holder| (holder.owner.0, holder.held.whole(), holder.since.0 / 1_000_000)).collect()
    };
    let begin = NOW.0 / 1_000_000;
    assert_eq!(list(&bucket, after(6)), [(3, 4, begin + 6), (1, 2, begin)]);
    assert_eq!(list(&bucket, after(12)), [(3, 4, begin + 6)]);
    bucket.act(limit, report(3, 2, 0), 1, after(12));
    assert_eq!(list(&bucket, after(12)), [(3, 1, begin + 12)], "with a gap");
}

#[test]
fn owners_that_are_gone_make_room_for_others() {
    let (limit, mut bucket) = (limit(9), Bucket::default());
    for owner in 1..=1024 {
        assert_eq!(bucket.act(limit, report(owner, 1, 0), 0, NOW), (true, 0));
    }
    assert_eq!(bucket.act(limit, report(5000, 1, 0), 1, after(6)), (false, 0), "all are live");
    bucket.act(limit, report(3, 2, 1), 0, after(6));
    assert_eq!(bucket.act(limit, report(5000, 1, 0), 1, after(7)), (true, 1));
    // The last one that is gone is dropped; the others are known for ten minutes.
    assert_eq!(bucket.0.as_ref().map(|state| state.len()), Some(3 + 4 * 1024));
    // The largest amount that an owner can report.
    bucket.act(limit, Report { held: Cost::from_tokens(1 << 50), ..report(3, 3, 0) }, 0, after(7));
    assert_eq!(limit.holders(bucket.0.as_deref(), after(7))[0].held, MOST_HELD);
}

#[test]
fn shares_are_whole_slots_and_at_least_one_request_fits() {
    for (slots, of, share) in [(8, 3, 2), (8, 8, 1), (8, 9, 1), (8, 1, 8)] {
        assert_eq!(limit(slots).share(Cost::ONE, of), (limit(share), Cost::ONE), "{slots} by {of}");
    }
    assert_eq!((Concurrency::new(0), Concurrency::new(MAX_LIMIT + 1)), (None, None));
    assert_eq!(limit(8).to_string(), "8 at once");
}

#[test]
fn a_request_can_have_a_limit_of_its_own() {
    let own = |slots: u64| {
        let ceiling = Some(Cost::from_tokens(slots));
        limit(8).for_request(RequestNumbers { ceiling, ..RequestNumbers::default() }, Cost::ONE).limit().whole()
    };
    assert_eq!((own(3), own(0), own(u64::MAX)), (3, 0, MAX_LIMIT));
    assert_eq!(limit(8).for_request(RequestNumbers::default(), Cost::from_tokens(9)).limit().whole(), 9);
    assert_eq!(limit(8).numbers().as_slice(), [8000]);
}
