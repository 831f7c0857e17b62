//! Values that no twin accepts are replaced by an empty bucket.

use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use ledger::algorithm::raise::{Raise, RaiseId};
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::bucket_key::BucketKey;
use ledger::cost::Cost;
use ledger::outcome::Verdict;

use super::lua_parity::{one, per_second};
use crate::support::{Redis, TakeScript};

const START: u64 = 1_763_672_400_123_456;

#[test]
fn an_invalid_state_heals_to_an_empty_bucket_and_never_to_a_full_one() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (key, bucket, now) = (BucketKey([7; 16]), per_second(1, 5), Timestamp(START));
    let words = |words: [u64; 3]| words.map(u64::to_le_bytes).concat();
    let impossible: [(&str, &[&[u8]]); 13] = [
        ("SADD", &[b"member"]),
        ("HSET", &[b"field", b"value"]),
        ("LPUSH", &[b"value"]),
        ("SET", &[b""]),
        ("SET", &[b"12"]),
        ("SET", &[b"twenty-four bytes, text."]),
        ("SET", &[&[0xff; 24]]),
        ("SET", &[&[0; 8]]),
        ("SET", &[&[0; 32]]),
        ("SET", &[&[0; 6000]]),
        ("SET", &[&words([0, 0, START])]),
        ("SET", &[&words([1 << 53, 1, START])]),
        ("SET", &[&words([0, 1, 1 << 53])]),
    ];
    for (command, rest) in impossible {
        take_script.tamper(&key, command, rest);
        let refused = take_script.take(&[one(key, bucket)], now);
        assert_eq!(refused.healed, 1, "{command} {rest:?}");
        assert_eq!(refused.settlements[0].verdict, Verdict::Deny, "{command} {rest:?}");
        assert_eq!(refused.settlements[0].enforced[0].retry_after, Micros(1_000_000));
        // It was written, although the request was refused: it refills from now on.
        let second = Timestamp(START + 1_000_000);
        let granted = take_script.take(&[one(key, bucket), one(key, bucket)], second);
        assert_eq!(granted.healed, 0, "{command} {rest:?}");
        let verdicts: Vec<_> = granted.settlements.iter().map(|settlement| settlement.verdict).collect();
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Deny], "{command} {rest:?}");
    }
    // At the very edge of what can be.
    take_script.tamper(&key, "SET", &[&words([0, 1, (1 << 53) - 1])]);
    assert_eq!(take_script.take(&[one(key, bucket)], now).healed, 0);
}

#[test]
fn a_bucket_with_raises_that_is_invalid_otherwise_heals_to_an_empty_one_and_keeps_them() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (key, bucket, now) = (BucketKey([7; 16]), per_second(1, 5), Timestamp(START));
    let raise = Raise { id: RaiseId(1), amount: Cost::from_tokens(3), end: Timestamp(START + 60_000_000) };
    let raised = bucket.set_raise(None, raise, now).unwrap().unwrap().state;
    let bytes = |state: &[u64]| state.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    for rest in [&[0][..], &[0, 0, START], &[1 << 53, 1, START], &[1; 9]] {
        take_script.tamper(&key, "SET", &[&[&bytes(&raised)[..], &bytes(rest)].concat()]);
        let refused = take_script.take(&[one(key, bucket)], now);
        let outcome = refused.settlements[0].enforced[0];
        assert_eq!((refused.healed, outcome.verdict, outcome.raised.whole()), (1, Verdict::Deny, 3), "{rest:?}");
        let later = take_script.take(&[one(key, bucket)], Timestamp(START + 10_000_000));
        assert_eq!((later.healed, later.settlements[0].enforced[0].remaining.whole()), (0, 7), "{rest:?}");
    }
    // Without valid raises, all of it is invalid.
    for (index, wrong) in [(0, 0x72 << 56), (0, 0x72 << 56 | 2 << 8), (0, 0x73 << 56 | 1 << 8), (2, 0), (3, 1 << 53)] {
        let mut state = raised.clone();
        state[index] = wrong;
        take_script.tamper(&key, "SET", &[&bytes(&state)]);
        let refused = take_script.take(&[one(key, bucket)], now);
        let outcome = refused.settlements[0].enforced[0];
        assert_eq!((refused.healed, outcome.verdict, outcome.raised.whole()), (1, Verdict::Deny, 0), "{index} {wrong}");
    }
}

#[test]
fn an_invalid_sliding_window_heals_to_one_that_has_just_granted_everything() {
    let redis = Redis::start();
    let mut take_script = TakeScript::new(&redis);
    let (key, now) = (BucketKey([8; 16]), Timestamp(START));
    let window = Algorithm::SlidingWindow(SlidingWindow::new(5, Micros(10_000_000), 10).unwrap());
    // How many bytes a number has and how many there are, the length of a step, the latest step, and one number.
    let packed = |width: u8, count: u8, length: u64, latest: u64, amount: u64| {
        let six = |number: u64| number.to_le_bytes()[..6].to_vec();
        [vec![width, count], six(length), six(latest), amount.to_le_bytes().to_vec(), vec![0; 2]].concat()
    };
    let latest = START / 1_000_000;
    let impossible = [
        vec![],
        vec![0; 24],
        vec![0xff; 24],
        b"another value of 24 byte".to_vec(),
        packed(0, 1, 1_000_000, latest, 0),
        packed(8, 1, 1_000_000, latest, 1000),
        packed(7, 0, 1_000_000, latest, 0),
        packed(7, 2, 1_000_000, latest, 1000),
        packed(7, 1, 0, latest, 1000),
        packed(7, 1, 1_339_200_000_001, 1, 1000),
        packed(7, 1, 1_339_200_000_000, 6_726, 1000),
        packed(1, 3, 1_000_000, 1, 1),
        packed(7, 1, 1_000_000, latest, 1 << 53),
        [packed(7, 1, 1_000_000, latest, 1000), vec![0; 8]].concat(),
        packed(7, 1, 1_000_000, latest, 1000)[..23].to_vec(),
    ];
    for value in impossible {
        take_script.tamper(&key, "SET", &[&value]);
        let refused = take_script.take(&[one(key, window)], now);
        assert_eq!(refused.healed, 1, "{value:?}");
        // START is 123456 us into its step.
        let outcome = refused.settlements[0].enforced[0];
        assert_eq!((outcome.verdict, outcome.retry_after), (Verdict::Deny, Micros(10_876_544)), "{value:?}");
        let later = Timestamp(START + 10_876_544);
        let granted = take_script.take(&[one(key, window)], later);
        assert_eq!((granted.healed, granted.settlements[0].verdict), (0, Verdict::Allow), "{value:?}");
    }
    take_script.tamper(&key, "SET", &[&packed(7, 1, 1_000_000, latest, 1000)]);
    let granted = take_script.take(&[one(key, window)], now);
    assert_eq!((granted.healed, granted.settlements[0].enforced[0].remaining.whole()), (0, 3));
}
