//! Tests that purses show the raises of the bucket at home, from an answer of home until they end.

use super::*;
use crate::algorithm::fixed_window::Window;
use crate::algorithm::lease::HomeRaise;
use crate::algorithm::{Algorithm, State};
use crate::bucket_level::BucketLevel;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const NOW: Timestamp = Timestamp(1_763_672_400_000_000);

struct Region {
    purse: Purse,
    state: Option<State>,
    now: Timestamp,
}

impl Region {
    /// A region with a limit of 1000 in an hour: at most 100 in a purse.
    fn new() -> Region {
        let window = SpentLimit::FixedWindow(FixedWindow::new(1000, Window::Epoch(Micros(HOUR))).unwrap());
        let purse = Purse::new(window, Cost::from_tokens(100), Micros(SECOND / 2), Micros(60 * SECOND)).unwrap();
        Region { purse, state: None, now: NOW }
    }

    /// A region that has leased 100, and has heard of a raise of 50 that lasts for so many seconds.
    fn raised(seconds: u64) -> Region {
        let mut region = Region::new();
        region.lease(50, seconds);
        region
    }

    fn wait(&mut self, micros: u64) {
        self.now = self.now.plus(Micros(micros));
    }

    /// Charges a request. Returns whether the purse has paid.
    fn pays(&mut self, tokens: u64) -> bool {
        let charge = self.purse.step(self.state.as_deref(), Cost::from_tokens(tokens), self.now).charge;
        let ChargeResult::Fits { entry, .. } = charge else { return false };
        self.state = Some(entry.state);
        true
    }

    /// Leases until the end of the hour what is missing to 100. 500 are left at home then, and it is raised by this amount for so many
    /// seconds. Returns what was leased, and until when the purse is kept.
    fn lease(&mut self, raised: u64, seconds: u64) -> (u64, Timestamp) {
        let mark = PurseAct::Mark { cost: Cost::ONE, tag: 1 };
        let (entry, PurseReply::Send(marked)) = self.purse.act(self.state.as_deref(), mark, self.now) else {
            panic!("no word")
        };
        let answer = HomeAnswer::Answer {
            id: marked.word.id,
            kind: WordKind::Lease,
            given: marked.word.amount,
            period: Timestamp(7),
            remains: NOW.plus(Micros(HOUR)).since(self.now),
            again_after: Micros(0),
            rest: Cost::from_tokens(500),
            raise: HomeRaise { amount: Cost::from_tokens(raised), remains: Micros(seconds * SECOND) },
        };
        let credit = PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::default() };
        let state = entry.map(|entry| entry.state);
        let (entry, _) = self.purse.act(state.as_deref(), credit, self.now);
        let Entry { state, kept_until } = entry.unwrap();
        self.state = Some(state);
        (marked.word.amount.whole(), kept_until)
    }

    /// Returns by how much the limit is raised, what is spent of it, and what is left.
    fn level(&self) -> (u64, u64, u64) {
        let level = BucketLevel::of(&Algorithm::Purse(self.purse), self.state.as_deref(), Cost::ONE, self.now);
        (level.raised.whole(), level.spent.whole(), level.untouched.remaining.whole())
    }
}

#[test]
fn a_raise_at_home_is_seen_until_it_ends_and_enlarges_no_lease() {
    let mut region = Region::raised(10);
    assert_eq!(region.level(), (50, 450, 600));
    let raise = Purse::raise(region.state.as_deref(), region.now);
    assert_eq!(raise, Some((Cost::from_tokens(50), NOW.plus(Micros(10 * SECOND)))));
    // The number in the file says what never fits.
    let large = region.purse.step(region.state.as_deref(), Cost::from_tokens(1001), region.now);
    assert_eq!(large.charge, ChargeResult::Never);
    region.wait(10 * SECOND - 1);
    assert!(region.pays(95));
    assert_eq!(region.level(), (50, 545, 505));
    region.wait(1);
    // What it had added is no longer left at home.
    assert_eq!(region.level(), (0, 545, 455));
    assert!(region.pays(1));
    assert_eq!(region.level(), (0, 546, 454));
    assert_eq!(region.lease(50, 10).0, 96);
}

#[test]
fn the_last_answer_of_home_says_which_raises_run() {
    let mut region = Region::raised(3600);
    for (amount, seconds) in [(60, 5), (10, 3600), (0, 0)] {
        assert!(region.pays(95));
        region.lease(amount, seconds);
        assert_eq!(region.level(), (amount, 400 + amount, 600));
    }
}

#[test]
fn a_raise_ends_with_the_period_or_outlasts_it() {
    for (seconds, level) in [(3600, (0, 0, 1000)), (3601, (50, 0, 1050))] {
        let mut region = Region::raised(seconds);
        region.wait(HOUR);
        assert_eq!(region.level(), level);
        region.wait(SECOND);
        assert_eq!(region.level(), (0, 0, 1000));
    }
    assert_eq!(Region::new().lease(50, 7200).1, NOW.plus(Micros(2 * HOUR)));
}

#[test]
fn without_home_a_purse_of_each_kind_keeps_the_raise() {
    let mut region = Region::new();
    region.purse = region.purse.with_shares(3);
    region.lease(50, 10);
    assert!(region.pays(1));
    let alone = Algorithm::Purse(region.purse.without_home().unwrap());
    assert_eq!(alone.raised_by(region.state.as_deref(), region.now).whole(), 50);
    // A reload: the purse does not count any more.
    region.purse = Region::new().purse;
    assert!(region.pays(1));
    assert_eq!(region.level(), (50, 452, 598));
}
