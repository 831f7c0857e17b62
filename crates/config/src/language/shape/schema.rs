//! Makes the JSON Schema of a shape, and collects the definitions to which the schema refers.

use serde_json::{Value, json};

use super::{Decimal, Definition, Exception, Least, List, Scalars, Shape, Text, Whole};

impl Shape {
    /// Returns the JSON Schema of values with this shape. If needed, the schema also accepts a reference to an environment
    /// variable.
    pub fn schema(&self) -> Value {
        let mut alternatives = self.alternatives();
        if self.needs_reference() {
            alternatives.push(json!({"$ref": "#/definitions/reference"}));
        }
        match &mut alternatives[..] {
            [only] => only.take(),
            _ => json!({"anyOf": alternatives}),
        }
    }

    /// Returns the definitions to which the schema of this shape refers, each after the definitions that it uses.
    pub fn definitions(&self) -> Vec<&'static Definition> {
        match self {
            Shape::WithMessage { of, .. } => of.definitions(),
            Shape::Defined(definition) => [definition.shape.definitions(), vec![*definition]].concat(),
            Shape::Duration(duration) => duration.definition().definitions(),
            Shape::Either { of, .. } => of.iter().flat_map(Shape::definitions).collect(),
            Shape::List(List { of, .. }) | Shape::OneOrList(List { of, .. }) | Shape::Map { of, .. } => {
                of.definitions()
            }
            _ => Vec::new(),
        }
    }

    /// Whether the schema must name a reference to the environment as one more alternative.
    fn needs_reference(&self) -> bool {
        match self {
            Shape::Boolean
            | Shape::Words(_)
            | Shape::Numerals(_)
            | Shape::Whole(_)
            | Shape::Decimal(_)
            | Shape::Text(_) => true,
            Shape::WithMessage { of, .. } => of.needs_reference(),
            Shape::Either { of, .. } => of.iter().all(Shape::needs_reference),
            _ => false,
        }
    }

    fn alternatives(&self) -> Vec<Value> {
        let any = || json!(["string", "number", "boolean"]);
        vec![match self {
            Shape::Either { of, .. } => return of.iter().flat_map(Shape::alternatives).collect(),
            Shape::OneOrList(list) => return vec![list.of.schema(), list.schema()],
            Shape::WithMessage { of, .. } => return of.alternatives(),
            Shape::Defined(definition) => definition.reference(),
            Shape::Duration(duration) => return duration.definition().alternatives(),
            Shape::Scalar => json!({"type": any()}),
            Shape::Boolean => json!({"type": "boolean"}),
            Shape::Words([only]) => json!({"const": only}),
            Shape::Words(words) => json!({"enum": words}),
            Shape::Numerals(words) => {
                let numbers = words.iter().filter_map(|word| serde_json::from_str(word).ok());
                json!({"enum": numbers.chain(words.iter().map(|word| json!(word))).collect::<Vec<Value>>()})
            }
            Shape::Whole(whole) => whole.schema(),
            Shape::Decimal(decimal) => decimal.schema(),
            Shape::Text(text) => text.schema(if text.scalars == Scalars::Written { any() } else { json!("string") }),
            Shape::NonEmptyText { .. } => json!({"type": "string", "minLength": 1}),
            Shape::List(list) => list.schema(),
            Shape::Map { of, least: 0, .. } => json!({"type": "object", "additionalProperties": of.schema()}),
            Shape::Map { of, least, .. } => {
                json!({"type": "object", "minProperties": least, "additionalProperties": of.schema()})
            }
            Shape::Conditions { definition, least: 0, .. } => reference(definition),
            // The reference is inside `allOf`, because JSON Schema ignores other keywords beside a `$ref`.
            Shape::Conditions { definition, least, .. } => {
                json!({"allOf": [reference(definition)], "minProperties": least})
            }
        }]
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/definitions/{name}")})
}

impl Definition {
    fn reference(&self) -> Value {
        reference(self.name)
    }
}

impl Whole {
    fn schema(self) -> Value {
        let mut schema = json!({"type": "integer", "minimum": self.least});
        if self.most < u64::MAX {
            insert(&mut schema, "maximum", json!(self.most));
        }
        if !self.except.is_empty() {
            insert(&mut schema, "not", json!({"enum": self.except}));
        }
        schema
    }
}

impl Decimal {
    /// Returns the schema of a decimal number. The number of decimals is not bounded, because a parsed number does not
    /// show how many decimals the file has.
    fn schema(self) -> Value {
        let least = match self.least {
            Least::Zero => "minimum",
            Least::AboveZero => "exclusiveMinimum",
        };
        let mut schema = json!({"type": "number", least: 0});
        if let Some(most) = self.most {
            insert(&mut schema, "maximum", json!(most));
        }
        schema
    }
}

impl Text {
    fn schema(&self, kind: Value) -> Value {
        let must = format!("must {}", self.must.replace('`', ""));
        let mut schema = json!({"type": kind, "pattern": self.patterns.join("|"), "patternErrorMessage": must});
        if let Some(Exception { pattern, .. }) = self.except {
            insert(&mut schema, "not", json!({"pattern": pattern}));
        }
        schema
    }
}

impl List {
    fn schema(&self) -> Value {
        let mut schema = json!({"type": "array", "items": self.of.schema()});
        if self.least > 0 {
            insert(&mut schema, "minItems", json!(self.least));
        }
        if self.most < usize::MAX {
            insert(&mut schema, "maxItems", json!(self.most));
        }
        if self.unique {
            insert(&mut schema, "uniqueItems", json!(true));
        }
        schema
    }
}

fn insert(schema: &mut Value, key: &str, value: Value) {
    if let Some(members) = schema.as_object_mut() {
        members.insert(key.to_owned(), value);
    }
}
