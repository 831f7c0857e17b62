//! Reads the limits of a rule: one in `algorithm_config`, or several in `limits`, with `meter` and `overrides`.

use crate::keys::rules::algorithms::{
    LimitNumbers, NamedAlgorithm, OtherNumbers, ceiling, check_price, cost_source, may_ban, numbers, price,
};
use crate::keys::rules::ban::ban;
use crate::keys::rules::claimed_number::NumberReader;
use crate::keys::rules::cost::CostSource;
use crate::keys::rules::meters::{BucketSettings, Meters};
use crate::keys::rules::names::checked;
use crate::keys::rules::overrides::{OverriddenLimit, OverrideReader};
use crate::language::reader::{Field, Section};
use ledger::algorithm::{Algorithm, AlgorithmKind};
use ledger::money::AmountFormat;
use rules::rule::{Expose, Limit, LimitBan, LimitKey, OnStoreFailure, Price, RefusalStatus};
use rules::settled_price::Unit;

/// The settings of a rule that apply to all of its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedSettings<'k> {
    pub numbers: NumberReader<'k>,
    pub expose: WrittenExpose,
    pub refusal: RefusalStatus,
    pub on_store_failure: OnStoreFailure,
    /// Whether the file has the prices of models, without which no limit counts money.
    pub has_prices: bool,
}

/// Whether clients see the limits of a rule, and whether the rule itself sets this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenExpose {
    Written(Expose),
    /// The default, because the rule has no `expose`. Limits on money are hidden.
    Default(Expose),
}

impl WrittenExpose {
    /// Returns whether clients see a limit with this price.
    fn of(self, price: &Price) -> Expose {
        match (self, price) {
            (WrittenExpose::Default(_), Price::Settled(price)) if price.unit() == Unit::Dollars => Expose::No,
            (WrittenExpose::Written(expose) | WrittenExpose::Default(expose), _) => expose,
        }
    }
}

/// Reads the limits of a rule that charges requests. Each limit gets its overrides. `None` after reporting a problem.
pub(crate) fn rule_limits(
    rule: &Section<'_>,
    shared: SharedSettings<'_>,
    overrides: OverrideReader<'_>,
    meters: &mut Meters,
) -> Option<Vec<Limit>> {
    let algorithm = NamedAlgorithm::of_rule(rule);
    let limits = match (rule.get("algorithm_config"), rule.get("limits")) {
        // If the algorithm is unknown, `algorithm_config` is not read, because its keys are unknown too.
        (Some(field), None) => algorithm.and_then(|known| single(rule, known, field, shared, overrides, meters)),
        (None, Some(field)) => several(rule, algorithm, &field, shared, overrides, meters),
        (Some(_), Some(_)) => {
            rule.unwanted("limits", "must not stand beside `algorithm_config`");
            None
        }
        (None, None) => {
            rule.wrong("algorithm_config", "missing; a rule needs it, or `limits`, or an `action`");
            None
        }
    };
    algorithm?.valid.and(limits)
}

/// Reads the only limit of a rule, and its overrides.
fn single(
    rule: &Section<'_>,
    algorithm: NamedAlgorithm,
    field: Field<'_>,
    shared: SharedSettings<'_>,
    overrides: OverrideReader<'_>,
    meters: &mut Meters,
) -> Option<Vec<Limit>> {
    let mut misplaced = false;
    let written = field.entries();
    let ban = ban(rule);
    if !may_ban(algorithm.kind) {
        rule.unwanted("ban", no_ban(algorithm.kind));
        misplaced = rule.has("ban");
    }
    let read = algorithm.section(field).map(|section| {
        let beside = || "must stand beside `algorithm_config`, not in it".to_owned();
        let ban_problem = if may_ban(algorithm.kind) { beside() } else { no_ban(algorithm.kind) };
        for (key, problem) in [("algorithm", beside()), ("meter", beside()), ("ban", ban_problem)] {
            section.unwanted(key, problem);
            misplaced |= section.has(key);
        }
        let read = ReadLimit::read(algorithm, &section, shared, ban);
        section.close_except(&["ban"]);
        read
    });
    let read = read.unwrap_or(ReadLimit::wrong(algorithm));
    let meter = meters.meter(rule, read.bucket_settings(overrides.keys));
    let own = OverriddenLimit { name: "", numbers: read.others(NumberReader::in_file()), written };
    let overrides = overrides.overrides(rule, own);
    let limit = read.limit(String::new(), shared).filter(|_| !misplaced)?;
    Some(vec![Limit { overrides: overrides?, meter: meter?, ..limit }])
}

/// Returns the problem of a `ban` on this algorithm, which cannot have one.
fn no_ban(kind: AlgorithmKind) -> String {
    format!("must stand on token_bucket or fixed_window, stands on {}", kind.name())
}

/// Reads several limits with their names, and their overrides.
fn several(
    rule: &Section<'_>,
    of_rule: Option<NamedAlgorithm>,
    field: &Field<'_>,
    shared: SharedSettings<'_>,
    overrides: OverrideReader<'_>,
    meters: &mut Meters,
) -> Option<Vec<Limit>> {
    for key in ["meter", "ban"] {
        rule.unwanted(key, "must not stand beside `limits`, but in one of them");
    }
    let pairs = field.pairs()?;
    if pairs.is_empty() {
        field.must("name at least one limit");
        return None;
    }
    let limit_count = pairs.len();
    let mut others = Vec::with_capacity(limit_count);
    // All limits are read, even after an invalid limit.
    let mut limits = Vec::with_capacity(limit_count);
    let (mut queue, mut valid) = (None, !rule.has("meter") && !rule.has("ban"));
    for (text, position, field) in pairs {
        let key = field.clone().at(position);
        let (written, algorithm) = (field.entries(), NamedAlgorithm::of_limit(of_rule, &field));
        let Some((algorithm, section)) = algorithm.and_then(|known| Some((known, known.section(field)?))) else {
            checked(&key, text);
            valid = false;
            continue;
        };
        let ban = if may_ban(algorithm.kind) { ban(&section) } else { Some(None) };
        let read = ReadLimit::read(algorithm, &section, shared, ban);
        let meter = meters.meter(&section, read.bucket_settings(overrides.keys));
        if !may_ban(algorithm.kind) {
            section.unwanted("ban", no_ban(algorithm.kind));
            valid &= !section.has("ban");
        }
        section.close_except(&["ban"]);
        if read.delays()
            && let Some(first) = queue.replace(text)
        {
            let what = format_args!("must not be a second leaky_bucket beside `{first}`: a request waits in one queue");
            key.wrong(what, None);
            valid = false;
        }
        others.push(OverriddenLimit { name: text, numbers: read.others(NumberReader::in_file()), written });
        let limit = checked(&key, text).and_then(|name| read.limit(name.to_owned(), shared));
        limits.push(limit.zip(meter).map(|(limit, meter)| Limit { meter, ..limit }));
    }
    if others.len() < limit_count {
        // The overrides are not read, because an override may name a limit that could not be read.
        return None;
    }
    let overrides = overrides.of_several(rule, &others);
    let limits = limits.into_iter().collect::<Option<Vec<_>>>().filter(|_| valid)?;
    Some(limits.into_iter().zip(overrides?).map(|(limit, overrides)| Limit { overrides, ..limit }).collect())
}

/// The settings of a limit. Invalid settings have been reported.
struct ReadLimit {
    algorithm: NamedAlgorithm,
    /// Whether the file writes amounts as numbers or in USD.
    format: AmountFormat,
    numbers: Option<LimitNumbers>,
    price: Option<Price>,
    candidate: Option<Option<LimitNumbers>>,
    ban: Option<Option<LimitBan>>,
}

impl ReadLimit {
    fn delays(&self) -> bool {
        self.numbers.as_ref().is_some_and(|numbers| numbers.base.delays())
    }

    fn read(
        algorithm: NamedAlgorithm,
        section: &Section<'_>,
        shared: SharedSettings<'_>,
        ban: Option<Option<LimitBan>>,
    ) -> ReadLimit {
        let source = cost_source(algorithm.kind, section);
        let format = source.as_ref().map(CostSource::format).unwrap_or_default();
        let reader = shared.numbers.in_format(format);
        let mut numbers = numbers(algorithm.kind, section, reader);
        let is_of_response = matches!(source, Some(CostSource::Response(_)));
        let ceiling = numbers.as_ref().map(|numbers| ceiling(&numbers.largest(), format));
        let price = price(algorithm.kind, section, source, ceiling, reader.attributes());
        if is_of_response || matches!(price, Some(Price::Settled(_))) {
            numbers = numbers.map(LimitNumbers::into_budget);
        }
        if matches!(&price, Some(Price::Settled(price)) if price.source.resets()) {
            numbers = numbers.map(LimitNumbers::with_resets);
        }
        if let Some(LimitBan { ban, .. }) = ban.flatten() {
            numbers = numbers.map(|numbers| numbers.with_ban(ban));
        }
        let is_priced = shared.has_prices || format != AmountFormat::Dollars;
        if !is_priced {
            section.wrong("cost_source", "`llm_cost` needs `prices`, a file with the prices of models");
        }
        let price = price.filter(|_| is_priced);
        let countable = match (&numbers, &price) {
            (Some(numbers), Some(price)) => check_price(&numbers.base, section, price),
            _ => Some(()),
        };
        let read = ReadLimit { algorithm, format, numbers, price: countable.and(price), candidate: None, ban };
        let candidate = section.optional("shadow", |field| read.others(reader).read(field));
        ReadLimit { candidate, ..read }
    }

    fn wrong(algorithm: NamedAlgorithm) -> ReadLimit {
        ReadLimit { algorithm, format: AmountFormat::Number, numbers: None, price: None, candidate: None, ban: None }
    }

    /// Returns the reader for the limit's overrides and shadow.
    fn others<'n>(&self, numbers: NumberReader<'n>) -> OtherNumbers<'n> {
        let cheapest = self.price.as_ref().map(Price::least);
        OtherNumbers { kind: self.algorithm.kind, own: self.base(), cheapest, numbers: numbers.in_format(self.format) }
    }

    fn base(&self) -> Option<Algorithm> {
        self.numbers.as_ref().map(|numbers| numbers.base)
    }

    fn bucket_settings(&self, keys: Option<&[LimitKey]>) -> BucketSettings {
        let ban_status = self.ban.flatten().map(|ban| ban.status);
        BucketSettings {
            ban_status,
            ..BucketSettings::new(keys, self.algorithm.valid.and(self.base()), self.price.clone())
        }
    }

    fn limit(self, name: String, shared: SharedSettings<'_>) -> Option<Limit> {
        self.algorithm.valid?;
        let (price, numbers, candidate, ban) = (self.price?, self.numbers?, self.candidate?, self.ban?);
        let (least, expose) = (price.least(), shared.expose.of(&price));
        let (algorithm, claimed) = numbers.with_least(least);
        let (candidate, candidate_claimed) = match candidate.map(|numbers| numbers.with_least(least)) {
            Some((algorithm, claimed)) => (Some(algorithm), claimed),
            None => (None, None),
        };
        Some(Limit {
            name,
            meter: None,
            algorithm,
            claimed,
            price,
            candidate,
            candidate_claimed,
            overrides: Vec::new(),
            expose,
            refusal: shared.refusal,
            ban_status: ban.map(|ban| ban.status).unwrap_or_default(),
            on_store_failure: shared.on_store_failure,
        })
    }
}
