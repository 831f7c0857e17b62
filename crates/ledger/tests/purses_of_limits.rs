//! Charges purses in plans: which bucket is charged, and when a region should ask home for more.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::SpentLimit;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::lease::purse::ASK_HOME;
use ledger::algorithm::lease::{LeaseSize, Purse, PurseAct, PurseReply, RegionId};
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::bucket_key::BucketKey;
use ledger::charge::{Charge, Plan, settle};
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use ledger::{Micros, Timestamp};

const HOUR: Micros = Micros(3_600_000_000);
const NOW: Timestamp = Timestamp(1_763_672_400_000_000);

fn window(limit: u64) -> SpentLimit {
    SpentLimit::FixedWindow(FixedWindow::new(limit, Window::Epoch(HOUR)).unwrap())
}

fn bucket(rate: u64, burst: u64) -> SpentLimit {
    let rate = Rate { amount: Cost::from_tokens(rate), period: Micros(1_000_000) };
    SpentLimit::TokenBucket(TokenBucket::new(rate, burst).unwrap())
}

fn purse(limit: SpentLimit) -> Purse {
    let size = LeaseSize::new(100_000, Cost::ONE);
    Purse::sized(limit, size, Micros(500_000), Micros(60_000_000)).unwrap()
}

#[test]
fn purses_of_other_numbers_are_other_buckets_of_one_home() {
    let home = BucketKey([7; 16]);
    let limits = [window(100), window(101), bucket(5, 100), bucket(6, 100), bucket(6, 101)];
    let keys = limits.map(|limit| home.across(&purse(limit)));
    for (index, key) in keys.iter().enumerate() {
        assert!(*key != home && !keys[..index].contains(key));
        assert_eq!(key.across(&purse(limits[index])), home);
    }
    // Neither the size of leases nor the timeouts change the bucket.
    let other = Purse::new(window(100), Cost::from_tokens(3), Micros(1), Micros(2)).unwrap();
    assert_eq!(home.across(&other), keys[0]);
    let ids = ["eu", "us"].map(|region| keys.map(|key| RegionId::of_purse(region, key.0)));
    let all: std::collections::HashSet<_> = ids.into_iter().flatten().collect();
    assert_eq!(all.len(), 10);
}

#[test]
fn the_largest_lease_goes_with_the_number_of_a_request() {
    let numbers = |ceiling| ledger::algorithm::RequestNumbers { rate: None, ceiling: Some(Cost::from_tokens(ceiling)) };
    let largest = |limit: Algorithm| match limit {
        Algorithm::Purse(purse) => purse.largest().whole(),
        other => panic!("{other:?}"),
    };
    let limit = Algorithm::Purse(purse(window(1000)));
    assert_eq!(largest(limit), 100);
    assert_eq!([50, 7].map(|ceiling| largest(limit.for_request(numbers(ceiling), Cost::ONE))), [5, 1]);
    let Algorithm::FixedWindow(alone) = limit.in_one_region() else { panic!("a window") };
    assert_eq!(alone.limit(), Cost::from_tokens(1000));
}

#[test]
fn a_settlement_says_that_a_purse_is_low_until_a_lease_is_under_way() {
    let purse = purse(window(100));
    let limit = Algorithm::Purse(purse);
    let mut plan = Plan::default();
    plan.enforce(Charge::new(BucketKey([1; 16]), limit, Cost::ONE));
    let (refused, _) = settle(&plan, &[None::<ledger::algorithm::State>], NOW);
    assert_eq!((refused.enforced[0].verdict, refused.enforced[0].retry_after), (Verdict::Deny, ASK_HOME));
    assert!(!refused.enforced[0].is_low);
    let mark = |state: Option<&[u64]>, tag| {
        let (entry, reply) = purse.act(state, PurseAct::Mark { cost: Cost::ONE, tag }, NOW);
        (entry.map(|entry| entry.state), reply)
    };
    let (marked, PurseReply::Send(word)) = mark(None, 5) else { panic!("no word") };
    let home = purse.home(2).unwrap();
    let (_, answer) = home.hear(None, RegionId::of("eu"), &word.word, NOW);
    let credit = PurseAct::Credit { answer, mark: word.mark, wanted: Cost::ONE };
    let (entry, _) = purse.act(marked.as_deref(), credit, NOW);
    let mut state = entry.unwrap().state;
    // Ten are leased; below two trips of one, and below an eighth, more is asked for.
    let mut low = Vec::new();
    for _ in 0..10 {
        let (granted, mut entries) = settle(&plan, &[Some(state)], NOW);
        assert!(granted.is_granted());
        low.push(granted.enforced[0].is_low);
        state = entries.pop().unwrap().unwrap().state;
        if low.last() == Some(&true) {
            break;
        }
    }
    assert!(low.len() > 5 && low.len() < 10, "{low:?}");
    let (marked, PurseReply::Send(_)) = mark(Some(&state), 6) else { panic!("no word") };
    let (granted, _) = settle(&plan, &[marked], NOW);
    assert!(granted.is_granted() && !granted.enforced[0].is_low);
}

#[test]
fn a_refusal_says_when_the_home_of_the_purse_was_last_heard() {
    let purse = purse(window(100));
    let mut plan = Plan::default();
    plan.enforce(Charge::new(BucketKey([1; 16]), Algorithm::Purse(purse), Cost::from_tokens(20)));
    let heard = |state: Option<&[u64]>| {
        let (refused, _) = settle(&plan, &[state], NOW);
        assert_eq!((refused.enforced[0].verdict, refused.enforced[0].retry_after), (Verdict::Deny, ASK_HOME));
        refused.enforced[0].home_heard
    };
    assert_eq!(heard(None), Timestamp(0));
    let (entry, PurseReply::Send(word)) = purse.act(None, PurseAct::Mark { cost: Cost::ONE, tag: 5 }, NOW) else {
        panic!("no word")
    };
    let marked = entry.unwrap().state;
    assert_eq!(heard(Some(&marked)), Timestamp(0));
    let (_, answer) = purse.home(2).unwrap().hear(None, RegionId::of("eu"), &word.word, NOW);
    let credit = PurseAct::Credit { answer, mark: word.mark, wanted: Cost::ONE };
    let (entry, _) = purse.act(Some(&marked), credit, NOW);
    assert_eq!(heard(Some(&entry.unwrap().state)), NOW);
}
