//! Finds rules that have expired.

use super::file::File;
use super::location::Finding;

/// Finds rules that expire. The warning holds from the time at which the rule has no effect any more.
pub(super) fn expired_rule(file: &File<'_>) -> Vec<Finding> {
    let ended = file.rules().filter_map(|located| {
        let until = located.rule.until?;
        let what = "has passed: the rule does not apply any more";
        let finding = located.location.key("expires").finding(what, "remove the rule, or give it another end");
        Some(finding.from(until))
    });
    ended.collect()
}
