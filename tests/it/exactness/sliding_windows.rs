//! Judges sliding windows by their grants, over every window of a long random history. Also judges forms of them that are
//! known to be wrong.

use base::time::{Micros, Timestamp};
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::{ChargeResult, State};
use ledger::cost::Cost;

use crate::support::{print_measured, short_or_long};

const SECOND: u64 = 1_000_000;
/// A time that is a multiple of every window here, in microseconds.
const START: u64 = 1_793_404_800 * SECOND;

/// Grants or refuses a cost in whole units at a time. The time is never earlier than that of the last call.
trait Limiter {
    fn grants(&mut self, now: u64, cost: u64) -> bool;
}

/// The numbers by which a limiter is judged.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    limit: u64,
    window: u64,
    steps: u64,
}

impl Numbers {
    fn step(self) -> u64 {
        self.window.div_ceil(self.steps)
    }
}

/// The findings about the history of a limiter.
#[derive(Debug, Default, PartialEq)]
struct Findings {
    granted: u64,
    refused: u64,
    /// The amount in the window with the most grants.
    most_in_a_window: u64,
    /// The number of refusals although the grants of a window and a step left room.
    unjustified: u64,
    /// The longest time beyond a window for which a grant counted.
    withheld: u64,
}

/// The past grants, each with its time.
#[derive(Default)]
struct History(Vec<(u64, u64)>);

impl History {
    /// Returns how far before `now` the grants begin that leave no room for `cost`; `None` if all grants leave room.
    fn look_back(&self, now: u64, limit: u64, cost: u64) -> Option<u64> {
        let mut room = limit - cost;
        for (at, granted) in self.0.iter().rev() {
            match room.checked_sub(*granted) {
                Some(left) => room = left,
                None => return Some(now - at),
            }
        }
        None
    }

    fn most_in_a_window(&self, window: u64) -> u64 {
        let (mut first, mut within, mut most) = (0, 0, 0);
        for (at, granted) in &self.0 {
            within += granted;
            while self.0[first].0 + window <= *at {
                within -= self.0[first].1;
                first += 1;
            }
            most = most.max(within);
        }
        most
    }
}

/// Sends this many requests: in bursts, evenly, and after pauses of up to two windows.
fn play(limiter: &mut dyn Limiter, numbers: Numbers, events: usize) -> Findings {
    let mut random = fastrand::Rng::with_seed(numbers.limit + numbers.steps);
    let (mut now, mut history, mut findings) = (START, History::default(), Findings::default());
    let even = numbers.window / numbers.limit;
    for _ in 0..events {
        now += match random.u8(..) {
            0..100 => 0,
            100..200 => random.u64(0..=even),
            200..254 => random.u64(0..=2 * even),
            _ => random.u64(0..2 * numbers.window),
        };
        let cost = if random.u8(..) < 200 { 1 } else { random.u64(1..=numbers.limit.div_ceil(4)) };
        if limiter.grants(now, cost) {
            findings.granted += 1;
            history.0.push((now, cost));
        } else {
            findings.refused += 1;
            match history.look_back(now, numbers.limit, cost) {
                Some(back) if back < numbers.window + numbers.step() => {
                    findings.withheld = findings.withheld.max((back + 1).saturating_sub(numbers.window));
                }
                _ => findings.unjustified += 1,
            }
        }
    }
    findings.most_in_a_window = history.most_in_a_window(numbers.window);
    findings
}

/// The real algorithm.
struct SlidingLimiter {
    window: SlidingWindow,
    state: Option<State>,
}

impl SlidingLimiter {
    fn new(numbers: Numbers) -> SlidingLimiter {
        let Numbers { limit, window, steps } = numbers;
        SlidingLimiter { window: SlidingWindow::new(limit, Micros(window), steps).unwrap(), state: None }
    }
}

impl Limiter for SlidingLimiter {
    fn grants(&mut self, now: u64, cost: u64) -> bool {
        let step = self.window.step(self.state.as_deref(), Cost::from_tokens(cost), Timestamp(now));
        match step.charge {
            ChargeResult::Fits { entry, .. } => {
                self.state = Some(entry.state);
                true
            }
            _ => false,
        }
    }
}

/// Steps by their number, each with the granted amount. A simple form, in which mistakes can be made.
struct Naive {
    numbers: Numbers,
    granted: Vec<(u64, u64)>,
    mistake: Mistake,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// The oldest step counts in proportion to the part that is still in the window.
    OldestStepWeighed,
    /// Refusals count like grants.
    RefusalsCounted,
    /// The step at the beginning of the window does not count.
    OldestStepForgotten,
}

impl Naive {
    fn new(numbers: Numbers, mistake: Mistake) -> Naive {
        Naive { numbers, granted: Vec::new(), mistake }
    }
}

impl Limiter for Naive {
    fn grants(&mut self, now: u64, cost: u64) -> bool {
        let Numbers { limit, window, .. } = self.numbers;
        let step = self.numbers.step();
        let begin = now - window;
        let counted = self.granted.iter().map(|(number, granted)| match (number * step, (number + 1) * step) {
            (_, end) if end <= begin => 0,
            (first, _) if first > begin => *granted,
            (first, end) => match self.mistake {
                Mistake::OldestStepWeighed => granted * (end - begin) / (end - first),
                Mistake::OldestStepForgotten => 0,
                Mistake::None | Mistake::RefusalsCounted => *granted,
            },
        });
        let fits = counted.sum::<u64>() + cost <= limit;
        if fits || self.mistake == Mistake::RefusalsCounted {
            self.granted.push((now / step, cost));
            // What cannot count any more would only take time.
            self.granted.retain(|(number, _)| (number + 1) * step > begin);
        }
        fits
    }
}

/// The estimate that many gateways use: this period, and the period before in proportion to its rest in the window.
struct TwoCounters {
    numbers: Numbers,
    period: u64,
    counters: [u64; 2],
}

impl Limiter for TwoCounters {
    fn grants(&mut self, now: u64, cost: u64) -> bool {
        let Numbers { limit, window, .. } = self.numbers;
        match now / window - self.period {
            0 => {}
            1 => self.counters = [self.counters[1], 0],
            _ => self.counters = [0, 0],
        }
        self.period = now / window;
        let left = window - now % window;
        let fits = self.counters[0] * left + (self.counters[1] + cost) * window <= limit * window;
        self.counters[1] += if fits { cost } else { 0 };
        fits
    }
}

const MINUTE: Numbers = Numbers { limit: 100, window: 60 * SECOND, steps: 10 };

#[test]
fn no_window_grants_more_than_the_limit_and_nothing_is_withheld_for_longer_than_a_step() {
    let all = [
        MINUTE,
        Numbers { limit: 7, window: SECOND, steps: 7 },
        Numbers { limit: 1000, window: 3600 * SECOND, steps: 60 },
        Numbers { limit: 20, window: 86_400 * SECOND, steps: 2 },
    ];
    for numbers in all {
        let findings = play(&mut SlidingLimiter::new(numbers), numbers, short_or_long(10_000, 1_000_000));
        print_measured(&format!("sliding window: {numbers:?}: {findings:?}"));
        assert!(findings.most_in_a_window <= numbers.limit, "{numbers:?}: {findings:?}");
        assert_eq!(findings.unjustified, 0, "{numbers:?}: {findings:?}");
        assert!(findings.withheld <= numbers.step(), "{numbers:?}: {findings:?}");
        assert!(findings.granted > 500 && findings.refused > 500, "{numbers:?}: {findings:?}");
        // The naive form without a mistake is the same, so what is noticed of the others is their mistake.
        let naive = play(&mut Naive::new(numbers, Mistake::None), numbers, 3_000);
        assert_eq!(naive, play(&mut SlidingLimiter::new(numbers), numbers, 3_000), "{numbers:?}");
    }
}

#[test]
fn an_oldest_step_that_counts_in_part_is_noticed() {
    for mistake in [Mistake::OldestStepWeighed, Mistake::OldestStepForgotten] {
        let findings = play(&mut Naive::new(MINUTE, mistake), MINUTE, 5_000);
        assert!(findings.most_in_a_window > MINUTE.limit, "{mistake:?}: {findings:?}");
    }
}

#[test]
fn refusals_that_count_are_noticed() {
    let findings = play(&mut Naive::new(MINUTE, Mistake::RefusalsCounted), MINUTE, 5_000);
    assert!(findings.unjustified > 0, "{findings:?}");
}

/// The example in docs/algorithms.md.
#[test]
fn two_weighed_counters_grant_199_of_100() {
    let mut two = TwoCounters { numbers: MINUTE, period: START / MINUTE.window, counters: [0, 0] };
    let mut exact = SlidingLimiter::new(MINUTE);
    let (mut of_two, mut of_exact) = (History::default(), History::default());
    // All at the end of a minute, then always at the limit until the end of the next.
    let late = START + 59_900_000;
    let moments = (0..100).map(|_| late).chain((0..59_500).map(|later| START + MINUTE.window + 1_000 * later));
    for now in moments {
        for (limiter, history) in [(&mut two as &mut dyn Limiter, &mut of_two), (&mut exact, &mut of_exact)] {
            if limiter.grants(now, 1) {
                history.0.push((now, 1));
            }
        }
    }
    assert_eq!((of_two.most_in_a_window(MINUTE.window), of_exact.most_in_a_window(MINUTE.window)), (199, 100));
}
