//! Tests purses that pay from the share of their region while home gives no answer.

use super::*;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::lease::HomeRaise;
use crate::algorithm::token_bucket::{Rate, TokenBucket};
use crate::algorithm::{Algorithm, State};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
/// The beginning of an hour.
const NOW: Timestamp = Timestamp(1_763_672_400_000_000);

struct Region {
    purse: Purse,
    state: Option<State>,
    now: Timestamp,
}

impl Region {
    /// A region of three with a limit of 90 in an hour: at most 9 in a purse.
    fn of_window() -> Region {
        let window = FixedWindow::new(90, Window::Epoch(Micros(3600 * SECOND))).unwrap();
        Region::of(SpentLimit::FixedWindow(window))
    }

    /// A region of three with a burst of 90, of which 3 come back each second.
    fn of_bucket() -> Region {
        let bucket = TokenBucket::new(Rate { amount: Cost::from_tokens(3), period: Micros(SECOND) }, 90).unwrap();
        Region::of(SpentLimit::TokenBucket(bucket))
    }

    fn of(limit: SpentLimit) -> Region {
        let purse = Purse::new(limit, Cost::from_tokens(9), Micros(SECOND / 2), Micros(60 * SECOND)).unwrap();
        Region { purse: purse.with_shares(3), state: None, now: NOW }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(Micros(seconds * SECOND));
    }

    fn pay(&mut self, purse: Purse, cost: u64) -> ChargeResult {
        let step = Algorithm::Purse(purse).step(self.state.as_deref(), Cost::from_tokens(cost), self.now);
        if let ChargeResult::Fits { entry, .. } = &step.charge {
            self.state = Some(entry.state.clone());
        }
        step.charge
    }

    /// Returns how many requests pass without home.
    fn alone(&mut self) -> u64 {
        let purse = self.purse.without_home().unwrap();
        (0..).find(|_| !matches!(self.pay(purse, 1), ChargeResult::Fits { .. })).unwrap()
    }

    /// Leases an amount, which home counts until the end of the hour.
    fn lease(&mut self, tokens: u64) {
        let limit = Algorithm::Purse(self.purse);
        let mark = PurseAct::Mark { cost: Cost::ONE, tag: 5 };
        let (entry, PurseReply::Send(marked)) = limit.act(self.state.as_deref(), mark, self.now).unwrap() else {
            panic!("no word");
        };
        let hour = 3600 * SECOND;
        let ends = Timestamp(self.now.0 - self.now.0 % hour + hour);
        self.answer(entry.map(|entry| entry.state), &marked, tokens, ends);
    }

    fn give_back(&mut self) {
        let act = PurseAct::Surplus { tag: 6, idle: self.purse.return_after() };
        let (entry, PurseReply::Send(marked)) = self.purse.act(self.state.as_deref(), act, self.now) else {
            panic!("nothing to give back");
        };
        self.answer(entry.map(|entry| entry.state), &marked, 0, self.now);
    }

    /// Leases an amount if the purse asks for one. Returns whether it did.
    fn may_lease(&mut self, tokens: u64) -> bool {
        let mark = PurseAct::Mark { cost: Cost::ONE, tag: 5 };
        let is_asking = matches!(self.purse.act(self.state.as_deref(), mark, self.now).1, PurseReply::Send(_));
        if is_asking {
            self.lease(tokens);
        }
        is_asking
    }

    /// Gives back what is left after a minute. Returns the amount.
    fn may_give_back(&mut self) -> u64 {
        self.wait(60);
        let left = self.purse.left(self.state.as_deref(), self.now).whole();
        if left > 0 {
            self.give_back();
        }
        left
    }

    fn answer(&mut self, state: Option<State>, marked: &MarkedWord, given: u64, ends: Timestamp) {
        let answer = HomeAnswer::Answer {
            id: marked.word.id,
            kind: marked.word.kind,
            given: Cost::from_tokens(given),
            period: Timestamp(7),
            remains: ends.since(self.now),
            again_after: Micros(0),
            rest: Cost::default(),
            raise: HomeRaise::default(),
        };
        let act = PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::default() };
        let (entry, reply) = self.purse.act(state.as_deref(), act, self.now);
        assert_eq!(reply, PurseReply::Credited);
        self.state = entry.map(|entry| entry.state);
    }
}

#[test]
fn a_region_passes_its_share_less_what_it_has_leased_and_home_is_paid_first() {
    let mut region = Region::of_window();
    region.lease(9);
    // What is in the purse, and the rest of the share of 30.
    assert_eq!(region.alone(), 30);
    assert_eq!(region.pay(region.purse, 1), ChargeResult::Short { wait: ASK_HOME });
    // The next leases pay what has passed without them: 21.
    for (leased, left) in [(9, 0), (9, 0), (9, 6)] {
        region.lease(leased);
        assert_eq!(region.purse.left(region.state.as_deref(), region.now), Cost::from_tokens(left));
    }
    assert_eq!(region.alone(), 6);
    // The next period begins with the whole share.
    region.wait(3600);
    assert_eq!(region.alone(), 30);
}

#[test]
fn a_region_that_has_leased_more_than_its_share_passes_nothing_without_home() {
    let mut region = Region::of_window();
    for _ in 0..4 {
        region.lease(9);
        while let ChargeResult::Fits { .. } = region.pay(region.purse, 1) {}
    }
    assert_eq!(region.alone(), 0);
    let alone = region.purse.without_home().unwrap();
    // At the latest then home is asked again.
    assert_eq!(region.pay(alone, 1), ChargeResult::Short { wait: Micros(60 * SECOND) });
}

#[test]
fn what_a_region_has_given_back_is_not_counted() {
    let mut region = Region::of_window();
    region.lease(9);
    region.wait(60);
    region.give_back();
    assert_eq!(region.alone(), 30);
}

#[test]
fn a_token_bucket_has_a_share_of_its_rate_and_burst() {
    let mut region = Region::of_bucket();
    region.lease(9);
    assert_eq!(region.alone(), 30);
    region.wait(5);
    assert_eq!(region.alone(), 5);
    // What was spent without home comes back, and so does what is owed.
    region.wait(24);
    region.lease(9);
    assert_eq!(region.purse.left(region.state.as_deref(), region.now), Cost::from_tokens(3));
}

#[test]
fn however_much_a_region_has_leased_the_share_of_a_token_bucket_is_empty_at_most() {
    let mut region = Region::of_bucket();
    for _ in 0..20 {
        region.lease(9);
        while let ChargeResult::Fits { .. } = region.pay(region.purse, 1) {}
    }
    assert_eq!(region.alone(), 0);
    region.wait(5);
    assert_eq!(region.alone(), 5);
}

#[test]
fn a_share_that_must_not_be_spent_is_kept_longer_than_its_purse_only_if_something_is_to_be_paid() {
    let mut region = Region::of_window();
    let counting = region.purse;
    let unspent = Purse { share: RegionShare::None, ..counting }.with_unspent_shares(3);
    let outlives_purse = |region: &Region, purse: Purse| {
        let purse = Algorithm::Purse(purse);
        let ChargeResult::Fits { entry, .. } = purse.step(region.state.as_deref(), Cost::default(), region.now).charge
        else {
            panic!("refused")
        };
        entry.kept_until > StoredPurse::parse(&entry.state).unwrap().ends
    };
    region.lease(9);
    assert_eq!([counting, unspent].map(|purse| outlives_purse(&region, purse)), [true, false]);
    assert_eq!(region.alone(), 30);
    assert!(outlives_purse(&region, unspent));
}

#[test]
fn a_purse_that_did_not_count_before_has_no_share_in_its_period() {
    let mut region = Region::of_window();
    let counting = region.purse;
    region.purse = Purse { share: RegionShare::None, ..counting };
    region.lease(9);
    let plain = region.state.clone().unwrap();
    assert_eq!((region.purse.without_home(), plain.len()), (None, 12));
    region.purse = counting;
    assert_eq!(region.alone(), 9);
    region.wait(3600);
    assert_eq!(region.alone(), 30);
    // A gateway with the earlier file reads it, and counts no more.
    region.purse = Purse { share: RegionShare::None, ..counting };
    region.lease(5);
    assert_eq!(region.state.as_ref().map(|state| state.len()), Some(12));
    assert_eq!(region.purse.left(region.state.as_deref(), region.now), Cost::from_tokens(5));
}

#[test]
fn what_a_region_has_passed_without_home_is_paid_also_when_its_file_denies_that() {
    let mut region = Region::of_window();
    let counting = region.purse;
    region.lease(9);
    assert_eq!(region.alone(), 30);
    region.purse = Purse { share: RegionShare::None, ..counting }.with_unspent_shares(3);
    assert_eq!((region.purse.without_home(), region.purse.share_of_region()), (None, Cost::default()));
    for (leased, left) in [(9, 0), (9, 0), (9, 6)] {
        region.lease(leased);
        assert_eq!(region.purse.left(region.state.as_deref(), region.now), Cost::from_tokens(left));
    }
    // The file allows it again: 36 were leased.
    region.purse = counting;
    assert_eq!(region.alone(), 6);
}

#[test]
fn home_that_has_said_that_nothing_is_left_is_believed() {
    let mut region = Region::of_window();
    region.lease(0);
    assert_eq!(region.alone(), 30);
    let alone = region.purse.without_home().unwrap();
    let mut words = region.state.clone().unwrap();
    // Home is short for another 20 seconds.
    words[5] = region.now.0 + 20 * SECOND;
    region.state = Some(words);
    assert_eq!(region.pay(alone, 1), ChargeResult::Short { wait: Micros(20 * SECOND) });
}

#[test]
fn a_limit_that_is_too_small_for_shares_has_none() {
    let window = FixedWindow::of_amount(Cost::from_thousandths(2), Window::Epoch(Micros(SECOND))).unwrap();
    let purse = Purse::new(SpentLimit::FixedWindow(window), Cost::ONE, Micros(SECOND), Micros(SECOND)).unwrap();
    assert_eq!((purse.with_shares(3), purse.with_shares(0)), (purse, purse));
}

proptest! {
    #[test]
    fn a_region_passes_at_most_its_share_or_what_it_has_leased(
        steps in prop::collection::vec((0u8..5, 1u64..10), 1..50)
    ) {
        let mut region = Region::of_window();
        let (plain, alone) = (region.purse, region.purse.without_home().unwrap());
        let (mut passed, mut leased) = (0, 0);
        for (step, amount) in steps {
            match step {
                0 | 1 => {
                    let purse = if step == 0 { plain } else { alone };
                    let is_passed = matches!(region.pay(purse, amount), ChargeResult::Fits { .. });
                    passed += if is_passed { amount } else { 0 };
                }
                2 | 3 => leased += if region.may_lease(amount) { amount } else { 0 },
                _ => leased -= region.may_give_back(),
            }
            prop_assert!(passed <= leased.max(30), "{passed} passed, {leased} leased");
        }
    }
}
