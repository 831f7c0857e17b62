//! Counts the decisions of each limit.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, Ordering};

use metrics::{Counter, Gauge};

use super::amounts::AmountCounter;
use super::counters_by::CountersBy;
use super::counters_on_use::{CounterOnUse, CountersOnUse};
use super::leases::LeaseMetrics;
use super::registry::ConfigSeries;
use crate::gateway::runtime::log_throttle::LogThrottle;
use decision::reason::Reason;
use rules::claimed_numbers::ClaimResult;
use rules::denier::Denier;
use rules::rule::{Mode, OnStoreFailure, Otherwise, Policy};
use rules::rule_set::{CompiledLimit, RuleSet};
use rules::settled_price::Unit;
use stores::{Settings, StoreError};

const REJECTED: &str = "rate_limiter_rejected_total";
const FALLBACK: &str = "rate_limiter_fallback_decisions_total";

/// The metrics of one limit, for example how many requests it has allowed and refused.
#[derive(Debug)]
pub(crate) struct LimitMetrics {
    pub requests: Counter,
    pub allowed: Counter,
    pub exceeded: Counter,
    pub too_large: Counter,
    /// The number of requests whose cost was unknown. Only an enforced limit on language models has such requests.
    pub unpriced: Counter,
    pub near_limit: Counter,
    /// The number of requests that `on_store_failure: deny` refused while the store was unavailable.
    pub unavailable: CounterOnUse,
    /// The number of requests that were refused because the home of the limit gave no answer.
    pub home_unavailable: CounterOnUse,
    /// The results of reading the limit's settings from credentials. Empty if the limit has all its settings in the
    /// configuration.
    pub claimed_numbers: CountersBy<ClaimResult>,
    /// The number of requests to which the limit did not apply, because another proxy or a service asked. Only a limit that
    /// holds something while a request runs has such requests.
    pub not_at_door: Counter,
    /// The number of slots that requests of this process hold. Only slots of enforced limits are counted.
    pub in_flight: Gauge,
    /// The metrics that only a budget has. `None` for other limits.
    pub budget: Option<BudgetMetrics>,
    /// The metrics of the limit's bans. `None` for a limit without `ban`.
    pub bans: Option<BanMetrics>,
    /// The metrics of a limit over several regions. `None` for other limits.
    pub leases: Option<LeaseMetrics>,
    /// Counts decisions without the store. Empty if the limit is never decided without the store: in shadow mode, or with a
    /// memory store.
    fallback: CountersOnUse<(OnStoreFailure, StoreError)>,
    /// The actions that were taken without the store since the last call of `take_fallback_actions`, one bit for each
    /// action.
    done_without_store: AtomicU8,
}

/// The metrics of one budget: a limit whose costs are known only when a request has ended.
#[derive(Clone, Debug)]
pub(crate) struct BudgetMetrics {
    pub unit: Unit,
    /// The number of requests whose cost was settled.
    pub settled: Counter,
    /// The sum of the settled costs.
    pub settled_cost: AmountCounter,
    /// The number of settled requests that have cost more than was reserved.
    pub overrun: Counter,
    /// The number of settled requests whose response should have named the cost, and did not.
    pub usage_missing: Counter,
    /// The number of settled requests that have forgotten what was spent. 0 for a limit without `reset_on`.
    pub resets: Counter,
    /// The number of settled requests that a model without a price has answered. 0 for a limit that is not on money.
    pub model_unpriced: Counter,
    /// The number of requests that were refused only because of what other requests held.
    pub refused_by_holds: Counter,
    /// Counts the requests of `refused_by_holds` in the metric of all refusals, `rate_limiter_rejected_total`.
    pub rejected_as_held: Counter,
    /// What requests of this process hold of an enforced limit.
    pub held: Gauge,
}

impl BudgetMetrics {
    /// Makes the metrics of a limit. `None` if the limit is not a budget.
    fn of(limit: &CompiledLimit, series: ConfigSeries<'_>) -> Option<BudgetMetrics> {
        let price = limit.settled_price()?;
        let unit = price.unit();
        let [policy, rule] = [("policy", &*limit.policy), ("rule", &*limit.name)];
        let (mode, unit_label) = (("mode", limit.mode.name()), ("unit", unit.name()));
        let counter = |name| series.counter(name, &[policy, rule, unit_label]);
        let rejected = [policy, rule, mode, ("reason", Reason::BudgetHeld.name())];
        Some(BudgetMetrics {
            unit,
            settled: counter("rate_limiter_settled_total"),
            settled_cost: series.amount("rate_limiter_settled_cost_total", unit, &[policy, rule, mode]),
            overrun: counter("rate_limiter_overrun_total"),
            usage_missing: counter("rate_limiter_usage_missing_total"),
            resets: match price.source.resets() {
                true => counter("rate_limiter_resets_total"),
                false => Counter::noop(),
            },
            model_unpriced: match unit {
                Unit::Dollars => counter("rate_limiter_model_unpriced_total"),
                Unit::Requests | Unit::Tokens => Counter::noop(),
            },
            refused_by_holds: counter("rate_limiter_refused_by_holds_total"),
            rejected_as_held: series.counter(REJECTED, &rejected),
            held: match limit.mode {
                Mode::Enforce => series.gauge("rate_limiter_held", &[policy, rule, unit_label]),
                Mode::Shadow => Gauge::noop(),
            },
        })
    }

    #[cfg(test)]
    pub(crate) fn noop() -> BudgetMetrics {
        let noop = Counter::noop;
        BudgetMetrics {
            unit: Unit::Requests,
            settled: noop(),
            settled_cost: AmountCounter::noop(Unit::Requests),
            overrun: noop(),
            usage_missing: noop(),
            resets: noop(),
            model_unpriced: noop(),
            refused_by_holds: noop(),
            rejected_as_held: noop(),
            held: Gauge::noop(),
        }
    }
}

/// The metrics of the bans of one limit.
#[derive(Debug)]
pub(crate) struct BanMetrics {
    /// The number of bans that have begun, for each duration of the limit's bans.
    begun: Vec<Counter>,
    /// The number of requests that a ban has refused.
    pub refused: Counter,
    /// Limits the log lines about bans of this limit.
    pub log: LogThrottle,
}

impl BanMetrics {
    /// Makes the metrics of a limit's bans. `None` if the limit has no ban.
    fn of(limit: &CompiledLimit, series: ConfigSeries<'_>) -> Option<BanMetrics> {
        let ban = limit.variants.first()?.ban()?;
        let labels = [("policy", &*limit.policy), ("rule", &*limit.name), ("mode", limit.mode.name())];
        let [policy, rule, mode] = labels;
        let begun = |step: usize| {
            series.counter("rate_limiter_bans_total", &[policy, rule, mode, ("step", &*step.to_string())])
        };
        Some(BanMetrics {
            begun: (1..=ban.durations().len()).map(begun).collect(),
            refused: series.counter(REJECTED, &[policy, rule, mode, ("reason", Reason::Banned.name())]),
            log: LogThrottle::default(),
        })
    }

    /// Counts a ban that has begun. `step` is the number of the ban's duration, from 1. A step beyond the last duration
    /// counts as the last.
    pub(crate) fn count(&self, step: u32) {
        let index = usize::try_from(step).unwrap_or(usize::MAX).saturating_sub(1);
        if let Some(counter) = self.begun.get(index).or(self.begun.last()) {
            counter.increment(1);
        }
    }
}

impl LimitMetrics {
    /// Makes the metrics of every limit of a rule set, in the order of the limits. Only series that this configuration
    /// can increase appear in `/metrics`. Series of an earlier configuration that have counted causes stay.
    pub(crate) fn of(rules: &RuleSet, store: &Settings, series: ConfigSeries<'_>) -> Vec<LimitMetrics> {
        let mut limits = rules.limits();
        let denying: HashSet<&str> = limits.iter().filter(|limit| denies(limit)).map(|limit| &*limit.policy).collect();
        let mut metrics = Vec::with_capacity(limits.len());
        let (mut decided, mut unavailable) = (HashSet::new(), HashSet::new());
        for policy in &rules.source().policies {
            let elsewhere = denying.iter().any(|other| *other != policy.name);
            for rule in &policy.rules {
                // Without the store, one limit with `deny` refuses the request, and all limits of the request count
                // this denial. The limit with `deny` is in this rule or in another policy.
                let count = usize::try_from(rule.limit_count()).unwrap_or(usize::MAX);
                let Some((own, later)) = limits.split_at_checked(count) else { return metrics };
                let denied = (elsewhere || own.iter().any(denies)).then_some(OnStoreFailure::Deny);
                let actions = |limit: &CompiledLimit| match (limit.mode, store.is_shared()) {
                    (Mode::Enforce, true) => {
                        let own = limit.on_store_failure;
                        std::iter::once(own).chain(denied.filter(|denied| *denied != own)).collect()
                    }
                    (Mode::Shadow, _) | (Mode::Enforce, false) => Vec::new(),
                };
                for limit in own {
                    let actions = actions(limit);
                    metrics.push(LimitMetrics::new(limit, &actions, series));
                    decided.extend(actions.iter().map(|action| [&*limit.policy, &*limit.name, action.name()]));
                    if limit.purse().is_some() {
                        unavailable.insert([&*limit.policy, &*limit.name, Reason::HomeUnavailable.name()]);
                    }
                    if denies(limit) && !actions.is_empty() {
                        unavailable.insert([&*limit.policy, &*limit.name, Reason::StoreUnavailable.name()]);
                    }
                }
                limits = later;
            }
        }
        series.keep(FALLBACK, ["policy", "rule", "action"], &decided);
        series.keep(REJECTED, ["policy", "rule", "reason"], &unavailable);
        metrics
    }

    /// Makes one counter for each policy, in the order of the policies, for requests that no rule of the policy matched. The
    /// counter is not exported if the policy denies such requests.
    pub(crate) fn unmatched(rules: &RuleSet, series: ConfigSeries<'_>) -> Vec<Counter> {
        let unmatched = |policy: &Policy| match policy.otherwise {
            Otherwise::Allow => series.counter("rate_limiter_unmatched_total", &[("policy", &*policy.name)]),
            Otherwise::Deny => Counter::noop(),
        };
        rules.source().policies.iter().map(unmatched).collect()
    }

    /// Makes one counter for each rule or policy that may deny requests. A [`rules::denier::DenierId`] is an index of the
    /// returned list.
    pub(crate) fn denied(rules: &RuleSet, series: ConfigSeries<'_>) -> Vec<Counter> {
        let denied = |denier: &Denier| {
            let [policy, rule] = [("policy", &*denier.policy), ("rule", denier.rule_name())];
            let labels = [policy, rule, ("mode", denier.mode.name()), ("reason", Reason::Denied.name())];
            series.counter(REJECTED, &labels)
        };
        rules.deniers().iter().map(denied).collect()
    }

    /// Makes the metrics of one limit. `actions` are the actions that may be taken without the store.
    fn new(limit: &CompiledLimit, actions: &[OnStoreFailure], series: ConfigSeries<'_>) -> LimitMetrics {
        let [policy, rule] = [("policy", &*limit.policy), ("rule", &*limit.name)];
        let mode = ("mode", limit.mode.name());
        let exceeded =
            limit.variants.first().map_or(Reason::CostTooLarge, |algorithm| Reason::Exceeded(algorithm.kind()));
        let rejected = |reason: Reason| series.counter(REJECTED, &[policy, rule, mode, ("reason", reason.name())]);
        let fallback = series.counters_of(FALLBACK, &[policy, rule]);
        let unavailable = series.counters_of(REJECTED, &[policy, rule, mode]);
        let home_unavailable = series.counters_of(REJECTED, &[policy, rule, mode]);
        let budget = BudgetMetrics::of(limit, series);
        let has_slots = limit.variants.first().is_some_and(|algorithm| algorithm.slots().is_some());
        let claims: &[ClaimResult] = if limit.claimed.is_some() { &ClaimResult::ALL } else { &[] };
        let causes = |action: &OnStoreFailure| StoreError::ALL.map(|cause| (*action, cause));
        LimitMetrics {
            requests: series.counter("rate_limiter_requests_total", &[policy, rule, mode]),
            allowed: series.counter("rate_limiter_allowed_total", &[policy, rule, mode]),
            exceeded: rejected(exceeded),
            too_large: if limit.may_be_too_large() { rejected(Reason::CostTooLarge) } else { Counter::noop() },
            unpriced: match (limit.mode, limit.settled_price()) {
                (Mode::Enforce, Some(price)) if price.source.is_llm() => rejected(Reason::Unpriced),
                _ => Counter::noop(),
            },
            near_limit: match limit.mode {
                Mode::Enforce => series.counter("rate_limiter_near_limit_total", &[policy, rule]),
                Mode::Shadow => Counter::noop(),
            },
            unavailable: match limit.on_store_failure {
                OnStoreFailure::Deny if !actions.is_empty() => {
                    CounterOnUse::new(move || unavailable(&[("reason", Reason::StoreUnavailable.name())]))
                }
                _ => CounterOnUse::noop(),
            },
            home_unavailable: match limit.purse() {
                Some(_) => CounterOnUse::new(move || home_unavailable(&[("reason", Reason::HomeUnavailable.name())])),
                None => CounterOnUse::noop(),
            },
            claimed_numbers: CountersBy::new(claims.iter().copied(), |result| {
                series.counter("rate_limiter_claimed_numbers_total", &[rule, ("result", result.name())])
            }),
            not_at_door: match has_slots || budget.is_some() {
                true => series.counter("rate_limiter_not_at_door_total", &[policy, rule, mode]),
                false => Counter::noop(),
            },
            in_flight: match (limit.mode, has_slots) {
                (Mode::Enforce, true) => series.gauge("rate_limiter_in_flight", &[policy, rule]),
                (Mode::Shadow, _) | (_, false) => Gauge::noop(),
            },
            budget,
            bans: BanMetrics::of(limit, series),
            leases: LeaseMetrics::of(limit, series),
            fallback: CountersOnUse::new(actions.iter().flat_map(causes), move |(action, cause)| {
                fallback(&[("action", action.name()), ("cause", cause.name())])
            }),
            done_without_store: AtomicU8::new(0),
        }
    }

    /// Returns the `on_store_failure` actions that this limit has taken since the previous call of this function.
    pub(crate) fn take_fallback_actions(&self) -> impl Iterator<Item = OnStoreFailure> + use<> {
        let done = match self.done_without_store.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.done_without_store.swap(0, Ordering::Relaxed),
        };
        OnStoreFailure::ALL.into_iter().filter(move |action| done & bit(*action) != 0)
    }

    /// Counts a decision of the limit without the store. `action` is the action that was taken, and `cause` is the error of the
    /// store.
    pub(crate) fn count_fallback(&self, action: OnStoreFailure, cause: StoreError) {
        // The bit is checked first, so that not every request writes the shared value.
        if self.done_without_store.load(Ordering::Relaxed) & bit(action) == 0 {
            self.done_without_store.fetch_or(bit(action), Ordering::Relaxed);
        }
        self.fallback.increment(&(action, cause));
    }
}

fn bit(action: OnStoreFailure) -> u8 {
    match action {
        OnStoreFailure::Local => 1,
        OnStoreFailure::Allow => 2,
        OnStoreFailure::Deny => 4,
    }
}

/// Whether the limit refuses requests when the store does not answer.
fn denies(limit: &CompiledLimit) -> bool {
    limit.mode == Mode::Enforce && limit.on_store_failure == OnStoreFailure::Deny
}
