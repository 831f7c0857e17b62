//! Reads what a request pays at a limit: `cost_source`, and the costs that belong to it.

use crate::language::key::{Key, Type};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::suggest::nearest_spelling;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types;
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use request::attribute::Attribute;
use rules::rule::Price;
use rules::settled_price::SettledSource;

/// A cost. This type has no upper bound, because the reader compares each cost with the level of a full bucket.
const AMOUNT: Type = Type::Own { text: "above 0", shape: value_types::AMOUNT };

/// Where the cost of a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CostSource {
    /// The file gives the cost.
    Fixed,
    /// The request names the cost.
    Request(Attribute),
    /// The cost is known when the request has ended. The limit is a budget.
    Response(SettledSource),
}

impl CostSource {
    /// Returns how the file writes the amounts of a limit whose costs have this source.
    pub(crate) fn format(&self) -> AmountFormat {
        match self {
            CostSource::Response(SettledSource::LlmCost) => AmountFormat::Dollars,
            CostSource::Response(_) | CostSource::Fixed | CostSource::Request(_) => AmountFormat::Number,
        }
    }

    /// Parses a source that is known before the request is sent: `fixed`, `header:<name>`, `query:<name>` or
    /// `request_json:<pointer>`. `None` for any other text.
    pub(crate) fn of_request(text: &str) -> Option<CostSource> {
        match Attribute::parse(text) {
            _ if text == "fixed" => Some(CostSource::Fixed),
            Ok(attribute @ (Attribute::Header(_) | Attribute::Query(_))) => Some(CostSource::Request(attribute)),
            Ok(Attribute::RequestJson(pointer)) => Some(CostSource::Request(Attribute::JsonAmount(pointer))),
            _ => None,
        }
    }
}

/// The sources of a cost that is known before the request is sent.
pub(crate) const REQUEST_SPELLINGS: [&str; 4] = ["fixed", "header:<name>", "query:<name>", "request_json:<pointer>"];

/// The pattern of a source that the request names.
pub(crate) const OF_REQUEST: &str = r"^(header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$|query:[\s\S]|request_json:/([^~]|~[01])*$)";

/// Returns a hint about the JSON pointer of an invalid source. `None` if the source has no pointer.
pub(crate) fn pointer_hint(text: &str) -> Option<String> {
    let (source @ ("request_json" | "response_json"), _) = text.split_once(':')? else { return None };
    Some(format!("a JSON pointer begins with /, as in {source}:/usage/total"))
}

/// The source of a cost at a limit that cannot be a budget.
const SOURCE: ValueKind<ParseText<CostSource>> = ValueKind::reporting(
    "`fixed`, `header:<name>`, `query:<name>`, `request_json:<pointer>`",
    Shape::Text(Text::new(
        Scalars::Text,
        &["^fixed$", OF_REQUEST],
        "be fixed, header:<name>, query:<name> or request_json:<pointer>",
    )),
    CostSource::of_request,
    |field, must| {
        let text = field.text_if_any().unwrap_or_default();
        let similar = || nearest_spelling(text, &REQUEST_SPELLINGS);
        field.must_hinting(must, hint_for_budget(text).or_else(|| pointer_hint(text)).or_else(similar));
    },
);

pub(crate) const COST_SOURCE: Key =
    Key::default("cost_source", SOURCE.declared(), "fixed", "Where the cost of a request comes from.");
pub(crate) const FIXED_COST: Key =
    Key::default("fixed_cost", AMOUNT, "1", "The cost, if it is fixed. No cost may be more than the limit can hold.");
pub(crate) const DEFAULT_COST: Key = Key::depends("default_cost", AMOUNT, "1", "The cost, if the request names none.");
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
    /// Whether the file writes amounts as numbers or in USD.
    pub format: AmountFormat,
}

/// Reads the source of the costs of a limit that cannot be a budget. `None` after reporting a problem.
pub(crate) fn cost_source(section: &Section<'_>) -> Option<CostSource> {
    section.value("cost_source", |field| SOURCE.read(field))
}

/// Reads the cost of a request, which comes from `source`. `ceiling` is the highest cost that a full bucket can pay.
/// `None` if the limit is invalid: costs are then not compared.
pub(crate) fn price(section: &Section<'_>, source: Option<CostSource>, ceiling: Option<Ceiling>) -> Option<Price> {
    let fixed = section.value("fixed_cost", |field| cost(&field, ceiling));
    let default = section.optional("default_cost", |field| cost(&field, ceiling)).map(|cost| cost.unwrap_or(Cost::ONE));
    let min = section.value("min_cost", |field| cost(&field, ceiling));
    let max = section.optional("max_cost", |field| Some((field.cost()?, field)));
    let (fixed, default, min, max) = (fixed?, default?, min?, max?);
    if let Some((_, field)) = max.as_ref().filter(|(max, _)| *max < min) {
        field.must(format_args!("be at least min_cost ({min})"));
        return None;
    }
    Some(match source? {
        CostSource::Fixed => Price::Fixed(fixed),
        // A limit that cannot be a budget never has this source.
        CostSource::Response(_) => return None,
        CostSource::Request(attribute) => Price::FromRequest { attribute, default, min, max: max.map(|(max, _)| max) },
    })
}

/// Returns the hint for a limit that cannot be a budget. `None` if `text` is no source of a budget's costs.
fn hint_for_budget(text: &str) -> Option<String> {
    ["response_", "llm_"]
        .iter()
        .any(|start| text.starts_with(start))
        .then(|| "costs of the response need token_bucket or fixed_window".to_owned())
}

/// Reads a cost. Reports a cost that a full bucket cannot pay.
fn cost(field: &Field<'_>, ceiling: Option<Ceiling>) -> Option<Cost> {
    at_most(field.cost()?, field, ceiling)
}

/// Returns a cost. `None` after reporting at `field` that a full bucket cannot pay the cost.
pub(crate) fn at_most(cost: Cost, field: &Field<'_>, ceiling: Option<Ceiling>) -> Option<Cost> {
    if let Some(Ceiling { cost: ceiling, name, format }) = ceiling.filter(|ceiling| cost > ceiling.cost) {
        field.must(format_args!("be at most the {name} ({})", format.of(ceiling)));
        return None;
    }
    Some(cost)
}
