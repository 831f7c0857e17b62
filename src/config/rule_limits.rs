//! Reads the limits of a rule: `algorithm` with its `algorithm_config`, or several under `limits`, and `overrides`.

use serde_json::json;

use super::cost::{COST_SOURCE, DEFAULT_COST, FIXED_COST, MAX_COST, MIN_COST, price};
use super::key::{Key, Mapping, Type};
use super::names::checked;
use super::overrides::OverrideReader;
use super::rate::{BURST, NUMBERS, RATE, RPS, TOKENS_PER_SECOND, affordable, token_bucket};
use super::reader::{Field, Section};
use crate::base::position::Position;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::token_bucket::NAME as TOKEN_BUCKET;
use crate::limit::rule::{Expose, Limit, OnStoreFailure, Price, RefusalStatus};

pub static LIMIT: Mapping = Mapping {
    heading: Some("key of a limit"),
    definition: Some("limit"),
    keys: &[
        RPS,
        TOKENS_PER_SECOND,
        RATE,
        BURST,
        COST_SOURCE,
        FIXED_COST,
        DEFAULT_COST,
        MIN_COST,
        MAX_COST,
        Key::optional(
            "shadow",
            Type::Mapping(&NUMBERS),
            "[Numbers to try](#shadow) in addition to these: counted, never refusing.",
        ),
    ],
    constraints: || json!({"allOf": [{"$ref": "#/definitions/rated"}]}),
};

/// The settings that all limits of a rule share.
#[derive(Clone, Copy, Debug)]
pub struct SharedSettings {
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
}

/// The limits of a rule that charges.
pub fn rule_limits(rule: &Section<'_>, shared: SharedSettings, overrides: OverrideReader<'_>) -> Option<Vec<Limit>> {
    // The numbers are checked in any case: there is only one algorithm that they can be meant for.
    let algorithm = rule.choice("algorithm", &[(TOKEN_BUCKET, ())]);
    let limits = match (rule.get("algorithm_config"), rule.get("limits")) {
        (Some(field), None) => single(rule, field, shared, overrides),
        (None, Some(field)) => several(rule, &field, shared),
        (Some(_), Some(_)) => {
            rule.unwanted("limits", "must not stand beside `algorithm_config`");
            None
        }
        (None, None) => {
            rule.wrong("algorithm_config", "missing; a rule needs it, or `limits`, or an `action`");
            None
        }
    };
    algorithm.and(limits)
}

/// The only limit of a rule, with its overrides.
fn single(
    rule: &Section<'_>,
    field: Field<'_>,
    shared: SharedSettings,
    overrides: OverrideReader<'_>,
) -> Option<Vec<Limit>> {
    let limit = limit(String::new(), field, shared);
    let cheapest = limit.as_ref().map(|limit| limit.price.least());
    let overrides = overrides.overrides(rule, cheapest);
    let (limit, overrides) = (limit?, overrides?);
    Some(vec![Limit { overrides, ..limit }])
}

/// Several limits, each under its name.
fn several(rule: &Section<'_>, field: &Field<'_>, shared: SharedSettings) -> Option<Vec<Limit>> {
    rule.unwanted("overrides", "must not stand beside `limits`: which of them they change cannot be said");
    let pairs = field.pairs()?;
    if pairs.is_empty() {
        field.must("name at least one limit");
        return None;
    }
    let read = |(name, position, field): (&str, Position, Field<'_>)| {
        let name = checked(&field.clone().at(position), name);
        let limit = limit(name.unwrap_or_default().to_owned(), field, shared);
        limit.filter(|_| name.is_some())
    };
    // All are read before any that is wrong ends the whole.
    let limits: Vec<_> = pairs.into_iter().map(read).collect();
    limits.into_iter().collect()
}

fn limit(name: String, field: Field<'_>, shared: SharedSettings) -> Option<Limit> {
    let section = field.section(&LIMIT)?;
    let bucket = token_bucket(&section);
    let price = price(&section, bucket.map(|bucket| bucket.burst()));
    let cheapest = price.as_ref().map(Price::least);
    let candidate = section.optional("shadow", |field| affordable(field, cheapest));
    section.close();
    Some(Limit {
        name,
        candidate: candidate?.map(Algorithm::TokenBucket),
        algorithm: Algorithm::TokenBucket(bucket?),
        price: price?,
        overrides: Vec::new(),
        expose: shared.expose,
        refusal: shared.refusal,
        on_store_failure: shared.on_store_failure,
    })
}
