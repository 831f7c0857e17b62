//! Makes the handles of metrics, reads their values, and writes them in Prometheus' text format.
//!
//! Handles of the `metrics` crate count into cells of this registry. Whenever `/metrics` is rendered, a new exporter
//! gets the values of counters and gauges, because an exporter cannot forget series. This registry renders histograms and
//! amounts itself.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use parking_lot::Mutex;

use super::amounts::{AmountCells, AmountCounter};
use super::histogram_cells::{HistogramCells, Samples};
use super::list::{Kind, METRICS};
use super::series::{Cells, Lifetime, SeriesTable};
use base::printable::printable_exposition;
use rules::settled_price::Unit;

const METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, None);

#[derive(Debug, Default)]
pub(crate) struct Registry {
    series: Mutex<SeriesTable>,
}

/// Makes metrics that belong to one configuration. Their series are removed when a reload has removed the rule, policy or
/// issuer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfigSeries<'r> {
    registry: &'r Arc<Registry>,
    lifetime: Lifetime,
}

/// For whom the series are rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Prometheus. Each rendering counts as a scrape, after some of which a removed series is forgotten.
    Scrape,
    /// A collector to which the gateway sends its metrics. Prometheus may scrape the same process, so this counts as no scrape.
    Collector,
}

/// The present value of one series of a metric, with the labels of the series.
#[derive(Debug)]
pub(crate) struct Reading<V> {
    key: Key,
    pub value: V,
}

impl<V> Reading<V> {
    /// Returns the value of a label, or an empty text if the series has no such label.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.key.labels().find(|label| label.key() == name).map_or("", Label::value)
    }
}

impl Registry {
    /// Returns the counter with these labels. This call makes the series appear in `/metrics`.
    pub(crate) fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.make_counter(Lifetime::Process, name, labels)
    }

    /// Returns the gauge with these labels. This call makes the series appear in `/metrics`.
    pub(crate) fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.make_gauge(Lifetime::Process, name, labels)
    }

    /// Returns the histogram with these labels, and with the bounds in the list of metrics. This call makes the series
    /// appear in `/metrics`.
    pub(crate) fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.make_histogram(Lifetime::Process, name, labels)
    }

    /// Returns a value that makes the metrics of the configuration with this number. Later configurations have higher numbers.
    pub(crate) fn of_config(self: &Arc<Self>, number: u32) -> ConfigSeries<'_> {
        ConfigSeries { registry: self, lifetime: Lifetime::Config(number) }
    }

    /// Removes the series that only configurations with a lower number have. Removed series are still shown for two
    /// scrapes.
    pub(crate) fn reloaded(&self, config: u32) {
        self.series.lock().reloaded(config);
    }

    /// Removes the series in which the label has this value. Counters are still shown for two scrapes. All other series are
    /// removed at once.
    pub(crate) fn forget(&self, label: &str, value: &str) {
        self.series.lock().forget(|key| key.labels().any(|known| known.key() == label && known.value() == value));
    }

    fn make_counter(&self, lifetime: Lifetime, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        let new = || Cells::Counter(Arc::default());
        match self.series.lock().get_or_add(name, key(name, labels), lifetime, new) {
            Cells::Counter(cell) => Counter::from_arc(Arc::clone(cell)),
            Cells::Gauge(_) | Cells::Histogram(_) | Cells::Amount(_) => Counter::noop(),
        }
    }

    fn make_gauge(&self, lifetime: Lifetime, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        let new = || Cells::Gauge(Arc::default());
        match self.series.lock().get_or_add(name, key(name, labels), lifetime, new) {
            Cells::Gauge(cell) => Gauge::from_arc(Arc::clone(cell)),
            Cells::Counter(_) | Cells::Histogram(_) | Cells::Amount(_) => Gauge::noop(),
        }
    }

    fn make_histogram(&self, lifetime: Lifetime, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        let new = || Cells::Histogram(Arc::new(HistogramCells::new(bounds(name))));
        match self.series.lock().get_or_add(name, key(name, labels), lifetime, new) {
            Cells::Histogram(cells) => Histogram::from_arc(Arc::clone(cells)),
            Cells::Counter(_) | Cells::Gauge(_) | Cells::Amount(_) => Histogram::noop(),
        }
    }

    fn make_amount(
        &self,
        lifetime: Lifetime,
        name: &'static str,
        unit: Unit,
        labels: &[(&'static str, &str)],
    ) -> AmountCounter {
        let new = || Cells::Amount(Arc::new(AmountCells::new(unit)));
        match self.series.lock().get_or_add(name, key(name, labels), lifetime, new) {
            Cells::Amount(cells) => AmountCounter::new(Arc::clone(cells)),
            Cells::Counter(_) | Cells::Gauge(_) | Cells::Histogram(_) => AmountCounter::noop(unit),
        }
    }

    /// Returns the values of all series of a counter.
    pub(crate) fn counters(&self, name: &str) -> Vec<Reading<u64>> {
        self.readings(name, |cells| match cells {
            Cells::Counter(cell) => Some(cell.load(Ordering::Relaxed)),
            Cells::Gauge(_) | Cells::Histogram(_) | Cells::Amount(_) => None,
        })
    }

    /// Returns the sum of all series of a counter, including series that have been removed.
    pub(crate) fn total(&self, name: &str) -> u64 {
        let series = self.series.lock();
        let counts = series.of(name).map(|(_, cells)| match cells {
            Cells::Counter(cell) => cell.load(Ordering::Relaxed),
            Cells::Gauge(_) | Cells::Histogram(_) | Cells::Amount(_) => 0,
        });
        counts.sum::<u64>() + series.forgotten(name)
    }

    /// Returns the values of all series of a gauge.
    pub(crate) fn gauges(&self, name: &str) -> Vec<Reading<f64>> {
        self.readings(name, |cells| match cells {
            Cells::Gauge(cell) => Some(f64::from_bits(cell.load(Ordering::Relaxed))),
            Cells::Counter(_) | Cells::Histogram(_) | Cells::Amount(_) => None,
        })
    }

    /// Returns the samples of all series of a histogram.
    pub(crate) fn histograms(&self, name: &str) -> Vec<Reading<Samples>> {
        self.readings(name, |cells| match cells {
            Cells::Histogram(cells) => Some(cells.samples()),
            Cells::Counter(_) | Cells::Gauge(_) | Cells::Amount(_) => None,
        })
    }

    /// Returns the values of all series of a counter of amounts, each in its own unit.
    pub(crate) fn amounts(&self, name: &str) -> Vec<Reading<f64>> {
        self.readings(name, |cells| match cells {
            Cells::Amount(cells) => Some(cells.amount()),
            Cells::Counter(_) | Cells::Gauge(_) | Cells::Histogram(_) => None,
        })
    }

    fn readings<V>(&self, name: &str, value: impl Fn(&Cells) -> Option<V>) -> Vec<Reading<V>> {
        let series = self.series.lock();
        series.of(name).filter_map(|(key, cells)| Some(Reading { key: key.clone(), value: value(cells)? })).collect()
    }

    /// Returns all series in Prometheus' text format. `collect` adds further series. Some of them are in the text that
    /// it returns.
    pub(crate) fn render(&self, reader: Reader, collect: impl FnOnce() -> String) -> String {
        // The lock is not held while text is written, because requests take this lock too.
        let scraped = match reader {
            Reader::Scrape => self.series.lock().scrape(),
            Reader::Collector => self.series.lock().all(),
        };
        let recorder = recorder();
        let (mut histograms, mut amounts) = (Vec::new(), Vec::new());
        for (name, key, cells) in scraped {
            match cells {
                Cells::Counter(cell) => {
                    recorder.register_counter(&key, &METADATA).absolute(cell.load(Ordering::Relaxed));
                }
                Cells::Gauge(cell) => {
                    recorder.register_gauge(&key, &METADATA).set(f64::from_bits(cell.load(Ordering::Relaxed)));
                }
                Cells::Histogram(cells) => histograms.push((name, key, cells)),
                Cells::Amount(cells) => amounts.push((name, key, cells)),
            }
        }
        let collected = metrics::with_local_recorder(&recorder, collect);
        let mut text = recorder.handle().render();
        text.push_str(&collected);
        let mut last = "";
        let mut begin = |text: &mut String, name: &'static str, kind: &str| {
            if name != last {
                let help = METRICS.iter().find(|(known, ..)| *known == name).map_or("", |(.., help)| help);
                // Writing to a string cannot fail.
                let _ = writeln!(text, "\n# HELP {name} {help}\n# TYPE {name} {kind}");
                last = name;
            }
        };
        for (name, key, cells) in histograms {
            begin(&mut text, name, "histogram");
            cells.write(&mut text, name, &key);
        }
        for (name, key, cells) in amounts {
            begin(&mut text, name, "counter");
            cells.write(&mut text, name, &key);
        }
        text.push('\n');
        printable_exposition(text)
    }
}

impl ConfigSeries<'_> {
    /// Returns the counter with these labels. This call makes the series appear in `/metrics`.
    pub(crate) fn counter(self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.registry.make_counter(self.lifetime, name, labels)
    }

    /// Returns the gauge with these labels. This call makes the series appear in `/metrics`.
    pub(crate) fn gauge(self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.registry.make_gauge(self.lifetime, name, labels)
    }

    /// Returns the histogram with these labels. This call makes the series appear in `/metrics`.
    pub(crate) fn histogram(self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.registry.make_histogram(self.lifetime, name, labels)
    }

    /// Returns the counter of amounts in this unit with these labels, and with the label `unit`. This call makes the series appear
    /// in `/metrics`.
    pub(crate) fn amount(self, name: &'static str, unit: Unit, labels: &[(&'static str, &str)]) -> AmountCounter {
        let labels = [labels, &[("unit", unit.name())]].concat();
        self.registry.make_amount(self.lifetime, name, unit, &labels)
    }

    /// Returns a function that makes counters of this metric, with these labels and further ones, when they are first used.
    pub(crate) fn counters_of(
        self,
        name: &'static str,
        labels: &[(&'static str, &str)],
    ) -> impl Fn(&[(&'static str, &str)]) -> Counter + Send + Sync + use<> {
        let (registry, lifetime) = (Arc::clone(self.registry), self.lifetime);
        let labels: Vec<(&'static str, String)> =
            labels.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        move |further| {
            let own = labels.iter().map(|(key, value)| (*key, &**value));
            registry.make_counter(lifetime, name, &own.chain(further.iter().copied()).collect::<Vec<_>>())
        }
    }

    /// Keeps existing series of the metric `name` for this configuration: those in which `labels` have one of these values.
    /// Needed for series that the configuration has only once they are used.
    pub(crate) fn keep<const LABELS: usize>(
        self,
        name: &str,
        labels: [&str; LABELS],
        values: &HashSet<[&str; LABELS]>,
    ) {
        self.registry.series.lock().renew(name, self.lifetime, |key| {
            let value = |label: &str| key.labels().find(|known| known.key() == label).map_or("", Label::value);
            values.contains(&labels.map(value))
        });
    }
}

/// Makes an exporter for one rendering. It has the help text of every metric of the list, and no series.
fn recorder() -> PrometheusRecorder {
    let recorder = PrometheusBuilder::new().build_recorder();
    for (name, kind, help) in METRICS {
        let (name, help) = (KeyName::from_const_str(name), SharedString::const_str(help));
        match kind {
            Kind::Counter => recorder.describe_counter(name, None, help),
            Kind::Gauge => recorder.describe_gauge(name, None, help),
            Kind::Histogram(_) | Kind::Summary => {}
        }
    }
    recorder
}

fn bounds(name: &str) -> &'static [f64] {
    let kind = METRICS.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| kind);
    match kind {
        Some(Kind::Histogram(bounds)) => bounds,
        _ => &[],
    }
}

/// Makes the key of a series. Copies of the key share its text.
fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels).to_retained()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::cost::Cost;

    fn lines(text: &str, name: &str) -> Vec<String> {
        let mut lines: Vec<_> = text.lines().filter(|line| line.contains(name)).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    #[test]
    fn counts_are_read_and_rendered_alike() {
        let registry = Registry::default();
        let counter = registry.counter("rate_limiter_unmatched_total", &[("policy", "a \"b\"")]);
        counter.increment(2);
        // The same series is requested again, as after a reload.
        registry.counter("rate_limiter_unmatched_total", &[("policy", "a \"b\"")]).increment(3);
        registry.gauge("rate_limiter_store_up", &[]).set(0.5);
        let readings = registry.counters("rate_limiter_unmatched_total");
        assert_eq!((readings.len(), readings[0].value, readings[0].label("policy")), (1, 5, "a \"b\""));
        assert_eq!(registry.gauges("rate_limiter_store_up")[0].value, 0.5);
        for _ in 0..2 {
            let text = registry.render(Reader::Scrape, String::new);
            assert!(text.contains("rate_limiter_unmatched_total{policy=\"a \\\"b\\\"\"} 5\n"), "{text}");
            assert!(text.contains("rate_limiter_store_up 0.5\n"), "{text}");
        }
        counter.increment(1);
        assert!(registry.render(Reader::Scrape, String::new).contains("\"} 6\n"));
    }

    #[test]
    fn amounts_are_counted_in_their_unit() {
        let (registry, name) = (Arc::new(Registry::default()), "rate_limiter_settled_cost_total");
        let amount = |rule, unit| registry.of_config(1).amount(name, unit, &[("rule", rule)]);
        amount("a \"b\"", Unit::Tokens).add(Cost::from_thousandths(2_500));
        // The same series is requested again, as after a reload.
        amount("a \"b\"", Unit::Tokens).add(Cost::from_tokens(1));
        amount("money", Unit::Dollars).add(Cost::from_thousandths(2_500_000));
        let text = registry.render(Reader::Scrape, String::new);
        assert!(text.contains("# TYPE rate_limiter_settled_cost_total counter\n"), "{text}");
        let mut shown: Vec<_> = lines(&text, name).into_iter().filter(|line| !line.starts_with('#')).collect();
        shown.sort();
        let expected = [r#"{rule="a \"b\"",unit="tokens"} 3.5"#, r#"{rule="money",unit="usd"} 0.0025"#];
        assert_eq!(shown, expected.map(|line| format!("{name}{line}")));
        let mut amounts: Vec<_> = registry.amounts(name).iter().map(|reading| reading.value).collect();
        amounts.sort_by(f64::total_cmp);
        assert_eq!(amounts, [0.0025, 3.5]);
    }

    #[test]
    fn a_histogram_is_rendered_as_the_exporter_renders_it() {
        let (name, labels) = ("tollgate_upstream_request_duration_seconds", [("upstream", "default")]);
        let registry = Registry::default();
        let ours = registry.histogram(name, &labels);
        let matcher = metrics_exporter_prometheus::Matcher::Full(name.to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(matcher, bounds(name)).unwrap();
        let recorder = builder.build_recorder();
        let help = METRICS.iter().find(|(known, ..)| *known == name).unwrap().2;
        recorder.describe_histogram(KeyName::from_const_str(name), None, SharedString::const_str(help));
        let theirs = recorder.register_histogram(&key(name, &labels), &METADATA);
        let exported = || lines(&recorder.handle().render(), name);
        assert_eq!(lines(&registry.render(Reader::Scrape, String::new), name), exported());
        // A sample that is equal to a bound counts below the bound.
        for value in [0.001, 0.0010001, 0.25, 30.0, 31.5, 0.0] {
            ours.record(value);
            theirs.record(value);
        }
        let ours = lines(&registry.render(Reader::Scrape, String::new), name);
        let sums = |lines: &[String]| lines.iter().find(|line| line.contains("_sum")).cloned().unwrap();
        assert_eq!(sums(&ours), "tollgate_upstream_request_duration_seconds_sum{upstream=\"default\"} 61.752");
        let without_sum =
            |lines: Vec<String>| lines.into_iter().filter(|line| !line.contains("_sum")).collect::<Vec<_>>();
        assert_eq!(without_sum(ours), without_sum(exported()));
        assert_eq!(registry.histograms(name)[0].value.counts[..2], [2, 3]);
    }
}
