//! Defines the parts of a log line that are objects of their own: attempts, limits and tokens.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use base::endpoint_address::EndpointAddress;
use base::pseudonym::Pseudonym;
use base::time::Micros;
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use rules::rule::Mode;

/// An attempt that has failed at an endpoint of the upstream, and was followed by another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedAttempt<'a> {
    pub endpoint: EndpointAddress,
    /// The cause of the failure, as in the label `kind` of `tollgate_upstream_retries_total`.
    #[serde(borrow)]
    pub error: Cow<'a, str>,
    /// The time from receiving the request head to the failure.
    #[serde(default)]
    pub failed_us: Micros,
}

/// One limit that applied, with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedLimit<'a> {
    #[serde(borrow)]
    pub policy: Cow<'a, str>,
    #[serde(borrow)]
    pub rule: Cow<'a, str>,
    pub mode: Mode,
    pub verdict: Verdict,
    pub cost: Cost,
    /// What the request has cost a budget. `None` for other limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Cost>,
    /// The amount that is left in the bucket. `None` if the amount is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Cost>,
    /// The unit of `cost`, `settled` and `remaining`, if the limit counts money.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<MoneyUnit>,
    pub bucket: Pseudonym,
}

/// The unit of amounts of money in a log line. The amounts have up to three decimals of this unit, so that nothing is
/// rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoneyUnit {
    #[serde(rename = "usd-millionths")]
    UsdMillionths,
}

/// What the tokens of a request cost, and the line of the price file that has the price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedPrice<'a> {
    /// The `model` in the line: a name, the beginning of names followed by `*`, or `default`.
    #[serde(borrow)]
    pub model: Cow<'a, str>,
    /// The number of the line, from 1.
    pub line: usize,
    pub usd: f64,
    /// Whether this is the price of the model that was asked for, because the model that answered has no price.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_asked: bool,
}

/// The tokens of a request to a language model, in kinds that may have different prices. Each token counts as one kind
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedUsage {
    pub input: u64,
    pub output: u64,
    pub cached: u64,
    pub cache_write: u64,
    /// Whether the numbers are an estimate, because the response did not name them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}
