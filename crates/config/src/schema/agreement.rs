//! Compares, for every shape, which values the schema and the reader accept. The values are made for each shape, or
//! come from the test files.

use std::collections::BTreeSet;
use std::path::Path;

use boon::{Compiler, SchemaIndex, Schemas};
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Value, json};

use super::{schema, shapes};
use crate::language::problem::Report;
use crate::language::reader::Field;
use crate::language::shape::{Decimal, Duration, List, Scalars, Shape, Text, Whole};
use crate::language::tree;

/// The compiled schema of each shape, with the definitions of the whole schema.
struct Validator {
    schemas: Schemas,
    indexes: Vec<SchemaIndex>,
}

impl Validator {
    fn new(shapes: &[Shape]) -> Validator {
        let mut whole: Value = serde_json::from_str(&schema()).unwrap();
        for (index, shape) in shapes.iter().enumerate() {
            whole["definitions"][format!("shape {index}")] = shape.schema();
        }
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("shapes.json", whole).unwrap();
        let compile =
            |index| compiler.compile(&format!("shapes.json#/definitions/shape%20{index}"), &mut schemas).unwrap();
        let indexes = (0..shapes.len()).map(compile).collect();
        Validator { schemas, indexes }
    }

    fn accepts(&self, index: usize, value: &Value) -> bool {
        self.schemas.validate(value, self.indexes[index]).is_ok()
    }
}

/// Returns whether the value and its members have the shape, and whether the check accepts the value.
fn read(shape: &Shape, value: &Value) -> (bool, bool) {
    let report = Report::default();
    let node =
        tree::read(value.to_string().as_bytes(), &report).unwrap_or_else(|problem| panic!("{value}: {problem:?}"));
    let field = Field::root(&node, &report);
    let (accepts, passes) = (field.has_shape(shape), field.check(shape).is_some());
    assert_eq!(passes, report.into_problems().is_empty(), "{shape:?} reports nothing of {value}");
    (accepts, passes)
}

/// Returns the shapes of all keys, and all shapes inside them.
fn all_shapes() -> Vec<Shape> {
    let mut found = shapes();
    let mut next = 0;
    while let Some(shape) = found.get(next) {
        let inner: Vec<Shape> = match shape {
            Shape::Defined(definition) => vec![definition.shape],
            Shape::WithMessage { of, .. } | Shape::Map { of, .. } => vec![**of],
            Shape::Either { of, .. } => of.to_vec(),
            Shape::List(List { of, .. }) | Shape::OneOrList(List { of, .. }) => vec![**of],
            _ => Vec::new(),
        };
        found.extend(inner);
        next += 1;
    }
    let mut seen = BTreeSet::new();
    found.retain(|shape| seen.insert(format!("{shape:?}")));
    found
}

/// Chooses among alternatives by pseudo-random numbers. The numbers are the same in every run of the test.
struct Choice(u64);

impl Choice {
    fn among(&mut self, many: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % many
    }
}

/// Appends a text that matches a pattern.
fn write(hir: &Hir, choice: &mut Choice, text: &mut String) {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(literal) => text.push_str(std::str::from_utf8(&literal.0).unwrap()),
        HirKind::Class(Class::Unicode(class)) => {
            let ranges: Vec<_> = class.iter().map(|range| range.start().max(' ')..=range.end().min('~')).collect();
            let visible: Vec<char> = ranges.into_iter().flatten().collect();
            text.push(visible[choice.among(visible.len())]);
        }
        HirKind::Class(Class::Bytes(_)) => panic!("a pattern of bytes"),
        HirKind::Repetition(repetition) => {
            let most = repetition.max.unwrap_or(repetition.min + 3);
            // The smallest and the largest number of repetitions are the most likely numbers.
            let times = match choice.among(3) {
                0 => repetition.min,
                1 => most,
                _ => {
                    repetition.min
                        + u32::try_from(choice.among(usize::try_from(most - repetition.min).unwrap() + 1)).unwrap()
                }
            };
            (0..times).for_each(|_| write(&repetition.sub, choice, text));
        }
        HirKind::Capture(capture) => write(&capture.sub, choice, text),
        HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, choice, text)),
        HirKind::Alternation(alternatives) => write(&alternatives[choice.among(alternatives.len())], choice, text),
    }
}

/// Returns texts that match the patterns, and similar texts, most of which do not match.
fn texts_of(patterns: &[&str]) -> Vec<String> {
    let mut texts = Vec::new();
    for pattern in patterns {
        let hir = regex_syntax::parse(pattern).unwrap();
        for seed in 0..16 {
            let mut choice = Choice(seed);
            let mut text = String::new();
            write(&hir, &mut choice, &mut text);
            let characters: Vec<char> = text.chars().collect();
            if !characters.is_empty() {
                let at = choice.among(characters.len());
                let with = |middle: &str| -> String {
                    let (before, after) = (&characters[..at], &characters[at + 1..]);
                    [&*before.iter().collect::<String>(), middle, &after.iter().collect::<String>()].concat()
                };
                texts.extend([
                    with(""),
                    with(" "),
                    with("::"),
                    with("\u{e9}"),
                    format!("{text}{text}"),
                    format!("{text}\n"),
                ]);
            }
            texts.push(text);
        }
    }
    texts
}

/// Returns values that the shape accepts, and similar values that the shape does not accept.
fn values_of(shape: &Shape) -> Vec<Value> {
    match shape {
        Shape::Defined(definition) => values_of(&definition.shape),
        Shape::WithMessage { of, .. } => values_of(of),
        Shape::Either { of, .. } => of.iter().flat_map(values_of).collect(),
        Shape::Words(words) | Shape::Numerals(words) => {
            let numbers = words.iter().filter_map(|word| serde_json::from_str::<Value>(word).ok());
            let near = words.iter().flat_map(|word| [(*word).to_owned(), format!("{word}x"), word.to_uppercase()]);
            near.map(Value::from).chain(numbers).collect()
        }
        Shape::Whole(Whole { least, most, except, .. }) => {
            let bounds = [least.saturating_sub(1), *least, least + 1, most - 1, *most, most.saturating_add(1)];
            bounds
                .into_iter()
                .chain(except.iter().copied())
                .flat_map(|number| [json!(number), json!(number.to_string())])
                .collect()
        }
        Shape::Decimal(Decimal { most, .. }) => {
            let beyond = most.map(|most| most + 1);
            let numbers = [0.001, 0.5, 0.999_999, 0.000_000_1, 1.25].map(Value::from);
            numbers.into_iter().chain(most.iter().chain(&beyond).map(|whole| json!(whole))).collect()
        }
        Shape::Text(Text { patterns, except, .. }) => {
            let patterns: Vec<&str> = patterns.iter().copied().chain(except.map(|except| except.pattern)).collect();
            texts_of(&patterns).into_iter().map(Value::from).collect()
        }
        Shape::Duration(Duration { least, most, .. }) => {
            let ends = [least.at.0, most.at.0].map(|micros| micros / 1000);
            ends.into_iter()
                .flat_map(|end| [end.saturating_sub(1), end, end + 1])
                .map(|ms| json!(format!("{ms}ms")))
                .collect()
        }
        Shape::List(list) | Shape::OneOrList(list) => {
            let members = values_of(list.of);
            let several = |count: usize| Value::from(members.iter().take(count).cloned().collect::<Vec<_>>());
            let one = members.iter().flat_map(|member| [json!([member]), json!([member, member]), member.clone()]);
            one.chain([0, 2, 16, 17, 40].map(several)).collect()
        }
        Shape::Map { of, .. } => values_of(of).into_iter().map(|value| json!({"a": value})).collect(),
        Shape::Conditions { .. } => vec![json!({"path": "/a"}), json!({"path": ["/a", "/b"]})],
        Shape::Scalar | Shape::Boolean | Shape::NonEmptyText { .. } => Vec::new(),
    }
}

/// Adds a value and all values in it.
fn add(value: Value, found: &mut Vec<Value>) {
    match &value {
        Value::Array(members) => members.iter().for_each(|member| add(member.clone(), found)),
        Value::Object(members) => members.values().for_each(|member| add(member.clone(), found)),
        _ => {}
    }
    found.push(value);
}

/// Returns the values of all test files, and some values that are in no file.
fn common_values() -> Vec<Value> {
    let mut found = vec![];
    let rest = json!([null, true, false, "true", "", "x", 0, -1, 1, 7, 0.5, "7", "+7", "007", [], {}, [""], [[]], [null], {"a": null}, "5m", "0s"]);
    add(rest, &mut found);
    for folder in ["good", "bad"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/config").join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
            if let Ok(value) = serde_yaml::from_str(text.split("# ---\n").next().unwrap()) {
                add(value, &mut found);
            }
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|value| {
        let text = value.to_string();
        text.len() < 80 && seen.insert(text)
    });
    found
}

/// How the schema of a shape may differ from the reader: the schema accepts more values, or fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Nothing,
    /// The schema accepts more: a parsed number does not show its decimals, and a pattern cannot compare durations.
    AcceptsMore,
    /// The schema accepts numbers, because it compares a pattern only with texts.
    AcceptsNumbers,
    /// The schema accepts fewer values, because only the schema checks the keys of conditions.
    KnowsKeys,
}

fn limit(shape: &Shape) -> Limit {
    match shape {
        Shape::Decimal(_) | Shape::Duration(_) => Limit::AcceptsMore,
        Shape::Text(Text { scalars: Scalars::Written, .. }) => Limit::AcceptsNumbers,
        Shape::Conditions { .. } => Limit::KnowsKeys,
        Shape::Defined(definition) => limit(&definition.shape),
        Shape::WithMessage { of, .. } | Shape::Map { of, .. } => limit(of),
        Shape::List(List { of, .. }) | Shape::OneOrList(List { of, .. }) => limit(of),
        Shape::Either { of, .. } => {
            of.iter().map(limit).find(|limit| *limit != Limit::Nothing).unwrap_or(Limit::Nothing)
        }
        _ => Limit::Nothing,
    }
}

/// Whether the value contains a number like 7.0. Such a number is whole for the schema, but not for the reader.
fn has_whole_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64().is_some_and(|number| number.fract() == 0.0),
        Value::Array(members) => members.iter().any(has_whole_float),
        Value::Object(members) => members.values().any(has_whole_float),
        _ => false,
    }
}

fn has_number(value: &Value) -> bool {
    match value {
        Value::Array(members) => members.iter().any(has_number),
        Value::Object(members) => members.values().any(has_number),
        value => value.is_number(),
    }
}

/// Whether values of this shape have members.
fn has_members(shape: &Shape) -> bool {
    match shape {
        Shape::List(_) | Shape::OneOrList(_) | Shape::Map { .. } | Shape::Conditions { .. } => true,
        Shape::Defined(definition) => has_members(&definition.shape),
        Shape::WithMessage { of, .. } => has_members(of),
        Shape::Either { of, .. } => of.iter().any(has_members),
        _ => false,
    }
}

#[test]
fn the_schema_of_a_shape_accepts_what_its_check_accepts() {
    let (shapes, common) = (all_shapes(), common_values());
    let validator = Validator::new(&shapes);
    let (mut accepted, mut rejected, mut wrong) = (0, 0, Vec::new());
    for (index, shape) in shapes.iter().enumerate() {
        let (mut accepted_here, mut rejected_here) = (0, 0);
        for value in values_of(shape).iter().chain(&common) {
            // The schema also accepts numbers like 7.0, and references to variables, which are replaced earlier.
            if value.to_string().contains("${") || has_whole_float(value) {
                continue;
            }
            let by_schema = validator.accepts(index, value);
            let (by_reader, passes) = read(shape, value);
            let agree = match limit(shape) {
                Limit::Nothing => by_schema == by_reader,
                Limit::AcceptsMore => by_schema || !by_reader,
                Limit::AcceptsNumbers => by_schema == by_reader || by_schema && has_number(value),
                Limit::KnowsKeys => by_reader || !by_schema,
            };
            if !agree {
                wrong.push(format!(
                    "the schema says {by_schema}, the reader {by_reader} of {value}\n{}",
                    shape.schema()
                ));
            }
            // The check of a list or mapping ignores its members, which are checked separately.
            assert!(
                passes == by_reader || passes && has_members(shape),
                "the check says {passes} of {value}\n{shape:?}"
            );
            accepted_here += usize::from(by_reader);
            rejected_here += usize::from(!by_reader);
        }
        assert!(accepted_here > 0 && rejected_here > 0, "{accepted_here} {rejected_here}: {shape:?}");
        accepted += accepted_here;
        rejected += rejected_here;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(shapes.len() > 60 && accepted > 2_000 && rejected > 20_000, "{} {accepted} {rejected}", shapes.len());
}
