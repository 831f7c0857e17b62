//! Reads the numbers of a limit. Each algorithm has a file, which declares and reads the algorithm's keys.
//!
//! A new algorithm needs its file, its mappings in the lists, and an arm in each `match` of this file.

mod concurrency;
mod fixed_window;
mod leaky_bucket;
mod sliding_log;
mod sliding_window;
pub(crate) mod token_bucket;
mod windowed;

use serde_json::{Value, json};

use crate::keys::rules::attribute::AttributeReader;
use crate::keys::rules::ban::{BAN_OF_LIMIT, banning};
use crate::keys::rules::claimed_number::NumberReader;
use crate::keys::rules::cost::{self, Ceiling, CostSource};
use crate::keys::rules::settled_cost::{self, budget, resetting, without_holds};
use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::suggest::listed;
use ledger::algorithm::ban::Ban;
use ledger::algorithm::sliding_log::MAX_LIMIT;
use ledger::algorithm::{Algorithm, AlgorithmKind};
use ledger::cost::Cost;
use ledger::money::AmountFormat;
use rules::claimed_numbers::{ClaimedNumber, ClaimedNumbers};
use rules::rule::{OverrideNumbers, Price};

const CHOICES: [(&str, AlgorithmKind); 6] = [
    (AlgorithmKind::TokenBucket.name(), AlgorithmKind::TokenBucket),
    (AlgorithmKind::FixedWindow.name(), AlgorithmKind::FixedWindow),
    (AlgorithmKind::SlidingLog.name(), AlgorithmKind::SlidingLog),
    (AlgorithmKind::SlidingWindow.name(), AlgorithmKind::SlidingWindow),
    (AlgorithmKind::LeakyBucket.name(), AlgorithmKind::LeakyBucket),
    (AlgorithmKind::Concurrency.name(), AlgorithmKind::Concurrency),
];
/// Values of `cost_source` that may be written in place of an algorithm by mistake.
const COST_SOURCES: [&str; 2] = ["llm_tokens", "llm_cost"];
const NAME: Type = Type::Choice(&names(&CHOICES));
const DEFAULT: AlgorithmKind = AlgorithmKind::TokenBucket;

/// Matches a token bucket of any kind.
macro_rules! token_buckets {
    () => {
        AlgorithmKind::TokenBucket
            | AlgorithmKind::TokenBudget
            | AlgorithmKind::TokenBucketWithBan
            | AlgorithmKind::TokenBudgetWithBan
            | AlgorithmKind::TokenBudgetWithResets
            | AlgorithmKind::TokenBudgetWithResetsAndBan
            | AlgorithmKind::TokenPurse
            | AlgorithmKind::TokenHome
    };
}

/// Matches a fixed window of any kind.
macro_rules! fixed_windows {
    () => {
        AlgorithmKind::FixedWindow
            | AlgorithmKind::WindowBudget
            | AlgorithmKind::FixedWindowWithBan
            | AlgorithmKind::WindowBudgetWithBan
            | AlgorithmKind::WindowBudgetWithResets
            | AlgorithmKind::WindowBudgetWithResetsAndBan
            | AlgorithmKind::WindowPurse
            | AlgorithmKind::WindowHome
    };
}

/// The declaration of the key `algorithm` of a rule.
pub(crate) const ALGORITHM: Key = Key::default("algorithm", NAME, DEFAULT.name(), "The algorithm that counts.");

/// The declaration of the key `algorithm` of one of several limits.
const ALGORITHM_OF_LIMIT: Key = Key::depends("algorithm", NAME, "that of the rule", "The algorithm that counts.");

/// Declares the key `meter` of a limit, for rules with several limits.
const METER_OF_LIMIT: Key =
    Key::optional("meter", crate::language::key::NAME, "The counter that it shares with other rules.");

/// The mappings that describe a limit of a rule, one for each algorithm.
pub(crate) const LIMIT: &[&Mapping] = &[
    &token_bucket::LIMIT,
    &fixed_window::LIMIT,
    &sliding_log::LIMIT,
    &sliding_window::LIMIT,
    &leaky_bucket::LIMIT,
    &concurrency::LIMIT,
];
/// The mappings that describe the settings in an override, one for each algorithm.
pub(crate) const NUMBERS: &[&Mapping] = &[
    &token_bucket::NUMBERS,
    &fixed_window::NUMBERS,
    &sliding_log::NUMBERS,
    &sliding_window::NUMBERS,
    &leaky_bucket::NUMBERS,
    &concurrency::NUMBERS,
    &UNLIMITED,
];

const UNLIMITED_LIMIT: &str = "unlimited";

static UNLIMITED: Mapping = Mapping {
    heading: Some("key of an override without a limit"),
    definition: Some("unlimited"),
    keys: &[Key::required("limit", Type::Choice(&[UNLIMITED_LIMIT]), "Nothing is charged.")],
    constraints: unconstrained,
};

/// Returns whether a limit with this algorithm may have a `ban`.
pub(crate) fn may_ban(kind: AlgorithmKind) -> bool {
    limit_keys(kind).key(BAN_OF_LIMIT.name).is_some()
}

fn limit_keys(kind: AlgorithmKind) -> &'static Mapping {
    match kind {
        token_buckets!() => &token_bucket::LIMIT,
        fixed_windows!() => &fixed_window::LIMIT,
        AlgorithmKind::SlidingLog => &sliding_log::LIMIT,
        AlgorithmKind::SlidingWindow => &sliding_window::LIMIT,
        AlgorithmKind::LeakyBucket => &leaky_bucket::LIMIT,
        AlgorithmKind::Concurrency => &concurrency::LIMIT,
    }
}

fn number_keys(kind: AlgorithmKind) -> &'static Mapping {
    match kind {
        token_buckets!() => &token_bucket::NUMBERS,
        fixed_windows!() => &fixed_window::NUMBERS,
        AlgorithmKind::SlidingLog => &sliding_log::NUMBERS,
        AlgorithmKind::SlidingWindow => &sliding_window::NUMBERS,
        AlgorithmKind::LeakyBucket => &leaky_bucket::NUMBERS,
        AlgorithmKind::Concurrency => &concurrency::NUMBERS,
    }
}

/// The rate and size of a limit, as the file gives them. Credentials may supply some of these values.
#[derive(Clone, Debug)]
pub(crate) struct LimitNumbers {
    /// The algorithm with the largest rate and size that a request can have.
    pub base: Algorithm,
    /// The values that credentials supply. Empty if the file gives all values itself.
    pub claimed: Vec<ClaimedNumber>,
}

impl LimitNumbers {
    /// Returns the same rate and size for a budget, whose costs are known only when a request has ended.
    pub(crate) fn into_budget(self) -> LimitNumbers {
        LimitNumbers { base: budget(self.base), ..self }
    }

    /// Returns the same rate and size for a budget that requests can also reset.
    pub(crate) fn with_resets(self) -> LimitNumbers {
        LimitNumbers { base: resetting(self.base), ..self }
    }

    /// Returns the same rate and size for a limit that bans.
    pub(crate) fn with_ban(self, ban: Ban) -> LimitNumbers {
        LimitNumbers { base: banning(self.base, ban), ..self }
    }

    /// Returns the algorithm for a request whose credentials supply the largest possible values.
    pub(crate) fn largest(&self) -> Algorithm {
        self.clone().claimed(Cost::default()).map_or(self.base, |claimed| claimed.largest())
    }

    /// Returns the algorithm for a request without values from credentials, and the values that credentials can supply.
    /// `least` is the smallest cost of a request.
    pub(crate) fn with_least(self, least: Cost) -> (Algorithm, Option<ClaimedNumbers>) {
        let base = self.base;
        let claimed = self.claimed(least);
        (claimed.as_ref().map_or(base, ClaimedNumbers::by_default), claimed)
    }

    fn claimed(self, least: Cost) -> Option<ClaimedNumbers> {
        let LimitNumbers { base, claimed: numbers } = self;
        (!numbers.is_empty()).then_some(ClaimedNumbers { base, least, numbers })
    }
}

/// Reads the rate and size of a limit with this algorithm. `None` after reporting a problem.
pub(crate) fn numbers(kind: AlgorithmKind, section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    match kind {
        token_buckets!() => token_bucket::token_bucket(section, reader),
        fixed_windows!() => fixed_window::fixed_window(section, reader),
        AlgorithmKind::SlidingLog => sliding_log::sliding_log(section, reader),
        AlgorithmKind::SlidingWindow => sliding_window::sliding_window(section, reader),
        AlgorithmKind::LeakyBucket => leaky_bucket::leaky_bucket(section, reader),
        AlgorithmKind::Concurrency => concurrency::concurrency(section, reader),
    }
}

/// Returns the highest cost that a request can pay under this algorithm, and the name of the setting that bounds the cost.
/// `format` is how the file writes amounts.
pub(crate) fn ceiling(algorithm: &Algorithm, format: AmountFormat) -> Ceiling {
    let name = match algorithm {
        Algorithm::TokenBucket(_) => "burst",
        Algorithm::Budget(budget) if budget.limit().token_bucket().is_some() => "burst",
        Algorithm::Purse(purse) if purse.limit().token_bucket().is_some() => "burst",
        Algorithm::Home(home) if home.limit().token_bucket().is_some() => "burst",
        Algorithm::FixedWindow(_)
        | Algorithm::SlidingLog(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::Concurrency(_)
        | Algorithm::Budget(_)
        | Algorithm::Purse(_)
        | Algorithm::Home(_) => "limit",
        Algorithm::LeakyBucket(_) => "number of places",
    };
    Ceiling { cost: algorithm.ceiling(), name, format }
}

/// Reads what a request costs at a limit with this algorithm. `source` is where the cost comes from, or `None` if the source is
/// invalid. `ceiling` is the highest cost that a full bucket can pay, or `None` if the limit is invalid. `attributes` reads the
/// attribute in `by` of `reserve`.
pub(crate) fn price(
    kind: AlgorithmKind,
    section: &Section<'_>,
    source: Option<CostSource>,
    ceiling: Option<Ceiling>,
    attributes: Option<AttributeReader<'_>>,
) -> Option<Price> {
    match kind {
        AlgorithmKind::Concurrency => Some(concurrency::PRICE),
        token_buckets!() | fixed_windows!() => settled_cost::price(section, source, ceiling, attributes),
        AlgorithmKind::SlidingLog | AlgorithmKind::SlidingWindow | AlgorithmKind::LeakyBucket => {
            cost::price(section, source, ceiling)
        }
    }
}

/// Reads where the costs at a limit with this algorithm come from. `None` after reporting a problem.
pub(crate) fn cost_source(kind: AlgorithmKind, section: &Section<'_>) -> Option<CostSource> {
    match kind {
        token_buckets!() | fixed_windows!() => settled_cost::cost_source(section),
        AlgorithmKind::SlidingLog | AlgorithmKind::SlidingWindow | AlgorithmKind::LeakyBucket => {
            cost::cost_source(section)
        }
        AlgorithmKind::Concurrency => Some(CostSource::Fixed),
    }
}

/// Checks that a limit with this algorithm can count the costs in `price`. `None` after reporting a cost that is too small.
pub(crate) fn check_price(algorithm: &Algorithm, section: &Section<'_>, price: &Price) -> Option<()> {
    match algorithm {
        Algorithm::TokenBucket(_)
        | Algorithm::FixedWindow(_)
        | Algorithm::SlidingWindow(_)
        | Algorithm::Concurrency(_)
        | Algorithm::Budget(_)
        | Algorithm::Purse(_)
        | Algorithm::Home(_) => Some(()),
        Algorithm::SlidingLog(log) => sliding_log::check_price(section, log, price),
        Algorithm::LeakyBucket(_) => leaky_bucket::check_costs(section),
    }
}

/// The algorithm that a rule or limit names in the file, and whether that name is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedAlgorithm {
    pub kind: AlgorithmKind,
    /// `None` if the name is invalid, which has been reported. Then `kind` is the algorithm with the most similar name.
    pub valid: Option<()>,
}

impl NamedAlgorithm {
    /// Returns the algorithm that a rule names, or the default algorithm. A misspelled name counts as the most similar
    /// name. `None` after reporting that no name is similar.
    pub(crate) fn of_rule(rule: &Section<'_>) -> Option<NamedAlgorithm> {
        match rule.get("algorithm") {
            Some(field) => named(&field),
            None => Some(NamedAlgorithm { kind: DEFAULT, valid: Some(()) }),
        }
    }

    /// Returns the algorithm that `limit` names, or else `of_rule`, the algorithm of its rule. A misspelled name counts
    /// as the most similar name. `None` after reporting that no name is similar, or that `limit` is not a mapping.
    pub(crate) fn of_limit(of_rule: Option<NamedAlgorithm>, limit: &Field<'_>) -> Option<NamedAlgorithm> {
        let keys = limit_keys(of_rule.map_or(DEFAULT, |algorithm| algorithm.kind));
        match limit.clone().section(keys)?.get("algorithm") {
            Some(field) => named(&field),
            None => of_rule,
        }
    }

    /// Reads the settings of a limit with this algorithm. Reports a value that is not a mapping, and returns `None`.
    pub(crate) fn section<'t>(self, field: Field<'t>) -> Option<Section<'t>> {
        field.section(limit_keys(self.kind))
    }
}

/// Reads the rate and size in an override or a shadow. An override replaces the rate and size of the limit. A shadow
/// only counts requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherNumbers<'k> {
    pub kind: AlgorithmKind,
    pub numbers: NumberReader<'k>,
    /// The algorithm of the limit itself, with its rate and size. `None` if these are invalid, which has been reported.
    pub own: Option<Algorithm>,
    /// The smallest cost of a request. A bucket that holds less than this cost would refuse every request.
    pub cheapest: Option<Cost>,
}

impl OtherNumbers<'_> {
    /// Returns the names of the keys that an override or a shadow of this algorithm may have.
    pub(crate) fn keys(&self) -> Vec<&'static str> {
        number_keys(self.kind).names()
    }

    /// Reads the settings of an override. The value may be `limit: unlimited`. `None` after reporting a problem.
    pub(crate) fn read_override(self, field: Field<'_>) -> Option<OverrideNumbers> {
        if field.is_written(UNLIMITED_LIMIT) {
            field.must_hinting("be a mapping", Some("write {limit: unlimited}".to_owned()));
            return None;
        }
        let is_unlimited = |name: &str, value: &Field<'_>| name == "limit" && value.is_written(UNLIMITED_LIMIT);
        if field.is_map() && field.pairs()?.iter().any(|(name, _, value)| is_unlimited(name, value)) {
            let section = field.section(&UNLIMITED)?;
            let alone = section.has_only("limit");
            section.close();
            return alone.then_some(OverrideNumbers::Unlimited);
        }
        self.read(field).map(|numbers| OverrideNumbers::Limited(numbers.base))
    }

    pub(crate) fn read(self, field: Field<'_>) -> Option<LimitNumbers> {
        let section = field.clone().section(number_keys(self.kind))?;
        let is_budget = self.own.is_some_and(|own| own.settling_budget().is_some());
        let numbers = match (self.kind, self.own.map(without_holds)) {
            (token_buckets!(), _) => numbers(self.kind, &section, self.numbers),
            (AlgorithmKind::FixedWindow, Some(Algorithm::FixedWindow(own))) => {
                fixed_window::other_limit(&section, Some(&own), self.numbers)
            }
            (fixed_windows!(), _) => fixed_window::other_limit(&section, None, self.numbers),
            (AlgorithmKind::SlidingLog, own) => {
                let own = match &own {
                    Some(Algorithm::SlidingLog(own)) => Some(own),
                    _ => None,
                };
                sliding_log::other_limit(&section, own, self.numbers)
            }
            (AlgorithmKind::SlidingWindow, Some(Algorithm::SlidingWindow(own))) => {
                sliding_window::other_limit(&section, Some(&own), self.numbers)
            }
            (AlgorithmKind::SlidingWindow, _) => sliding_window::other_limit(&section, None, self.numbers),
            (AlgorithmKind::LeakyBucket, own) => {
                let own = match &own {
                    Some(Algorithm::LeakyBucket(own)) => Some(own),
                    _ => None,
                };
                leaky_bucket::other_numbers(&section, own, self.numbers)
            }
            (AlgorithmKind::Concurrency, own) => {
                let own = match &own {
                    Some(Algorithm::Concurrency(own)) => Some(own),
                    _ => None,
                };
                concurrency::other_limit(&section, own, self.numbers)
            }
        };
        section.close();
        let (mut numbers, cheapest) = (numbers?, self.cheapest.unwrap_or_default());
        if is_budget {
            numbers = numbers.into_budget();
        }
        if self.own.is_some_and(|own| own.kind().has_resets()) {
            numbers = numbers.with_resets();
        }
        if let Some(ban) = self.own.and_then(|own| own.ban()) {
            numbers = numbers.with_ban(ban);
        }
        let Ceiling { cost, name, format } = ceiling(&numbers.largest(), self.numbers.format);
        if cost < cheapest {
            let (cheapest, cost) = (format.of(cheapest), format.of(cost));
            let what = format_args!("the {name} must be at least what a request costs ({cheapest}), is {cost}");
            field.wrong(what, None);
            return None;
        }
        if let Algorithm::SlidingLog(log) = &numbers.base
            && self.cheapest.is_some()
            && sliding_log::least_cost(log) > cheapest
        {
            let most = cheapest.thousandths().saturating_mul(MAX_LIMIT) / 1000;
            let what = format_args!(
                "the limit must be at most {most}, since a request may cost {cheapest} and in a window there are at most \
                 {MAX_LIMIT} grants, is {cost}"
            );
            field.wrong(what, None);
            return None;
        }
        Some(numbers)
    }
}

fn named(field: &Field<'_>) -> Option<NamedAlgorithm> {
    if let Some(source) = COST_SOURCES.iter().find(|name| field.is_written(name)) {
        let names = CHOICES.map(|(name, _)| name);
        let hint = format!("`{source}` is a cost_source of token_bucket and fixed_window");
        field.must_hinting(format_args!("be {}", listed(&names)), Some(hint));
        return None;
    }
    match field.choice(&CHOICES) {
        Some(kind) => Some(NamedAlgorithm { kind, valid: Some(()) }),
        None => field.similar_choice(&CHOICES).map(|kind| NamedAlgorithm { kind, valid: None }),
    }
}

/// Returns the constraints that the schema puts on a rule: the keys of its limits depend on the algorithm.
pub(crate) fn rule_constraints() -> Vec<Value> {
    let keys = |mapping: &Mapping| json!({"$ref": format!("#/definitions/{}", mapping.definition.unwrap_or_default())});
    // `otherwise` is the algorithm of a rule without the key `algorithm`.
    let names = |kind: AlgorithmKind, otherwise: AlgorithmKind| {
        let named = json!({"properties": {"algorithm": {"const": kind.name()}}});
        if kind == otherwise { named } else { json!({"allOf": [named, {"required": ["algorithm"]}]}) }
    };
    let limit = |of_rule: AlgorithmKind| -> Vec<Value> {
        let limit = |kind| json!({"if": names(kind, of_rule), "then": keys(limit_keys(kind))});
        CHOICES.into_iter().map(|(_, kind)| limit(kind)).collect()
    };
    // If a rule has several limits, each may have another algorithm.
    let any: Vec<Value> = NUMBERS.iter().map(|numbers| keys(numbers)).collect();
    let by_limit = json!({"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": any}});
    let rule = |kind| {
        let lone = json!({
            "allOf": [keys(limit_keys(kind))],
            "properties": {"algorithm": false, "meter": false, "ban": false, "scope": false, "lease": false}
        });
        let properties = json!({
            "ban": may_ban(kind),
            "scope": may_ban(kind),
            "lease": may_ban(kind),
            "algorithm_config": lone,
            "limits": {"type": "object", "additionalProperties": {"allOf": limit(kind)}},
            "overrides": {
                "type": "object",
                "additionalProperties": {"anyOf": [keys(number_keys(kind)), keys(&UNLIMITED), by_limit]}
            }
        });
        json!({"if": names(kind, DEFAULT), "then": {"properties": properties}})
    };
    CHOICES.into_iter().map(|(_, kind)| rule(kind)).collect()
}
