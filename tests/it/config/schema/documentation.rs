//! The schema has the keys, attributes, warnings and defaults that the documentation and the code name.

use std::collections::{BTreeMap, BTreeSet};

use request::attribute::SPELLINGS;
use serde_json::{Value, json};

use super::{Schema, nodes};
use crate::repository::docs;

#[test]
fn the_schema_has_every_documented_key_with_a_description() {
    let schema = Schema::shipped();
    let mut keys = BTreeSet::new();
    for (at, section) in schema.sections() {
        for (key, property) in section["properties"].as_object().unwrap() {
            let description = property["description"].as_str().unwrap_or_default();
            assert!(description.len() > 10, "{at}: {key} is not explained");
            // Beside a `$ref` an editor reads these, and a validator nothing.
            let only_annotations =
                property.as_object().unwrap().keys().all(|key| matches!(&**key, "$ref" | "description" | "default"));
            assert!(property.get("$ref").is_none() || only_annotations, "{at}: {key} says more next to its $ref");
            if !at.ends_with("/conditions") {
                keys.insert(key.clone());
            }
        }
    }
    let documented = docs::documented_keys();
    assert_eq!(keys.symmetric_difference(&documented).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_schema_has_every_attribute() {
    let schema = Schema::shipped();
    let conditions = &schema.text["definitions"]["conditions"];
    let limit_key = schema.text["definitions"]["limit_key"].to_string();
    for spelling in SPELLINGS {
        let (kind, name) = spelling.split_once(":<").unwrap_or((spelling, ""));
        let patterns = conditions["patternProperties"].as_object().unwrap();
        let known = match name {
            "" => conditions["properties"].get(spelling).is_some(),
            _ => patterns.keys().any(|pattern| pattern.starts_with(&format!("^{kind}:"))),
        };
        assert!(known && limit_key.contains(kind), "{spelling}");
    }
}

#[test]
fn the_schema_has_every_warning() {
    let schema = Schema::shipped();
    let listed = &schema.text["properties"]["check"]["properties"]["allow"]["items"]["anyOf"][0]["enum"];
    let source = docs::read("crates/config/src/lints/mod.rs");
    let lints = source.split("\n    (\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    assert_eq!(*listed, json!(lints.collect::<Vec<_>>()));
}

#[test]
fn a_mapping_has_no_keys_but_those_that_are_listed() {
    let schema = Schema::shipped();
    for pointer in nodes(&schema.text) {
        let node = schema.text.pointer(&pointer).unwrap();
        assert!(node["type"] != json!("object") || node.get("additionalProperties").is_some(), "{pointer}");
    }
}

#[test]
fn a_default_that_is_documented_is_the_one_of_the_schema() {
    let schema = Schema::shipped();
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, section) in schema.sections() {
        for (key, property) in section["properties"].as_object().unwrap() {
            known.entry(key.clone()).or_default().extend(property.get("default").map(Value::to_string));
        }
    }
    let mut seen = 0;
    for row in docs::rows_of_keys() {
        let Some(default) = row.default.strip_prefix('`').and_then(|text| text.strip_suffix('`')) else { continue };
        // A default that depends on another key is described in words.
        if default.contains('`') {
            continue;
        }
        let default: Value = serde_yaml::from_str(default).unwrap();
        let known = &known[&row.key];
        assert!(known.contains(&default.to_string()), "{}: {default} is not {known:?}", row.key);
        seen += 1;
    }
    assert!(seen > 30, "{seen} defaults");
}
