//! Lists the algorithms, and passes calls to that of a limit. It defines a bucket's state, and how one charge changes it.
//!
//! The state of any bucket is a short list of integers. A step is a pure function of the state, the cost and the time.
//! Before it there can be raises ([`raise`]): `raise/raised_bucket.rs` passes the *plain* state after them to the functions here.
//!
//! Each algorithm has a Lua twin in its folder. A new algorithm needs its folder, its twin, and an arm in each `match` here.

pub mod ban;
pub mod budget;
pub mod concurrency;
mod display;
mod fallback_share;
pub mod fixed_window;
mod kind;
pub mod leaky_bucket;
pub mod lease;
mod limit_thresholds;
mod owner_entries;
mod owner_entry;
mod owners;
pub mod raise;
mod rate;
mod shared_bucket;
pub mod sliding_log;
pub mod sliding_window;
mod step;
pub mod thresholds;
pub mod token_bucket;

use std::sync::LazyLock;

use super::calendar::Zone;
use super::cost::Cost;
use ban::{Ban, BanPeriod};
use base::time::{Micros, Timestamp};
use budget::{Budget, SpentLimit};
use concurrency::Concurrency;
pub use display::DisplayedAlgorithm;
use fixed_window::{FixedWindow, Window};
pub use kind::{AlgorithmKind, TWINS};
use leaky_bucket::LeakyBucket;
use lease::{Home, Purse};
use sliding_log::SlidingLog;
use sliding_window::SlidingWindow;
pub use step::{BanBeginning, ChargeResult, Entry, Level, Numbers, Period, Quota, RequestNumbers, State, Step};
use token_bucket::TokenBucket;

/// The zone in which the ends of windows without a calendar are printed.
static UTC: LazyLock<Option<Zone>> = LazyLock::new(|| Zone::parse("UTC").ok());

/// An algorithm with the settings of one limit, such as its rate and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingWindow(SlidingWindow),
    LeakyBucket(LeakyBucket),
    Concurrency(Concurrency),
    /// A token bucket or fixed window that has bans, or costs that are known only when a request ends, or both.
    Budget(Budget),
    /// What one region has leased from the home of a token bucket or fixed window that holds over several regions.
    Purse(Purse),
    /// The home of such a limit.
    Home(Home),
}

impl Algorithm {
    /// Computes the result of charging `cost` at `now` to the bucket with this state. `None` is the state of a full bucket.
    fn plain_step(&self, state: Option<&[u64]>, cost: Cost, now: Timestamp) -> Step {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.step(state, cost, now),
            Algorithm::FixedWindow(window) => window.step(state, cost, now),
            Algorithm::SlidingLog(log) => log.step(state, cost, now),
            Algorithm::SlidingWindow(window) => window.step(state, cost, now),
            Algorithm::LeakyBucket(bucket) => bucket.step(state, cost, now),
            Algorithm::Concurrency(slots) => slots.step(state, cost, now),
            Algorithm::Budget(budget) => budget.step(state, cost, now),
            Algorithm::Purse(purse) => purse.step(state, cost, now),
            Algorithm::Home(home) => home.step(state, cost, now),
        }
    }

    /// Returns the limit's quota at `now`. The quota of a calendar depends on `now`, because its periods differ in
    /// length.
    pub fn quota(&self, now: Timestamp) -> Quota {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.quota(),
            Algorithm::FixedWindow(window) => window.quota(now),
            Algorithm::SlidingLog(log) => log.quota(),
            Algorithm::SlidingWindow(window) => window.quota(),
            Algorithm::LeakyBucket(bucket) => bucket.quota(),
            Algorithm::Concurrency(slots) => slots.quota(),
            Algorithm::Budget(budget) => budget.quota(now),
            Algorithm::Purse(purse) => purse.limit().quota(now),
            Algorithm::Home(home) => home.limit().quota(now),
        }
    }

    /// Returns whether the quota is the same at all times.
    pub fn has_constant_quota(&self) -> bool {
        self.zone().is_none()
    }

    /// Returns the time zone of the limit's calendar; `None` if the limit has no calendar.
    pub fn zone(&self) -> Option<&'static Zone> {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_) => None,
            Algorithm::FixedWindow(_) | Algorithm::Budget(_) | Algorithm::Purse(_) | Algorithm::Home(_) => {
                match self.window()? {
                    Window::Calendar(calendar) => Some(calendar.zone()),
                    Window::Epoch(_) | Window::FirstRequest(_) => None,
                }
            }
        }
    }

    /// Returns how a fixed window defines its periods. `None` for all other algorithms.
    pub fn window(&self) -> Option<Window> {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_) => None,
            Algorithm::FixedWindow(window) => Some(window.window()),
            Algorithm::Budget(budget) => budget.window(),
            Algorithm::Purse(purse) => purse.limit().window(),
            Algorithm::Home(home) => home.limit().window(),
        }
    }

    /// Returns the period of a fixed window that contains `now`. `None` if no period runs, as for other algorithms.
    fn plain_period(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Period> {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_) => None,
            Algorithm::FixedWindow(window) => window.period(state, now),
            Algorithm::Budget(budget) => budget.period(state, now),
            Algorithm::Purse(purse) => purse.period(state, now),
            Algorithm::Home(home) => home.period(state, now),
        }
    }

    /// Returns the amount that is spent at `now`, rounded up to a thousandth. After a limit was lowered, this amount
    /// can exceed [`Algorithm::ceiling`].
    fn plain_spent(&self, state: Option<&[u64]>, now: Timestamp) -> Cost {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.spent(state, now),
            Algorithm::FixedWindow(window) => window.spent(state, now),
            Algorithm::SlidingLog(log) => log.spent(state, now),
            Algorithm::SlidingWindow(window) => window.spent(state, now),
            Algorithm::LeakyBucket(bucket) => bucket.spent(state, now),
            Algorithm::Concurrency(slots) => slots.spent(state, now),
            Algorithm::Budget(budget) => budget.spent(state, now),
            Algorithm::Purse(purse) => purse.spent(state, now),
            Algorithm::Home(home) => home.spent(state, now),
        }
    }

    /// Formats `moment`, the end of a period, in RFC 3339. The time is rounded up to a whole second, and is in the zone
    /// of the calendar or in UTC. `None` for algorithms without periods.
    pub fn print_end(&self, moment: Timestamp) -> Option<String> {
        self.window()?;
        let second = Timestamp(Micros(moment.0).ceil_seconds().saturating_mul(1_000_000));
        self.zone().or(UTC.as_ref()).map(|zone| zone.rfc3339(second))
    }

    /// Returns the entry that a store must write at `now` in place of the state. Almost always `None`.
    fn plain_correction(&self, state: Option<&[u64]>, now: Timestamp) -> Option<Entry> {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.correction(state, now),
            Algorithm::LeakyBucket(bucket) => bucket.correction(state, now),
            Algorithm::Concurrency(slots) => slots.correction(state, now),
            Algorithm::Budget(budget) => budget.correction(state, now),
            Algorithm::Purse(purse) => purse.correction(state, now),
            Algorithm::Home(home) => home.correction(state, now),
            Algorithm::FixedWindow(window) => window.correction(state, now),
            Algorithm::SlidingLog(log) => log.correction(state, now),
            Algorithm::SlidingWindow(window) => window.correction(state, now),
        }
    }

    /// Returns the limit for a request whose credentials may set its rate or size. `least` is the smallest cost of a
    /// request. With a rate or size of 0, the limit refuses every request.
    pub fn for_request(&self, numbers: RequestNumbers, least: Cost) -> Algorithm {
        match self {
            Algorithm::TokenBucket(bucket) => Algorithm::TokenBucket(bucket.for_request(numbers, least)),
            Algorithm::FixedWindow(window) => Algorithm::FixedWindow(window.for_request(numbers, least)),
            Algorithm::SlidingLog(log) => Algorithm::SlidingLog(log.for_request(numbers, least)),
            Algorithm::SlidingWindow(window) => Algorithm::SlidingWindow(window.for_request(numbers, least)),
            Algorithm::LeakyBucket(bucket) => Algorithm::LeakyBucket(bucket.for_request(numbers)),
            Algorithm::Concurrency(slots) => Algorithm::Concurrency(slots.for_request(numbers, least)),
            Algorithm::Budget(budget) => Algorithm::Budget(budget.for_request(numbers, least)),
            Algorithm::Purse(purse) => Algorithm::Purse(purse.with(|limit| limit.for_request(numbers, least))),
            Algorithm::Home(home) => Algorithm::Home(home.with(|limit| limit.for_request(numbers, least))),
        }
    }

    /// Returns the limit with the fastest refill that any request can cause.
    pub fn at_fastest(&self) -> Algorithm {
        match self {
            Algorithm::TokenBucket(bucket) => Algorithm::TokenBucket(bucket.at_fastest()),
            Algorithm::FixedWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::Concurrency(_) => *self,
            Algorithm::LeakyBucket(bucket) => Algorithm::LeakyBucket(bucket.at_fastest()),
            Algorithm::Budget(budget) => Algorithm::Budget(budget.at_fastest()),
            Algorithm::Purse(purse) => Algorithm::Purse(purse.with(SpentLimit::at_fastest)),
            Algorithm::Home(home) => Algorithm::Home(home.with(SpentLimit::at_fastest)),
        }
    }

    /// Returns the largest cost that a full bucket can pay.
    pub fn ceiling(&self) -> Cost {
        match self {
            Algorithm::TokenBucket(bucket) => bucket.burst(),
            Algorithm::FixedWindow(window) => window.limit(),
            Algorithm::SlidingLog(log) => log.limit(),
            Algorithm::SlidingWindow(window) => window.limit(),
            Algorithm::LeakyBucket(bucket) => bucket.places(),
            Algorithm::Concurrency(slots) => slots.limit(),
            Algorithm::Budget(budget) => budget.ceiling(),
            Algorithm::Purse(purse) => purse.limit().ceiling(),
            Algorithm::Home(home) => home.limit().ceiling(),
        }
    }

    /// Returns the index of the Lua twin in [`TWINS`], and the limit's settings for a call at about the time `near` on
    /// the store's clock.
    pub fn twin(&self, near: Timestamp) -> (usize, Numbers) {
        let numbers = match self {
            Algorithm::TokenBucket(bucket) => bucket.numbers(),
            Algorithm::FixedWindow(window) => window.numbers(near),
            Algorithm::SlidingLog(log) => log.numbers(),
            Algorithm::SlidingWindow(window) => window.numbers(),
            Algorithm::LeakyBucket(bucket) => bucket.numbers(),
            Algorithm::Concurrency(slots) => slots.numbers(),
            Algorithm::Budget(budget) => budget.numbers(near),
            Algorithm::Purse(purse) => purse.numbers(near),
            Algorithm::Home(home) => home.numbers(near),
        };
        let twin = match self {
            Algorithm::Purse(purse) => purse.twin(),
            other => other.kind().twin(),
        };
        (twin, numbers)
    }

    /// Returns whether only time refills a bucket, so that a refusal stays true until its wait has passed.
    pub fn frees_only_with_time(&self) -> bool {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            // Places become free only at the limit's rate.
            | Algorithm::LeakyBucket(_) => true,
            // In an excerpt, held amounts count as free. The end of a request may forget what is spent.
            Algorithm::Budget(budget) => !budget.resets(),
            // What home gives refills a purse, and what a region returns refills home.
            Algorithm::Concurrency(_) | Algorithm::Purse(_) | Algorithm::Home(_) => false,
        }
    }

    /// Returns whether a state from a store's reply still shows at `moment` how much the bucket holds. An excerpt of a
    /// large state shows this only for a limited time.
    fn plain_tells_until(&self, state: &[u64], moment: Timestamp) -> bool {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_)
            | Algorithm::Budget(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => true,
            Algorithm::SlidingLog(log) => log.tells_until(state, moment),
        }
    }

    /// Returns the part of a state that is worth caching. It never shows more than the bucket holds.
    fn plain_excerpt(&self, state: State) -> State {
        match self {
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Concurrency(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => state,
            Algorithm::SlidingLog(_) => SlidingLog::excerpt(state),
            Algorithm::Budget(budget) => budget.excerpt(&state),
        }
    }

    /// Returns the limit if it is a limit of slots.
    pub fn slots(&self) -> Option<&Concurrency> {
        match self {
            Algorithm::Concurrency(slots) => Some(slots),
            Algorithm::TokenBucket(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::SlidingLog(_)
            | Algorithm::SlidingWindow(_)
            | Algorithm::LeakyBucket(_)
            | Algorithm::Budget(_)
            | Algorithm::Purse(_)
            | Algorithm::Home(_) => None,
        }
    }

    /// Returns the settings of the limit's bans. `None` for a limit without bans.
    pub fn ban(&self) -> Option<Ban> {
        match self {
            Algorithm::Budget(budget) => budget.ban(),
            _ => None,
        }
    }

    /// Returns the ban that runs at `now`.
    fn plain_running_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        match self {
            Algorithm::Budget(budget) => budget.running_ban(state, now),
            _ => None,
        }
    }

    /// Returns the ban that runs at `now`, or else the last ban, until it is forgotten.
    fn plain_last_ban(&self, state: Option<&[u64]>, now: Timestamp) -> Option<BanPeriod> {
        match self {
            Algorithm::Budget(budget) => budget.last_ban(state, now),
            _ => None,
        }
    }

    /// Returns the entry of a bucket that an operator bans for `length` from `now`. `None` for a limit without bans.
    fn plain_set_ban(&self, state: Option<&[u64]>, length: Micros, now: Timestamp) -> Option<Entry> {
        match self {
            Algorithm::Budget(budget) => budget.set_ban(state, length, now),
            _ => None,
        }
    }

    /// Returns the budget if requests hold an amount of it while they run, and settle their cost when they end.
    pub fn settling_budget(&self) -> Option<&Budget> {
        match self {
            Algorithm::Budget(budget) => Some(budget).filter(|budget| budget.settles()),
            _ => None,
        }
    }

    /// Returns whether a granted request holds some of the bucket until the request ends.
    pub fn is_held(&self) -> bool {
        self.kind().is_held()
    }

    /// Returns the longest time for which a request may hold some of the bucket; `None` without a longest time.
    pub fn max_hold(&self) -> Option<Micros> {
        self.slots()?.max_hold()
    }

    /// Returns when the home of a purse was last heard. `None` before the first answer, and for other limits.
    pub fn home_heard(&self, state: Option<&[u64]>) -> Option<Timestamp> {
        match self {
            Algorithm::Purse(_) => Purse::heard(state),
            _ => None,
        }
    }

    /// Returns whether the algorithm may delay a request that it grants.
    pub fn delays(&self) -> bool {
        matches!(self, Algorithm::LeakyBucket(_))
    }

    /// Returns the limit for a request that cannot wait longer than `most`.
    pub fn within(&self, most: Micros) -> Algorithm {
        match self {
            Algorithm::LeakyBucket(bucket) => Algorithm::LeakyBucket(bucket.within(most)),
            _ => *self,
        }
    }

    pub fn kind(&self) -> AlgorithmKind {
        match self {
            Algorithm::TokenBucket(_) => AlgorithmKind::TokenBucket,
            Algorithm::FixedWindow(_) => AlgorithmKind::FixedWindow,
            Algorithm::SlidingLog(_) => AlgorithmKind::SlidingLog,
            Algorithm::SlidingWindow(_) => AlgorithmKind::SlidingWindow,
            Algorithm::LeakyBucket(_) => AlgorithmKind::LeakyBucket,
            Algorithm::Concurrency(_) => AlgorithmKind::Concurrency,
            Algorithm::Budget(budget) => budget.kind(),
            Algorithm::Purse(purse) => match purse.limit() {
                SpentLimit::TokenBucket(_) => AlgorithmKind::TokenPurse,
                SpentLimit::FixedWindow(_) => AlgorithmKind::WindowPurse,
            },
            Algorithm::Home(home) => match home.limit() {
                SpentLimit::TokenBucket(_) => AlgorithmKind::TokenHome,
                SpentLimit::FixedWindow(_) => AlgorithmKind::WindowHome,
            },
        }
    }

    /// Returns the algorithm's name in gateway.yaml and in bucket keys.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_the_name_of_its_algorithm_and_exceeded() {
        for kind in AlgorithmKind::ALL {
            assert_eq!(kind.exceeded(), format!("{}_exceeded", kind.name()));
        }
    }
}
