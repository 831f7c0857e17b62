//! Finds rules whose end has come.

use super::File;
use super::location::Finding;

/// It does nothing any more, and reads as if it did.
pub fn expired_rule(file: &File<'_>) -> Vec<Finding> {
    let ended = file.rules().filter_map(|standing| {
        let until = standing.rule.until?;
        let what = "has passed: the rule does not apply any more";
        let finding = standing.spot.key("expires").finding(what, "take the rule out, or give it another end");
        Some(finding.from(until))
    });
    ended.collect()
}
