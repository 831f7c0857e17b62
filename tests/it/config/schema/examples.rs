//! Every key, attribute and operator has an example in the documentation.

use std::collections::BTreeSet;

use request::attribute::SPELLINGS;
use serde_json::Value;

use super::Schema;
use crate::repository::docs;

/// The parts of the schema that the examples of a page use.
struct Usage<'s> {
    schema: &'s Schema,
    /// Pointers into the schema.
    keys: BTreeSet<String>,
    /// All texts in places for attributes.
    attributes: Vec<String>,
}

/// Whether the condition is about the algorithm, and is true for `value`.
fn names(condition: &Value, value: &Value) -> bool {
    let named = condition.pointer("/properties/algorithm/const");
    match named.or_else(|| condition.pointer("/allOf/0/properties/algorithm/const")) {
        Some(name) if condition.get("allOf").is_some() => value.get("algorithm") == Some(name),
        Some(name) => value.get("algorithm").is_none_or(|found| found == name),
        None => false,
    }
}

impl Usage<'_> {
    /// Records the parts of the schema that `value` uses. `at` is the pointer to the schema of `value`.
    fn record(&mut self, at: &str, value: &Value) {
        let Some(node) = self.schema.text.pointer(at) else { return };
        if let Some(target) = node["$ref"].as_str() {
            return self.record(target.trim_start_matches('#'), value);
        }
        for alternatives in ["anyOf", "allOf"] {
            for index in 0..node[alternatives].as_array().map_or(0, Vec::len) {
                self.record(&format!("{at}/{alternatives}/{index}"), value);
            }
        }
        if node.get("then").is_some() && names(&node["if"], value) {
            self.record(&format!("{at}/then"), value);
        }
        for member in value.as_array().into_iter().flatten() {
            self.record(&format!("{at}/items"), member);
        }
        for (key, inner) in value.as_object().into_iter().flatten() {
            let escaped = key.replace('~', "~0").replace('/', "~1");
            let property = format!("{at}/properties/{escaped}");
            if node["properties"].get(key).is_some() {
                self.record(&property, inner);
                self.keys.insert(property);
            } else {
                self.record(&format!("{at}/additionalProperties"), inner);
            }
            if at == "/definitions/conditions" {
                // Attributes with names of their own have the same expectations as the others.
                self.record("/definitions/expectation", inner);
                self.attributes.push(key.clone());
            }
            if key == "limit_keys" {
                self.attributes.extend(inner.as_array().into_iter().flatten().map(Value::to_string));
            }
        }
    }
}

#[test]
fn every_key_attribute_and_operator_has_an_example() {
    let schema = Schema::shipped();
    let mut used = Usage { schema: &schema, keys: BTreeSet::new(), attributes: Vec::new() };
    // Another test checks that they are valid.
    for block in docs::blocks(&docs::configuration(), "yaml") {
        used.record("", &serde_yaml::from_str(&docs::whole(block)).unwrap());
    }
    let mut missing = Vec::new();
    for (at, section) in schema.sections().into_iter().filter(|(at, _)| at != "/definitions/conditions") {
        // The store of home has keys of the store of a region.
        let at = at.replacen("/definitions/home_", "/definitions/", 1);
        let keys = section["properties"].as_object().unwrap().keys().map(|key| format!("{at}/properties/{key}"));
        missing.extend(keys.filter(|key| !used.keys.contains(key)));
    }
    for spelling in SPELLINGS {
        let named = |attribute: &str| match spelling.split_once('<') {
            Some((start, _)) => attribute.starts_with(start),
            None => attribute == *spelling,
        };
        if !used.attributes.iter().flat_map(|text| text.split(['"', '|', '(', ')', ' '])).any(named) {
            missing.push((*spelling).to_owned());
        }
    }
    assert!(missing.is_empty(), "docs/configuration has no example of\n{}", missing.join("\n"));
}
