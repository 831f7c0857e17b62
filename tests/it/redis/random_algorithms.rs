//! Random limits of each algorithm whose twins are played.

use base::time::Micros;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::algorithm::fixed_window::{FixedWindow, Window};
use ledger::algorithm::leaky_bucket::{self, LeakyBucket};
use ledger::algorithm::lease::{Home, Purse};
use ledger::algorithm::sliding_log::SlidingLog;
use ledger::algorithm::sliding_window::SlidingWindow;
use ledger::algorithm::thresholds::Thresholds;
use ledger::algorithm::token_bucket::{Rate, TokenBucket};
use ledger::algorithm::{Algorithm, RequestNumbers};
use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
use ledger::cost::Cost;
use proptest::prelude::*;

pub fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        2 => token_bucket().boxed(),
        2 => numbers_of_requests().boxed(),
        1 => fixed_window().boxed(),
        2 => sliding_log().boxed(),
        1 => sliding_window().boxed(),
        1 => leaky_bucket().boxed(),
        2 => banning().boxed(),
        2 => leased().boxed(),
    ]
}

/// Purses of token buckets and fixed windows, and their homes.
fn leased() -> impl Strategy<Value = Algorithm> {
    let limit = prop_oneof![token_bucket(), fixed_window()].prop_filter_map("a token bucket or window", |algorithm| {
        match algorithm {
            Algorithm::TokenBucket(bucket) => Some(SpentLimit::TokenBucket(bucket)),
            Algorithm::FixedWindow(window) => Some(SpentLimit::FixedWindow(window)),
            _ => None,
        }
    });
    (limit, 0u8..6, 1u64..100, 1u64..5).prop_map(|(limit, kind, size, regions)| {
        let purse = || Purse::new(limit, Cost::from_tokens(size), Micros(500_000), Micros(2_000_000)).unwrap();
        match kind {
            0 => Algorithm::Purse(purse()),
            1 => Algorithm::Purse(purse().with_shares(regions)),
            2 => Algorithm::Purse(purse().with_shares(regions).without_home().unwrap_or_else(purse)),
            _ => Algorithm::Home(Home::new(limit, size, Micros(2_000_000)).unwrap()),
        }
    })
}

/// Token buckets and fixed windows with bans, some shorter and some longer than a step of the clock.
fn banning() -> impl Strategy<Value = Algorithm> {
    let limit = prop_oneof![token_bucket(), fixed_window()].prop_map(|algorithm| match algorithm {
        Algorithm::TokenBucket(bucket) => with_ban(SpentLimit::TokenBucket(bucket)),
        Algorithm::FixedWindow(window) => with_ban(SpentLimit::FixedWindow(window)),
        other => other,
    });
    // Some requests are those of another proxy.
    (limit, any::<bool>()).prop_map(|(limit, begins)| if begins { limit } else { limit.beginning_no_ban().unwrap() })
}

pub fn with_ban(limit: SpentLimit) -> Algorithm {
    let ban = Ban::new(&[Micros(1_000), Micros(2_000_000), Micros(60_000_000)], Micros(100_000_000)).unwrap();
    Algorithm::Budget(Budget::banning(limit, ban))
}

/// Logs with few and with many grants, and windows that are short and long in comparison with the steps of the clock.
fn sliding_log() -> impl Strategy<Value = Algorithm> {
    let window = prop::sample::select(vec![1_000_000, 1_234_567, 3_000_000, 3_600_000_000, 86_400_000_000]);
    let limit = prop_oneof![1u64..100, 1u64..10_000];
    (limit, window).prop_map(|(limit, window)| Algorithm::SlidingLog(SlidingLog::new(limit, Micros(window)).unwrap()))
}

/// Queues that are limited by their places, by the wait of a request, or by both, with costs below and above one place.
fn leaky_bucket() -> impl Strategy<Value = Algorithm> {
    let waits = prop_oneof![1u64..5_000, 1u64..3_600_000];
    let patience = prop_oneof![2 => Just(u64::MAX), 1 => 0u64..5_000];
    (rate(), 0u32..80, 0u32..20, waits, patience).prop_filter_map("fits", |(rate, queue, delay_after, wait, most)| {
        let max_wait = Micros(wait * 1000);
        let bucket = LeakyBucket::new(leaky_bucket::Settings { rate, queue, max_wait, delay_after }).ok()?;
        Some(Algorithm::LeakyBucket(bucket.within(Micros(most.saturating_mul(1000)))))
    })
}

/// Windows from the epoch, from a first request, and of calendars.
fn fixed_window() -> impl Strategy<Value = Algorithm> {
    let zones = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana"];
    let calendar = (prop::sample::select(CalendarUnit::ALL.to_vec()), prop::sample::select(zones.to_vec()));
    let calendar = calendar.prop_map(|(unit, zone)| {
        Window::Calendar(Calendar::new(Anchor::default_of(unit), TimeOfDay::default(), Zone::parse(zone).unwrap()))
    });
    let length = prop::sample::select(vec![1_000_000, 60_000_000, 1_234_567, 3_600_000_000, 86_400_000_000]);
    let length = length.prop_map(Micros);
    let window = prop_oneof![length.clone().prop_map(Window::Epoch), length.prop_map(Window::FirstRequest), calendar];
    let thresholds = prop_oneof![Just(vec![]), prop::collection::vec(1u8..=100, 1..=6)];
    (1u64..100, window, thresholds).prop_map(|(limit, window, thresholds)| {
        let thresholds = Thresholds::new(&thresholds).unwrap();
        Algorithm::FixedWindow(FixedWindow::new(limit, window).unwrap()).with_thresholds(thresholds)
    })
}

/// Windows that are a multiple of their steps, and windows that are not.
fn sliding_window() -> impl Strategy<Value = Algorithm> {
    let windows = prop::sample::select(vec![1_000_000, 10_000_000, 12_345_678, 3_600_000_000, 2_678_400_000_000]);
    let limits = prop_oneof![3 => 1u64..100, 1 => 1u64..9_007_199_254_740];
    (limits, windows, 2u64..=60).prop_map(|(limit, window, steps)| {
        Algorithm::SlidingWindow(SlidingWindow::new(limit, Micros(window), steps).unwrap())
    })
}

/// Rates that divide evenly, and rates that do not. They include the largest units and refills.
fn rate() -> impl Strategy<Value = Rate> {
    let periods = prop::sample::select(vec![1_000_000, 60_000_000, 900_000_000, 3_600_000_000, 86_400_000_000]);
    let amounts = prop_oneof![1u64..5_000, Just(997_123), Just(1_000_000), 1u64..1_000_000_000];
    (amounts, periods)
        .prop_map(|(amount, period)| Rate { amount: Cost::from_thousandths(amount), period: Micros(period) })
}

fn token_bucket() -> impl Strategy<Value = Algorithm> {
    (rate(), 1u64..100)
        .prop_filter_map("fits", |(rate, burst)| TokenBucket::new(rate, burst).ok().map(Algorithm::TokenBucket))
}

/// Numbers that a request brings, all in one unit. With 0, no request can be granted.
fn numbers_of_requests() -> impl Strategy<Value = Algorithm> {
    let rate = prop_oneof![1u64..5_000, Just(0), Just(997_123), Just(1)].prop_map(Cost::from_thousandths);
    let burst = prop_oneof![6 => 1u64..100, 1 => Just(0)].prop_map(Cost::from_tokens);
    (rate, burst).prop_map(|(rate, burst)| {
        let rates = TokenBucket::with_rates_up_to(Cost::from_tokens(1_000), 1).unwrap();
        let numbers = RequestNumbers { rate: Some(rate), ceiling: Some(burst) };
        Algorithm::TokenBucket(rates.for_request(numbers, Cost::default()))
    })
}
