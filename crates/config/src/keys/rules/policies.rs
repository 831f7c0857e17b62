//! Reads `policies`, or `rules` for a single policy.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::keys::rules::names::unique;
use crate::keys::rules::rule_match::CONDITIONS;
use crate::keys::rules::{MODE, RULE, RuleDefaults, RuleReader, mode};
use crate::language::key::{Key, Mapping, NAME, Type, names};
use crate::language::reader::{Field, Section, all};
use rules::rule::{Mode, Otherwise, Policy};

const OTHERWISE: [(&str, Otherwise); 2] = [("allow", Otherwise::Allow), ("deny", Otherwise::Deny)];

pub(crate) static POLICY: Mapping = Mapping {
    heading: Some("key of a policy"),
    definition: None,
    keys: &[
        Key::required("name", NAME, "Like the name of a rule; unique among policies."),
        Key::optional("match", CONDITIONS, "Conditions for the whole policy."),
        Key::default("mode", MODE, "enforce", "The mode of all its rules."),
        Key::default("otherwise", Type::Choice(&names(&OTHERWISE)), "allow", "If none of its rules applies."),
        Key::required(
            "rules",
            Type::List { of: &RULE, least: 0 },
            "Its rules, in order. The first that applies decides.",
        ),
    ],
    constraints: policy_constraints,
};

fn policy_constraints() -> Value {
    json!({
        "if": {"properties": {"mode": {"const": "shadow"}}, "required": ["mode"]},
        "then": {"properties": {"rules": {"items": {"$ref": "#/definitions/without_candidates"}}}}
    })
}

/// Reads the policies of a file. The key `rules` is short for one policy. `None` after reporting a problem.
pub(crate) fn policies(file: &Section<'_>, defaults: RuleDefaults<'_>) -> Option<Vec<Policy>> {
    let mut rules = RuleReader::new(defaults);
    match (file.get("rules"), file.get("policies")) {
        (None, None) => Some(Vec::new()),
        (Some(short), Some(long)) => {
            file.unwanted("policies", "must not stand beside `rules`, which is short for one policy");
            // Both keys are checked, although a file may have only one of them.
            rules.rules(short, Mode::Enforce);
            several(&long, &mut rules);
            None
        }
        (Some(short), None) => {
            let position = short.position();
            let rules = rules.rules(short, Mode::Enforce)?;
            let (name, conditions) = ("default".to_owned(), Vec::new());
            Some(vec![Policy { name, conditions, mode: Mode::Enforce, otherwise: Otherwise::Allow, rules, position }])
        }
        (None, Some(long)) => several(&long, &mut rules),
    }
}

fn several(field: &Field<'_>, rules: &mut RuleReader<'_>) -> Option<Vec<Policy>> {
    let mut names = HashSet::new();
    all(field.list_of_mappings()?, |member| policy(member, &mut names, rules))
}

fn policy(field: Field<'_>, names: &mut HashSet<String>, rules: &mut RuleReader<'_>) -> Option<Policy> {
    let position = field.position();
    let section = field.section(&POLICY)?;
    let name = unique(&section, names);
    let conditions = rules.defaults.conditions.matches(&section);
    let mode = mode(&section);
    let otherwise = section.choice("otherwise", &OTHERWISE);
    let rules = section.need("rules").and_then(|field| rules.rules(field, mode.unwrap_or(Mode::Enforce)));
    section.close();
    let (name, conditions, mode) = (name?, conditions?, mode?);
    Some(Policy { name, conditions, mode, otherwise: otherwise?, rules: rules?, position })
}
