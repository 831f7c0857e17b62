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
use crate::keys::rules::scope::{GlobalTerms, HomeTerms, SCOPE_KEYS, check_global, scope};
use crate::language::reader::{Field, Section};
use ledger::algorithm::{Algorithm, AlgorithmKind};
use ledger::cost::Cost;
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
    /// The same for limits over several regions.
    pub global_on_store_failure: OnStoreFailure,
    /// Whether the file has the prices of models, without which no limit counts money.
    pub has_prices: bool,
    /// What limits over several regions need to know of home. `None` if the file has no home.
    pub home: Option<HomeTerms>,
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
    let global = if may_ban(algorithm.kind) { scope(rule, shared.home) } else { Some(None) };
    if !may_ban(algorithm.kind) {
        misplaced = unwanted_beside(rule, algorithm.kind);
    }
    let read = algorithm.section(field).map(|section| {
        let beside = || "must stand beside `algorithm_config`, not in it".to_owned();
        if !may_ban(algorithm.kind) {
            misplaced |= unwanted_beside(&section, algorithm.kind);
        }
        for key in ["algorithm", "meter", "ban", "scope", "lease"] {
            if may_ban(algorithm.kind) || !SPENT_LIMIT_KEYS.contains(&key) {
                section.unwanted(key, beside());
            }
            misplaced |= section.has(key);
        }
        let read = ReadLimit::read(algorithm, &section, shared, (ban, global));
        section.close_except(&SPENT_LIMIT_KEYS);
        read
    });
    let read = read.unwrap_or(ReadLimit::wrong(algorithm));
    let meter = meters.meter(rule, read.bucket_settings(overrides.keys));
    let own = OverriddenLimit { name: "", numbers: read.others(NumberReader::in_file()), written };
    let overrides = overrides.overrides(rule, own);
    let limit = read.limit(String::new(), shared).filter(|_| !misplaced)?;
    let limit = Limit { overrides: overrides?, meter: meter?, ..limit };
    Some(vec![over_regions(limit, global?.zip(rule.get("scope")))?])
}

/// The keys that only a token bucket or a fixed window may have.
const SPENT_LIMIT_KEYS: [&str; 3] = ["ban", SCOPE_KEYS[0], SCOPE_KEYS[1]];

/// Reports the keys that a limit with this algorithm cannot have. Returns whether there was one.
fn unwanted_beside(section: &Section<'_>, kind: AlgorithmKind) -> bool {
    for key in SPENT_LIMIT_KEYS {
        section.unwanted(key, format_args!("must stand on token_bucket or fixed_window, stands on {}", kind.name()));
    }
    SPENT_LIMIT_KEYS.iter().any(|key| section.has(key))
}

/// Makes a limit hold over all regions, if it has `scope: global`.
fn over_regions(limit: Limit, global: Option<(GlobalTerms, Field<'_>)>) -> Option<Limit> {
    match global {
        Some((global, field)) => global.limit(limit, &field),
        None => Some(limit),
    }
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
    for key in ["meter", "ban", "scope", "lease"] {
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
    let (mut queue, mut valid) = (None, !rule.has("meter") && !SPENT_LIMIT_KEYS.iter().any(|key| rule.has(key)));
    for (text, position, field) in pairs {
        let key = field.clone().at(position);
        let (written, algorithm) = (field.entries(), NamedAlgorithm::of_limit(of_rule, &field));
        let Some((algorithm, section)) = algorithm.and_then(|known| Some((known, known.section(field)?))) else {
            checked(&key, text);
            valid = false;
            continue;
        };
        let (ban, global, field) = match may_ban(algorithm.kind) {
            true => (ban(&section), scope(&section, shared.home), section.get("scope")),
            false => (Some(None), Some(None), None),
        };
        let read = ReadLimit::read(algorithm, &section, shared, (ban, global));
        let meter = meters.meter(&section, read.bucket_settings(overrides.keys));
        if !may_ban(algorithm.kind) {
            valid &= !unwanted_beside(&section, algorithm.kind);
        }
        section.close_except(&SPENT_LIMIT_KEYS);
        if read.delays()
            && let Some(first) = queue.replace(text)
        {
            let what = format_args!("must not be a second leaky_bucket beside `{first}`: a request waits in one queue");
            key.wrong(what, None);
            valid = false;
        }
        others.push(OverriddenLimit { name: text, numbers: read.others(NumberReader::in_file()), written });
        let limit = checked(&key, text).and_then(|name| read.limit(name.to_owned(), shared));
        limits.push(limit.zip(meter).map(|(limit, meter)| (Limit { meter, ..limit }, global.flatten().zip(field))));
    }
    if others.len() < limit_count {
        // The overrides are not read, because an override may name a limit that could not be read.
        return None;
    }
    let overrides = overrides.of_several(rule, &others);
    let limits = limits.into_iter().collect::<Option<Vec<_>>>().filter(|_| valid)?;
    let limits = limits.into_iter().zip(overrides?);
    limits.map(|((limit, global), overrides)| over_regions(Limit { overrides, ..limit }, global)).collect()
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
    /// The settings of a limit over several regions.
    global: Option<Option<GlobalTerms>>,
}

impl ReadLimit {
    fn delays(&self) -> bool {
        self.numbers.as_ref().is_some_and(|numbers| numbers.base.delays())
    }

    fn read(
        algorithm: NamedAlgorithm,
        section: &Section<'_>,
        shared: SharedSettings<'_>,
        (ban, global): (Option<Option<LimitBan>>, Option<Option<GlobalTerms>>),
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
        let is_countable = global.flatten().is_none() || check_global(section, price.as_ref()).is_some();
        let price = price.filter(|_| is_priced && is_countable);
        let countable = match (&numbers, &price) {
            (Some(numbers), Some(price)) => check_price(&numbers.base, section, price),
            _ => Some(()),
        };
        let price = countable.and(price);
        let read = ReadLimit { algorithm, format, numbers, price, candidate: None, ban, global };
        let candidate = section.optional("shadow", |field| read.others(reader).read(field));
        ReadLimit { candidate, ..read }
    }

    fn wrong(algorithm: NamedAlgorithm) -> ReadLimit {
        let format = AmountFormat::Number;
        ReadLimit { algorithm, format, numbers: None, price: None, candidate: None, ban: None, global: None }
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
        let over_regions = |base| self.global.flatten().map_or(base, |global| global.apply(base, Cost::default()));
        let algorithm = self.algorithm.valid.and(self.base()).map(over_regions);
        BucketSettings { ban_status, ..BucketSettings::new(keys, algorithm, self.price.clone()) }
    }

    fn limit(self, name: String, shared: SharedSettings<'_>) -> Option<Limit> {
        self.algorithm.valid?;
        let (price, numbers, candidate, ban) = (self.price?, self.numbers?, self.candidate?, self.ban?);
        let on_store_failure = match self.global? {
            Some(_) => shared.global_on_store_failure,
            None => shared.on_store_failure,
        };
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
            on_store_failure,
        })
    }
}
