//! Reads `request_headers` and `response_headers` of a route: the fields that the route sets and removes.

use http::header::{HeaderName, HeaderValue};
use serde_json::json;

use crate::keys::routes::header_names::{FIELD_VALUE_MUST, Message, UNKNOWN_VALUE, header_name};
use crate::keys::rules::attribute::AttributeReader;
use crate::language::key::{Key, Mapping};
use crate::language::reader::{Field, all};
use crate::language::shape::{List, Shape};
use crate::language::value_kind::ValueKind;
use crate::language::value_types::SCALAR;
use base::position::Position;
use request::attribute::Attribute;
use rules::route::header_changes::{FieldValue, HeaderChanges, ValuePart};

type ReadSet = fn(Field<'_>, Message, AttributeReader<'_>) -> Option<Vec<(HeaderName, FieldValue)>>;
type ReadRemove = fn(Field<'_>, Message) -> Option<Vec<HeaderName>>;

const SET: ValueKind<ReadSet> =
    ValueKind::new("mapping of texts", Shape::Map { of: &SCALAR, least: 0, empty: "" }, set);

const FIELD_NAME: Shape = Shape::text(&["^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"], "be the name of a header");

const REMOVE: ValueKind<ReadRemove> =
    ValueKind::new("list of names", Shape::List(List::of(&FIELD_NAME)), |field, message| {
        all(field.list()?, |member| {
            // `header_name` is called before the shape is checked, because it reports problems more precisely.
            let name = header_name(&member, member.text()?, message)?;
            member.check(&FIELD_NAME).map(|()| name)
        })
    });

pub(crate) static HEADER_CHANGES: Mapping = Mapping {
    heading: Some("key in `request_headers` and `response_headers`"),
    definition: Some("header_changes"),
    keys: &[
        Key::default(
            "set",
            SET.declared(),
            "{}",
            "Fields that replace those of that name. A value may have attributes: `{jwt:org}`.",
        ),
        Key::default("remove", REMOVE.declared(), "[]", "Names of fields."),
    ],
    constraints: || json!({"minProperties": 1}),
};

pub(crate) fn header_changes(
    field: Field<'_>,
    message: Message,
    attributes: AttributeReader<'_>,
) -> Option<HeaderChanges> {
    let section = field.clone().section(&HEADER_CHANGES)?;
    let set = section.value("set", |field| (SET.checked(&field)?)(field, message, attributes));
    let remove = section.value("remove", |field| (REMOVE.checked(&field)?)(field, message));
    let is_empty = field.is_empty();
    if is_empty {
        field.must("set or remove something");
    }
    if let (Some(set), Some(remove)) = (&set, &remove) {
        let both: Vec<&HeaderName> = remove.iter().filter(|name| set.iter().any(|(other, _)| other == *name)).collect();
        for name in &both {
            section.unwanted("remove", format_args!("`{name}` is set, which replaces it"));
        }
        if !both.is_empty() {
            return None;
        }
    }
    section.close();
    Some(HeaderChanges { set: set?, remove: remove? }).filter(|_| !is_empty)
}

fn set(field: Field<'_>, message: Message, attributes: AttributeReader<'_>) -> Option<Vec<(HeaderName, FieldValue)>> {
    let mut taken: Vec<HeaderName> = Vec::new();
    let read = |(name, position, field): (&str, Position, Field<'_>)| {
        let at_key = field.clone().at(position);
        let name = header_name(&at_key, name, message).filter(|name| {
            let is_new = !taken.contains(name);
            if !is_new {
                at_key.wrong(format_args!("`{name}` is there twice"), None);
            }
            taken.push(name.clone());
            is_new
        });
        let value = value(&field, attributes);
        Some((name?, value?))
    };
    let read: Vec<_> = field.pairs()?.into_iter().map(read).collect();
    read.into_iter().collect()
}

/// Reads the value of a field: a text with attributes in braces. A brace in the text is written twice. Reports show no more of it
/// than names of attributes, because it may be a credential.
fn value(field: &Field<'_>, attributes: AttributeReader<'_>) -> Option<FieldValue> {
    if field.is_unknown() {
        return Some(FieldValue::Fixed(UNKNOWN_VALUE));
    }
    let written = field.written()?;
    let Some(parts) = parts(written) else {
        let hint = "a brace itself is written twice: {{ or }}".to_owned();
        field.clone().hidden().must_hinting("have each attribute in braces, like {jwt:org}", Some(hint));
        return None;
    };
    let mut composed = Vec::new();
    for part in parts {
        composed.push(match part {
            Part::Text(text) => ValuePart::Text(text),
            Part::Attribute(name) => match attributes.attribute(field, name.trim())? {
                words @ Attribute::Words(_) => {
                    field.wrong(format_args!("`{words}` is for `match` alone"), None);
                    return None;
                }
                attribute => ValuePart::Attribute(attribute),
            },
        });
    }
    // The value with a `~` in place of each attribute, used to check the text around the attributes.
    let sample: String = composed
        .iter()
        .map(|part| match part {
            ValuePart::Text(text) => text,
            ValuePart::Attribute(_) => "~",
        })
        .collect();
    let valid = sample.is_ascii() && sample.trim() == sample && !sample.is_empty();
    let fixed = HeaderValue::from_str(&sample).ok().filter(|_| valid);
    if fixed.is_none() {
        field.clone().hidden().must(FIELD_VALUE_MUST);
    }
    let fixed = fixed?;
    let is_fixed = composed.iter().all(|part| matches!(part, ValuePart::Text(_)));
    Some(if is_fixed { FieldValue::Fixed(fixed) } else { FieldValue::Composed(composed) })
}

enum Part<'t> {
    Text(String),
    /// The name of an attribute.
    Attribute(&'t str),
}

/// Splits a value into texts and attributes. `None` if a brace is not closed, not opened, or inside other braces.
fn parts(text: &str) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    let (mut plain, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at_checked(at)?;
        plain.push_str(before);
        if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
            plain.push_str(from.get(..1)?);
            rest = after;
            continue;
        }
        let (name, after) = from.strip_prefix('{')?.split_once('}')?;
        if name.contains('{') {
            return None;
        }
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(Part::Attribute(name));
        rest = after;
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Some(parts)
}
