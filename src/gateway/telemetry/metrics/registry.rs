//! Holds the number behind every counter, gauge and histogram, and writes them in Prometheus' text format.
//!
//! The handles of the `metrics` crate count into cells of this registry, so the status page reads numbers. The exporter
//! gets the values of counters and gauges when `/metrics` is rendered. Its histograms take samples and nothing else, and
//! keep every sample until it is aggregated, so histograms are rendered here.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use parking_lot::Mutex;

use super::histogram_cells::{HistogramCells, Samples};
use super::list::{Kind, METRICS};
use crate::base::printable::printable_exposition;

const METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, None);

pub struct Registry {
    recorder: PrometheusRecorder,
    exposition: PrometheusHandle,
    /// By the name of the metric. A series, once made, is kept as long as the process runs.
    series: Mutex<BTreeMap<&'static str, BySeries>>,
}

type BySeries = HashMap<Arc<Key>, Series>;

/// One series of a metric, with the exporter's handle to the same one.
enum Series {
    Counter { cell: Arc<AtomicU64>, exported: Counter },
    Gauge { cell: Arc<AtomicU64>, exported: Gauge },
    Histogram(Arc<HistogramCells>),
}

/// What a series has counted, with its labels.
#[derive(Debug)]
pub struct Reading<V> {
    key: Arc<Key>,
    pub value: V,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

impl<V> Reading<V> {
    /// The value of a label, or an empty string if there is no such label.
    pub fn label(&self, name: &str) -> &str {
        self.key.labels().find(|label| label.key() == name).map_or("", Label::value)
    }
}

impl Registry {
    /// Describes every metric of the list. No series exists yet.
    pub fn new() -> Registry {
        let recorder = PrometheusBuilder::new().build_recorder();
        for (name, kind, help) in METRICS {
            let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
            match kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                Kind::Histogram(_) => {}
            }
        }
        Registry { exposition: recorder.handle(), recorder, series: Mutex::default() }
    }

    /// The counter with these labels, which exists from now on.
    pub fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        let key = key(name, labels);
        let mut series = self.series.lock();
        let made = series.entry(name).or_default().entry(key).or_insert_with_key(|key| Series::Counter {
            cell: Arc::default(),
            exported: self.recorder.register_counter(key, &METADATA),
        });
        match made {
            Series::Counter { cell, .. } => Counter::from_arc(Arc::clone(cell)),
            Series::Gauge { .. } | Series::Histogram(_) => Counter::noop(),
        }
    }

    /// The gauge with these labels, which exists from now on.
    pub fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        let key = key(name, labels);
        let mut series = self.series.lock();
        let made = series.entry(name).or_default().entry(key).or_insert_with_key(|key| Series::Gauge {
            cell: Arc::default(),
            exported: self.recorder.register_gauge(key, &METADATA),
        });
        match made {
            Series::Gauge { cell, .. } => Gauge::from_arc(Arc::clone(cell)),
            Series::Counter { .. } | Series::Histogram(_) => Gauge::noop(),
        }
    }

    /// The histogram with these labels, which exists from now on. Its bounds are in the list of metrics.
    pub fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        let key = key(name, labels);
        let mut series = self.series.lock();
        let new = || Series::Histogram(Arc::new(HistogramCells::new(bounds(name))));
        match series.entry(name).or_default().entry(key).or_insert_with(new) {
            Series::Histogram(cells) => Histogram::from_arc(Arc::clone(cells)),
            Series::Counter { .. } | Series::Gauge { .. } => Histogram::noop(),
        }
    }

    /// Every series of a counter.
    pub fn counters(&self, name: &str) -> Vec<Reading<u64>> {
        self.readings(name, |series| match series {
            Series::Counter { cell, .. } => Some(cell.load(Ordering::Relaxed)),
            Series::Gauge { .. } | Series::Histogram(_) => None,
        })
    }

    /// Every series of a gauge.
    pub fn gauges(&self, name: &str) -> Vec<Reading<f64>> {
        self.readings(name, |series| match series {
            Series::Gauge { cell, .. } => Some(f64::from_bits(cell.load(Ordering::Relaxed))),
            Series::Counter { .. } | Series::Histogram(_) => None,
        })
    }

    /// Every series of a histogram.
    pub fn histograms(&self, name: &str) -> Vec<Reading<Samples>> {
        self.readings(name, |series| match series {
            Series::Histogram(cells) => Some(cells.samples()),
            Series::Counter { .. } | Series::Gauge { .. } => None,
        })
    }

    fn readings<V>(&self, name: &str, value: impl Fn(&Series) -> Option<V>) -> Vec<Reading<V>> {
        let all = self.series.lock();
        let series = all.get(name).into_iter().flatten();
        series.filter_map(|(key, series)| Some(Reading { key: Arc::clone(key), value: value(series)? })).collect()
    }

    /// Every series in Prometheus' text format, and those that `collect` adds through the `metrics` crate.
    pub fn render(&self, collect: impl FnOnce()) -> String {
        let histograms = self.export();
        metrics::with_local_recorder(&self.recorder, collect);
        let mut text = self.exposition.render();
        let mut last = "";
        for (name, key, cells) in histograms {
            if name != last {
                let help = METRICS.iter().find(|(known, ..)| *known == name).map_or("", |(.., help)| help);
                // Writing to a string cannot fail.
                let _ = writeln!(text, "\n# HELP {name} {help}\n# TYPE {name} histogram");
                last = name;
            }
            cells.write(&mut text, name, &key);
        }
        text.push('\n');
        printable_exposition(text)
    }

    /// Hands the values of counters and gauges to the exporter, and returns the histograms, those of one metric together.
    /// The lock is not held while text is written: a request that counts its first response of a kind takes it too.
    fn export(&self) -> Vec<(&'static str, Arc<Key>, Arc<HistogramCells>)> {
        let mut histograms = Vec::new();
        for (name, by_series) in &*self.series.lock() {
            for (key, series) in by_series {
                match series {
                    Series::Counter { cell, exported } => exported.absolute(cell.load(Ordering::Relaxed)),
                    Series::Gauge { cell, exported } => exported.set(f64::from_bits(cell.load(Ordering::Relaxed))),
                    Series::Histogram(cells) => histograms.push((*name, Arc::clone(key), Arc::clone(cells))),
                }
            }
        }
        histograms
    }

    /// Describes what `describe` registers through the `metrics` crate.
    pub fn describe(&self, describe: impl FnOnce()) {
        metrics::with_local_recorder(&self.recorder, describe);
    }
}

fn bounds(name: &str) -> &'static [f64] {
    let kind = METRICS.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| kind);
    match kind {
        Some(Kind::Histogram(bounds)) => bounds,
        _ => &[],
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Arc<Key> {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Arc::new(Key::from_parts(name, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, name: &str) -> Vec<String> {
        let mut lines: Vec<_> = text.lines().filter(|line| line.contains(name)).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_is_counted_is_read_and_rendered_alike() {
        let registry = Registry::new();
        let counter = registry.counter("rate_limiter_unmatched_total", &[("policy", "a \"b\"")]);
        counter.increment(2);
        // The same series again, as after a reload.
        registry.counter("rate_limiter_unmatched_total", &[("policy", "a \"b\"")]).increment(3);
        registry.gauge("rate_limiter_store_up", &[]).set(0.5);
        let readings = registry.counters("rate_limiter_unmatched_total");
        assert_eq!((readings.len(), readings[0].value, readings[0].label("policy")), (1, 5, "a \"b\""));
        assert_eq!(registry.gauges("rate_limiter_store_up")[0].value, 0.5);
        for _ in 0..2 {
            let text = registry.render(|| ());
            assert!(text.contains("rate_limiter_unmatched_total{policy=\"a \\\"b\\\"\"} 5\n"), "{text}");
            assert!(text.contains("rate_limiter_store_up 0.5\n"), "{text}");
        }
        counter.increment(1);
        assert!(registry.render(|| ()).contains("\"} 6\n"));
    }

    #[test]
    fn a_histogram_is_rendered_as_the_exporter_renders_it() {
        let (name, labels) = ("tollgate_upstream_request_duration_seconds", [("upstream", "default")]);
        let registry = Registry::new();
        let ours = registry.histogram(name, &labels);
        let matcher = metrics_exporter_prometheus::Matcher::Full(name.to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, bounds(name)).unwrap();
        let recorder = builder.build_recorder();
        let help = METRICS.iter().find(|(known, ..)| *known == name).unwrap().2;
        recorder.describe_histogram(KeyName::from_const_str(name), None, SharedString::const_str(help));
        let theirs = recorder.register_histogram(&key(name, &labels), &METADATA);
        let exported = || lines(&recorder.handle().render(), name);
        assert_eq!(lines(&registry.render(|| ()), name), exported());
        // A sample that is equal to a bound is within it.
        for value in [0.001, 0.0010001, 0.25, 30.0, 31.5, 0.0] {
            ours.record(value);
            theirs.record(value);
        }
        let ours = lines(&registry.render(|| ()), name);
        let sums = |lines: &[String]| lines.iter().find(|line| line.contains("_sum")).cloned().unwrap();
        assert_eq!(sums(&ours), "tollgate_upstream_request_duration_seconds_sum{upstream=\"default\"} 61.752");
        let without_sum =
            |lines: Vec<String>| lines.into_iter().filter(|line| !line.contains("_sum")).collect::<Vec<_>>();
        assert_eq!(without_sum(ours), without_sum(exported()));
        assert_eq!(registry.histograms(name)[0].value.counts[..2], [2, 3]);
    }
}
