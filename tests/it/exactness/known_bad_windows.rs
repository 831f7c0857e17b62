//! Deliberate mistakes that real calendar limiters have made. The judges of a history find every one of them.

use std::cell::Cell;
use std::time::Duration;

use ledger::calendar::CalendarUnit;
use stores::redis::fault_injection::Flaw;

use super::history::gateways::{Clocks, Gateways, Run};
use super::history::{Answer, CalendarPeriods, GrantLifetime, Kind, Limit, WindowLimit, utc};
use super::known_bad_stores::{gateways, is_noticed};
use crate::support::{Redis, print_measured};

fn month(zone: &'static str, anchor: &'static str, begins: [&str; 3]) -> CalendarPeriods {
    CalendarPeriods { unit: CalendarUnit::Month, zone, anchor, begins: begins.map(utc) }
}

/// Two gateways with 24 callers and a limit of twenty in a calendar period. The test begins at this time.
fn twenty(periods: CalendarPeriods, begin: &str) -> Gateways {
    let limit = Limit::window(20, GrantLifetime::Calendar(periods));
    Gateways { clocks: Clocks { begin: Some(utc(begin)), ..Clocks::default() }, ..gateways(limit) }
}

fn october() -> CalendarPeriods {
    let begins = ["2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z"];
    month("Europe/Berlin", "1", begins)
}

thread_local! {
    /// Whether this thread has sent a request. Each thread belongs to one gateway.
    static HAS_ASKED: Cell<bool> = const { Cell::new(false) };
}

/// The second gateway begins later, when the first one has already spent units of the correct month.
fn later_at_the_second(caller: usize) -> Vec<(usize, u64)> {
    if !HAS_ASKED.replace(true) && caller >= 12 {
        std::thread::sleep(Duration::from_millis(200));
    }
    vec![(0, 1000)]
}

#[test]
fn a_period_chosen_by_the_clock_of_a_gateway_is_noticed() {
    // Half an hour before the end of the month, the second gateway believes that the next one has begun.
    let mut gateways = twenty(october(), "2026-10-31T22:30:00Z");
    gateways.clocks.hours_wrong = [0, 2, 0];
    gateways.request = later_at_the_second;
    is_noticed(&[Kind::OverGrant, Kind::OtherLevel], [Flaw::ClientPeriod; 2], gateways, Duration::ZERO);
}

/// The second gateway counts by the clock of Helsinki, an hour ahead, like a gateway with other time zone data.
fn helsinki_at_the_second(gateway: usize, limit: Limit) -> Limit {
    match limit {
        Limit::Window(WindowLimit { limit, counting: GrantLifetime::Calendar(periods) }) if gateway == 1 => {
            let periods = CalendarPeriods { zone: "Europe/Helsinki", ..periods };
            Limit::window(limit, GrantLifetime::Calendar(periods))
        }
        limit => limit,
    }
}

#[test]
fn an_earlier_period_that_begins_again_is_noticed() {
    let mut gateways = twenty(october(), "2026-10-31T22:30:00Z");
    gateways.mistaken = helsinki_at_the_second;
    is_noticed(&[Kind::OverGrant, Kind::OtherLevel], [Flaw::EarlierPeriod; 2], gateways, Duration::ZERO);
}

/// A limiter that adds a month to the last beginning: after 28 February, its periods begin on the 28th.
fn from_the_28th(_gateway: usize, limit: Limit) -> Limit {
    match limit {
        Limit::Window(WindowLimit { limit, counting: GrantLifetime::Calendar(periods) }) => {
            Limit::window(limit, GrantLifetime::Calendar(CalendarPeriods { anchor: "28", ..periods }))
        }
        limit => limit,
    }
}

#[test]
fn a_month_chained_from_the_last_is_noticed() {
    let begins = ["2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z", "2027-04-30T00:00:00Z"];
    let right = twenty(month("UTC", "31", begins), "2027-03-27T23:59:59.4Z");
    let chained = Gateways { mistaken: from_the_28th, ..right.clone() };
    let redis = Redis::start();
    let play = |gateways: Gateways| {
        redis.command::<()>(&["FLUSHALL"]);
        let Run { history, .. } = gateways.play(&redis, redis.port, || ());
        assert_eq!(history.count(|answer| matches!(answer, Answer::Unknown | Answer::Unasked)), 0);
        (history.records.len(), history.check())
    };
    let (requests, findings) = play(right);
    assert!(findings.is_empty() && requests > 50, "without it, in {requests} requests: {findings:?}");
    let (requests, findings) = play(chained);
    print_measured(&format!("flaw: a month chained from the last: {:?} in {requests} requests", findings.counts));
    for kind in [Kind::OverGrant, Kind::OtherLevel] {
        assert!(findings.of(kind) > 0, "in {requests} requests: {findings:?}");
    }
}
