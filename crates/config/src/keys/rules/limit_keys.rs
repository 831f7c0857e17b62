//! Reads `limit_keys`: the attributes by whose values a limit counts. Each combination of values has its own bucket.

use std::collections::HashSet;

use crate::keys::rules::attribute::AttributeReader;
use crate::language::reader::{Field, all};
use crate::language::shape::{Definition, List, Shape};
use crate::language::value_kind::ValueKind;
use request::attribute::Attribute;
use rules::rule::LimitKey;

type ReadLimitKeys = fn(Field<'_>, AttributeReader<'_>) -> Option<Vec<LimitKey>>;

/// The shape of a limit key: one attribute, or several with `|` between them. The first attribute that a request has is used.
pub(crate) const LIMIT_KEY: Shape = Shape::Defined(&Definition {
    name: "limit_key",
    shape: Shape::text(
        &[
            r"^(\s*((lower|trim)\(\s*)*((jwt|query|cookie|request_form|descriptor):[^|]*[^|\s][^|]*|request_json:/([^~|]|~[01])*|(header:[!#$%&'*+.^_`~0-9A-Za-z-]+|key:id|key:plan|key:[A-Za-z0-9_.-]{1,64}|ip:address|method|host|scheme|listener|tls:sni|tls:client_fingerprint|tls:client_subject|tls:client_dns|tls:client_uri|path|path_segment:([1-9][0-9]?|1[0-9][0-9]|2[0-4][0-9]|25[0-5])|route|upstream|llm:model|door)(\s*\))*)\s*(\||$))+$",
        ],
        "be attributes like jwt:sub, header:x-user or ip:address, with | between alternatives",
    ),
});

pub(crate) const LIMIT_KEYS: ValueKind<ReadLimitKeys> =
    ValueKind::new("list", Shape::List(List { unique: true, ..List::of(&LIMIT_KEY) }), limit_keys);

/// Reads the limit keys. Each may be listed only once.
fn limit_keys(field: Field<'_>, attributes: AttributeReader<'_>) -> Option<Vec<LimitKey>> {
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

/// Reads one limit key, such as `jwt:sub|ip:address` or `lower(query:username)`. `None` after reporting a problem.
pub(crate) fn limit_key(field: &Field<'_>, attributes: AttributeReader<'_>) -> Option<LimitKey> {
    let written = attributes.text(field)?;
    let part = |text: &str| {
        if text.trim().is_empty() {
            field.must("name an attribute on both sides of each `|`");
            return None;
        }
        match attributes.attribute_of_rule(field, text.trim())? {
            words if matches!(words.source(), Attribute::Words(_)) => {
                let hint = "a request may have several words; count by another attribute, like jwt:sub";
                field.wrong(format_args!("`{}` is for `match` alone", words.source()), Some(hint.to_owned()));
                None
            }
            attribute => Some(attribute),
        }
    };
    let alternatives = written.split('|').map(part).collect::<Option<Vec<_>>>()?;
    if alternatives.len() > usize::from(u8::MAX) {
        field.must("list at most 255 alternatives");
        return None;
    }
    field.check(&LIMIT_KEY)?;
    let text = alternatives.iter().map(Attribute::to_string).collect::<Vec<_>>().join("|");
    Some(LimitKey { text, alternatives })
}
