//! Reads `limit_keys`: the attributes whose values each have a bucket of their own.

use std::collections::HashSet;

use serde_json::json;

use crate::keys::rules::attribute::AttributeReader;
use crate::language::reader::{Field, all};
use crate::language::value_kind::ValueKind;
use request::attribute::Attribute;
use rules::rule::{Fold, KeyPart, LimitKey};

type ReadLimitKeys = fn(&Field<'_>, AttributeReader<'_>) -> Option<Vec<LimitKey>>;

pub const LIMIT_KEYS: ValueKind<ReadLimitKeys> = ValueKind {
    text: "list",
    schema: || json!({"type": "array", "uniqueItems": true, "items": {"$ref": "#/definitions/limit_key"}}),
    read: limit_keys,
};

/// A set: no entry may be there twice.
fn limit_keys(field: &Field<'_>, attributes: AttributeReader<'_>) -> Option<Vec<LimitKey>> {
    let members = field.list()?;
    let keys = all(members.clone(), |member| limit_key(&member, attributes))?;
    let mut seen = HashSet::new();
    for (member, key) in members.iter().zip(&keys) {
        if !seen.insert(&key.text) {
            member.wrong(format_args!("`{}` is listed twice", key.text), None);
            return None;
        }
    }
    Some(keys)
}

/// `jwt:sub|ip:address`, `lower(query:username)`.
pub fn limit_key(field: &Field<'_>, attributes: AttributeReader<'_>) -> Option<LimitKey> {
    let written = field.text()?;
    let part = |text: &str| {
        let (text, fold) = fold(text.trim());
        if text.is_empty() {
            field.must("name an attribute on both sides of each `|`");
            return None;
        }
        match attributes.attribute(field, text)? {
            words @ Attribute::Words(_) => {
                let hint = "a request may have several words; count by another attribute, like jwt:sub";
                field.wrong(format_args!("`{words}` is for `match` alone"), Some(hint.to_owned()));
                None
            }
            attribute => Some(KeyPart { attribute, fold }),
        }
    };
    let alternatives = written.split('|').map(part).collect::<Option<Vec<_>>>()?;
    if alternatives.len() > usize::from(u8::MAX) {
        field.must("list at most 255 alternatives");
        return None;
    }
    let text = alternatives.iter().map(KeyPart::to_string).collect::<Vec<_>>().join("|");
    Some(LimitKey { text, alternatives })
}

/// `lower(query:username)` as the name of an attribute and what is done to its value.
pub fn fold(text: &str) -> (&str, Fold) {
    match text.strip_prefix("lower(").and_then(|text| text.strip_suffix(')')) {
        Some(inner) => (inner.trim(), Fold::Lower),
        None => (text, Fold::Exact),
    }
}
