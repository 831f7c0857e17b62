//! Reads `weights`: what a token of each kind costs at a limit with `cost_source: llm_tokens`.

use crate::language::key::{Key, Mapping, Type, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::value_types::AMOUNT_FROM_ZERO;
use ledger::cost::Cost;
use rules::settled_price::Weights;

/// The largest weight. With this weight, a limit can still hold a million tokens.
const MAX_WEIGHT: Cost = Cost::from_tokens(1_000_000);

const WEIGHT: Type = Type::Own { text: "0 to 1000000", shape: AMOUNT_FROM_ZERO };

pub(crate) const WEIGHTS: Key = Key::optional(
    "weights",
    Type::Mapping(&WEIGHTS_OF_KINDS),
    "What a token of each kind costs, with `cost_source: llm_tokens`.",
);

static WEIGHTS_OF_KINDS: Mapping = Mapping {
    heading: Some("key in `weights`"),
    definition: Some("weights"),
    keys: &[
        Key::default("input", WEIGHT, "1", "A token that was sent, unless it is one of the other kinds. Also images."),
        Key::default("output", WEIGHT, "1", "A token that the model wrote, also of its reasoning."),
        Key::default("cached", WEIGHT, "1", "A token that was sent and read from a cache."),
        Key::default("cache_write", WEIGHT, "1", "A token that was sent and written to a cache."),
    ],
    constraints: unconstrained,
};

/// Reads `weights` of a limit. Without the key, every token costs 1. `None` after reporting a problem.
pub(crate) fn weights(limit: &Section<'_>) -> Option<Weights> {
    limit.optional("weights", read).map(Option::unwrap_or_default)
}

fn read(field: Field<'_>) -> Option<Weights> {
    let section = field.clone().section(&WEIGHTS_OF_KINDS)?;
    let input = section.value("input", |field| weight(&field));
    let output = section.value("output", |field| weight(&field));
    let cached = section.value("cached", |field| weight(&field));
    let cache_write = section.value("cache_write", |field| weight(&field));
    section.close();
    let weights = Weights { input: input?, output: output?, cached: cached?, cache_write: cache_write? };
    let Weights { input, output, cached, cache_write } = &weights;
    if [input, output, cached, cache_write].into_iter().all(|weight| *weight == Cost::default()) {
        field.wrong("must have a weight above 0", None);
        return None;
    }
    Some(weights)
}

fn weight(field: &Field<'_>) -> Option<Cost> {
    let weight = field.cost_from_zero()?;
    if weight > MAX_WEIGHT {
        field.must(format_args!("be at most {MAX_WEIGHT}"));
        return None;
    }
    Some(weight)
}
