//! Finds limits over several regions of which much can lie unused in other regions when a region refuses.

use super::file::File;
use super::location::Finding;
use base::time::Timestamp;
use base::waiting_time::WaitingTime;
use ledger::algorithm::Algorithm;
use ledger::cost::Cost;
use rules::rule::{Action, Limit};

/// A share of the limit above which it is reported: one fifth.
const FIFTH: u64 = 5;

/// Finds limits of which the largest leases of the other regions are more than a fifth, and windows that end before unused leases come
/// back.
pub(super) fn stranded_share(file: &File<'_>) -> Vec<Finding> {
    let Some(home) = &file.config.home else { return Vec::new() };
    let others = u64::try_from(home.regions.len()).unwrap_or(u64::MAX).saturating_sub(1);
    let rules = file.rules().filter(|located| located.is_enforced()).collect::<Vec<_>>();
    let found = rules.iter().flat_map(|located| {
        let Action::Charge(limits) = &located.rule.action else { return Vec::new() };
        let stranded = |limit: &Limit| {
            let Algorithm::Purse(purse) = &limit.algorithm else { return None };
            let (whole, largest) = (limit.algorithm.ceiling(), purse.largest().times(others));
            let window = limit.algorithm.window().map(|_| limit.algorithm.quota(Timestamp(0)).window);
            let is_short = window.is_some_and(|window| window.0 < purse.return_after().0.saturating_mul(2));
            let is_much = largest.times(FIFTH) > whole;
            if others == 0 || !is_much && !is_short {
                return None;
            }
            let unused = largest.min(whole.less(Cost::ONE));
            let (what, hint) = match is_much {
                true => (
                    format!(
                        "while a region refuses, up to {unused} of {whole} can lie unused in the purses of the others"
                    ),
                    "take a longer window or a smaller `lease`, or split the limit by region",
                ),
                false => (
                    format!(
                        "what a region does not use comes back after {}, when the period has ended or nearly so: up to \
                         {unused} of {whole} are lost in each",
                        WaitingTime(purse.return_after())
                    ),
                    "take a longer window, or a shorter `return_after` in `home`",
                ),
            };
            let location = match &*limit.name {
                "" => located.location.key("scope"),
                _ => located.numbers(limit).key("scope"),
            };
            Some(location.finding(what, hint))
        };
        limits.iter().filter_map(stranded).collect()
    });
    found.collect()
}
