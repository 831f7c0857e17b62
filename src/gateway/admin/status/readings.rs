//! Sums the values of metrics over their series.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::gateway::telemetry::metrics::registry::{Reading, Registry};
use base::time::Timestamp;
use rules::denier::Denier;
use rules::rule_set::CompiledLimit;

/// The present values of all metrics, with sums over their series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readings<'r>(pub &'r Registry);

/// The limit to which a series belongs, or the rule that denies. The mode is empty if the metric has no label for the mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LimitName {
    pub policy: String,
    pub rule: String,
    pub mode: String,
}

impl LimitName {
    pub(super) fn of(limit: &CompiledLimit) -> LimitName {
        LimitName { policy: limit.policy.to_string(), rule: limit.name.to_string(), mode: limit.mode.name().to_owned() }
    }

    pub(super) fn of_denier(denier: &Denier) -> LimitName {
        let [policy, rule] = [&denier.policy, denier.rule_name()].map(str::to_owned);
        LimitName { policy, rule, mode: denier.mode.name().to_owned() }
    }
}

/// The number of samples of a metric by their size, summed over all series of the metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Histogram {
    pub bounds: &'static [f64],
    /// For each bound, the number of samples up to the bound. The last element is the number of all samples.
    pub counts: Vec<u64>,
}

/// Converts a moment to seconds since the Unix epoch.
pub(super) fn date(moment: Timestamp) -> f64 {
    moment.since(Timestamp(0)).seconds()
}

impl Readings<'_> {
    /// Returns the sum of a counter over all its series, including series that were removed.
    pub(super) fn total(self, name: &str) -> u64 {
        self.0.total(name)
    }

    /// Returns the sum of a gauge over all its series.
    pub(super) fn level(self, name: &str) -> f64 {
        self.0.gauges(name).iter().map(|reading| reading.value).sum()
    }

    /// Returns the sum of a counter for each value of a label.
    pub(super) fn by(self, name: &str, label: &str) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for reading in self.0.counters(name) {
            *sums.entry(reading.label(label).to_owned()).or_default() += reading.value;
        }
        sums
    }

    /// Returns the value of a gauge for each value of a label.
    pub(super) fn levels(self, name: &str, label: &str) -> HashMap<String, f64> {
        let by_label = |reading: &Reading<f64>| (reading.label(label).to_owned(), reading.value);
        self.0.gauges(name).iter().map(by_label).collect()
    }

    /// Returns the value of a gauge for each limit. The gauge must have no label for the mode.
    pub(super) fn levels_by_limit(self, name: &str) -> HashMap<LimitName, f64> {
        let by_limit = |reading: &Reading<f64>| {
            let [policy, rule] = ["policy", "rule"].map(|label| reading.label(label).to_owned());
            (LimitName { policy, rule, mode: String::new() }, reading.value)
        };
        self.0.gauges(name).iter().map(by_limit).collect()
    }

    /// Returns the value of a counter of amounts for each limit.
    pub(super) fn amounts_by_limit(self, name: &str) -> HashMap<LimitName, f64> {
        let by_limit = |reading: &Reading<f64>| {
            let [policy, rule, mode] = ["policy", "rule", "mode"].map(|label| reading.label(label).to_owned());
            (LimitName { policy, rule, mode }, reading.value)
        };
        self.0.amounts(name).iter().map(by_limit).collect()
    }

    /// Returns the sum of a counter over the series in which the value of each label begins with its prefix.
    pub(super) fn with_prefixes(self, name: &str, labels: [(&str, &str); 2]) -> u64 {
        let has =
            |reading: &&Reading<u64>| labels.iter().all(|(label, prefix)| reading.label(label).starts_with(prefix));
        self.0.counters(name).iter().filter(has).map(|reading| reading.value).sum()
    }

    /// Returns the sum of a counter for each limit.
    pub(super) fn by_limit(self, name: &str) -> HashMap<LimitName, u64> {
        let mut sums = HashMap::new();
        for reading in self.0.counters(name) {
            let [policy, rule, mode] = ["policy", "rule", "mode"].map(|label| reading.label(label).to_owned());
            *sums.entry(LimitName { policy, rule, mode }).or_default() += reading.value;
        }
        sums
    }

    /// Returns the sum of a counter for each limit and each value of another label. The counter must have no label for the
    /// mode. Series with the value 0 are left out.
    pub(super) fn by_limit_and(self, name: &str, label: &str) -> HashMap<LimitName, BTreeMap<String, u64>> {
        let mut sums: HashMap<_, BTreeMap<_, _>> = HashMap::new();
        for reading in self.0.counters(name).into_iter().filter(|reading| reading.value > 0) {
            let [policy, rule] = ["policy", "rule"].map(|label| reading.label(label).to_owned());
            let of_limit = sums.entry(LimitName { policy, rule, mode: String::new() }).or_default();
            *of_limit.entry(reading.label(label).to_owned()).or_default() += reading.value;
        }
        sums
    }

    pub(super) fn histogram(self, name: &str) -> Histogram {
        let mut sum = Histogram::default();
        for reading in self.0.histograms(name) {
            let samples = reading.value;
            sum.bounds = samples.bounds;
            sum.counts.resize(samples.counts.len(), 0);
            for (sum, count) in sum.counts.iter_mut().zip(samples.counts) {
                *sum += count;
            }
        }
        sum
    }
}

impl Histogram {
    /// Returns the smallest bound that at least 99 % of the samples since `before` do not exceed, or else the last bound.
    /// `None` without samples.
    pub(super) fn p99_since(&self, before: &Histogram) -> Option<f64> {
        let count = |of: &Histogram, index: usize| of.counts.get(index).copied().unwrap_or_default();
        let since = |index: usize| count(self, index).saturating_sub(count(before, index));
        let all = since(self.counts.len().checked_sub(1)?);
        if all == 0 {
            return None;
        }
        let is_within = |index: &usize| since(*index) >= all - all / 100;
        let index = (0..self.bounds.len()).find(is_within).unwrap_or(self.bounds.len().checked_sub(1)?);
        self.bounds.get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_over_the_labels_that_are_not_named() {
        let registry = Registry::default();
        for (rule, mode, reason, count) in [
            ("free", "enforce", "a", 3),
            ("free", "enforce", "b", 4),
            ("free", "shadow", "a", 5),
            ("x} 9", "enforce", "b, \"c\"=", 6),
        ] {
            let labels = [("policy", "plans"), ("rule", rule), ("mode", mode), ("reason", reason)];
            registry.counter("rate_limiter_rejected_total", &labels).increment(count);
        }
        let issuer = |issuer| registry.gauge("tollgate_jwks_last_success_timestamp_seconds", &[("issuer", issuer)]);
        issuer("a").set(1.5);
        issuer("b").set(2.0);
        let (readings, name) = (Readings(&registry), "rate_limiter_rejected_total");
        assert_eq!((readings.total(name), readings.total("none"), readings.level(name)), (18, 0, 0.0));
        assert_eq!(readings.level("tollgate_jwks_last_success_timestamp_seconds"), 3.5);
        assert_eq!(readings.levels("tollgate_jwks_last_success_timestamp_seconds", "issuer")["a"], 1.5);
        assert_eq!(readings.by(name, "mode"), BTreeMap::from([("enforce".into(), 13), ("shadow".into(), 5)]));
        assert_eq!(readings.with_prefixes(name, [("mode", "enf"), ("reason", "b")]), 10);
        assert_eq!((readings.by(name, "reason")["b, \"c\"="], readings.by(name, "rule")["x} 9"]), (6, 6));
        let limits = readings.by_limit(name);
        let [policy, rule, mode] = ["plans", "free", "enforce"].map(str::to_owned);
        assert_eq!((limits[&LimitName { policy, rule, mode }], limits.len()), (7, 3));
        let reasons = readings.by_limit_and(name, "reason");
        let free = LimitName { policy: "plans".into(), rule: "free".into(), mode: String::new() };
        assert_eq!(reasons[&free], BTreeMap::from([("a".into(), 8), ("b".into(), 4)]));
    }

    #[test]
    fn the_99th_percentile_is_of_the_samples_since_another_reading() {
        let histogram = |counts: &[u64]| Histogram { bounds: &[1.0, 2.0], counts: counts.to_vec() };
        let since = |now: &[u64], before: &[u64]| histogram(now).p99_since(&histogram(before));
        assert_eq!(since(&[99, 100, 100], &[]), Some(1.0));
        assert_eq!(since(&[98, 100, 100], &[0, 0, 0]), Some(2.0));
        assert_eq!(since(&[98, 100, 103], &[98, 100, 100]), Some(2.0));
        assert_eq!(since(&[98, 101, 101], &[98, 100, 100]), Some(2.0));
        assert_eq!(
            (since(&[5, 5, 5], &[5, 5, 5]), Histogram::default().p99_since(&Histogram::default())),
            (None, None)
        );
    }

    #[test]
    fn histograms_are_added_bound_by_bound() {
        let registry = Registry::default();
        let name = "rate_limiter_store_batch_requests";
        let [one, two] = ["one", "two"].map(|store| registry.histogram(name, &[("store", store)]));
        one.record(1.0);
        one.record(3.0);
        one.record(1000.0);
        two.record_many(1.0, 10);
        let sum = Readings(&registry).histogram(name);
        assert_eq!((sum.bounds[0], &sum.counts[..3], sum.counts.last()), (1.0, &[11, 11, 12][..], Some(&13)));
        assert_eq!(Readings(&registry).histogram("none"), Histogram::default());
    }
}
