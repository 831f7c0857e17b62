//! Makes the JSON Schema of gateway.yaml from the declarations of its keys.
//!
//! The schema shows an editor which values are valid. It is in draft 7, which all editors can read. It rejects no valid
//! file. But it cannot check everything that [`crate::Config::parse`] checks, such as the content of other files.

#[cfg(test)]
mod agreement;

use serde_json::{Map, Value, json};

use crate::document::FILE;
use crate::keys::definitions::definitions;
use crate::keys::rules::rule_match::OPERATORS;
use crate::language::key::{Key, Mapping, Presence, Type, within};
use crate::language::shape::Shape;
use crate::language::value_types::{BOOLEAN, SIZE};

const DESCRIPTION: &str = "Where Tollgate listens, where requests go, and what they pay. `tollgate check` knows more than \
                           this schema can express.";

/// Returns the JSON Schema of gateway.yaml, as `tollgate schema` prints it.
pub fn schema() -> String {
    let mut definitions: Map<String, Value> =
        definitions().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    for definition in shapes().iter().flat_map(Shape::definitions) {
        definitions.insert(definition.name.to_owned(), definition.shape.schema());
    }
    for declared in mappings() {
        if let Some(name) = declared.definition {
            definitions.insert(name.to_owned(), mapping(declared));
        }
    }
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gateway.yaml of Tollgate",
        "description": DESCRIPTION,
        "definitions": definitions
    });
    merge(&mut schema, mapping(&FILE));
    format!("{schema:#}\n")
}

/// Returns every declared mapping once: first the mapping of the whole file, then the others in the order in which keys
/// refer to them.
pub fn mappings() -> Vec<&'static Mapping> {
    within(vec![&FILE, &OPERATORS])
}

/// Returns the shape of the values of every key, such as a number in a range. A key whose values are only mappings, or
/// lists of mappings, has no shape.
pub(crate) fn shapes() -> Vec<Shape> {
    mappings().into_iter().flat_map(|mapping| mapping.keys).filter_map(|key| key.kind.shape()).collect()
}

fn mapping(declared: &Mapping) -> Value {
    let keys = declared.keys.iter();
    let required: Vec<&str> =
        keys.clone().filter(|key| matches!(key.presence, Presence::Required)).map(|key| key.name).collect();
    let properties: Map<String, Value> = keys.map(|key| (key.name.to_owned(), property(key))).collect();
    let mut mapping = json!({"type": "object", "additionalProperties": false, "properties": properties});
    if !required.is_empty() {
        merge(&mut mapping, json!({"required": required}));
    }
    merge(&mut mapping, (declared.constraints)());
    mapping
}

fn property(key: &Key) -> Value {
    let mut property = value(&key.kind);
    merge(&mut property, json!({"description": plain(key.doc)}));
    if let Presence::Default(default) = key.presence {
        // A test reads every default, so each is valid YAML.
        let default: Value = serde_yaml::from_str(default).unwrap_or_default();
        merge(&mut property, json!({"default": default}));
    }
    property
}

/// Returns the schema of values of this type.
fn value(kind: &Type) -> Value {
    let list = |items: Value, least: usize| match least {
        0 => json!({"type": "array", "items": items}),
        least => json!({"type": "array", "minItems": least, "items": items}),
    };
    match kind {
        Type::Own { shape, .. } => shape.schema(),
        Type::OwnOr { shape, mapping, .. } => json!({"anyOf": [shape.schema(), mapping_or_reference(mapping)]}),
        Type::Whole { least, most } => Shape::whole(*least, *most).schema(),
        Type::Size { .. } => SIZE.schema(),
        Type::Choice(names) => Shape::Words(names).schema(),
        Type::Choices { names, least } => list(Shape::Words(names).schema(), *least),
        Type::Mapping(inner) => mapping_or_reference(inner),
        Type::Switch(inner) => {
            json!({"anyOf": [BOOLEAN.schema(), mapping_or_reference(inner)]})
        }
        Type::ListOfOwnOr { shape, mapping, least, .. } => {
            list(json!({"anyOf": [shape.schema(), mapping_or_reference(mapping)]}), *least)
        }
        Type::List { of, least } => list(mapping_or_reference(of), *least),
        Type::Named(inner) => json!({"type": "object", "additionalProperties": mapping_or_reference(inner)}),
        Type::OneOf(_) | Type::NamedOneOf(_) => json!({}),
    }
}

fn mapping_or_reference(declared: &Mapping) -> Value {
    match declared.definition {
        Some(name) => json!({"$ref": format!("#/definitions/{name}")}),
        None => mapping(declared),
    }
}

/// Adds the members of one object to another.
fn merge(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}

/// Replaces each link of Markdown by the text of the link, and removes backticks.
fn plain(markdown: &str) -> String {
    let mut plain = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, tail)) = rest.split_once('[') {
        plain.push_str(before);
        let link = tail.split_once("](").filter(|(text, _)| !text.contains(']'));
        match link.and_then(|(text, target)| Some((text, target.split_once(')')?.1))) {
            Some((text, after)) => {
                plain.push_str(text);
                rest = after;
            }
            None => {
                plain.push('[');
                rest = tail;
            }
        }
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_plain_text() {
        assert_eq!(plain("[Several limits](#several-limits), as in `a`."), "Several limits, as in a.");
        assert_eq!(plain("`[]` disables it; see [shadow](#shadow)."), "[] disables it; see shadow.");
    }
}
