//! Reports to a client what it has used of a limit, and what is left.

use ledger::algorithm::Algorithm;
use ledger::algorithm::fixed_window::Window;
use ledger::bucket_level::BucketLevel;
use ledger::cost::Cost;
use ledger::money;
use ledger::outcome::{BanNotice, Outcome, Verdict};
use ledger::store_time::StoreTime;
use serde::{Serialize, Serializer};

use base::rfc3339::format_seconds;
use base::time::{Micros, Timestamp};
use rules::rule_set::CompiledLimit;
use rules::settled_price::Unit;

/// What a client has used of one limit, and what is left: an object in the answer of `usage`. A field that does not apply to
/// the limit is `None`, which JSON shows as `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LimitUsage<'l> {
    /// The name of the limit, as in the field `RateLimit-Policy`.
    pub name: &'l str,
    pub policy: &'l str,
    /// What the amounts count: `requests`, `tokens`, `usd` or `slots`.
    pub unit: &'static str,
    /// The limit or burst, with the raises of the bucket.
    pub limit: UsageAmount,
    pub used: UsageAmount,
    /// What requests in flight reserve of a budget.
    pub held: UsageAmount,
    /// What is left. 0 during a ban.
    pub remaining: UsageAmount,
    /// The time in which an empty bucket becomes full: a duration, or the unit of a calendar.
    pub window: Option<String>,
    /// When the period ends, or the bucket is full again if nothing more is charged.
    pub resets_at: Option<String>,
    /// The end of the ban that runs.
    pub banned_until: Option<String>,
    /// When nothing is left of a calendar window, if its use continues as in this period so far. `None` if the period ends first.
    pub runs_out_at: Option<String>,
    /// Of a limit over several regions: when its home was last heard. What other regions have used since is not in `used`.
    pub as_of: Option<String>,
}

/// An amount as JSON: a whole number, or money as exact decimal text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageAmount {
    Whole(u64),
    Dollars(Cost),
}

impl Serialize for UsageAmount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            UsageAmount::Whole(number) => serializer.serialize_u64(*number),
            UsageAmount::Dollars(amount) => serializer.serialize_str(&money::decimal(*amount)),
        }
    }
}

/// The answer of `usage`: the limits in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsageReport<'l> {
    pub limits: Vec<LimitUsage<'l>>,
}

impl<'l> LimitUsage<'l> {
    /// Reports the level of a bucket of this limit at `at`. `algorithm` has the numbers that apply to the client.
    pub fn new(limit: &'l CompiledLimit, algorithm: &Algorithm, level: &BucketLevel, at: StoreTime) -> LimitUsage<'l> {
        let unit = limit.unit();
        let remaining = if level.ban.is_some() { Cost::default() } else { level.untouched.remaining };
        let until = |wait: Micros| format_seconds(second_after(at.date.plus(wait)));
        let resets_at = match (&level.period, level.untouched.reset_after) {
            (Some(period), _) => algorithm.print_end(period.end),
            (None, Micros(0)) => None,
            (None, after) => Some(until(after)),
        };
        LimitUsage {
            name: &limit.name,
            policy: &limit.policy,
            unit: if algorithm.slots().is_some() { "slots" } else { unit.name() },
            // What is left is rounded down as in the field `RateLimit`, so what is used is rounded up.
            limit: whole(unit, algorithm.raised(level.raised).ceiling()),
            used: rounded_up(unit, level.spent),
            held: rounded_up(unit, level.held),
            remaining: whole(unit, remaining),
            window: algorithm.window_text(),
            resets_at: resets_at.filter(|_| algorithm.slots().is_none()),
            banned_until: level.ban.map(|ban| until(ban.end.since(at.of(algorithm)))),
            as_of: level
                .home_heard
                .map(|heard| format_seconds(Timestamp(at.date.0.saturating_sub(at.of(algorithm).since(heard).0)))),
            runs_out_at: runs_out_at(algorithm, level, at.of(algorithm)).and_then(|moment| algorithm.print_end(moment)),
        }
    }
}

/// Returns an amount, rounded down to a whole number of units. Money is exact.
fn whole(unit: Unit, amount: Cost) -> UsageAmount {
    match unit {
        Unit::Dollars => UsageAmount::Dollars(amount),
        Unit::Requests | Unit::Tokens => UsageAmount::Whole(amount.whole()),
    }
}

/// Returns an amount, rounded up to a whole number of units. Money is exact.
fn rounded_up(unit: Unit, amount: Cost) -> UsageAmount {
    whole(unit, if unit == Unit::Dollars { amount } else { amount.ceil() })
}

/// Returns the first whole second that is not before this moment.
fn second_after(moment: Timestamp) -> Timestamp {
    Timestamp(Micros(moment.0).ceil_seconds().saturating_mul(1_000_000))
}

/// Returns when a calendar window has nothing left at the pace of its running period. `None` if the period ends first, or if
/// nothing is used, and for other limits.
fn runs_out_at(algorithm: &Algorithm, level: &BucketLevel, now: Timestamp) -> Option<Timestamp> {
    let (Some(Window::Calendar(_)), Some(period)) = (algorithm.window(), level.period) else { return None };
    let used = u128::from(level.spent.thousandths());
    let limit = algorithm.raised(level.raised).ceiling();
    let left = u128::from(limit.less(level.spent).thousandths());
    // Of a period whose beginning is not known, there is no pace. Nor is there one while the clock of a region is behind that of home.
    let passed = (period.begin > Timestamp(0)).then(|| now.since(period.begin))?;
    if passed == Micros(0) && level.home_heard.is_some() {
        return None;
    }
    let rest = (u128::from(passed.0) * left).checked_div(used)?;
    let moment = now.plus(Micros(u64::try_from(rest).ok()?));
    (moment < period.end).then_some(moment)
}

/// Returns the outcome of a charge that is only asked about, for the rate-limit fields: what the bucket has left, and the time
/// until it is full or until its ban ends.
pub fn outcome(level: &BucketLevel, now: Timestamp) -> Outcome {
    let untouched = Outcome {
        verdict: Verdict::Allow,
        remaining: level.untouched.remaining,
        reset_after: level.untouched.reset_after,
        // The wait for a place, whether there is room in the queue or not.
        delay: level.wait.unwrap_or_default().max(level.delay),
        held: level.held,
        raised: level.raised,
        ..Outcome::UNASKED
    };
    match level.ban {
        None => untouched,
        Some(ban) => Outcome {
            verdict: Verdict::Banned,
            retry_after: ban.end.since(now),
            ban: Some(BanNotice { step: ban.step, begins: false }),
            ..untouched
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_rules::{limit, policy, rule_set};
    use super::*;
    use ledger::algorithm::fixed_window::FixedWindow;
    use ledger::algorithm::{Level, Period};
    use ledger::calendar::{Anchor, Calendar, CalendarUnit, TimeOfDay, Zone};
    use rules::rule::{Action, Limit};

    const DAY: u64 = 86_400_000_000;
    /// 1 November 2026, 00:00 UTC.
    const NOVEMBER: u64 = 1_793_491_200_000_000;

    /// Reports a limit of 100 in a month in UTC, of which this much is used at this time of November 2026.
    fn report(used: u64, at: u64) -> LimitUsage<'static> {
        let calendar =
            Calendar::new(Anchor::default_of(CalendarUnit::Month), TimeOfDay::default(), Zone::parse("UTC").unwrap());
        let algorithm = Algorithm::FixedWindow(FixedWindow::new(100, Window::Calendar(calendar)).unwrap());
        let rules = rule_set(vec![policy("month", Action::Charge(vec![Limit { algorithm, ..limit(1) }]))]);
        let rules = Box::leak(Box::new(rules));
        let now = Timestamp(NOVEMBER + at);
        let level = BucketLevel {
            spent: Cost::from_tokens(used),
            held: Cost::default(),
            raised: Cost::default(),
            untouched: Level {
                remaining: Cost::from_tokens(100).less(Cost::from_tokens(used)),
                reset_after: Micros(1),
            },
            wait: Some(Micros(0)),
            delay: Micros(0),
            period: Some(Period { begin: Timestamp(NOVEMBER), end: Timestamp(NOVEMBER + 30 * DAY) }),
            ban: None,
            home_heard: None,
            purse: None,
        };
        LimitUsage::new(&rules.limits()[0], &algorithm, &level, now.into())
    }

    #[test]
    fn a_month_runs_out_at_the_pace_of_its_beginning() {
        let out = |used, at| report(used, at).runs_out_at;
        // 50 in ten days: the rest lasts ten days more.
        assert_eq!(out(50, 10 * DAY).as_deref(), Some("2026-11-21T00:00:00Z"));
        assert_eq!(out(99, 29 * DAY).as_deref(), Some("2026-11-30T07:01:50Z"));
        assert_eq!(out(30, 10 * DAY), None, "the month ends first");
        assert_eq!(out(0, 10 * DAY), None);
        // Everything is used, or more than a limit that was lowered.
        assert_eq!(out(100, 10 * DAY).as_deref(), Some("2026-11-11T00:00:00Z"));
        assert_eq!(out(150, 10 * DAY).as_deref(), Some("2026-11-11T00:00:00Z"));
        assert_eq!(out(1, 0).as_deref(), Some("2026-11-01T00:00:00Z"), "at the first moment any pace is infinite");
    }

    #[test]
    fn a_calendar_names_its_unit_and_the_end_of_its_period() {
        let shown = serde_json::to_value(report(50, 10 * DAY)).unwrap();
        let expected = serde_json::json!({
            "name": "month", "policy": "month", "unit": "requests", "limit": 100, "used": 50, "held": 0, "remaining": 50,
            "window": "month", "resets_at": "2026-12-01T00:00:00Z", "banned_until": null, "runs_out_at": "2026-11-21T00:00:00Z",
            "as_of": null
        });
        assert_eq!(shown, expected);
    }
}
