//! The report on an explained request, printed as text or as JSON.

use serde::Serialize;

use crate::gateway::bucket_levels::Levels;
use crate::gateway::bucket_report::bucket_name;
use base::time::Micros;
use base::waiting_time::WaitingTime;
use config::Config;
use ledger::bucket_level::BucketLevel;
use ledger::cost::Cost;
use ledger::money::Amount;
use ledger::store_time::StoreTime;
use request::matcher::QuotedText;
use rules::explanation::{
    Date, Exemption, ExplainedCharge, ExplainedPolicy, ExplainedRule, Explanation, MatchedElement, PickedKey,
    PolicyEnd, PolicyOutcome, RuleOutcome, SkipReason,
};
use rules::partial_evaluation::Observation;
use rules::rule::{Action, Condition, Mode, Otherwise};
use rules::settled_price::{Reserve, SettledPrice, Unit};

/// The report on one explained decision.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub file: String,
    #[serde(flatten)]
    pub subject: Subject,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The routes that do not match, and then the route of the request. Empty for a file without routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// The policies with their rules. Empty if the request is answered before the rules are evaluated.
    pub policies: Vec<Policy>,
    pub answer: Answer,
    /// The place from which the levels of buckets were read. `None` if no levels were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_from: Option<String>,
}

/// The subject of a decision: a request, or a descriptor without a request.
#[derive(Debug, Serialize)]
pub(super) struct Subject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Descriptor>,
}

impl Subject {
    pub(super) fn of_request(request: Request) -> Subject {
        Subject { request: Some(request), descriptor: None }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Request {
    pub method: String,
    pub host: String,
    /// The path as rules see it. `None` if the path can be read in more than one way.
    pub path: Option<String>,
    /// The target of the request as it is forwarded to the upstream.
    pub target: String,
    pub client: String,
    pub client_from: String,
    /// The way in which another proxy asks about the request. `None` if the gateway proxies it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub door: Option<&'static str>,
}

/// A descriptor in the form in which it is printed.
#[derive(Debug, Serialize)]
pub(super) struct Descriptor {
    /// The domain of the call. `None` if a service names no domain.
    pub domain: Option<String>,
    pub entries: Vec<Entry>,
    /// The way in which it comes to the gateway.
    pub door: &'static str,
    /// How long the service holds what it takes. `None` if it holds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_for: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Entry {
    pub key: String,
    pub value: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Route {
    pub name: String,
    pub line: usize,
    pub matches: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// The answer of a route without an upstream. `None` for any other route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The changes that the route makes to the request and its response.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// The reason why the route does not match. Empty for a route that matches.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Policy {
    pub name: String,
    pub line: usize,
    pub mode: Mode,
    pub takes_part: bool,
    /// A remark on the policy: its conditions, and what it decides.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    pub rules: Vec<Rule>,
}

#[derive(Debug, Serialize)]
pub(super) struct Rule {
    pub name: String,
    pub line: usize,
    pub mode: Mode,
    pub applies: Applies,
    /// The reason why the rule does not apply. For a rule that applies: its expiry, and the elements of lists that meet its
    /// conditions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The action `allow` or `deny`. `None` for a rule with limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<Charge>,
    /// The limits that charge nothing, because an override makes them unlimited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unlimited: Vec<String>,
    /// The concurrency limits and budgets that charge nothing, because another proxy forwards the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_at_door: Vec<String>,
    /// The limits on language models that charge nothing, because the request is not for a language model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_model: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Applies {
    Yes,
    No,
    NotTried,
    Undecidable,
}

#[derive(Debug, Serialize)]
pub(super) struct Key {
    pub attribute: String,
    pub value: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Charge {
    /// The name of the limit, such as `free`, or `free.second` if the rule has several.
    pub limit: String,
    pub mode: Mode,
    /// The cost, or the amount that is reserved until the cost is known. `None` if the body of the request decides it.
    pub cost: Option<Amount>,
    pub numbers: String,
    /// The settings of the limit that come from credentials, with a remark on each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claimed: Vec<String>,
    /// The end of the current window, in the time zone of its calendar. `None` without a current window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<String>,
    /// Whether the settings of the limit come from an override.
    #[serde(skip_serializing_if = "is_false")]
    pub overridden: bool,
    /// For a cost that is known only when the request has ended: its source, and the amount that is reserved until
    /// then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<String>,
    /// How long a service holds the cost, and what happens then if it has not settled. `None` if it is not held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// The meter whose bucket this limit shares with other rules. `None` without a meter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meter: Option<String>,
    pub bucket: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
}

#[derive(Debug, Serialize)]
pub(super) struct Level {
    /// `None` if that is not known here: home was not heard in this period.
    pub left: Option<Amount>,
    /// Whether the bucket can pay for the request now.
    pub pays: bool,
    /// Whether home is asked first, because the purse of this region cannot pay.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asks_home: bool,
    /// The time until the bucket can pay for the request. 0 if it can pay now, or can never pay.
    pub wait_us: Micros,
    pub full_in_us: Micros,
    /// The time by which the bucket delays the request.
    pub delay_us: Micros,
}

/// The answer that the gateway would give to the request.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    pub verdict: Verdict,
    /// The status code of the answer. `None` if the upstream determines the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// The answer in words, line by line.
    pub words: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Passes,
    Refused,
    /// The answer depends on levels that were not read.
    Depends,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The values that an explanation of the rules needs: the costs of the request, the time, and the levels of the
/// buckets.
#[derive(Clone, Copy)]
pub(super) struct Terms<'l> {
    /// Returns the cost of the request at a limit. `None` if the limit does not count the request.
    pub cost: &'l dyn Fn(&ledger::charge::Charge) -> Option<Cost>,
    /// The time on the clock of the store, or of this machine if the store was not read.
    pub now: StoreTime,
    /// The levels of the buckets. `None` if they were not read.
    pub levels: Option<&'l Levels>,
    /// How long a service holds what it takes. `None` for a request, and if nothing is held.
    pub hold_for: Option<Micros>,
}

/// Reports on the policies of the file, with the outcome of each rule.
pub(super) fn policies(explanation: &Explanation<'_>, config: &Config, terms: Terms<'_>) -> Vec<Policy> {
    let exempt = matches!(explanation.exemption, Exemption::By(_));
    explanation.policies.iter().map(|explained| policy(explained, exempt, config, terms)).collect()
}

fn policy(explained: &ExplainedPolicy<'_>, exempt: bool, config: &Config, terms: Terms<'_>) -> Policy {
    let policy = explained.policy;
    let mut notes = Vec::new();
    if policy.mode == Mode::Shadow {
        notes.push("shadow".to_owned());
    }
    let takes_part = match &explained.part {
        PolicyOutcome::TakesPart(ended) => {
            if !policy.conditions.is_empty() {
                let because = joined(&explained.matched).map_or_else(String::new, |matched| format!(" ({matched})"));
                notes.push(format!("match {}: holds{because}", all(&policy.conditions)));
            }
            match ended {
                PolicyEnd::Otherwise(Otherwise::Allow) => {
                    notes.push("no rule applies: no limit (otherwise: allow)".to_owned())
                }
                PolicyEnd::Otherwise(Otherwise::Deny) => {
                    notes.push("no rule applies: refused (otherwise: deny)".to_owned())
                }
                PolicyEnd::Decided { .. } | PolicyEnd::Denied { .. } | PolicyEnd::Undecided { .. } => {}
            }
            true
        }
        PolicyOutcome::Fails(failure) => {
            notes.push(format!("takes no part: {failure}"));
            false
        }
        PolicyOutcome::Undecidable(_) => {
            notes.push("cannot be decided".to_owned());
            false
        }
        PolicyOutcome::NotChecked { denied_by } => {
            notes.push(format!("not checked: policy {denied_by} denied the request"));
            false
        }
    };
    if takes_part && exempt {
        notes.push("the request is exempt: nothing is charged".to_owned());
    }
    let rules = match takes_part {
        true => explained.rules.iter().map(|explained| rule(explained, config, terms)).collect(),
        false => Vec::new(),
    };
    Policy {
        name: policy.name.clone(),
        line: policy.position.line,
        mode: policy.mode,
        takes_part,
        note: notes.join("; "),
        rules,
    }
}

fn rule(explained: &ExplainedRule<'_>, config: &Config, terms: Terms<'_>) -> Rule {
    let rule = explained.rule;
    let mut report = Rule {
        name: rule.name.clone(),
        line: rule.position.line,
        mode: explained.mode,
        applies: Applies::Yes,
        why: String::new(),
        action: match &rule.action {
            Action::Allow => Some("allow"),
            Action::Deny => Some("deny"),
            Action::Charge(_) => None,
        },
        keys: Vec::new(),
        charges: Vec::new(),
        unlimited: Vec::new(),
        not_at_door: Vec::new(),
        no_model: Vec::new(),
    };
    match &explained.outcome {
        RuleOutcome::Applies { picked, charges, matched } => {
            report.keys = picked.iter().map(key).collect();
            let until = rule.until.map(|until| format!("until {}", Date(until)));
            report.why = until.into_iter().chain(joined(matched)).collect::<Vec<_>>().join("; ");
            for each in &charges.charged {
                match (terms.cost)(&each.charge) {
                    Some(cost) => report.charges.push(charge(each, cost, config, terms)),
                    None => report.no_model.push(each.name.to_owned()),
                }
            }
            report.unlimited = charges.unlimited.iter().map(|name| (*name).to_owned()).collect();
            report.not_at_door = charges.not_at_door.iter().map(|name| (*name).to_owned()).collect();
        }
        RuleOutcome::Fails(failure) => (report.applies, report.why) = (Applies::No, failure.to_string()),
        RuleOutcome::Skipped(SkipReason::After { rule }) => {
            (report.applies, report.why) = (Applies::NotTried, format!("not tried, `{rule}` decided"));
        }
        RuleOutcome::Skipped(SkipReason::PolicySkipped) => report.applies = Applies::NotTried,
        RuleOutcome::Undecidable(attributes) => {
            let names: Vec<String> = attributes.iter().map(ToString::to_string).collect();
            (report.applies, report.why) = (Applies::Undecidable, format!("{} not known", names.join(", ")));
        }
    }
    report
}

fn key(picked: &PickedKey<'_>) -> Key {
    let value = match &picked.value {
        Observation::Value(value) => QuotedText(value).to_string(),
        seen => seen.to_string(),
    };
    Key { attribute: picked.to_string(), value }
}

fn charge(explained: &ExplainedCharge<'_>, cost: Cost, config: &Config, terms: Terms<'_>) -> Charge {
    let charge = &explained.charge;
    let unit = explained.settled.map_or(Unit::Requests, SettledPrice::unit);
    let level = terms.levels.map(|levels| {
        let level = levels.bucket(&charge.key, &charge.algorithm, cost);
        let BucketLevel { untouched, wait, delay, purse, .. } = level;
        let asks_home = purse.is_some_and(|purse| purse.asks_home);
        Level {
            left: level.remaining().map(|left| unit.amount(left)),
            pays: wait == Some(Micros(0)) && !asks_home,
            asks_home,
            wait_us: wait.unwrap_or_default(),
            full_in_us: untouched.reset_after,
            delay_us: delay,
        }
    });
    let state = terms.levels.and_then(|levels| levels.state(&charge.key));
    let period = charge.algorithm.period(state.as_deref(), terms.now.of(&charge.algorithm));
    let ends = period.and_then(|period| charge.algorithm.print_end(period.end));
    Charge {
        limit: explained.name.to_owned(),
        mode: explained.mode,
        cost: (!is_of_body(explained.settled, cost)).then(|| unit.amount(cost)),
        numbers: charge.algorithm.display(unit.format()).to_string(),
        claimed: explained.claimed.iter().map(ToString::to_string).collect(),
        ends,
        overridden: charge.variant > 0,
        settled: explained.settled.map(ToString::to_string),
        held: terms.hold_for.filter(|_| charge.algorithm.is_held() && !charge.only_asks_for_ban()).map(|time| {
            let then = if charge.algorithm.slots().is_some() { "free" } else { "spent" };
            format!("held for {}, then {then}", WaitingTime(time))
        }),
        meter: explained.meter.map(str::to_owned),
        bucket: bucket_name(&config.hash_key, &charge.key),
        level,
    }
}

/// Whether the reserved amount depends on the body of the request, which names the model. Without a body, the worst
/// case in money is 0.
pub(super) fn is_of_body(price: Option<&SettledPrice>, cost: Cost) -> bool {
    let is_worst = |price: &SettledPrice| matches!(price.reserve, Reserve::Worst { .. });
    cost == Cost::default() && price.is_some_and(|price| price.unit() == Unit::Dollars && is_worst(price))
}

/// Joins the elements of lists to one text; `None` without elements.
fn joined(matched: &[MatchedElement<'_>]) -> Option<String> {
    let each: Vec<String> = matched.iter().map(ToString::to_string).collect();
    (!each.is_empty()).then(|| each.join(" and "))
}

/// Joins the conditions into one text.
pub(super) fn all(conditions: &[Condition]) -> String {
    conditions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}
