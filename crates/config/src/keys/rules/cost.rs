//! Reads what a request pays at a limit: `cost_source`, and the costs that go with it.

use serde_json::json;

use crate::language::key::{Key, Type};
use crate::language::reader::{Field, Section};
use crate::language::suggest::nearest_spelling;
use crate::language::value_kind::{ReadField, ValueKind};
use crate::language::value_types::reference;
use ledger::cost::Cost;
use request::attribute::Attribute;
use rules::rule::Price;

/// A cost. Its reader compares it with the most that a limit can hold.
const AMOUNT: Type = Type::Defined { name: "amount", text: "above 0" };

const SOURCE_SHAPE: &str = "be fixed, header:<name> or query:<name>";

/// `None` is `fixed`.
const SOURCE: ValueKind<ReadField<Option<Attribute>>> = ValueKind {
    text: "`fixed`, `header:<name>`, `query:<name>`",
    schema: || {
        let attribute = json!({
            "type": "string",
            "pattern": r"^(header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|query:[\s\S])",
            "patternErrorMessage": format!("must {SOURCE_SHAPE}")
        });
        json!({"anyOf": [attribute, {"const": "fixed"}, reference()]})
    },
    read: source,
};

pub const COST_SOURCE: Key =
    Key::default("cost_source", SOURCE.declared(), "fixed", "Where the cost of a request comes from.");
pub const FIXED_COST: Key =
    Key::default("fixed_cost", AMOUNT, "1", "The cost, if it is fixed. No cost may be more than the limit can hold.");
pub const DEFAULT_COST: Key = Key::default("default_cost", AMOUNT, "1", "The cost, if the request names none.");
pub const MIN_COST: Key = Key::default("min_cost", AMOUNT, "1", "A smaller requested cost is raised to this.");
pub const MAX_COST: Key = Key::optional(
    "max_cost",
    Type::Defined { name: "amount", text: "at least `min_cost`" },
    "A larger requested cost is lowered to this.",
);

/// The most that a request can pay, and what the file calls it.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    pub cost: Cost,
    pub name: &'static str,
}

/// What a request pays. Without a `ceiling`, which then is wrong itself, costs are not compared with it.
pub fn price(section: &Section<'_>, ceiling: Option<Ceiling>) -> Option<Price> {
    let source = section.value("cost_source", SOURCE.read);
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

/// A cost that a full bucket can pay.
fn cost(field: &Field<'_>, ceiling: Option<Ceiling>) -> Option<Cost> {
    let cost = field.cost()?;
    if let Some(Ceiling { cost: ceiling, name }) = ceiling.filter(|ceiling| cost > ceiling.cost) {
        field.must(format_args!("be at most the {name} ({ceiling})"));
        return None;
    }
    Some(cost)
}

fn source(field: Field<'_>) -> Option<Option<Attribute>> {
    let text = field.text()?;
    if text == "fixed" {
        return Some(None);
    }
    match Attribute::parse(text) {
        Ok(attribute @ (Attribute::Header(_) | Attribute::Query(_))) => Some(Some(attribute)),
        _ => {
            let hint = nearest_spelling(text, &["fixed", "header:<name>", "query:<name>"]);
            field.must_hinting(SOURCE_SHAPE, hint);
            None
        }
    }
}
