//! Reads the numbers of limits: `algorithm` with its `algorithm_config`, or several at once under `limits`.

use super::reader::{Field, Section};
use crate::base::position::Position;
use crate::base::time::Micros;
use crate::limit::algorithm::Algorithm;
use crate::limit::algorithm::token_bucket::{NAME as TOKEN_BUCKET, Rate, TokenBucket, Unfit};
use crate::limit::attribute::Attribute;
use crate::limit::cost::Cost;
use crate::limit::rule::{Expose, Limit, OnStoreFailure, Price, RefusalStatus};

/// What a rule says of all its limits.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    pub expose: Expose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
}

/// The limits of a rule that charges.
pub fn limits(rule: &Section<'_>, shared: Shared) -> Option<Vec<Limit>> {
    let single = rule.get("algorithm_config");
    let several = rule.get("limits");
    let overrides = rule.get("overrides");
    // Numbers are looked at as if they were meant for the only algorithm that there is.
    let algorithm = rule.get("algorithm").map_or(Some(()), |field| field.choice(&[(TOKEN_BUCKET, ())]));
    let limits = charged(rule, single, several, overrides, shared);
    algorithm.and(limits)
}

fn charged(
    rule: &Section<'_>,
    single: Option<Field<'_>>,
    several: Option<Field<'_>>,
    overrides: Option<Field<'_>>,
    shared: Shared,
) -> Option<Vec<Limit>> {
    match (single, several) {
        (Some(single), None) => {
            let mut limit = limit(String::new(), single, shared);
            if let Some(overrides) = overrides {
                let cheapest = limit.as_ref().map(|limit| limit.price.least());
                let overrides = self::overrides(&overrides, cheapest);
                limit = limit.and_then(|limit| Some(Limit { overrides: overrides?, ..limit }));
            }
            Some(vec![limit?])
        }
        (None, Some(several)) => {
            rule.unwanted("overrides", "must not stand beside `limits`: which of them they change cannot be said");
            let pairs = several.pairs()?;
            if pairs.is_empty() {
                several.must("name at least one limit");
                return None;
            }
            let limits: Vec<_> = pairs
                .into_iter()
                .map(|(name, place, field)| {
                    let named = crate::config::rules::check_name(&field.clone().at(place), name);
                    let limit = limit(name.to_owned(), field, shared);
                    limit.filter(|_| named)
                })
                .collect();
            limits.into_iter().collect()
        }
        (Some(_), Some(_)) => {
            rule.unwanted("limits", "must not stand beside `algorithm_config`");
            None
        }
        (None, None) => {
            rule.wrong("algorithm_config", "missing; a rule needs it, or `limits`, or an `action`");
            None
        }
    }
}

fn limit(name: String, field: Field<'_>, shared: Shared) -> Option<Limit> {
    let section = field.section()?;
    let numbers = numbers(&section);
    let price = price(&section, numbers.map(|numbers| numbers.burst()));
    let cheapest = price.as_ref().map(Price::least);
    let candidate = section.get("shadow").map(|field| {
        let section = field.clone().section()?;
        let candidate = affordable(&field, self::numbers(&section), cheapest);
        section.close();
        candidate
    });
    section.close();
    let candidate = match candidate {
        Some(candidate) => Some(Algorithm::TokenBucket(candidate?)),
        None => None,
    };
    Some(Limit {
        name,
        algorithm: Algorithm::TokenBucket(numbers?),
        price: price?,
        overrides: Vec::new(),
        candidate,
        expose: shared.expose,
        refusal: shared.refusal,
        on_store_failure: shared.on_store_failure,
    })
}

/// `cheapest` is the least that a request pays: a bucket that cannot hold it would refuse everything, for ever.
fn overrides(field: &Field<'_>, cheapest: Option<Cost>) -> Option<Vec<(String, Algorithm)>> {
    let read = |(value, _, field): (&str, Position, Field<'_>)| {
        let section = field.clone().section()?;
        let numbers = affordable(&field, numbers(&section), cheapest);
        section.close();
        Some((value.to_owned(), Algorithm::TokenBucket(numbers?)))
    };
    // Each is looked at, also behind one that is wrong.
    let overrides: Vec<_> = field.pairs()?.into_iter().map(read).collect();
    overrides.into_iter().collect()
}

fn affordable(field: &Field<'_>, bucket: Option<TokenBucket>, cheapest: Option<Cost>) -> Option<TokenBucket> {
    let (bucket, cheapest) = (bucket?, cheapest.unwrap_or_default());
    if bucket.burst() < cheapest {
        let burst = bucket.burst();
        field.wrong(format_args!("the burst must be at least what a request costs ({cheapest}), is {burst}"), None);
        return None;
    }
    Some(bucket)
}

/// Rate and burst.
pub fn numbers(section: &Section<'_>) -> Option<TokenBucket> {
    let tokens_per_second = section.get("tokens_per_second");
    let rps = section.get("rps");
    let rate = section.get("rate");
    let burst = section.get("burst");
    // Looked at here, so that it is whatever else is wrong.
    let written_burst = burst.as_ref().map(|field| field.whole(1..=u64::MAX));
    let per_second = |field: &Field<'_>| Some(Rate { amount: field.cost()?, period: Micros(1_000_000) });
    let (rate, implied_burst, written) = match (&tokens_per_second, &rps, &rate) {
        (None, None, None) => {
            section.wrong("rps", "missing; a rate is `rps`, `tokens_per_second` or `rate`");
            return None;
        }
        (None, None, Some(field)) => {
            let rate = field.written().and_then(parse_rate);
            if rate.is_none() {
                field.must("be a rate like 20/s, 600/min, 5000/hour, 10000/day or 100/15m");
            }
            (rate, rate.map(|rate| rate.amount.whole()), field)
        }
        (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            section.unwanted("rate", "must not stand beside `rps` or `tokens_per_second`");
            return None;
        }
        // Both are looked at; if both are given, the longer name counts.
        (Some(field), rps, None) => {
            let rate = per_second(field);
            (rate.filter(|_| rps.as_ref().is_none_or(|rps| per_second(rps).is_some())), None, field)
        }
        (None, Some(field), None) => (per_second(field), None, field),
    };
    let implied = burst.is_none();
    let (burst, at_burst) = match (&burst, implied_burst) {
        (Some(field), _) => (written_burst.flatten(), field),
        (None, Some(burst)) => (Some(burst), written),
        (None, None) if rate.is_some() => {
            section.wrong("burst", "missing; needed with `rps`");
            return None;
        }
        (None, None) => return None,
    };
    let (rate, burst) = (rate?, burst?);
    if u128::from(burst) * 1000 * u128::from(rate.period.0) < u128::from(rate.amount.thousandths()) * 1_000_000 {
        // In tokens per second, rounded up to what can be written.
        let per_second = (u128::from(rate.amount.thousandths()) * 1_000_000).div_ceil(u128::from(rate.period.0));
        let per_second = Cost::from_thousandths(u64::try_from(per_second).unwrap_or(u64::MAX));
        at_burst.must(format_args!("be at least the refill rate ({per_second})"));
        return None;
    }
    match TokenBucket::new(rate, burst) {
        Ok(bucket) => Some(bucket),
        Err(Unfit::TooLarge { largest: 0 }) => {
            written.must("be a rate that can be kept exactly in 53 bits");
            None
        }
        Err(Unfit::TooLarge { largest }) if implied => {
            written.wrong(
                format_args!("its burst, {burst}, must be at most {largest} to be kept exactly; give a `burst`"),
                None,
            );
            None
        }
        Err(Unfit::TooLarge { largest }) => {
            at_burst.must(format_args!("be at most {largest} to be kept exactly at this rate"));
            None
        }
        Err(Unfit::Zero) => {
            written.must("be above 0");
            None
        }
    }
}

/// `10000/day`: whole tokens in a second, minute, hour, day or any duration.
pub fn parse_rate(text: &str) -> Option<Rate> {
    let (amount, period) = text.split_once('/')?;
    let amount = amount.bytes().all(|byte| byte.is_ascii_digit()).then(|| amount.parse::<u64>().ok()).flatten()?;
    let period = match period {
        "s" => Micros(1_000_000),
        "min" => Micros(60_000_000),
        "hour" => Micros(3_600_000_000),
        "day" => Micros(86_400_000_000),
        duration => crate::config::reader::parse_duration(duration)?,
    };
    (amount > 0 && amount <= u64::MAX / 1000 && period.0 > 0)
        .then_some(Rate { amount: Cost::from_tokens(amount), period })
}

/// What a request pays. Bounds against the burst are checked when that is known.
fn price(section: &Section<'_>, burst: Option<Cost>) -> Option<Price> {
    let cost = |key, bounded: bool| match section.get(key) {
        None => Some(None),
        Some(field) => {
            let cost = field.cost()?;
            if bounded && burst.is_some_and(|burst| cost > burst) {
                field.must(format_args!("be at most the burst ({})", burst.unwrap_or_default()));
                return None;
            }
            Some(Some(cost))
        }
    };
    let source = section.get("cost_source").map(|field| source(&field));
    let (fixed, default) = (cost("fixed_cost", true), cost("default_cost", true));
    let (min, max) = (cost("min_cost", true), cost("max_cost", false));
    let (fixed, default, min, max) = (fixed?, default?, min?, max?);
    let min = min.unwrap_or(Cost::ONE);
    if let (Some(max), Some(field)) = (max, section.get("max_cost"))
        && max < min
    {
        field.must(format_args!("be at least min_cost ({min})"));
        return None;
    }
    match source {
        None => Some(Price::Fixed(fixed.unwrap_or(Cost::ONE))),
        Some(source) => Some(match source? {
            None => Price::Fixed(fixed.unwrap_or(Cost::ONE)),
            Some(attribute) => Price::Asked { attribute, default: default.unwrap_or(Cost::ONE), min, max },
        }),
    }
}

/// `fixed` is none.
fn source(field: &Field<'_>) -> Option<Option<Attribute>> {
    let text = field.text()?;
    if text == "fixed" {
        return Some(None);
    }
    match Attribute::parse(text) {
        Ok(attribute @ (Attribute::Header(_) | Attribute::Query(_))) => Some(Some(attribute)),
        _ => {
            let hint = crate::config::rules::meant(text, &["fixed", "header:<name>", "query:<name>"]);
            field.must_hinting("be fixed, header:<name> or query:<name>", hint);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_so_many_in_a_period() {
        let day = Micros(86_400_000_000);
        assert_eq!(parse_rate("10000/day"), Some(Rate { amount: Cost::from_tokens(10_000), period: day }));
        assert_eq!(parse_rate("7/15m").map(|rate| rate.period), Some(Micros(900_000_000)));
        for text in ["", "10", "/day", "0/day", "10/", "10/week", "1.5/s", "-1/s", "10/0s", "99999999999999999999/s"] {
            assert_eq!(parse_rate(text), None, "{text}");
        }
    }
}
