//! Each algorithm alone, with a million random requests: it grants exactly what fits, and its waits are exact.

use base::time::{Micros, Timestamp};
use ledger::algorithm::ChargeResult;
use ledger::calendar::CalendarUnit;
use ledger::cost::Cost;

use super::history::spending::SpentBounds;
use super::history::windows::{Grant, excess};
use super::history::{CalendarPeriods, ClockOffset, GrantLifetime, LeakyLimit, Limit, Numbers, utc};
use crate::support::{print_measured, short_or_long};

const SECOND: i64 = 1_000_000;

/// Returns one limit of each algorithm, and of each way in which it counts.
fn limits() -> Vec<Limit> {
    // The last day of summer time in Berlin, of 25 hours, and the next one.
    let begins = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"].map(utc);
    let day = CalendarPeriods { unit: CalendarUnit::Day, zone: "Europe/Berlin", anchor: "", begins };
    vec![
        Limit::TokenBucket(Numbers::per_second(3, 30)),
        Limit::TokenBucket(Numbers { burst: 37, amount: 197_123, period: 70_000_003 }),
        Limit::window(30, GrantLifetime::Epoch(10 * SECOND)),
        Limit::window(30, GrantLifetime::FirstGrant(10 * SECOND)),
        Limit::window(20_000, GrantLifetime::Calendar(day)),
        Limit::window(30, GrantLifetime::Steps { window: 10 * SECOND, steps: 10 }),
        Limit::window(30, GrantLifetime::Steps { window: 7 * SECOND, steps: 60 }),
        Limit::window(30, GrantLifetime::Log(10 * SECOND)),
        Limit::Leaky(LeakyLimit { places: Numbers::per_second(3, 30), delay_after: 4, max_wait: 60_000_000 }),
        Limit::Leaky(LeakyLimit {
            places: Numbers { burst: 37, amount: 197_123, period: 70_000_003 },
            delay_after: 0,
            max_wait: 3_000_000,
        }),
    ]
}

/// Returns a random time until the next request: zero, shorter than a step, or longer than a window.
pub fn gap() -> i64 {
    match fastrand::u8(0..20) {
        0..4 => 0,
        4..19 => fastrand::i64(0..SECOND / 5),
        _ => fastrand::i64(0..12 * SECOND),
    }
}

#[test]
fn a_million_random_requests_are_granted_exactly() {
    let requests = short_or_long(60_000, 1_000_000);
    for limit in limits() {
        let (algorithm, mut spending) = (limit.algorithm(), SpentBounds::new(&limit));
        let (mut now, mut state) = (utc("2026-10-25T20:00:00Z"), None);
        let (mut grants, mut moments) = (Vec::new(), Vec::new());
        // The last days of the calendar above that are as they must be.
        let end = if let Limit::Window(window) = limit
            && matches!(window.counting, GrantLifetime::Calendar(_))
        {
            utc("2026-10-26T22:59:59Z")
        } else {
            i64::MAX
        };
        for _ in 0..requests {
            now += gap();
            if now > end {
                break;
            }
            // Of a queue it is the moments that are counted: a request that takes less than a place would have one, too.
            let least = if matches!(limit, Limit::Leaky(_)) { 1000 } else { 1 };
            let cost = if fastrand::bool() { 1000 } else { fastrand::u64(least..7_000) };
            spending.advance(now);
            let fits = |moment: i64| spending.later(spending.bounds().1, now, moment) <= limit.room(cost);
            let at = Timestamp(u64::try_from(now).unwrap());
            match algorithm.step(state.as_deref(), Cost::from_thousandths(cost), at).charge {
                ChargeResult::Fits { entry, delay, .. } => {
                    assert!(fits(now), "{limit:?} grants {cost} at {now}");
                    let delay = i64::try_from(delay.0).unwrap();
                    if let Limit::Leaky(leaky) = limit {
                        assert_eq!(delay, leaky.delay(spending.bounds().1), "{limit:?} delays {cost} at {now}");
                        // What it waits was rounded up.
                        let exact = now + delay - i64::from(delay > 0);
                        moments.push(Grant { sent: exact, answered: now + delay, cost: 1000 });
                    } else {
                        assert_eq!(delay, 0, "{limit:?} delays {cost} at {now}");
                    }
                    spending.pay(limit.price(cost));
                    grants.push(Grant { sent: now, answered: now, cost });
                    state = Some(entry.state);
                }
                ChargeResult::Short { wait: Micros(wait) } => {
                    assert!(!fits(now), "{limit:?} refuses {cost} at {now}");
                    let then = now + i64::try_from(wait).unwrap();
                    assert!(fits(then) && !fits(then - 1), "{limit:?} refuses {cost} at {now} for {wait}");
                }
                ChargeResult::Never | ChargeResult::Held | ChargeResult::Banned { .. } => {
                    panic!("{limit:?} can never grant {cost}")
                }
            }
        }
        let of = |limit: &Limit, grants: &[Grant]| excess(limit, grants, &ClockOffset::default());
        let excess =
            of(&limit, &grants).max(if moments.is_empty() { i128::MIN } else { of(&limit.of_responses(), &moments) });
        print_measured(&format!("random: {limit:?}: {} granted, excess {}", grants.len(), limit.tokens(excess)));
        assert!(excess <= 0, "{limit:?}: {}", limit.tokens(excess));
        assert!(grants.len() > 1000, "{limit:?}: {}", grants.len());
    }
}
