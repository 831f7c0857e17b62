//! Holds what a request runs under, from its first byte to its last: one configuration, with everything made of it once.

use metrics::Counter;

use super::fields::Shown;
use super::metrics::{LimitMetrics, Metrics};
use super::tokens::Tokens;
use crate::config::Config;
use crate::limit::charge::LimitId;
use crate::limit::rule_set::CompiledLimit;
use crate::time::Clock;

/// One configuration in force.
#[derive(Debug)]
pub struct Snapshot {
    pub config: Config,
    /// By limit; none for those that clients are not told of.
    pub shown: Vec<Option<Shown>>,
    /// None: there are no tokens.
    pub tokens: Option<Tokens>,
    limits: Vec<LimitMetrics>,
    /// By policy.
    pub unmatched: Vec<Counter>,
}

impl Snapshot {
    pub fn new(config: Config, metrics: &Metrics, clock: &Clock) -> Snapshot {
        Snapshot {
            shown: config.rules.limits().iter().map(Shown::new).collect(),
            tokens: config.jwt.as_ref().map(|settings| Tokens::new(settings, clock.clone())),
            limits: metrics.limits(&config.rules),
            unmatched: metrics.unmatched(&config.rules),
            config,
        }
    }

    /// A limit, as it is told and as it is counted.
    pub fn limit(&self, id: LimitId) -> Option<(&CompiledLimit, &LimitMetrics)> {
        self.config.rules.limit(id).zip(self.limits.get(usize::try_from(id.0).ok()?))
    }
}
