//! Learns from the costs of requests what later requests may cost, for the budgets with `reserve: {learn: …}`.
//!
//! The memory is bounded: a limit has at most [`MOST_VALUES`] samples for single values, and one sample for all other
//! values. A sample takes at most 16 KiB.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use ledger::charge::LimitId;
use ledger::cost::Cost;
use request::attribute::Attribute;
use request::request::Request;
use rules::cost_sample::CostSample;
use rules::rule::Mode;
use rules::rule_set::{CompiledLimit, RuleSet};
use rules::settled_price::{Reserve, SettledSource};

/// The largest number of values of an attribute that have their own samples, for one limit.
const MOST_VALUES: usize = 1000;

/// The longest value that has a sample of its own, in bytes.
const LONGEST_VALUE: usize = 256;

/// The costs that the limits of one configuration have learned. A limit keeps its costs at a reload that does not
/// change the limit.
#[derive(Debug, Default)]
pub(crate) struct LearnedCosts {
    /// One entry for each limit. `None` for a limit that does not learn.
    limits: Vec<Option<Arc<LearnedLimit>>>,
}

#[derive(Debug)]
struct LearnedLimit {
    policy: String,
    name: String,
    mode: Mode,
    source: SettledSource,
    by: Option<Attribute>,
    samples: RwLock<HashMap<Box<[u8]>, Mutex<CostSample>>>,
    /// The sample of requests without a value, and of requests whose value has no sample of its own.
    others: Mutex<CostSample>,
}

/// Adds the cost of one request to a sample, when the request has ended.
#[derive(Debug)]
pub(crate) struct CostLearner {
    limit: Arc<LearnedLimit>,
    by: Option<Box<[u8]>>,
}

impl LearnedCosts {
    /// Makes the learned costs for these rules. `before` has the costs of the configuration that these rules replace.
    pub(crate) fn after(before: Option<&LearnedCosts>, rules: &RuleSet) -> LearnedCosts {
        let known = || before.iter().flat_map(|before| before.limits.iter().flatten());
        let learned = |limit: &CompiledLimit| {
            let new = LearnedLimit::new(limit)?;
            let kept = known().find(|known| known.counts_as(&new));
            Some(kept.cloned().unwrap_or_else(|| Arc::new(new)))
        };
        LearnedCosts { limits: rules.limits().iter().map(learned).collect() }
    }

    /// Returns the learner for the cost of this request at a limit. `None` if the limit does not learn.
    pub(crate) fn learner(&self, limit: LimitId, request: &Request<'_>) -> Option<CostLearner> {
        let limit = Arc::clone(self.limit(limit)?);
        let value = limit.by.as_ref().map(|by| by.resolve_for_match(request));
        let by = value.as_ref().and_then(|value| value.single()).map(Box::from);
        Some(CostLearner { limit, by })
    }

    fn limit(&self, limit: LimitId) -> Option<&Arc<LearnedLimit>> {
        self.limits.get(usize::try_from(limit.0).ok()?)?.as_ref()
    }
}

impl rules::settled_price::LearnedCosts for LearnedCosts {
    fn quantile(&self, limit: LimitId, quantile: u16, by: Option<&[u8]>) -> Option<Cost> {
        self.limit(limit)?.quantile(quantile, by)
    }
}

impl CostLearner {
    /// Adds a cost that the response has named.
    pub(crate) fn learn(&self, cost: Cost) {
        self.limit.learn(self.by.as_deref(), cost);
    }
}

impl LearnedLimit {
    fn new(limit: &CompiledLimit) -> Option<LearnedLimit> {
        let price = limit.settled_price()?;
        let Reserve::Learned(learned) = &price.reserve else { return None };
        Some(LearnedLimit {
            policy: limit.policy.clone(),
            name: limit.name.clone(),
            mode: limit.mode,
            source: price.source.clone(),
            by: learned.by.clone(),
            samples: RwLock::default(),
            others: Mutex::default(),
        })
    }

    /// Returns whether both limits learn the same costs, so that a reload may keep these costs.
    fn counts_as(&self, other: &LearnedLimit) -> bool {
        let name = |limit: &LearnedLimit| (limit.policy.clone(), limit.name.clone(), limit.mode);
        name(self) == name(other) && self.source == other.source && self.by == other.by
    }

    fn quantile(&self, quantile: u16, by: Option<&[u8]>) -> Option<Cost> {
        if let Some(by) = own(by) {
            let samples = self.samples.read();
            if let Some(sample) = samples.get(by) {
                return sample.lock().quantile(quantile);
            }
            if samples.len() < MOST_VALUES {
                return None;
            }
        }
        self.others.lock().quantile(quantile)
    }

    fn learn(&self, by: Option<&[u8]>, cost: Cost) {
        if let Some(by) = own(by) {
            if let Some(sample) = self.samples.read().get(by) {
                return sample.lock().add(cost);
            }
            let mut samples = self.samples.write();
            if samples.len() < MOST_VALUES || samples.contains_key(by) {
                return samples.entry(by.into()).or_default().get_mut().add(cost);
            }
        }
        self.others.lock().add(cost);
    }
}

/// Returns the value if it is short enough for a sample of its own.
fn own(by: Option<&[u8]>) -> Option<&[u8]> {
    by.filter(|by| by.len() <= LONGEST_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use config::{Config, Environment};
    use rules::settled_price::LearnedCosts as _;

    fn rules(reserve: &str, weights: &str) -> RuleSet {
        let keys = format!("rate: 1000/min, cost_source: llm_tokens, reserve: {reserve}, weights: {weights}");
        let file = format!(
            "upstream: http://127.0.0.1:9000\nrules:\n  - {{name: a, limit_keys: [], algorithm_config: {{{keys}}}}}\n"
        );
        let environment = Environment {
            variable: &|_| None,
            folder: Path::new("."),
            read: &|_| Err(std::io::ErrorKind::NotFound.into()),
        };
        Config::parse("gateway.yaml", file.as_bytes(), environment).unwrap().rules
    }

    const BY_MODEL: &str = "{learn: 95%, by: llm:model, min: 1, default: 100}";

    fn learned(rules: &RuleSet) -> LearnedCosts {
        LearnedCosts::after(None, rules)
    }

    fn add(costs: &LearnedCosts, by: Option<&[u8]>, cost: u64, times: usize) {
        let limit = Arc::clone(costs.limit(LimitId(0)).unwrap());
        let learner = CostLearner { limit, by: by.map(Box::from) };
        (0..times).for_each(|_| learner.learn(Cost::from_tokens(cost)));
    }

    fn quantile(costs: &LearnedCosts, by: Option<&[u8]>) -> Option<u64> {
        costs.quantile(LimitId(0), 950, by).map(Cost::whole)
    }

    #[test]
    fn values_learn_apart_and_the_rest_together() {
        let costs = learned(&rules(BY_MODEL, "{}"));
        add(&costs, Some(b"small"), 7, 50);
        add(&costs, Some(b"large"), 900, 49);
        assert_eq!((quantile(&costs, Some(b"small")), quantile(&costs, Some(b"large"))), (Some(7), None));
        // Requests without the attribute and requests with a long value share a sample.
        add(&costs, None, 30, 49);
        assert_eq!(quantile(&costs, None), None);
        add(&costs, Some(&[b'a'; LONGEST_VALUE + 1]), 30, 1);
        assert_eq!(quantile(&costs, None), Some(30));
        for number in 2..MOST_VALUES {
            add(&costs, Some(number.to_string().as_bytes()), 1, 1);
        }
        assert_eq!(quantile(&costs, Some(b"new")), Some(30));
        add(&costs, Some(b"new"), 31, 1000);
        assert_eq!((quantile(&costs, Some(b"newer")), quantile(&costs, Some(b"small"))), (Some(31), Some(7)));
    }

    #[test]
    fn a_limit_that_a_reload_does_not_change_keeps_its_costs() {
        let before = learned(&rules(BY_MODEL, "{}"));
        add(&before, Some(b"small"), 7, 50);
        let kept = |reserve, weights| {
            quantile(&LearnedCosts::after(Some(&before), &rules(reserve, weights)), Some(b"small")).is_some()
        };
        assert!(kept(BY_MODEL, "{}"));
        assert!(kept("{learn: 50%, by: llm:model, min: 2, max: 200, default: 9}", "{}"));
        assert!(!kept(BY_MODEL, "{output: 4}"));
        assert!(!kept("{learn: 95%, by: header:x-a, min: 1, default: 100}", "{}"));
        assert!(!kept("5", "{}"));
    }
}
