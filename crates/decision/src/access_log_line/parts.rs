//! Defines the parts of a log line that are objects of their own: attempts, limits and tokens.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use base::endpoint_address::EndpointAddress;
use base::pseudonym::Pseudonym;
use base::time::Micros;
use ledger::cost::Cost;
use ledger::outcome::Verdict;
use rules::rule::Mode;

/// An attempt that got no answer from an endpoint of the upstream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedAttempt<'a> {
    pub endpoint: EndpointAddress,
    /// The cause of the failure, as in the label `kind` of `tollgate_upstream_errors_total`.
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
    pub bucket: Pseudonym,
}

/// The tokens of a request to a language model, by what they cost. No token is in two of these numbers.
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
