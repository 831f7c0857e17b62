//! Counts samples by their size, and writes the counts in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{HistogramFn, Key};

/// The factor by which the sum of the samples is multiplied. A sum of seconds is kept in microseconds.
const SUM_UNITS: f64 = 1e6;

/// The numbers of one histogram: how many samples each range of values has, and the sum of all samples.
#[derive(Debug)]
pub(super) struct HistogramCells {
    /// The upper bounds of the ranges, in ascending order.
    bounds: &'static [f64],
    /// The number of samples in each range: one count for each bound, and one for samples above the last bound.
    counts: Vec<AtomicU64>,
    /// The sum of the samples, in [`SUM_UNITS`].
    sum: AtomicU64,
}

/// The samples of a histogram at one moment. `counts` has the number of samples up to each bound, and then the number of all
/// samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Samples {
    pub bounds: &'static [f64],
    pub counts: Vec<u64>,
}

impl HistogramCells {
    pub(super) fn new(bounds: &'static [f64]) -> HistogramCells {
        HistogramCells {
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    pub(super) fn samples(&self) -> Samples {
        let mut sum = 0;
        let mut cumulative = |count: &AtomicU64| {
            sum += count.load(Ordering::Relaxed);
            sum
        };
        Samples { bounds: self.bounds, counts: self.counts.iter().map(&mut cumulative).collect() }
    }

    /// Writes the lines of the histogram in Prometheus' text format. Labels are not escaped, because labels of histograms come
    /// from closed lists or are host names.
    pub(super) fn write(&self, text: &mut String, name: &str, key: &Key) {
        let samples = self.samples();
        let labels: String = key.labels().map(|label| format!("{}=\"{}\",", label.key(), label.value())).collect();
        for (bound, count) in self.bounds.iter().zip(&samples.counts) {
            let _ = writeln!(text, "{name}_bucket{{{labels}le=\"{bound}\"}} {count}");
        }
        let count = samples.counts.last().copied().unwrap_or_default();
        let _ = writeln!(text, "{name}_bucket{{{labels}le=\"+Inf\"}} {count}");
        let labels = match labels.strip_suffix(',') {
            Some(labels) => format!("{{{labels}}}"),
            None => String::new(),
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "no precision is lost below 2^53 microseconds, which is 285 years"
        )]
        let sum = self.sum.load(Ordering::Relaxed) as f64 / SUM_UNITS;
        let _ = writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {count}");
    }
}

impl HistogramFn for HistogramCells {
    fn record(&self, value: f64) {
        let index = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast saturates; values are not negative"
        )]
        let units = (value * SUM_UNITS).round() as u64;
        self.sum.fetch_add(units, Ordering::Relaxed);
    }
}
