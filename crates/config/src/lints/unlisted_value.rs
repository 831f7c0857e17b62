//! Finds conditions on API keys with a value that no line of the key file has.

use std::collections::BTreeSet;

use super::file::File;
use super::location::{Finding, Location};
use crate::language::suggest::{listed, nearest};
use identity::api_keys::ApiKeySet;
use request::attribute::Attribute;
use request::identity::KnownKey;
use request::matcher::{Expectation, Text};
use rules::rule::Condition;

/// The largest number of values of the key file among which a similar one is searched for.
const MOST_SIMILAR: usize = 1000;
/// The largest number of values of the key file that a hint names.
const MOST_NAMED: usize = 5;

/// Finds values of `key:id`, `key:plan` and further columns that no key has. A file without keys is left out, because its keys are
/// probably added later.
pub(super) fn unlisted_value(file: &File<'_>) -> Vec<Finding> {
    let Some(keys) = file.config.api_keys.as_ref().map(|api_keys| api_keys.keys()).filter(|keys| !keys.is_empty())
    else {
        return Vec::new();
    };
    let conditions = file.conditions().into_iter();
    let finding = |(condition, location): (&Condition, Location<'_>)| {
        unlisted(condition, &keys).map(|(what, hint)| location.finding(what, hint))
    };
    conditions.filter_map(finding).collect()
}

/// Returns the message and the hint for a condition with a value that no key has.
fn unlisted(condition: &Condition, keys: &ApiKeySet) -> Option<(String, String)> {
    let attribute = &condition.attribute;
    let texts = condition.expectation.operators().iter().flat_map(|operator| match operator {
        Expectation::AnyOf(texts) => texts.as_slice(),
        _ => &[],
    });
    let mut wanted: Vec<&str> = texts
        .filter_map(|text| match text {
            Text::Exact(text) => std::str::from_utf8(text).ok(),
            Text::Subtree(_) | Text::Subdomain(_) => None,
        })
        .collect();
    if wanted.is_empty() || !is_of_key(attribute) {
        return None;
    }
    let mut similar = BTreeSet::new();
    for holder in keys.holders() {
        let Some(value) = value(attribute, holder) else { continue };
        wanted.retain(|text| *text != value);
        if wanted.is_empty() {
            return None;
        }
        if similar.len() < MOST_SIMILAR {
            similar.insert(value);
        }
    }
    let similar: Vec<&str> = similar.into_iter().collect();
    let hint = wanted.first().and_then(|text| nearest(text, &similar));
    let hint = hint.unwrap_or_else(|| match similar.len() {
        1..=MOST_NAMED => format!("the file has {}", listed(&similar)),
        _ => "correct the value, or add the key to the file".to_owned(),
    });
    let names: Vec<String> = wanted.iter().map(|text| format!("`{}`", text.escape_debug())).collect();
    Some((format!("no line of the key file has {}, so no request has it", names.join(" or ")), hint))
}

fn is_of_key(attribute: &Attribute) -> bool {
    matches!(attribute, Attribute::KeyId | Attribute::KeyPlan | Attribute::KeyColumn(_))
}

fn value<'k>(attribute: &Attribute, holder: &'k KnownKey) -> Option<&'k str> {
    match attribute {
        Attribute::KeyId => Some(&holder.id),
        Attribute::KeyPlan => Some(&holder.plan),
        Attribute::KeyColumn(name) => holder.column(name),
        _ => None,
    }
}
