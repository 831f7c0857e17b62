//! Defines limits of every algorithm: the numbers for the checks, and the same numbers for a store and for gateway.yaml.

use base::time::Micros;
use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::leaky_bucket::{LeakyBucket, Settings};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::cost::Cost;

use super::Numbers;

/// The numbers of one limit, of any algorithm.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    TokenBucket(Numbers),
    Window(WindowLimit),
    Leaky(LeakyLimit),
}

/// A limit under which at most `limit` counts at any time.
#[derive(Clone, Copy, Debug)]
pub struct WindowLimit {
    pub limit: u64,
    pub counting: GrantLifetime,
}

/// A queue. Its places become free one after the other.
#[derive(Clone, Copy, Debug)]
pub struct LeakyLimit {
    /// The rate at which places become free, and their number: `1 + delay_after + queue`.
    pub places: Numbers,
    pub delay_after: u64,
    /// The longest wait, in microseconds.
    pub max_wait: u64,
}

impl LeakyLimit {
    /// Returns how many requests may wait.
    fn queue(&self) -> u64 {
        self.places.burst - 1 - self.delay_after
    }

    /// Returns how much may be ahead of a request with the longest wait, in units.
    fn reach(&self) -> i128 {
        let waited = i128::from(self.max_wait) * i128::from(self.places.amount);
        (self.places.price(self.delay_after * 1000) + waited).min(self.places.capacity())
    }

    /// Returns the delay of a request with this much ahead of it, in microseconds.
    pub fn delay(&self, ahead: i128) -> i64 {
        let waiting = (ahead - self.places.price(self.delay_after * 1000)).max(0);
        let refill = i128::from(self.places.amount);
        i64::try_from((waiting + refill - 1) / refill).unwrap()
    }

    /// Returns the token bucket that limits the times at which requests are forwarded.
    pub fn moments(&self) -> Numbers {
        Numbers { burst: 1 + self.delay_after, ..self.places }
    }
}

/// The time for which a grant counts. All times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub enum GrantLifetime {
    /// Until the end of a period of this length. One period begins at the Unix epoch.
    Epoch(i64),
    /// Until the end of a period of this length, which begins with its first grant.
    FirstGrant(i64),
    /// Until the end of a calendar period.
    Calendar(CalendarPeriods),
    /// For the length of the window and the rest of the step in which the request was granted.
    Steps { window: i64, steps: i64 },
    /// For this long.
    Log(i64),
}

/// Some periods of a calendar. They are constants, not computed by the tested code.
#[derive(Clone, Copy, Debug)]
pub struct CalendarPeriods {
    pub unit: CalendarUnit,
    pub zone: &'static str,
    /// The anchor of the periods; empty for the default.
    pub anchor: &'static str,
    /// The beginnings of the periods.
    pub begins: [i64; 3],
}

/// A limit with its rule in a real gateway.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The algorithm. It is also the name of the rule.
    pub name: &'static str,
    pub limit: Limit,
}

/// Returns one limit of each algorithm. Two clients use it up within a second, and it is full again within two.
pub fn short_samples() -> Vec<Sample> {
    let places = Numbers::per_second(20, 20);
    vec![
        Sample { name: "token_bucket", limit: Limit::TokenBucket(Numbers::per_second(40, 40)) },
        Sample { name: "fixed_window", limit: Limit::window(20, GrantLifetime::Epoch(2_000_000)) },
        Sample {
            name: "sliding_window",
            limit: Limit::window(20, GrantLifetime::Steps { window: 1_600_000, steps: 4 }),
        },
        Sample { name: "sliding_log", limit: Limit::window(20, GrantLifetime::Log(2_000_000)) },
        // One of the clients waits, and the other is refused.
        Sample { name: "leaky_bucket", limit: Limit::Leaky(LeakyLimit { places, delay_after: 18, max_wait: 500_000 }) },
    ]
}

/// Returns one limit of each algorithm and each way in which it counts. Nearly nothing is refilled during a test.
pub fn long_samples() -> Vec<Sample> {
    const HOUR: i64 = 3_600_000_000;
    let slow = Numbers { burst: 20, amount: 20_000, period: 3_600_000_000 };
    vec![
        Sample { name: "token_bucket", limit: Limit::TokenBucket(slow) },
        Sample { name: "fixed_window", limit: Limit::window(20, GrantLifetime::Epoch(HOUR)) },
        Sample { name: "first_request", limit: Limit::window(20, GrantLifetime::FirstGrant(HOUR)) },
        Sample { name: "sliding_window", limit: Limit::window(20, GrantLifetime::Steps { window: HOUR, steps: 10 }) },
        Sample { name: "sliding_log", limit: Limit::window(20, GrantLifetime::Log(HOUR)) },
        Sample {
            name: "leaky_bucket",
            limit: Limit::Leaky(LeakyLimit { places: slow, delay_after: 19, max_wait: 1_000_000 }),
        },
    ]
}

impl Sample {
    /// Returns the rule for gateway.yaml. Each value of the header with this name has a bucket.
    pub fn rule(&self) -> String {
        format!("{{name: {}, limit_keys: [\"header:{}\"], {}}}", self.name, self.header(), self.limit.yaml())
    }

    pub fn header(&self) -> String {
        format!("x-{}", self.name.replace('_', "-"))
    }
}

/// Returns the rules of these limits, in block form.
pub fn rules(samples: &[Sample]) -> String {
    let rules: String = samples.iter().map(|sample| format!("  - {}\n", sample.rule())).collect();
    format!("rules:\n{rules}")
}

/// Parses a time of RFC 3339.
pub fn utc(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_microsecond()
}

impl From<Numbers> for Limit {
    fn from(numbers: Numbers) -> Limit {
        Limit::TokenBucket(numbers)
    }
}

impl Limit {
    pub const fn window(limit: u64, counting: GrantLifetime) -> Limit {
        Limit::Window(WindowLimit { limit, counting })
    }

    /// Returns the most that requests of cost 1 can get at one time, in units.
    pub fn capacity(&self) -> i128 {
        match self {
            Limit::TokenBucket(numbers) => numbers.capacity(),
            Limit::Window(window) => i128::from(window.limit) * 1000,
            Limit::Leaky(leaky) => (leaky.reach() + leaky.places.price(1000)).min(leaky.places.capacity()),
        }
    }

    /// Returns the most that may be spent so that this cost is still granted, in units.
    pub fn room(&self, cost: u64) -> i128 {
        match self {
            Limit::TokenBucket(_) | Limit::Window(_) => self.capacity() - self.price(cost),
            // A cost below 1 waits in a place of its own, too.
            Limit::Leaky(leaky) => leaky.reach().min(leaky.places.capacity() - self.price(cost.max(1000))),
        }
    }

    /// Returns the limit that the responses of a gateway keep. A queue delays responses, so a window has the times of
    /// forwarding.
    #[must_use]
    pub fn of_responses(&self) -> Limit {
        match self {
            Limit::Leaky(leaky) => Limit::TokenBucket(leaky.moments()),
            Limit::TokenBucket(_) | Limit::Window(_) => *self,
        }
    }

    /// Converts thousandths to the units of the limit: those of a token bucket, or thousandths.
    pub fn price(&self, cost: u64) -> i128 {
        match self {
            Limit::TokenBucket(numbers) => numbers.price(cost),
            Limit::Window(_) => cost.into(),
            Limit::Leaky(leaky) => leaky.places.price(cost),
        }
    }

    /// Formats units as tokens, rounded up; empty for zero.
    pub fn tokens(&self, units: i128) -> String {
        match self {
            Limit::TokenBucket(numbers) => numbers.tokens(units),
            Limit::Leaky(leaky) => leaky.places.tokens(units),
            Limit::Window(_) => format!("{}.{:03}", units.max(0) / 1000, units.max(0) % 1000),
        }
    }

    /// Returns the algorithm for a store.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Limit::TokenBucket(numbers) => {
                let rate = Rate { amount: Cost::from_thousandths(numbers.amount), period: Micros(numbers.period) };
                Algorithm::TokenBucket(TokenBucket::new(rate, numbers.burst).unwrap())
            }
            Limit::Window(WindowLimit { limit, counting }) => {
                let length = |length: i64| Micros(u64::try_from(length).unwrap());
                let fixed = |window| Algorithm::FixedWindow(FixedWindow::new(*limit, window).unwrap());
                match *counting {
                    GrantLifetime::Epoch(window) => fixed(Window::Epoch(length(window))),
                    GrantLifetime::FirstGrant(window) => fixed(Window::FirstRequest(length(window))),
                    GrantLifetime::Calendar(CalendarPeriods { unit, zone, anchor, .. }) => {
                        let anchor = match anchor {
                            "" => Anchor::default_of(unit),
                            anchor => Anchor::parse(unit, anchor).unwrap(),
                        };
                        let zone = Zone::parse(zone).unwrap();
                        fixed(Window::Calendar(Calendar::new(anchor, TimeOfDay::default(), zone)))
                    }
                    GrantLifetime::Steps { window, steps } => {
                        let steps = u64::try_from(steps).unwrap();
                        Algorithm::SlidingWindow(SlidingWindow::new(*limit, length(window), steps).unwrap())
                    }
                    GrantLifetime::Log(window) => {
                        Algorithm::SlidingLog(SlidingLog::new(*limit, length(window)).unwrap())
                    }
                }
            }
            Limit::Leaky(leaky) => {
                let LeakyLimit { places: Numbers { amount, period, .. }, delay_after, max_wait } = *leaky;
                let rate = Rate { amount: Cost::from_thousandths(amount), period: Micros(period) };
                let [queue, delay_after] = [leaky.queue(), delay_after].map(|number| u32::try_from(number).unwrap());
                let settings = Settings { rate, queue, max_wait: Micros(max_wait), delay_after };
                Algorithm::LeakyBucket(LeakyBucket::new(settings).unwrap())
            }
        }
    }

    /// Returns the numbers of the limit in gateway.yaml, within a rule.
    pub fn yaml(&self) -> String {
        let (name, numbers) = match self {
            Limit::TokenBucket(Numbers { burst, amount, period }) => {
                ("token_bucket", format!("rate: {}/{}ms, burst: {burst}", amount / 1000, period / 1000))
            }
            Limit::Window(WindowLimit { limit, counting }) => match counting {
                GrantLifetime::Epoch(window) => {
                    ("fixed_window", format!("limit: {limit}, window: {}ms", window / 1000))
                }
                GrantLifetime::FirstGrant(window) => {
                    ("fixed_window", format!("limit: {limit}, window: {}ms, anchor: first_request", window / 1000))
                }
                GrantLifetime::Calendar(CalendarPeriods { unit, zone, anchor, .. }) => {
                    let anchor = if anchor.is_empty() { String::new() } else { format!(", anchor: {anchor}") };
                    ("fixed_window", format!("limit: {limit}, window: {}, timezone: {zone}{anchor}", unit.name()))
                }
                GrantLifetime::Steps { window, steps } => {
                    ("sliding_window", format!("limit: {limit}, window: {}ms, steps: {steps}", window / 1000))
                }
                GrantLifetime::Log(window) => ("sliding_log", format!("limit: {limit}, window: {}ms", window / 1000)),
            },
            Limit::Leaky(leaky) => {
                let LeakyLimit { places: Numbers { amount, period, .. }, delay_after, max_wait } = leaky;
                let rate = format!("rate: {}/{}ms, queue: {}", amount / 1000, period / 1000, leaky.queue());
                ("leaky_bucket", format!("{rate}, max_wait: {}ms, delay_after: {delay_after}", max_wait / 1000))
            }
        };
        format!("algorithm: {name}, algorithm_config: {{{numbers}}}")
    }
}

impl GrantLifetime {
    /// Returns until when a grant at this time counts. `before` is until when the grant before it counts.
    pub fn until(&self, at: i64, before: Option<i64>) -> i64 {
        match self {
            GrantLifetime::Epoch(length) => (at.div_euclid(*length) + 1) * length,
            GrantLifetime::FirstGrant(length) => before.filter(|before| at < *before).unwrap_or(at + length),
            GrantLifetime::Calendar(periods) => {
                let next = periods.begins.into_iter().find(|begin| *begin > at);
                next.unwrap_or_else(|| panic!("{at} is after {periods:?}"))
            }
            GrantLifetime::Steps { window, steps } => {
                let step = (window + steps - 1) / steps;
                (at.div_euclid(step) + 1) * step + window
            }
            GrantLifetime::Log(length) => at + length,
        }
    }
}

mod tests {
    use super::{LeakyLimit, Limit, Numbers};

    #[test]
    fn a_queue_is_as_long_as_its_last_place_may_wait() {
        // Ten a second: who has 2 ahead goes at once, and the wait for a place is 100 ms for each further one.
        let queue = |max_wait: u64| {
            let leaky = LeakyLimit { places: Numbers::per_second(10, 8), delay_after: 2, max_wait };
            let waits = [0, 2, 3, 7].map(|ahead| leaky.delay(leaky.places.price(ahead * 1000)));
            assert_eq!(waits, [0, 0, 100_000, 500_000]);
            let limit = Limit::Leaky(leaky);
            let places = |units: i128| units / limit.price(1000);
            (places(limit.capacity()), places(limit.room(1000)), places(limit.room(3000)), places(limit.room(500)))
        };
        assert_eq!(queue(5_000_000), (8, 7, 5, 7));
        assert_eq!(queue(300_000), (6, 5, 5, 5));
    }
}
