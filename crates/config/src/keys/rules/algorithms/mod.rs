//! Reads the numbers of a limit: each algorithm has a file, which declares its keys and reads them.
//!
//! To add one: its file, its mappings in the lists, and an arm in each `match` here.

mod fixed_window;
mod leaky_bucket;
mod sliding_log;
mod sliding_window;
pub(crate) mod token_bucket;
mod windowed;

use serde_json::{Value, json};

use crate::keys::rules::claimed_number::NumberReader;
use crate::keys::rules::cost::Ceiling;
use crate::language::key::{Key, Mapping, Type, names, unconstrained};
use crate::language::reader::{Field, Section};
use crate::language::suggest::listed;
use ledger::algorithm::sliding_log::MAX_LIMIT;
use ledger::algorithm::{Algorithm, AlgorithmKind};
use ledger::cost::Cost;
use rules::claimed_numbers::{ClaimedNumber, ClaimedNumbers};
use rules::rule::{OverrideNumbers, Price};

const CHOICES: [(&str, AlgorithmKind); 5] = [
    (AlgorithmKind::TokenBucket.name(), AlgorithmKind::TokenBucket),
    (AlgorithmKind::FixedWindow.name(), AlgorithmKind::FixedWindow),
    (AlgorithmKind::SlidingLog.name(), AlgorithmKind::SlidingLog),
    (AlgorithmKind::SlidingWindow.name(), AlgorithmKind::SlidingWindow),
    (AlgorithmKind::LeakyBucket.name(), AlgorithmKind::LeakyBucket),
];
/// Algorithms that are planned.
const LATER: [&str; 2] = ["concurrency", "llm_tokens"];
const NAME: Type = Type::Choice(&names(&CHOICES));
const DEFAULT: AlgorithmKind = AlgorithmKind::TokenBucket;

/// The key for the algorithm of a rule.
pub(crate) const ALGORITHM: Key = Key::default("algorithm", NAME, DEFAULT.name(), "The algorithm that counts.");

/// The algorithm of one of several limits.
const ALGORITHM_OF_LIMIT: Key = Key::depends("algorithm", NAME, "that of the rule", "The algorithm that counts.");

/// The meter of one of several limits.
const METER_OF_LIMIT: Key =
    Key::optional("meter", crate::language::key::NAME, "The counter that it shares with other rules.");

/// The mappings that a limit of a rule can be, one for each algorithm.
pub(crate) const LIMIT: &[&Mapping] =
    &[&token_bucket::LIMIT, &fixed_window::LIMIT, &sliding_log::LIMIT, &sliding_window::LIMIT, &leaky_bucket::LIMIT];
/// The mappings that the numbers of an override can be, one for each algorithm.
pub(crate) const NUMBERS: &[&Mapping] = &[
    &token_bucket::NUMBERS,
    &fixed_window::NUMBERS,
    &sliding_log::NUMBERS,
    &sliding_window::NUMBERS,
    &leaky_bucket::NUMBERS,
    &UNLIMITED,
];

const UNLIMITED_LIMIT: &str = "unlimited";

static UNLIMITED: Mapping = Mapping {
    heading: Some("key of an override without a limit"),
    definition: Some("unlimited"),
    keys: &[Key::required("limit", Type::Choice(&[UNLIMITED_LIMIT]), "Nothing is charged.")],
    constraints: unconstrained,
};

fn limit_keys(kind: AlgorithmKind) -> &'static Mapping {
    match kind {
        AlgorithmKind::TokenBucket => &token_bucket::LIMIT,
        AlgorithmKind::FixedWindow => &fixed_window::LIMIT,
        AlgorithmKind::SlidingLog => &sliding_log::LIMIT,
        AlgorithmKind::SlidingWindow => &sliding_window::LIMIT,
        AlgorithmKind::LeakyBucket => &leaky_bucket::LIMIT,
    }
}

fn number_keys(kind: AlgorithmKind) -> &'static Mapping {
    match kind {
        AlgorithmKind::TokenBucket => &token_bucket::NUMBERS,
        AlgorithmKind::FixedWindow => &fixed_window::NUMBERS,
        AlgorithmKind::SlidingLog => &sliding_log::NUMBERS,
        AlgorithmKind::SlidingWindow => &sliding_window::NUMBERS,
        AlgorithmKind::LeakyBucket => &leaky_bucket::NUMBERS,
    }
}

/// The numbers of a limit, as the file gives them.
#[derive(Clone, Debug)]
pub(crate) struct LimitNumbers {
    /// The limit with the largest numbers that a request can have.
    pub base: Algorithm,
    /// The numbers that credentials supply.
    pub claimed: Vec<ClaimedNumber>,
}

impl LimitNumbers {
    /// The limit for a request that has the largest possible numbers.
    pub(crate) fn largest(&self) -> Algorithm {
        self.clone().claimed(Cost::default()).map_or(self.base, |claimed| claimed.largest())
    }

    /// The limit for a request whose credentials supply no number, and the numbers that credentials supply. `least` is the
    /// smallest cost of a request.
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

/// Reads the numbers from the mapping of a limit, which has other keys as well.
pub(crate) fn numbers(kind: AlgorithmKind, section: &Section<'_>, reader: NumberReader<'_>) -> Option<LimitNumbers> {
    match kind {
        AlgorithmKind::TokenBucket => token_bucket::token_bucket(section, reader),
        AlgorithmKind::FixedWindow => fixed_window::fixed_window(section, reader),
        AlgorithmKind::SlidingLog => sliding_log::sliding_log(section, reader),
        AlgorithmKind::SlidingWindow => sliding_window::sliding_window(section, reader),
        AlgorithmKind::LeakyBucket => leaky_bucket::leaky_bucket(section, reader),
    }
}

/// The highest cost that a limit with these numbers can charge.
pub(crate) fn ceiling(algorithm: &Algorithm) -> Ceiling {
    let name = match algorithm {
        Algorithm::TokenBucket(_) => "burst",
        Algorithm::FixedWindow(_) | Algorithm::SlidingLog(_) | Algorithm::SlidingWindow(_) => "limit",
        Algorithm::LeakyBucket(_) => "number of places",
    };
    Ceiling { cost: algorithm.ceiling(), name }
}

/// Reports costs that a limit with these numbers cannot count.
pub(crate) fn check_price(algorithm: &Algorithm, section: &Section<'_>, price: &Price) -> Option<()> {
    match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_) => Some(()),
        Algorithm::SlidingLog(log) => sliding_log::check_price(section, log, price),
        Algorithm::LeakyBucket(_) => leaky_bucket::check_costs(section),
    }
}

/// The algorithm of a rule or of one of its limits, and whether its name in the file is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedAlgorithm {
    pub kind: AlgorithmKind,
    /// `None`: the name is invalid, which was reported. Keys are then checked as those of the algorithm with a similar name.
    pub valid: Option<()>,
}

impl NamedAlgorithm {
    /// The algorithm that a rule names, or the default. `None` after reporting a name that is not similar to any.
    pub(crate) fn of_rule(rule: &Section<'_>) -> Option<NamedAlgorithm> {
        match rule.get("algorithm") {
            Some(field) => named(&field),
            None => Some(NamedAlgorithm { kind: DEFAULT, valid: Some(()) }),
        }
    }

    /// The algorithm that one of several limits names, or else that of the rule. `None` after reporting a name that is not
    /// similar to any, or that the limit is not a mapping.
    pub(crate) fn of_limit(of_rule: Option<NamedAlgorithm>, limit: &Field<'_>) -> Option<NamedAlgorithm> {
        let keys = limit_keys(of_rule.map_or(DEFAULT, |algorithm| algorithm.kind));
        match limit.clone().section(keys)?.get("algorithm") {
            Some(field) => named(&field),
            None => of_rule,
        }
    }

    /// The mapping of a limit with this algorithm.
    pub(crate) fn section<'t>(self, field: Field<'t>) -> Option<Section<'t>> {
        field.section(limit_keys(self.kind))
    }
}

/// Reads other numbers of a limit: those of an override or of a shadow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherNumbers<'k> {
    pub kind: AlgorithmKind,
    pub numbers: NumberReader<'k>,
    /// The numbers of the limit itself. `None`: they are invalid, which was reported.
    pub own: Option<Algorithm>,
    /// The smallest cost of a request: a bucket that cannot hold it would refuse every request for ever.
    pub cheapest: Option<Cost>,
}

impl OtherNumbers<'_> {
    /// The keys of such numbers in the file.
    pub(crate) fn keys(&self) -> Vec<&'static str> {
        number_keys(self.kind).names()
    }

    /// Reads the numbers of an override, which may be `limit: unlimited`.
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
        let numbers = match (self.kind, self.own) {
            (AlgorithmKind::TokenBucket, _) => numbers(self.kind, &section, self.numbers),
            (AlgorithmKind::FixedWindow, Some(Algorithm::FixedWindow(own))) => {
                fixed_window::other_limit(&section, Some(&own), self.numbers)
            }
            (AlgorithmKind::FixedWindow, _) => fixed_window::other_limit(&section, None, self.numbers),
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
        };
        section.close();
        let (numbers, cheapest) = (numbers?, self.cheapest.unwrap_or_default());
        let Ceiling { cost, name } = ceiling(&numbers.largest());
        if cost < cheapest {
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
    if let Some(later) = LATER.iter().find(|name| field.is_written(name)) {
        let names = CHOICES.map(|(name, _)| name);
        field.must_hinting(format_args!("be {}", listed(&names)), Some(format!("`{later}` is not built yet")));
        return None;
    }
    match field.choice(&CHOICES) {
        Some(kind) => Some(NamedAlgorithm { kind, valid: Some(()) }),
        None => field.similar_choice(&CHOICES).map(|kind| NamedAlgorithm { kind, valid: None }),
    }
}

/// The constraints on a rule in the schema: the keys of its limits depend on the algorithm.
pub(crate) fn rule_constraints() -> Vec<Value> {
    let keys = |mapping: &Mapping| json!({"$ref": format!("#/definitions/{}", mapping.definition.unwrap_or_default())});
    // Without the key it is the default of `otherwise`.
    let names = |kind: AlgorithmKind, otherwise: AlgorithmKind| {
        let named = json!({"properties": {"algorithm": {"const": kind.name()}}});
        if kind == otherwise { named } else { json!({"allOf": [named, {"required": ["algorithm"]}]}) }
    };
    let limit = |of_rule: AlgorithmKind| -> Vec<Value> {
        let limit = |kind| json!({"if": names(kind, of_rule), "then": keys(limit_keys(kind))});
        CHOICES.into_iter().map(|(_, kind)| limit(kind)).collect()
    };
    // Of several limits, each may have an algorithm of its own.
    let any: Vec<Value> = NUMBERS.iter().map(|numbers| keys(numbers)).collect();
    let by_limit = json!({"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": any}});
    let rule = |kind| {
        let lone = json!({"allOf": [keys(limit_keys(kind))], "properties": {"algorithm": false, "meter": false}});
        let limits = json!({
            "algorithm_config": lone,
            "limits": {"type": "object", "additionalProperties": {"allOf": limit(kind)}},
            "overrides": {
                "type": "object",
                "additionalProperties": {"anyOf": [keys(number_keys(kind)), keys(&UNLIMITED), by_limit]}
            }
        });
        json!({"if": names(kind, DEFAULT), "then": {"properties": limits}})
    };
    CHOICES.into_iter().map(|(_, kind)| rule(kind)).collect()
}
