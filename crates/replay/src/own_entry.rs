//! Holds what a line of the gateway's own log records about a request: pseudonyms of its attributes, and the limits
//! that were checked.

use base::pseudonym::Pseudonym;
use decision::access_log_line::{Kind, Line, LoggedText, LoggedValue, Origin};
use http::StatusCode;
use ledger::cost::Cost;
use llm::usage::Usage;
use request::attribute::Attribute;
use request::door::Door;
use rules::rule::Mode;

/// A request that was decided by the rules, as the gateway's own log records it.
#[derive(Debug)]
pub struct OwnEntry {
    pub kind: Kind,
    /// Whether the request was denied, by a rule with `action: deny` or by `otherwise: deny`.
    pub denied: bool,
    /// The method of the request. `None` if the log has `OTHER` in place of the method.
    pub method: Option<Box<str>>,
    /// The status of the response, if the upstream has sent it.
    pub status: Option<StatusCode>,
    pub limits: Vec<LoggedCharge>,
    /// The tokens that a language model has used. `None` if no limit counted them.
    pub usage: Option<UsedTokens>,
    /// The language model that has answered. `None` if the log does not name it.
    pub model: Option<Box<str>>,
    /// The way in which the request reached the gateway. `None` for a way that this version does not know.
    pub door: Option<Door>,
    /// The name of the route that the request took.
    pub route: Box<str>,
    /// The name of the upstream to which the request was sent. `None` if the request was sent to no upstream.
    pub upstream: Option<Box<str>>,
    pub attributes: Vec<(Attribute, LoggedValue)>,
    /// The attributes that were logged in clear text. `None` stands for a list, and for a value that was cut.
    pub values: Vec<(Attribute, Option<Box<str>>)>,
}

/// A charge in the log: a limit that was checked, with the cost and the bucket.
#[derive(Debug)]
pub struct LoggedCharge {
    pub policy: Box<str>,
    /// The name of the limit as the log shows it, such as `free` or `free.second`.
    pub limit: Box<str>,
    pub mode: Mode,
    /// What was charged. At a budget, what was reserved.
    pub cost: Cost,
    /// What the request has cost a budget. `None` for other limits, and if the request was refused.
    pub settled: Option<Cost>,
    /// Whether the costs are amounts of money.
    pub is_money: bool,
    pub bucket: Pseudonym,
}

/// The tokens that a request to a language model has used.
#[derive(Clone, Copy, Debug)]
pub struct UsedTokens {
    pub usage: Usage,
    /// Whether the gateway estimated the tokens, because the response did not name them.
    pub is_estimated: bool,
}

impl OwnEntry {
    /// Makes an entry from a line of the log. `None` if the request was answered before any rule was checked.
    pub fn new(line: &Line<'_>) -> Option<OwnEntry> {
        let reason = line.reason.as_deref();
        let by_rules = |reason: &str| {
            matches!(
                reason,
                "denied" | "cost_too_large" | "store_unavailable" | "home_unavailable" | "budget_held" | "banned"
            ) || reason.ends_with("_exceeded")
        };
        if line.decision_us.is_none() || !reason.is_none_or(by_rules) {
            return None;
        }
        let alone = || {
            Some(LoggedCharge {
                policy: line.policy.as_deref()?.into(),
                limit: line.rule.as_deref()?.into(),
                mode: Mode::Enforce,
                cost: line.cost?,
                settled: line.settled,
                is_money: line.unit.is_some(),
                bucket: line.bucket?,
            })
        };
        let each = line.limits.iter().map(|limit| LoggedCharge {
            policy: limit.policy.as_ref().into(),
            limit: limit.rule.as_ref().into(),
            mode: limit.mode,
            cost: limit.cost,
            settled: limit.settled,
            is_money: limit.unit.is_some(),
            bucket: limit.bucket,
        });
        let attributes = line.attributes.iter();
        Some(OwnEntry {
            kind: line.kind,
            door: Door::named(line.door.as_deref().unwrap_or(Door::Proxy.name())),
            route: line.route.as_ref().into(),
            upstream: line.upstream.as_deref().map(Into::into),
            denied: reason == Some("denied"),
            method: (line.method != "OTHER").then(|| line.method.as_ref().into()),
            status: StatusCode::from_u16(line.code).ok().filter(|_| line.origin == Origin::Upstream),
            limits: if line.limits.is_empty() { alone().into_iter().collect() } else { each.collect() },
            usage: line.usage.as_ref().map(|used| UsedTokens {
                usage: Usage {
                    input: used.input,
                    output: used.output,
                    cached: used.cached,
                    cache_write: used.cache_write,
                },
                is_estimated: used.estimated,
            }),
            model: line.model.as_deref().map(Into::into),
            attributes: attributes
                .filter_map(|(name, value)| Some((Attribute::parse(name).ok()?, value.clone())))
                .collect(),
            values: line
                .values
                .iter()
                .filter_map(|(name, value)| Some((Attribute::parse(name).ok()?, whole(value).map(Into::into))))
                .collect(),
        })
    }
}

/// Returns the value of an attribute that has a single value, if the value was not cut off.
fn whole(value: &LoggedValue<LoggedText>) -> Option<&str> {
    match value {
        LoggedValue::Single(text) => text.whole(),
        LoggedValue::List(_) => None,
    }
}
