//! Reports to a service what it has taken, and what the limits have left after it: the answer of the door `json`.

use serde::Serialize;

use super::limit_usage::LimitUsage;
use super::payment::{LimitAnswer, Payment};
use base::time::{Micros, Timestamp};
use ledger::algorithm::ban::BanPeriod;
use ledger::algorithm::{Algorithm, Level, Period};
use ledger::bucket_level::BucketLevel;
use ledger::outcome::Outcome;
use rules::rule::Expose;
use rules::rule_set::RuleSet;
use stores::Source;

/// The answer to a service that asks to take something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TakeReport<'l> {
    pub allowed: bool,
    /// The enforced limits that clients may see and whose level is known, in the order of the file.
    pub limits: Vec<LimitUsage<'l>>,
    /// The id with which the service settles what it holds. `None` if it holds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_id: Option<String>,
}

impl<'l> TakeReport<'l> {
    /// Makes the answer. `payment` is `None` if no limit was checked.
    pub fn new(allowed: bool, payment: Option<&'l Payment>, rules: &'l RuleSet) -> TakeReport<'l> {
        let limits = match payment {
            // A decision in this process charges a share of the limit, so the level of the limit is not known.
            Some(Payment::Settled { source: Source::Fallback, .. }) => Vec::new(),
            Some(payment @ Payment::Settled { now, .. }) => {
                let answers = payment.answers(rules);
                let enforced = answers.into_iter().take(payment.plan().enforced.len());
                enforced.filter_map(|answer| usage(answer, *now)).collect()
            }
            Some(Payment::TooLarge(_) | Payment::StoreUnavailable(_)) | None => Vec::new(),
        };
        TakeReport { allowed, limits, hold_id: None }
    }
}

/// Returns the level of a limit after the decision. `None` if clients may not see the limit, or its level is not known.
fn usage(answer: LimitAnswer<'_>, now: Timestamp) -> Option<LimitUsage<'_>> {
    let LimitAnswer { charge, limit, outcome, .. } = answer;
    let is_known = |outcome: &Outcome| !charge.only_asks_for_ban() || outcome.ban.is_some();
    let outcome = outcome.filter(|outcome| limit.expose == Expose::Yes && is_known(outcome))?;
    let level = level(&charge.algorithm, &outcome, now);
    Some(LimitUsage::new(limit, &charge.algorithm, &level, now.into()))
}

/// Returns the level of a bucket from the outcome of a charge at `now`.
fn level(algorithm: &Algorithm, outcome: &Outcome, now: Timestamp) -> BucketLevel {
    let Outcome { remaining, reset_after, delay, held, raised, home_heard, .. } = *outcome;
    let period = algorithm.period(None, now).or_else(|| {
        // This period has begun with a charge. Only its end is known here, and only its end is reported.
        let runs = algorithm.window().is_some() && reset_after > Micros(0);
        runs.then_some(Period { begin: Timestamp(0), end: now })
    });
    let end = now.plus(reset_after);
    BucketLevel {
        spent: algorithm.raised(raised).ceiling().less(remaining).less(held),
        held,
        raised,
        untouched: Level { remaining, reset_after },
        wait: Some(outcome.retry_after),
        delay,
        period: period.map(|period| Period { end, ..period }),
        ban: outcome.ban.map(|ban| BanPeriod { end: now.plus(outcome.retry_after), step: ban.step }),
        home_heard: (home_heard > Timestamp(0)).then_some(home_heard),
        purse: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_rules::{bucket, head, limit, policy, request, rule_set};
    use super::*;
    use ledger::algorithm::fixed_window::{FixedWindow, Window};
    use ledger::charge::{Plan, settle};
    use rules::rule::{Action, Limit};
    use rules::rule_set::Answer;
    use serde_json::{Value, json};

    const HOUR: u64 = 3_600_000_000;
    /// 1 November 2026, 00:00 UTC.
    const NOVEMBER: Timestamp = Timestamp(1_793_491_200_000_000);

    fn rules() -> RuleSet {
        let window = |window| Algorithm::FixedWindow(FixedWindow::new(3, window).unwrap());
        let of = |algorithm, expose| Action::Charge(vec![Limit { algorithm, expose, ..limit(3) }]);
        rule_set(vec![
            policy("hourly", of(window(Window::Epoch(Micros(HOUR))), Expose::Yes)),
            policy("first", of(window(Window::FirstRequest(Micros(HOUR))), Expose::Yes)),
            policy("hidden", of(window(Window::Epoch(Micros(HOUR))), Expose::No)),
            policy("bucket", of(bucket(3), Expose::Yes)),
        ])
    }

    /// Charges each of these limits `cost`, from empty buckets, half an hour after `NOVEMBER`.
    fn taken(rules: &RuleSet, cost: u64) -> Payment {
        let now = Timestamp(NOVEMBER.0 + HOUR / 2);
        let head = head(&[]);
        let Answer::Charge(own) = rules.plan(&request(&head), now).answer else { panic!("nothing to charge") };
        let mut plan = Plan::default();
        plan.join(own, cost);
        let states: [Option<Vec<u64>>; 4] = Default::default();
        let (settlement, _) = settle(&plan, &states, now);
        Payment::Settled { plan, settlement, source: Source::Store, now }
    }

    #[test]
    fn each_limit_shows_what_is_left_after_the_take() {
        let rules = rules();
        let payment = taken(&rules, 2);
        let report = serde_json::to_value(TakeReport::new(true, Some(&payment), &rules)).unwrap();
        let limits = report["limits"].as_array().unwrap().iter();
        let names: Vec<&str> = limits.map(|limit| limit["name"].as_str().unwrap()).collect();
        assert_eq!((&report["allowed"], names), (&json!(true), vec!["hourly", "first", "bucket"]));
        for (limit, end) in [(0, "2026-11-01T01:00:00Z"), (1, "2026-11-01T01:30:00Z")] {
            let limit = &report["limits"][limit];
            assert_eq!((&limit["limit"], &limit["used"], &limit["remaining"]), (&json!(3), &json!(2), &json!(1)));
            assert_eq!((&limit["resets_at"], &limit["banned_until"]), (&json!(end), &Value::Null), "{limit}");
        }
    }

    #[test]
    fn without_a_level_there_is_nothing_to_show() {
        let rules = rules();
        let Payment::Settled { plan, .. } = taken(&rules, 1) else { panic!("the plan is settled") };
        let payment = Payment::StoreUnavailable(plan);
        let report = TakeReport::new(false, Some(&payment), &rules);
        assert_eq!(serde_json::to_value(report).unwrap(), json!({"allowed": false, "limits": []}));
        assert!(TakeReport::new(true, None, &rules).limits.is_empty());
        // The level of a share of a limit is not that of the limit.
        let Payment::Settled { plan, settlement, now, .. } = taken(&rules, 1) else { panic!("the plan is settled") };
        let payment = Payment::Settled { plan, settlement, source: Source::Fallback, now };
        assert!(TakeReport::new(true, Some(&payment), &rules).limits.is_empty());
    }
}
