//! Reads what a request pays at a limit: `cost_source`, and the costs that belong to it.

use crate::language::key::{Key, Type};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::suggest::nearest_spelling;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types;
use ledger::cost::Cost;
use request::attribute::Attribute;
use rules::rule::Price;

/// A cost. This type has no upper bound, because the reader compares each cost with the level of a full bucket.
const AMOUNT: Type = Type::Own { text: "above 0", shape: value_types::AMOUNT };

/// The source of a cost: an attribute. `None` stands for `fixed`, the cost that the file gives.
const SOURCE: ValueKind<ParseText<Option<Attribute>>> = ValueKind::reporting(
    "`fixed`, `header:<name>`, `query:<name>`",
    Shape::Text(Text::new(
        Scalars::Text,
        &["^fixed$", r"^(header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|query:[\s\S])"],
        "be fixed, header:<name> or query:<name>",
    )),
    |text| match Attribute::parse(text) {
        _ if text == "fixed" => Some(None),
        Ok(attribute @ (Attribute::Header(_) | Attribute::Query(_))) => Some(Some(attribute)),
        _ => None,
    },
    |field, must| {
        let text = field.text_if_any().unwrap_or_default();
        field.must_hinting(must, nearest_spelling(text, &["fixed", "header:<name>", "query:<name>"]));
    },
);

pub(crate) const COST_SOURCE: Key =
    Key::default("cost_source", SOURCE.declared(), "fixed", "Where the cost of a request comes from.");
pub(crate) const FIXED_COST: Key =
    Key::default("fixed_cost", AMOUNT, "1", "The cost, if it is fixed. No cost may be more than the limit can hold.");
pub(crate) const DEFAULT_COST: Key = Key::default("default_cost", AMOUNT, "1", "The cost, if the request names none.");
pub(crate) const MIN_COST: Key = Key::default("min_cost", AMOUNT, "1", "A smaller requested cost is raised to this.");
pub(crate) const MAX_COST: Key = Key::optional(
    "max_cost",
    Type::Own { text: "at least `min_cost`", shape: value_types::AMOUNT },
    "A larger requested cost is lowered to this.",
);

/// The highest cost that a request can pay, and the name of the setting that bounds the cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceiling {
    pub cost: Cost,
    pub name: &'static str,
}

/// Reads the cost of a request. `ceiling` is the highest cost that a full bucket can pay. If the limit is invalid,
/// `ceiling` is `None`, and costs are not compared with it.
pub(crate) fn price(section: &Section<'_>, ceiling: Option<Ceiling>) -> Option<Price> {
    let source = section.value("cost_source", |field| SOURCE.read(field));
    let fixed = section.value("fixed_cost", |field| cost(&field, ceiling));
    let default = section.value("default_cost", |field| cost(&field, ceiling));
    let min = section.value("min_cost", |field| cost(&field, ceiling));
    let max = section.optional("max_cost", |field| Some((field.cost()?, field)));
    let (fixed, default, min, max) = (fixed?, default?, min?, max?);
    if let Some((_, field)) = max.as_ref().filter(|(max, _)| *max < min) {
        field.must(format_args!("be at least min_cost ({min})"));
        return None;
    }
    Some(match source? {
        None => Price::Fixed(fixed),
        Some(attribute) => Price::FromRequest { attribute, default, min, max: max.map(|(max, _)| max) },
    })
}

/// Reads a cost. Reports a cost that a full bucket cannot pay.
fn cost(field: &Field<'_>, ceiling: Option<Ceiling>) -> Option<Cost> {
    let cost = field.cost()?;
    if let Some(Ceiling { cost: ceiling, name }) = ceiling.filter(|ceiling| cost > ceiling.cost) {
        field.must(format_args!("be at most the {name} ({ceiling})"));
        return None;
    }
    Some(cost)
}
