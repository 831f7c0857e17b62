//! Finds token buckets that are taken for a quota.

use super::File;
use super::cost::numbers;
use super::location::Finding;
use crate::base::time::Micros;
use crate::config::rule_limits::parse_rate;
use crate::limit::algorithm::Algorithm;
use crate::limit::rule::{Action, Limit};

/// Shorter periods nobody counts by.
const QUOTA: Micros = Micros(3_600_000_000);

/// `rate: N/day` with a burst of N grants N at once and N more in the course of the day. Said once for a file.
pub fn double_first_period(file: &File<'_>) -> Vec<Finding> {
    let rules = file.rules().filter(|standing| standing.is_enforced()).collect::<Vec<_>>();
    let mut twice = rules.iter().flat_map(|standing| {
        let Action::Charge(limits) = &standing.rule.action else { return Vec::new() };
        let doubled = |limit: &Limit| {
            let Algorithm::TokenBucket(bucket) = limit.algorithm;
            let spot = numbers(&standing.spot, limit).key("rate");
            let rate = parse_rate(spot.text()?).filter(|rate| rate.period >= QUOTA && bucket.burst() >= rate.amount)?;
            let most = bucket.burst().whole().saturating_add(rate.amount.whole());
            Some((spot, most))
        };
        limits.iter().filter_map(doubled).collect()
    });
    let Some((spot, most)) = twice.next() else { return Vec::new() };
    let others = match twice.count() {
        0 => String::new(),
        1 => "; one more limit is like that".to_owned(),
        more => format!("; {more} more limits are like that"),
    };
    let what = format!("is {}, and grants up to {most} in its first period{others}", spot.text().unwrap_or_default());
    vec![spot.finding(what, "a bucket begins full and refills meanwhile; set a smaller `burst`")]
}
