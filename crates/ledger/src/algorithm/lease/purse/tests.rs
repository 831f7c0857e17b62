//! Tests purses: payments, marks, credits and returns, on clocks that are set back.

use super::*;
use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::lease::{HomeRaise, Word};
use crate::algorithm::{Algorithm, State};

const NOW: Timestamp = Timestamp(1_763_672_400_000_000);
const SECOND: u64 = 1_000_000;
const IDLE: Micros = Micros(60 * SECOND);
const PERIOD: Timestamp = Timestamp(1_763_672_000_000_000);

/// 1000 in each hour: at most 100 in a purse, home answers within half a second, and what is untouched for a minute is returned.
fn purse() -> Algorithm {
    let window = FixedWindow::new(1000, Window::Epoch(Micros(3600 * SECOND))).unwrap();
    let (timeout, return_after) = (Micros(SECOND / 2), Micros(60 * SECOND));
    let largest = Cost::from_tokens(100);
    Algorithm::Purse(Purse::new(SpentLimit::FixedWindow(window), largest, timeout, return_after).unwrap())
}

struct Region {
    purse: Algorithm,
    state: Option<State>,
    now: Timestamp,
}

impl Region {
    fn new() -> Region {
        Region { purse: purse(), state: None, now: NOW }
    }

    fn wait(&mut self, micros: i64) {
        self.now = Timestamp(self.now.0.saturating_add_signed(micros));
    }

    fn pay(&mut self, tokens: u64) -> ChargeResult {
        let step = self.purse.step(self.state.as_deref(), Cost::from_tokens(tokens), self.now);
        if let ChargeResult::Fits { entry, .. } = &step.charge {
            self.state = Some(entry.state.clone());
        }
        step.charge
    }

    fn pays(&mut self, tokens: u64) -> bool {
        matches!(self.pay(tokens), ChargeResult::Fits { .. })
    }

    fn act(&mut self, act: PurseAct) -> PurseReply {
        let (entry, reply) = self.purse.act(self.state.as_deref(), act, self.now).unwrap();
        assert_eq!(entry.is_none(), reply == PurseReply::Nothing);
        if let Some(entry) = entry {
            self.state = Some(entry.state);
        }
        reply
    }

    fn mark(&mut self, tokens: u64, tag: u64) -> Option<MarkedWord> {
        match self.act(PurseAct::Mark { cost: Cost::from_tokens(tokens), tag }) {
            PurseReply::Send(word) => Some(word),
            reply => {
                assert_eq!(reply, PurseReply::Nothing);
                None
            }
        }
    }

    fn credit(&mut self, marked: &MarkedWord, given: u64, period: Timestamp, remains: u64, again: u64) -> bool {
        let answer = HomeAnswer::Answer {
            id: marked.word.id,
            kind: marked.word.kind,
            given: Cost::from_tokens(given),
            period,
            remains: Micros(remains),
            again_after: Micros(again),
            rest: Cost::from_tokens(if given > 0 { 500 } else { 0 }),
            raise: HomeRaise::default(),
        };
        self.act(PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::default() }) == PurseReply::Credited
    }

    /// Returns a region whose purse has 100 for an hour.
    fn filled() -> Region {
        let mut region = Region::new();
        let word = region.mark(1, 1).unwrap();
        assert!(region.credit(&word, 100, PERIOD, 3600 * SECOND, 0));
        region
    }

    fn left(&self) -> u64 {
        let Algorithm::Purse(purse) = &self.purse else { panic!("no purse") };
        purse.left(self.state.as_deref(), self.now).whole()
    }
}

#[test]
fn a_purse_that_is_empty_asks_home_and_pays_what_home_gives() {
    let mut region = Region::new();
    assert_eq!(region.pay(3), ChargeResult::Short { wait: ASK_HOME });
    assert_eq!(region.state, None);
    let word = region.mark(3, 77).unwrap();
    assert_eq!((word.mark, word.again_after), (NOW, Micros(SECOND / 2)));
    let Word { id, kind, amount, least, left, .. } = word.word;
    assert_eq!((id.tag, kind, amount.whole(), least.whole(), left.whole()), (77, WordKind::Lease, 100, 3, 0));
    assert!(id.number > NOW.0 / 1000);
    assert!(region.credit(&word, 4, PERIOD, 3600 * SECOND, 0));
    assert!(region.pays(3) && !region.pays(2) && region.pays(1));
    assert_eq!(region.pay(1001), ChargeResult::Never);
}

#[test]
fn one_lease_is_under_way_until_home_should_have_answered_and_then_the_same_word_is_sent_again() {
    let mut region = Region::new();
    let first = region.mark(1, 1).unwrap();
    assert_eq!(region.mark(1, 2), None);
    assert_eq!(region.act(PurseAct::Resend { id: first.word.id }), PurseReply::Nothing);
    region.wait(500_000);
    let again = region.mark(1, 3).unwrap();
    assert_eq!((again.word, again.mark), (first.word, region.now));
    region.wait(999_999);
    assert_eq!(region.act(PurseAct::Resend { id: first.word.id }), PurseReply::Nothing);
    region.wait(1);
    let other = WordId { tag: 9, ..first.word.id };
    assert_eq!(region.act(PurseAct::Resend { id: other }), PurseReply::Nothing);
    let PurseReply::Send(third) = region.act(PurseAct::Resend { id: first.word.id }) else { panic!("not sent again") };
    assert_eq!((third.word, third.again_after), (first.word, Micros(2 * SECOND)));
    // Any try can be answered, but only once.
    assert!(region.credit(&again, 10, PERIOD, 3600 * SECOND, 0));
    assert!(!region.credit(&third, 10, PERIOD, 3600 * SECOND, 0));
    assert_eq!(region.left(), 10);
}

#[test]
fn a_mark_from_the_future_of_a_clock_that_was_set_back_is_not_believed() {
    let mut region = Region::new();
    let first = region.mark(1, 1).unwrap();
    region.wait(-3_600_000_000);
    let again = region.mark(1, 2).unwrap();
    assert_eq!((again.word, again.mark), (first.word, region.now));
    // An answer to the first try counts from now, not from its mark.
    assert!(region.credit(&first, 10, PERIOD, 60 * SECOND, 0));
    region.wait(59_999_999);
    assert_eq!(region.left(), 10);
    region.wait(1);
    assert_eq!(region.left(), 0);
}

#[test]
fn a_purse_ends_with_its_period_counted_from_the_mark() {
    let mut region = Region::new();
    let word = region.mark(1, 1).unwrap();
    region.wait(400_000);
    assert!(region.credit(&word, 100, PERIOD, 10 * SECOND, 0));
    region.wait(9_599_999);
    assert!(region.pays(1));
    region.wait(1);
    assert_eq!(region.pay(1), ChargeResult::Short { wait: ASK_HOME });
    // A lease of the next period adds nothing of the last one.
    let mut region = Region::filled();
    assert!(region.pays(60));
    let word = region.mark(60, 2).unwrap();
    assert!(region.credit(&word, 5, Timestamp(PERIOD.0 + 1), 10 * SECOND, 0));
    assert_eq!(region.left(), 5);
}

#[test]
fn home_that_is_short_is_asked_again_when_it_says_or_after_the_time_of_returns() {
    let mut region = Region::new();
    let word = region.mark(1, 1).unwrap();
    assert!(region.credit(&word, 0, PERIOD, 3600 * SECOND, 3 * SECOND));
    assert_eq!(region.pay(1), ChargeResult::Short { wait: Micros(3 * SECOND) });
    assert_eq!(region.mark(1, 2), None);
    region.wait(3_000_000);
    assert_eq!(region.pay(1), ChargeResult::Short { wait: ASK_HOME });
    let word = region.mark(1, 2).unwrap();
    assert!(region.credit(&word, 0, PERIOD, 3600 * SECOND, 3600 * SECOND));
    assert_eq!(region.pay(1), ChargeResult::Short { wait: Micros(60 * SECOND) });
    region.wait(-5_000_000);
    assert_eq!(region.pay(1), ChargeResult::Short { wait: ASK_HOME });
}

#[test]
fn a_region_asks_in_the_background_when_less_is_left_than_two_round_trips_spend() {
    let mut region = Region::filled();
    let Algorithm::Purse(purse) = region.purse else { panic!("no purse") };
    let is_low = |region: &Region| purse.is_low(region.state.as_ref().unwrap(), Cost::ONE, region.now);
    // An eighth of the largest lease is the least.
    assert!(region.pays(87) && !is_low(&region));
    assert_eq!(region.mark(1, 2), None);
    assert!(region.pays(1) && is_low(&region));
    let word = region.mark(1, 3).unwrap();
    assert_eq!((word.word.amount.whole(), word.word.left.whole()), (88, 12));
    assert!(!is_low(&region));
    // Ten are spent during this round trip.
    assert!(region.pays(10) && region.credit(&word, 88, PERIOD, 3600 * SECOND, 0));
    assert!(region.pays(70) && !is_low(&region));
    assert!(region.pays(1) && is_low(&region));
}

#[test]
fn an_untouched_purse_gives_back_what_is_left_before_home_hears_of_it() {
    let mut region = Region::filled();
    assert!(region.pays(30));
    region.wait(59_999_999);
    assert_eq!(region.act(PurseAct::Surplus { tag: 5, idle: IDLE }), PurseReply::Nothing);
    region.wait(1);
    let PurseReply::Send(MarkedWord { word, .. }) = region.act(PurseAct::Surplus { tag: 5, idle: IDLE }) else {
        panic!("kept")
    };
    assert_eq!((word.kind, word.amount.whole(), word.left.whole(), word.period), (WordKind::Return, 70, 0, PERIOD));
    assert_eq!(region.left(), 0);
    // A lease does not wait for the answer.
    let lease = region.mark(1, 6).unwrap();
    assert_eq!((lease.word.id.number, lease.word.kind), (word.id.number + 1, WordKind::Lease));
}

#[test]
fn a_purse_in_use_gives_back_what_it_holds_beyond_the_largest_lease() {
    let mut region = Region::new();
    let word = region.mark(300, 2).unwrap();
    assert!(region.credit(&word, 300, PERIOD, 3600 * SECOND, 0));
    // The request for which that was leased has left.
    assert!(region.pays(1));
    let surplus = PurseAct::Surplus { tag: 5, idle: IDLE };
    let PurseReply::Send(marked) = region.act(surplus) else { panic!("kept") };
    assert_eq!((marked.word.kind, marked.word.amount.whole(), marked.word.left.whole()), (WordKind::Return, 199, 100));
    assert!(region.pays(1) && region.credit(&marked, 0, PERIOD, 3600 * SECOND, 0));
    assert_eq!((region.left(), region.act(surplus)), (99, PurseReply::Nothing));
}

#[test]
fn a_purse_that_no_limit_has_any_more_gives_back_at_once_what_it_holds_but_not_what_is_under_way() {
    let mut region = Region::filled();
    assert!(region.pays(90));
    let lease = region.mark(1, 2).unwrap();
    let surplus = PurseAct::Surplus { tag: 5, idle: Micros(0) };
    assert_eq!(region.act(surplus), PurseReply::Nothing);
    assert!(region.credit(&lease, 40, PERIOD, 3600 * SECOND, 0));
    let PurseReply::Send(MarkedWord { word, .. }) = region.act(surplus) else { panic!("kept") };
    assert_eq!((word.kind, word.amount.whole(), region.left()), (WordKind::Return, 50, 0));
    assert_eq!(region.act(surplus), PurseReply::Nothing);
}

#[test]
fn a_purse_goes_on_from_the_last_number_that_home_knows() {
    let mut region = Region::filled();
    assert!(region.pays(95));
    let word = region.mark(1, 2).unwrap().word;
    let told = |number, tag| PurseAct::Credit {
        answer: HomeAnswer::Older { last: WordId { number, tag } },
        mark: NOW,
        wanted: Cost::default(),
    };
    // A late answer about an earlier word, and one that tells of this very word.
    assert_eq!(region.act(told(word.id.number - 1, 1)), PurseReply::Nothing);
    assert_eq!(region.act(told(word.id.number, word.id.tag)), PurseReply::Nothing);
    assert_eq!(region.act(told(word.id.number + 50, 1)), PurseReply::Credited);
    assert_eq!((region.mark(1, 3).unwrap().word.id.number, region.left()), (word.id.number + 51, 5));
}

#[test]
fn an_invalid_state_is_an_empty_purse() {
    let mut region = Region::filled();
    let valid = region.state.clone().unwrap();
    assert!(is_purse(&valid));
    for (index, word) in [(0, 0), (0, 2), (0, 3), (0, 4), (0, 1 | 3 << 8), (0, 1 | 1 << 8), (2, EXACT + 1)] {
        let mut state = valid.clone();
        state[index] = word;
        assert!(!is_purse(&state));
        let entry = region.purse.correction(Some(&state), region.now).unwrap();
        region.state = Some(state);
        assert_eq!((region.left(), region.pay(1)), (0, ChargeResult::Short { wait: ASK_HOME }));
        assert!(is_purse(&entry.state));
    }
}

#[test]
fn the_level_is_what_is_left_in_the_purse_and_at_home() {
    let mut region = Region::filled();
    let level = region.purse.step(region.state.as_deref(), Cost::ONE, region.now).untouched;
    assert_eq!((level.remaining.whole(), level.reset_after), (600, Micros(3600 * SECOND)));
    region.wait(3_600_000_000);
    let level = region.purse.step(region.state.as_deref(), Cost::ONE, region.now).untouched;
    assert_eq!((level.remaining.whole(), level.reset_after), (1000, Micros(0)));
}

#[test]
fn a_request_that_costs_more_than_the_largest_lease_gets_one_of_its_own_size() {
    let mut region = Region::filled();
    let before = region.purse.step(region.state.as_deref(), Cost::default(), region.now).untouched;
    assert_eq!(region.pay(300), ChargeResult::Short { wait: ASK_HOME });
    let word = region.mark(300, 9).unwrap().word;
    assert_eq!((word.amount.whole(), word.least.whole(), word.left.whole()), (200, 200, 100));
    assert!(before.remaining > Cost::default());
}

#[test]
fn home_that_is_short_of_a_large_cost_is_asked_for_a_small_one() {
    let mut region = Region::new();
    let marked = region.mark(300, 1).unwrap();
    let answer = HomeAnswer::Answer {
        id: marked.word.id,
        kind: marked.word.kind,
        given: Cost::default(),
        period: PERIOD,
        remains: Micros(3600 * SECOND),
        again_after: Micros(3600 * SECOND),
        rest: Cost::from_tokens(20),
        raise: HomeRaise::default(),
    };
    let act = PurseAct::Credit { answer, mark: marked.mark, wanted: Cost::default() };
    assert_eq!(region.act(act), PurseReply::Credited);
    assert_eq!(region.pay(21), ChargeResult::Short { wait: Micros(60 * SECOND) });
    assert_eq!(region.mark(21, 2), None);
    assert_eq!(region.pay(20), ChargeResult::Short { wait: ASK_HOME });
    assert!(region.mark(20, 2).is_some());
}

#[test]
fn a_purse_tells_when_home_was_heard_and_since_when_charges_can_be_undone() {
    let mut region = Region::filled();
    let undone_since = |region: &Region| region.state.as_ref().unwrap()[11];
    assert_eq!(Purse::heard(region.state.as_deref()), Some(NOW));
    let begin = undone_since(&region);
    region.wait(30_000);
    assert!(region.pays(95));
    let word = region.mark(1, 4).unwrap();
    region.wait(30_000);
    assert!(region.credit(&word, 95, PERIOD, 3600 * SECOND, 0));
    assert_eq!(Purse::heard(region.state.as_deref()), Some(word.mark));
    // Another lease of the same period.
    assert_eq!(undone_since(&region), begin);
    assert!(region.pays(95));
    region.wait(30_000);
    let word = region.mark(1, 4).unwrap();
    assert!(region.credit(&word, 95, Timestamp(PERIOD.0 + 1), 3600 * SECOND, 0));
    assert_eq!(undone_since(&region), region.now.0);
    assert!(is_purse(region.state.as_ref().unwrap()));
    // One of an earlier build.
    assert!(!is_purse(&region.state.as_ref().unwrap()[..11]));
}

#[test]
fn purses_of_other_windows_or_numbers_are_other_purses() {
    use crate::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
    let of = |limit| Purse::new(limit, Cost::ONE, Micros(SECOND), Micros(SECOND)).unwrap().numbers_hash();
    let window = |limit, window| of(SpentLimit::FixedWindow(FixedWindow::new(limit, window).unwrap()));
    let calendar = |unit, zone| {
        let (anchor, zone) = (Anchor::default_of(unit), Zone::parse(zone).unwrap());
        Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone))
    };
    let hour = Micros(3600 * SECOND);
    let all = [
        window(10, Window::Epoch(hour)),
        window(11, Window::Epoch(hour)),
        window(10, Window::Epoch(Micros(2 * hour.0))),
        window(10, Window::FirstRequest(hour)),
        window(10, calendar(CalendarUnit::Day, "UTC")),
        window(10, calendar(CalendarUnit::Month, "UTC")),
        window(10, calendar(CalendarUnit::Month, "Europe/Berlin")),
    ];
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(all[5], window(10, calendar(CalendarUnit::Month, "UTC")));
}

#[test]
fn a_purse_waits_for_an_answer_for_as_long_as_home_may_take() {
    // It returns sooner than home should answer.
    let limit = SpentLimit::FixedWindow(FixedWindow::new(100, Window::Epoch(Micros(3600 * SECOND))).unwrap());
    let purse = Purse::new(limit, Cost::ONE, Micros(SECOND), Micros(SECOND / 50)).unwrap();
    let (entry, _) = purse.act(None, PurseAct::Mark { cost: Cost::ONE, tag: 1 }, NOW);
    assert!(entry.unwrap().kept_until >= NOW.plus(Micros(5 * SECOND)));
}

#[test]
fn a_region_without_its_store_grants_one_purse_and_of_a_token_bucket_another_one_long_after() {
    let rate = crate::algorithm::token_bucket::Rate { amount: Cost::from_tokens(500), period: Micros(SECOND) };
    let bucket = SpentLimit::TokenBucket(crate::algorithm::token_bucket::TokenBucket::new(rate, 1000).unwrap());
    let purse = Purse::new(bucket, Cost::from_tokens(250), Micros(SECOND), Micros(10 * SECOND)).unwrap();
    let alone = purse.alone();
    let mut state: Option<State> = None;
    let mut passed_until = |end: u64| {
        let mut passed = 0;
        for second in 0..end {
            let now = NOW.plus(Micros(second * SECOND));
            while let ChargeResult::Fits { entry, .. } = alone.step(state.as_deref(), Cost::ONE, now).charge {
                state = Some(entry.state);
                passed += 1;
            }
        }
        passed
    };
    assert_eq!((passed_until(60), passed_until(101)), (250, 250));
}
