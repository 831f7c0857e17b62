//! Reads the limits of a rule: `algorithm` with its `algorithm_config`, or several under `limits`, and `overrides`.

use super::algorithms::{NamedAlgorithm, OtherNumbers, ceiling, check_price, numbers};
use super::claimed_number::NumberReader;
use super::cost::price;
use super::names::checked;
use super::overrides::OverrideReader;
use super::reader::{Field, Section};
use crate::base::position::Position;
use crate::limit::rule::{Expose, Limit, OnStoreFailure, Price, RefusalStatus};

/// The settings that all limits of a rule share.
#[derive(Clone, Copy, Debug)]
pub struct SharedSettings<'k> {
    pub numbers: NumberReader<'k>,
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
}

/// The limits of a rule that charges.
pub fn rule_limits(
    rule: &Section<'_>,
    shared: SharedSettings<'_>,
    overrides: OverrideReader<'_>,
) -> Option<Vec<Limit>> {
    let algorithm = NamedAlgorithm::of_rule(rule);
    let limits = match (rule.get("algorithm_config"), rule.get("limits")) {
        (Some(field), None) => single(rule, algorithm, field, shared, overrides),
        (None, Some(field)) => several(rule, algorithm, &field, shared),
        (Some(_), Some(_)) => {
            rule.unwanted("limits", "must not stand beside `algorithm_config`");
            None
        }
        (None, None) => {
            rule.wrong("algorithm_config", "missing; a rule needs it, or `limits`, or an `action`");
            None
        }
    };
    algorithm.valid.and(limits)
}

/// The only limit of a rule, with its overrides.
fn single(
    rule: &Section<'_>,
    algorithm: NamedAlgorithm,
    field: Field<'_>,
    shared: SharedSettings<'_>,
    overrides: OverrideReader<'_>,
) -> Option<Vec<Limit>> {
    let limit = algorithm.section(field).and_then(|section| {
        section.unwanted("algorithm", "must stand beside `algorithm_config`, not in it");
        let misplaced = section.has("algorithm");
        limit(String::new(), algorithm, section, shared).filter(|_| !misplaced)
    });
    let own = limit.as_ref().map(|limit| limit.algorithm);
    let cheapest = limit.as_ref().map(|limit| limit.price.least());
    let numbers = NumberReader::in_file();
    let overrides = overrides.overrides(rule, OtherNumbers { kind: algorithm.kind, own, cheapest, numbers });
    let (limit, overrides) = (limit?, overrides?);
    Some(vec![Limit { overrides, ..limit }])
}

/// Several limits, each under its name.
fn several(
    rule: &Section<'_>,
    algorithm: NamedAlgorithm,
    field: &Field<'_>,
    shared: SharedSettings<'_>,
) -> Option<Vec<Limit>> {
    rule.unwanted("overrides", "must not stand beside `limits`: which of them they change cannot be said");
    let pairs = field.pairs()?;
    if pairs.is_empty() {
        field.must("name at least one limit");
        return None;
    }
    let read = |(name, position, field): (&str, Position, Field<'_>)| {
        let name = checked(&field.clone().at(position), name);
        let algorithm = algorithm.of_limit(&field)?;
        let limit = limit(name.unwrap_or_default().to_owned(), algorithm, algorithm.section(field)?, shared);
        limit.filter(|_| name.is_some() && algorithm.valid.is_some())
    };
    // All are read before any that is wrong ends the whole.
    let limits: Vec<_> = pairs.into_iter().map(read).collect();
    limits.into_iter().collect()
}

fn limit(name: String, algorithm: NamedAlgorithm, section: Section<'_>, shared: SharedSettings<'_>) -> Option<Limit> {
    let numbers = numbers(algorithm.kind, &section, shared.numbers);
    let price = price(&section, numbers.as_ref().map(|numbers| ceiling(&numbers.largest())));
    let countable = match (&numbers, &price) {
        (Some(numbers), Some(price)) => check_price(&numbers.base, &section, price),
        _ => Some(()),
    };
    let cheapest = price.as_ref().filter(|_| countable.is_some()).map(Price::least);
    let own = numbers.as_ref().map(|numbers| numbers.base);
    let others = OtherNumbers { kind: algorithm.kind, own, cheapest, numbers: shared.numbers };
    let candidate = section.optional("shadow", |field| others.read(field));
    section.close();
    countable?;
    let (price, numbers, candidate) = (price?, numbers?, candidate?);
    let least = price.least();
    let (algorithm, claimed) = numbers.with_least(least);
    let (candidate, candidate_claimed) = match candidate.map(|numbers| numbers.with_least(least)) {
        Some((algorithm, claimed)) => (Some(algorithm), claimed),
        None => (None, None),
    };
    Some(Limit {
        name,
        algorithm,
        claimed,
        price,
        candidate,
        candidate_claimed,
        overrides: Vec::new(),
        expose: shared.expose,
        refusal: shared.refusal,
        on_store_failure: shared.on_store_failure,
    })
}
