//! Reads what a request pays at a budget: a limit whose costs are known only when a request has ended.

use super::attribute::AttributeReader;
use super::cost::{self, Ceiling, CostSource, at_most};
use super::reserve::ReserveReader;
use super::weights::weights;
use crate::keys::upstream_results;
use crate::language::key::{Key, Type};
use crate::language::reader::{Field, Section};
use crate::language::shape::{Scalars, Shape, Text};
use crate::language::suggest::nearest_spelling;
use crate::language::value_kind::{ParseText, ValueKind};
use crate::language::value_types::AMOUNT_OR_MONEY_FROM_ZERO;
use http::HeaderName;
use ledger::algorithm::Algorithm;
use ledger::algorithm::budget::{Budget, SpentLimit};
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use llm::json::Pointer;
use rules::rule::Price;
use rules::settled_price::{InputEstimate, JsonPlace, Reserve, SettledPrice, SettledSource, UpstreamResults, Weights};

/// All forms of `cost_source` of a limit that may be a budget.
const SPELLINGS: [&str; 8] = [
    "fixed",
    "header:<name>",
    "query:<name>",
    "request_json:<pointer>",
    "response_header:<name>",
    "response_json:<pointer>",
    "llm_tokens",
    "llm_cost",
];

/// The source of a cost, at a limit that may be a budget.
const SOURCE: ValueKind<ParseText<CostSource>> = ValueKind::reporting(
    "`fixed`, `header:<name>`, `query:<name>`, `request_json:<pointer>`, `response_header:<name>`, `response_json:<pointer>`, `llm_tokens`, `llm_cost`",
    Shape::Text(Text::new(
        Scalars::Text,
        &[
            "^fixed$",
            cost::OF_REQUEST,
            "^response_header:[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
            r"^response_json:/[\s\S]*$",
            "^llm_(tokens|cost)$",
        ],
        "be fixed, header:<name>, query:<name>, request_json:<pointer>, response_header:<name>, response_json:<pointer>, llm_tokens or llm_cost",
    )),
    parse,
    |field, must| {
        let text = field.text_if_any().unwrap_or_default();
        let hint = cost::pointer_hint(text).or_else(|| nearest_spelling(text, &SPELLINGS));
        field.must_hinting(must, hint);
    },
);

pub(crate) const COST_SOURCE: Key = Key::default(
    "cost_source",
    SOURCE.declared(),
    "fixed",
    "Where the cost of a request comes from. Costs of a response are settled when the request has ended.",
);

pub(crate) const DEFAULT_COST: Key = Key::depends(
    "default_cost",
    Type::Own { text: "number from 0", shape: AMOUNT_OR_MONEY_FROM_ZERO },
    "1; for `llm_*` the estimate",
    "The cost, if the request names none, or the response. Only for a response it may be 0.",
);

pub(crate) const COUNT_ON: Key = Key::optional(
    "count_on",
    upstream_results::COUNT_ON.declared(),
    "Only requests with these results of the upstream cost something; the cost is held until then.",
);

pub(crate) const RESET_ON: Key = Key::optional(
    "reset_on",
    upstream_results::RESET_ON.declared(),
    "With `count_on`: a response with one of these results forgets what the bucket has spent. A ban stays.",
);

const RESPONSE_NAMES_THE_COST: &str = "must not stand beside a `cost_source` of the response, which names the cost";

fn parse(text: &str) -> Option<CostSource> {
    if let Some(source) = CostSource::of_request(text) {
        return Some(source);
    }
    let source = match text.split_once(':') {
        Some(("response_header", name)) => SettledSource::ResponseHeader(HeaderName::try_from(name).ok()?),
        Some(("response_json", pointer)) => SettledSource::ResponseJson(JsonPlace::new(Pointer::parse(pointer).ok()?)),
        None if text == "llm_tokens" => SettledSource::LlmTokens(Weights::default()),
        None if text == "llm_cost" => SettledSource::LlmCost,
        _ => return None,
    };
    Some(CostSource::Response(source))
}

/// Reads the source of the costs of a token bucket or a fixed window. `None` after reporting a problem.
pub(crate) fn cost_source(section: &Section<'_>) -> Option<CostSource> {
    section.value("cost_source", |field| SOURCE.read(field))
}

/// Returns this limit with resets, if it is a budget.
pub(crate) fn resetting(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Budget(budget) => Algorithm::Budget(budget.with_resets()),
        other => other,
    }
}

/// Returns the budget with the rate and size of this limit.
pub(crate) fn budget(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::TokenBucket(bucket) => Algorithm::Budget(Budget::of_token_bucket(bucket)),
        Algorithm::FixedWindow(window) => Algorithm::Budget(Budget::of_fixed_window(window)),
        Algorithm::SlidingLog(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::LeakyBucket(_)
        | Algorithm::Concurrency(_)
        | Algorithm::Budget(_)
        | Algorithm::Purse(_)
        | Algorithm::Home(_) => algorithm,
    }
}

/// Returns the token bucket or fixed window of a budget. Any other algorithm is returned as it is.
pub(crate) fn without_holds(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Budget(budget) => match *budget.limit() {
            SpentLimit::TokenBucket(bucket) => Algorithm::TokenBucket(bucket),
            SpentLimit::FixedWindow(window) => Algorithm::FixedWindow(window),
        },
        other => other,
    }
}

/// Reads the price of a token bucket or a fixed window. `source` is where the cost comes from, or `None` if it is
/// invalid. `ceiling` is the highest cost that a full bucket can pay. `attributes` reads the attribute in `by` of
/// `reserve`. Returns `None` after reporting a problem.
pub(crate) fn price(
    section: &Section<'_>,
    source: Option<CostSource>,
    ceiling: Option<Ceiling>,
    attributes: Option<AttributeReader<'_>>,
) -> Option<Price> {
    let weights = weights(section);
    let count_on = section.optional("count_on", |field| upstream_results::COUNT_ON.read(field));
    let reset_on = section.optional("reset_on", |field| upstream_results::RESET_ON.read(field));
    if !section.has("count_on") {
        section.unwanted("reset_on", "must stand beside `count_on`");
        (!section.has("reset_on")).then_some(())?;
    }
    if source.is_some() && !matches!(source, Some(CostSource::Response(SettledSource::LlmTokens(_)))) {
        section.unwanted("weights", "must stand beside `cost_source: llm_tokens`");
        (!section.has("weights")).then_some(())?;
    }
    if let Some(CostSource::Response(source)) = source {
        section.unwanted("count_on", "must not stand beside a `cost_source` of the response, which names the cost");
        let source = match source {
            SettledSource::LlmTokens(_) => SettledSource::LlmTokens(weights?),
            other => other,
        };
        return settled_price(section, source, ceiling, attributes)
            .map(Price::Settled)
            .filter(|_| !section.has("count_on"));
    }
    if source.is_some() {
        section.unwanted("reserve", "must stand beside a `cost_source` of the response");
    }
    let price = cost::price(section, source, ceiling).filter(|_| !section.has("reserve"))?;
    let (Some(counted_results), resets) = (count_on?, reset_on?.unwrap_or_default()) else { return Some(price) };
    if let (Some(common), Some(field)) = (resets.common_entry(&counted_results), section.get("reset_on")) {
        field.wrong(format_args!("must have no result of `count_on`, but {common} has one of {counted_results}"), None);
        return None;
    }
    Some(counted(price, counted_results, resets))
}

/// Returns the price of a limit that counts only requests with these results, and forgets what was spent after those in `resets`.
/// The limit holds its cost while a request is under way.
fn counted(price: Price, counted: UpstreamResults, resets: UpstreamResults) -> Price {
    let reserve = match price {
        Price::Fixed(cost) => Reserve::Fixed(cost),
        Price::FromRequest { attribute, default, min, max } => {
            Reserve::FromRequest { attributes: vec![attribute], plus: InputEstimate::Ignored, default, min, max }
        }
        settled @ Price::Settled(_) => return settled,
    };
    Price::Settled(SettledPrice { source: SettledSource::CountOn { counted, resets }, reserve, default_cost: None })
}

fn settled_price(
    section: &Section<'_>,
    source: SettledSource,
    ceiling: Option<Ceiling>,
    attributes: Option<AttributeReader<'_>>,
) -> Option<SettledPrice> {
    let others = ["fixed_cost", "min_cost", "max_cost"];
    let format = source.unit().format();
    others.iter().for_each(|key| section.unwanted(key, RESPONSE_NAMES_THE_COST));
    let default = section.optional("default_cost", |field| from_zero(&field, format, ceiling));
    let reserve = ReserveReader { source: &source, ceiling, attributes }.reserve(section);
    let default_cost = match default? {
        Some(cost) => Some(cost),
        None if source.is_llm() => None,
        None => Some(Cost::ONE),
    };
    let alone = !others.iter().any(|key| section.has(key));
    let price = SettledPrice { source, reserve: reserve?, default_cost };
    alone.then_some(price)
}

/// Reads an amount that may be 0. Reports an amount that a full bucket cannot pay.
fn from_zero(field: &Field<'_>, format: AmountFormat, ceiling: Option<Ceiling>) -> Option<Cost> {
    at_most(field.amount_from_zero(format)?, field, ceiling)
}
