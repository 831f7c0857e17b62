//! Finds token buckets that operators may mistake for a quota.

use super::file::File;
use super::location::Finding;
use crate::keys::rules::algorithms::token_bucket::parse_rate;
use base::time::Micros;
use ledger::algorithm::Algorithm;
use rules::rule::{Action, Limit};

/// The shortest period with which a rate looks like a quota.
const QUOTA: Micros = Micros(3_600_000_000);

/// Finds rates for a long period with a burst of at least the same amount, such as `rate: N/day` with a burst of N. Such
/// a limit grants N requests at once, and N more during the first day. Reports one such limit, and counts the others.
pub(super) fn double_first_period(file: &File<'_>) -> Vec<Finding> {
    let rules = file.rules().filter(|located| located.is_enforced()).collect::<Vec<_>>();
    let mut twice = rules.iter().flat_map(|located| {
        let Action::Charge(limits) = &located.rule.action else { return Vec::new() };
        let doubled = |limit: &Limit| {
            let bucket = match &limit.algorithm {
                Algorithm::TokenBucket(bucket) => bucket,
                Algorithm::Budget(budget) => budget.limit().token_bucket()?,
                Algorithm::Purse(purse) => purse.limit().token_bucket()?,
                _ => return None,
            };
            let location = located.numbers(limit).key("rate");
            let rate =
                parse_rate(location.text()?).filter(|rate| rate.period >= QUOTA && bucket.burst() >= rate.amount)?;
            let most = bucket.burst().whole().saturating_add(rate.amount.whole());
            Some((location, most))
        };
        limits.iter().filter_map(doubled).collect()
    });
    let Some((location, most)) = twice.next() else { return Vec::new() };
    let others = match twice.count() {
        0 => String::new(),
        1 => "; one more limit is like that".to_owned(),
        more => format!("; {more} more limits are like that"),
    };
    let what =
        format!("is {}, and grants up to {most} in its first period{others}", location.text().unwrap_or_default());
    vec![location.finding(what, "a bucket begins full and refills meanwhile; set a smaller `burst`")]
}
