//! Makes the rows of rules on the status page, with their limits and counts.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::readings::{LimitName, Readings, date};
use crate::gateway::state::snapshot::Snapshot;
use base::time::{Micros, Timestamp};
use ledger::algorithm::Algorithm;
use rules::rule::{Action, Mode, Otherwise, Rule};
use rules::rule_set::CompiledLimit;

/// The shortest window whose end is shown. A shorter window would end while the page is read.
const SHOWN_WINDOW: Micros = Micros(3_600_000_000);

/// A row of the table of rules: one limit, a rule without limits, or the `otherwise: deny` of a policy. The row of an
/// `otherwise: deny` has an empty rule name.
#[derive(Debug, Serialize)]
pub(super) struct Row<'d> {
    policy: &'d str,
    rule: &'d str,
    line: usize,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<f64>,
    #[serde(flatten)]
    action: RowAction,
}

#[derive(Debug, Serialize)]
#[serde(tag = "action", rename_all = "lowercase")]
enum RowAction {
    Allow,
    Deny(DenierRow),
    Charge(Box<LimitRow>),
}

/// A rule that denies, or the `otherwise` of a policy.
#[derive(Debug, Serialize)]
struct DenierRow {
    refused: u64,
}

#[derive(Debug, Serialize)]
struct LimitRow {
    numbers: String,
    /// The end of the current window, with its offset from UTC. Only for windows of at least an hour that all clients share.
    #[serde(skip_serializing_if = "Option::is_none")]
    ends: Option<String>,
    keys: String,
    /// The meter that the limit shares with other limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    meter: Option<String>,
    #[serde(skip_serializing_if = "is_none")]
    overrides: usize,
    asked: u64,
    allowed: u64,
    refused: u64,
    near: u64,
    /// The slots that requests of this process hold. `None` if the limit has no slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<f64>,
    /// What lay in the purses of a limit over several regions when this process filled them last. `None` for other limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    leased: Option<f64>,
    /// The spent and the held amount. `None` for a limit that is not a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<BudgetCells>,
    /// The number of decisions without the store, by result. Empty without such decisions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    fallback: BTreeMap<String, u64>,
}

/// What requests of this process have spent and what they hold, in all buckets of a budget together.
#[derive(Debug, Serialize)]
struct BudgetCells {
    unit: &'static str,
    /// The sum of the costs that were settled since the metrics of the rule began.
    spent: f64,
    /// What requests in flight hold. `None` in shadow mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<f64>,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

struct LimitCounts {
    asked: Counts,
    allowed: Counts,
    refused: Counts,
    near: Counts,
    in_flight: HashMap<LimitName, f64>,
    leased: HashMap<LimitName, f64>,
    spent: HashMap<LimitName, f64>,
    held: HashMap<LimitName, f64>,
    fallback: HashMap<LimitName, BTreeMap<String, u64>>,
}

type Counts = HashMap<LimitName, u64>;

/// Returns the `most` rows with the most requests, in the order of the file, and the number of other rows. `now` is the
/// time by the store's clock.
pub(super) fn busiest<'d>(
    snapshot: &'d Snapshot,
    readings: Readings<'_>,
    now: Timestamp,
    most: usize,
) -> (Vec<Row<'d>>, usize) {
    let mut rows = rows(snapshot, readings, now);
    let left_out = rows.len().saturating_sub(most);
    if left_out > 0 {
        let asked = |row: &Row<'_>| match &row.action {
            RowAction::Charge(charged) => charged.asked,
            RowAction::Deny(denier) => denier.refused,
            RowAction::Allow => 0,
        };
        rows.sort_by_key(|row| std::cmp::Reverse(asked(row)));
        rows.truncate(most);
        rows.sort_by_key(|row| row.line);
    }
    (rows, left_out)
}

/// Returns the rows in the order of the file. [`rules::rule_set::RuleSet::compile`] numbers the limits in this order.
fn rows<'d>(snapshot: &'d Snapshot, readings: Readings<'_>, now: Timestamp) -> Vec<Row<'d>> {
    let counts = LimitCounts {
        asked: readings.by_limit("rate_limiter_requests_total"),
        allowed: readings.by_limit("rate_limiter_allowed_total"),
        refused: readings.by_limit("rate_limiter_rejected_total"),
        near: readings.by_limit("rate_limiter_near_limit_total"),
        in_flight: readings.levels_by_limit("rate_limiter_in_flight"),
        leased: readings.levels_by_limit("rate_limiter_leased"),
        spent: readings.amounts_by_limit("rate_limiter_settled_cost_total"),
        held: readings.levels_by_limit("rate_limiter_held"),
        fallback: readings.by_limit_and("rate_limiter_fallback_decisions_total", "action"),
    };
    let rules = &snapshot.config.rules;
    let mut limits = rules.limits().iter();
    let mut rows = Vec::new();
    for policy in &rules.source().policies {
        for rule in &policy.rules {
            let row = |name: &'d str, mode: Mode, action| Row {
                policy: &policy.name,
                rule: name,
                line: rule.position.line,
                mode: mode.name(),
                until: rule.until.map(date),
                action,
            };
            let mode = if policy.mode == Mode::Shadow { Mode::Shadow } else { rule.mode };
            match &rule.action {
                Action::Allow => rows.push(row(&rule.name, mode, RowAction::Allow)),
                Action::Deny => {
                    rows.push(row(&rule.name, mode, counts.of_denier(&policy.name, &rule.name, mode)));
                }
                Action::Charge(_) => {
                    let own = limits.by_ref().take(count(rule));
                    rows.extend(
                        own.map(|limit| {
                            row(&limit.name, limit.mode, RowAction::Charge(Box::new(counts.of(limit, now))))
                        }),
                    );
                }
            }
        }
        if policy.otherwise == Otherwise::Deny {
            rows.push(Row {
                policy: &policy.name,
                rule: "",
                line: policy.position.line,
                mode: policy.mode.name(),
                until: None,
                action: counts.of_denier(&policy.name, "", policy.mode),
            });
        }
    }
    rows
}

/// Returns the number of limits to which a rule is compiled: its limits, and their candidates (limits on trial).
fn count(rule: &Rule) -> usize {
    match &rule.action {
        Action::Allow | Action::Deny => 0,
        Action::Charge(limits) => limits.iter().map(|limit| 1 + usize::from(limit.candidate.is_some())).sum(),
    }
}

impl LimitCounts {
    fn of_denier(&self, policy: &str, rule: &str, mode: Mode) -> RowAction {
        let name = LimitName { policy: policy.to_owned(), rule: rule.to_owned(), mode: mode.name().to_owned() };
        RowAction::Deny(DenierRow { refused: self.refused.get(&name).copied().unwrap_or_default() })
    }

    fn of(&self, limit: &CompiledLimit, now: Timestamp) -> LimitRow {
        let of = |counts: &Counts, name: &LimitName| counts.get(name).copied().unwrap_or_default();
        let name = LimitName::of(limit);
        // Some counters exist only for enforced limits and have no label for the mode. So the mode in this name is
        // empty.
        let enforced = (limit.mode == Mode::Enforce).then(|| LimitName { mode: String::new(), ..name.clone() });
        LimitRow {
            numbers: limit.numbers_text(),
            ends: limit.variants.first().and_then(|numbers| end(numbers, now)),
            keys: limit.keys.join(" "),
            meter: limit.meter.clone(),
            overrides: limit.variants.len().saturating_sub(1),
            asked: of(&self.asked, &name),
            allowed: of(&self.allowed, &name),
            refused: of(&self.refused, &name),
            near: enforced.as_ref().map_or(0, |name| of(&self.near, name)),
            in_flight: enforced.as_ref().and_then(|name| self.in_flight.get(name).copied()),
            leased: enforced
                .as_ref()
                .filter(|_| limit.purse().is_some())
                .and_then(|name| self.leased.get(name).copied()),
            budget: limit.settled_price().map(|price| BudgetCells {
                unit: price.unit().name(),
                spent: self.spent.get(&name).copied().unwrap_or_default(),
                held: enforced.as_ref().and_then(|name| self.held.get(name).copied()),
            }),
            fallback: enforced.and_then(|name| self.fallback.get(&name).cloned()).unwrap_or_default(),
        }
    }
}

fn end(algorithm: &Algorithm, now: Timestamp) -> Option<String> {
    algorithm.window().filter(|window| window.shortest() >= SHOWN_WINDOW)?;
    algorithm.period(None, now).and_then(|period| algorithm.print_end(period.end))
}
