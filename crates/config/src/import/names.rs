//! Gives names to imported rules and policies. The names in the imported files are used if they are valid.

use std::collections::HashSet;

use super::Losses;
use super::shapes::ImportedPolicy;

/// Gives every policy and every rule a unique name. Names in the imported files are used first. A name that had to be
/// changed is added to `losses`.
pub(super) fn give_names(policies: &mut [ImportedPolicy], losses: &mut Losses) {
    let (mut of_policies, mut of_rules) = (HashSet::new(), HashSet::new());
    for rule in policies.iter_mut().flat_map(|policy| &mut policy.rules) {
        let Some(given) = &rule.limit_name else { continue };
        rule.name = unique(&given.text, &mut of_rules);
        if rule.name != given.text {
            let what = format!(
                "the rule is named `{}`: names are of letters, digits, `_`, `.` and `-`, and unique",
                rule.name
            );
            losses.add(&rule.file, given.position, &given.path, what);
        }
    }
    for policy in policies {
        policy.name = unique(&policy.name, &mut of_policies);
        for rule in policy.rules.iter_mut().filter(|rule| rule.limit_name.is_none()) {
            rule.name = unique(&rule.name, &mut of_rules);
        }
    }
}

/// Returns the wanted name, or a similar name if the wanted name is invalid or used.
pub(super) fn unique(wanted: &str, taken: &mut HashSet<String>) -> String {
    const LONGEST: usize = 64;
    /// The length of a dash and the digits after it.
    const NUMBER: usize = 6;
    let is_valid = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
    let is_name = (1..=LONGEST).contains(&wanted.len()) && wanted.chars().all(is_valid);
    if is_name && taken.insert(wanted.to_owned()) {
        return wanted.to_owned();
    }
    let valid = |char: char| if is_valid(char) { char } else { '-' };
    let mut base: String = wanted.chars().map(valid).take(LONGEST - NUMBER).collect();
    if base.is_empty() {
        base.push('-');
    }
    let mut name = base.clone();
    let mut number = 2;
    while !taken.insert(name.clone()) {
        name = format!("{base}-{number}");
        number += 1;
    }
    name
}
