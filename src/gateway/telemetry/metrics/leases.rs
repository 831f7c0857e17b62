//! Counts what a region leases from home, and measures the calls to home.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};

use super::amounts::AmountCounter;
use super::counters_on_use::{CounterOnUse, CountersOnUse};
use super::registry::{ConfigSeries, Registry};
use base::time::Micros;
use rules::rule_set::CompiledLimit;
use rules::settled_price::Unit;
use stores::StoreError;

/// The metrics of one limit over several regions.
#[derive(Debug)]
pub(crate) struct LeaseMetrics {
    /// What this gateway has got from home.
    pub leased: AmountCounter,
    /// What this gateway has given back to home.
    pub returned: AmountCounter,
    /// What home has given, for which no purse waited any more.
    pub stranded: AmountCounter,
    /// What lay in the purses that this gateway has filled, when it filled them last.
    pub held: Gauge,
    /// Requests that waited for home, because a purse could not pay.
    pub waited: Counter,
    /// Requests about which the share of the region decided, because home gave no answer.
    pub decided_alone: Counter,
}

impl LeaseMetrics {
    /// Makes the metrics of a limit. `None` if it holds in one region alone.
    pub(crate) fn of(limit: &CompiledLimit, series: ConfigSeries<'_>) -> Option<LeaseMetrics> {
        limit.purse()?;
        let labels = [("policy", &*limit.policy), ("rule", &*limit.name), ("mode", limit.mode.name())];
        let amount = |name| series.amount(name, Unit::Requests, &labels);
        Some(LeaseMetrics {
            leased: amount("rate_limiter_leased_total"),
            returned: amount("rate_limiter_returned_total"),
            stranded: amount("rate_limiter_stranded_total"),
            held: series.gauge("rate_limiter_leased", &labels),
            waited: series.counter("rate_limiter_waited_for_home_total", &labels),
            decided_alone: series.counter("rate_limiter_without_home_total", &labels),
        })
    }
}

/// The metrics of the calls to home.
#[derive(Debug)]
pub(crate) struct HomeMetrics {
    pub up: Gauge,
    pub other_store: Gauge,
    pub calls: Counter,
    pub words: Counter,
    pub duration: Histogram,
    pub errors: CountersOnUse<StoreError>,
    pub healed: CounterOnUse,
    registry: Arc<Registry>,
}

impl HomeMetrics {
    pub(crate) fn new(registry: &Arc<Registry>) -> HomeMetrics {
        let (of_errors, of_healed) = (Arc::clone(registry), Arc::clone(registry));
        HomeMetrics {
            up: registry.gauge("rate_limiter_home_up", &[]),
            other_store: registry.gauge("rate_limiter_region_has_other_store", &[]),
            calls: registry.counter("rate_limiter_home_calls_total", &[]),
            words: registry.counter("rate_limiter_home_words_total", &[]),
            duration: registry.histogram("rate_limiter_home_call_duration_seconds", &[]),
            errors: CountersOnUse::new(StoreError::ALL, move |kind: &StoreError| {
                of_errors.counter("rate_limiter_home_errors_total", &[("kind", kind.name())])
            }),
            healed: CounterOnUse::new(move || {
                of_healed.counter("rate_limiter_home_errors_total", &[("kind", "impossible_bucket")])
            }),
            registry: Arc::clone(registry),
        }
    }

    /// Sets the gauge that says how long ago home was heard. The gauge appears in `/metrics` with the first call.
    pub(crate) fn set_heard(&self, since: Micros) {
        self.registry.gauge("rate_limiter_home_heard_seconds", &[]).set(since.seconds());
    }

    /// Sets the gauge that says whether home may evict buckets. The gauge appears in `/metrics` with the first call.
    pub(crate) fn set_may_evict(&self, may_evict: bool) {
        self.registry.gauge("rate_limiter_home_may_evict", &[]).set(if may_evict { 1.0 } else { 0.0 });
    }
}
