//! Compares the JSON Schema of gateway.yaml with the results of `check`, and with the documentation.

mod documentation;
mod examples;
mod files;
mod values;
mod whole_files;

use std::collections::HashSet;
use std::process::{Command, Stdio};

use boon::{Compiler, SchemaIndex, Schemas};
use config::schema;
use serde_json::{Value, json};

use crate::support::short_or_long;

/// The schema that `tollgate schema` prints, as JSON and compiled.
pub struct Schema {
    schemas: Schemas,
    index: SchemaIndex,
    pub text: Value,
}

impl Schema {
    pub fn shipped() -> Schema {
        let text: Value = serde_json::from_str(&schema()).unwrap();
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("gateway.schema.json", text.clone()).unwrap();
        let index = compiler.compile("gateway.schema.json", &mut schemas).unwrap();
        Schema { schemas, index, text }
    }

    pub fn refuses(&self, file: &Value) -> bool {
        self.schemas.validate(file, self.index).is_err()
    }

    /// Returns the reason why the schema rejects a file; `None` if it accepts the file.
    pub fn refusal(&self, file: &Value) -> Option<String> {
        self.schemas.validate(file, self.index).err().map(|error| format!("{error:#}"))
    }

    /// Returns the mappings whose keys the schema lists, with JSON pointers to them.
    pub fn sections(&self) -> Vec<(String, &Value)> {
        let mut sections = Vec::new();
        for pointer in nodes(&self.text) {
            let node = self.text.pointer(&pointer).unwrap();
            if node["additionalProperties"] == json!(false) && node["type"] == json!("object") {
                sections.push((pointer, node));
            }
        }
        sections
    }

    /// Returns the target of a `$ref`.
    fn resolve<'s>(&'s self, node: &'s Value) -> &'s Value {
        match node["$ref"].as_str() {
            Some(target) => self.text.pointer(target.trim_start_matches('#')).unwrap(),
            None => node,
        }
    }

    /// Returns the bound of a number, also if a value of another type is allowed.
    fn bound(&self, node: &Value, name: &str) -> Option<i64> {
        let alternatives = self.resolve(node)["anyOf"].as_array().into_iter().flatten();
        alternatives.filter_map(|one| self.resolve(one)[name].as_i64().or_else(|| self.bound(one, name))).next()
    }

    /// Returns every key with its path. `*` stands for each member of a list.
    pub fn properties(&self) -> Vec<Property<'_>> {
        let mut found = Vec::new();
        self.add_properties(&self.text, &[], None, &mut found);
        found
    }

    /// Returns every key once, also if it may stand in several places; in the long form of a proof, at all of its places.
    pub fn declared_properties(&self) -> Vec<Property<'_>> {
        let (mut seen, mut properties) = (HashSet::new(), self.properties());
        properties.retain(|property| {
            let is_new = seen.insert((std::ptr::from_ref(property.said), property.algorithm));
            short_or_long(is_new, true)
        });
        properties
    }

    fn add_properties<'s>(
        &'s self,
        node: &'s Value,
        path: &[&'s str],
        algorithm: Option<&'s str>,
        found: &mut Vec<Property<'s>>,
    ) {
        let node = self.resolve(node);
        let named = ["/if/properties/algorithm/const", "/if/allOf/0/properties/algorithm/const"];
        let named = named.into_iter().find_map(|pointer| node.pointer(pointer)?.as_str());
        let algorithm = named.or(algorithm);
        if let Some(items) = node.get("items") {
            self.add_properties(items, &[path, &["*"]].concat(), algorithm, found);
        }
        for inner in node["allOf"].as_array().into_iter().flatten().chain(node.get("then")) {
            self.add_properties(inner, path, algorithm, found);
        }
        for (key, property) in node["properties"].as_object().into_iter().flatten() {
            let path = [path, &[key.as_str()]].concat();
            self.add_properties(property, &path, algorithm, found);
            found.push(Property { path, algorithm, said: property, resolved: self.resolve(property) });
        }
    }
}

/// A key of the configuration file.
pub struct Property<'s> {
    pub path: Vec<&'s str>,
    /// The algorithm of the rules that may have the key; `None` if all may have it.
    pub algorithm: Option<&'s str>,
    /// The schema at the key itself.
    pub said: &'s Value,
    pub resolved: &'s Value,
}

/// Returns JSON pointers to everything in a value, beginning with the value itself.
pub fn nodes(value: &Value) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut add = |key: &str, inner: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        found.extend(nodes(inner).iter().map(|rest| format!("/{key}{rest}")));
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, inner)| add(key, inner)),
        Value::Array(list) => list.iter().enumerate().for_each(|(at, inner)| add(&at.to_string(), inner)),
        _ => {}
    }
    found
}

#[test]
fn the_command_prints_the_schema_and_ignores_a_closed_pipe() {
    let print = || Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("schema").stdout(Stdio::piped()).spawn().unwrap();
    let output = print().wait_with_output().unwrap();
    assert_eq!((output.status.code(), std::str::from_utf8(&output.stdout)), (Some(0), Ok(&*schema())));
    let mut child = print();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
