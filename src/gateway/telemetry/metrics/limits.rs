//! Counts what each limit decided.

use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Counter;

use super::counters_by::CountersBy;
use super::registry::Registry;
use crate::decision::reason::Reason;
use crate::limit::denier::Denier;
use crate::limit::rule::{Mode, OnStoreFailure};
use crate::limit::rule_set::{CompiledLimit, RuleSet};
use crate::store::StoreError;

/// The handles of one limit.
#[derive(Debug)]
pub struct LimitMetrics {
    pub requests: Counter,
    pub allowed: Counter,
    pub exceeded: Counter,
    pub too_large: Counter,
    pub near_limit: Counter,
    /// Refused by `on_store_failure: deny` while the store was unavailable.
    pub unavailable: Counter,
    /// Empty for a shadow limit, which is never decided without the store.
    fallback: CountersBy<(OnStoreFailure, StoreError)>,
    fell_back: AtomicBool,
}

impl LimitMetrics {
    /// The handles of every limit of a rule set, in its order. Every series exists from here on, at 0.
    pub fn of(rules: &RuleSet, registry: &Registry) -> Vec<LimitMetrics> {
        let denies =
            |limit: &CompiledLimit| limit.mode == Mode::Enforce && limit.on_store_failure == OnStoreFailure::Deny;
        let denied = rules.limits().iter().any(denies).then_some(OnStoreFailure::Deny);
        rules.limits().iter().map(|limit| LimitMetrics::new(limit, denied, registry)).collect()
    }

    /// One counter for each policy, in their order, of the requests that matched no rule of it.
    pub fn unmatched(rules: &RuleSet, registry: &Registry) -> Vec<Counter> {
        let unmatched = |policy| registry.counter("rate_limiter_unmatched_total", &[("policy", policy)]);
        rules.policies().map(unmatched).collect()
    }

    /// One counter for each rule or policy that may deny requests, by [`crate::limit::denier::DenierId`].
    pub fn denied(rules: &RuleSet, registry: &Registry) -> Vec<Counter> {
        let denied = |denier: &Denier| {
            let [policy, rule] = [("policy", &*denier.policy), ("rule", denier.rule_name())];
            let labels = [policy, rule, ("mode", denier.mode.name()), ("reason", Reason::Denied.name())];
            registry.counter("rate_limiter_rejected_total", &labels)
        };
        rules.deniers().iter().map(denied).collect()
    }

    /// `denied` is `Deny` if a limit of the file denies requests without the store, and so refuses for the others.
    fn new(limit: &CompiledLimit, denied: Option<OnStoreFailure>, registry: &Registry) -> LimitMetrics {
        let [policy, rule] = [("policy", &*limit.policy), ("rule", &*limit.name)];
        let mode = ("mode", limit.mode.name());
        let exceeded =
            limit.variants.first().map_or(Reason::CostTooLarge, |algorithm| Reason::Exceeded(algorithm.kind()));
        let rejected = |reason: Reason| {
            registry.counter("rate_limiter_rejected_total", &[policy, rule, mode, ("reason", reason.name())])
        };
        let own = limit.on_store_failure;
        let actions = std::iter::once(own).chain(denied.filter(|denied| *denied != own));
        let fallback = |(action, cause): &(OnStoreFailure, StoreError)| {
            let labels = [policy, rule, ("action", action.name()), ("cause", cause.name())];
            registry.counter("rate_limiter_fallback_decisions_total", &labels)
        };
        LimitMetrics {
            requests: registry.counter("rate_limiter_requests_total", &[policy, rule, mode]),
            allowed: registry.counter("rate_limiter_allowed_total", &[policy, rule, mode]),
            exceeded: rejected(exceeded),
            too_large: rejected(Reason::CostTooLarge),
            near_limit: registry.counter("rate_limiter_near_limit_total", &[policy, rule]),
            unavailable: rejected(Reason::StoreUnavailable),
            fallback: match limit.mode {
                Mode::Enforce => {
                    CountersBy::new(actions.flat_map(|action| StoreError::ALL.map(|cause| (action, cause))), fallback)
                }
                Mode::Shadow => CountersBy::none(),
            },
            fell_back: AtomicBool::new(false),
        }
    }

    /// Whether the limit was decided without the store since the last call.
    pub fn has_fallen_back(&self) -> bool {
        self.fell_back.load(Ordering::Relaxed) && self.fell_back.swap(false, Ordering::Relaxed)
    }

    /// Counts what was done without the store, and why.
    pub fn count_fallback(&self, action: OnStoreFailure, cause: StoreError) {
        self.fell_back.store(true, Ordering::Relaxed);
        self.fallback.increment(&(action, cause));
    }
}
