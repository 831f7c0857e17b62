//! Reads what was counted out of the text of `/metrics`.
//!
//! A recorder's handles count and cannot be asked. A second counter beside each would be paid for by every request; the
//! text is paid for by whoever looks.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Serialize;

/// Every series, by the name of its metric.
#[derive(Debug)]
pub struct Readings<'t>(HashMap<&'t str, Vec<Series<'t>>>);

#[derive(Debug)]
struct Series<'t> {
    /// As they stand between the braces.
    labels: &'t str,
    value: &'t str,
}

/// Which limit a series is of: policy, rule, and the mode where the metric has one.
pub type LimitLabels<'t> = (Cow<'t, str>, Cow<'t, str>, Cow<'t, str>);

/// Samples by how large they were, of all series of a metric together.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Histogram {
    pub bounds: Vec<f64>,
    /// How many were within each bound, and after them how many there were.
    pub counts: Vec<u64>,
}

impl<'t> Readings<'t> {
    pub fn of(text: &'t str) -> Readings<'t> {
        let mut by_name: HashMap<&str, Vec<Series<'_>>> = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // A label may hold any character; a value holds no space.
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.strip_suffix('}').unwrap_or(labels);
            by_name.entry(name).or_default().push(Series { labels, value });
        }
        Readings(by_name)
    }

    fn all(&self, name: &str) -> &[Series<'t>] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// A counter, over all of its series.
    pub fn total(&self, name: &str) -> u64 {
        self.all(name).iter().map(Series::count).sum()
    }

    /// A gauge, over all of its series.
    pub fn level(&self, name: &str) -> f64 {
        self.all(name).iter().map(Series::level).sum()
    }

    /// A counter, by one of its labels.
    pub fn by(&self, name: &str, label: &str) -> HashMap<Cow<'t, str>, u64> {
        let mut sums = HashMap::new();
        for series in self.all(name) {
            *sums.entry(series.label(label)).or_default() += series.count();
        }
        sums
    }

    /// Gauges, by one of their labels.
    pub fn levels(&self, name: &str, label: &str) -> HashMap<Cow<'t, str>, f64> {
        self.all(name).iter().map(|series| (series.label(label), series.level())).collect()
    }

    /// A counter of those series of which two labels begin so.
    pub fn where_both(&self, name: &str, labels: [(&str, &str); 2]) -> u64 {
        let is = |series: &&Series<'_>| labels.iter().all(|(label, begin)| series.label(label).starts_with(begin));
        self.all(name).iter().filter(is).map(Series::count).sum()
    }

    /// A counter, by the limit that its series are of.
    pub fn by_limit(&self, name: &str) -> HashMap<LimitLabels<'t>, u64> {
        let mut sums = HashMap::new();
        for series in self.all(name) {
            let limit = (series.label("policy"), series.label("rule"), series.label("mode"));
            *sums.entry(limit).or_default() += series.count();
        }
        sums
    }

    /// `name` is that of the metric, without `_bucket`.
    pub fn histogram(&self, name: &str) -> Histogram {
        let mut sums: Vec<(f64, u64)> = Vec::new();
        for series in self.all(&format!("{name}_bucket")) {
            let Ok(bound) = series.label("le").parse::<f64>() else { continue };
            match sums.iter_mut().find(|(known, _)| known.total_cmp(&bound).is_eq()) {
                Some((_, sum)) => *sum += series.count(),
                None => sums.push((bound, series.count())),
            }
        }
        sums.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let counts = sums.iter().map(|(_, count)| *count).collect();
        Histogram {
            bounds: sums.into_iter().map(|(bound, _)| bound).filter(|bound| bound.is_finite()).collect(),
            counts,
        }
    }
}

impl<'t> Series<'t> {
    /// Empty when there is no such label.
    fn label(&self, name: &str) -> Cow<'t, str> {
        let mut rest = self.labels;
        while let Some((known, after)) = rest.split_once("=\"") {
            let Some(end) = end_of_value(after) else { break };
            let Some((value, behind)) = after.split_at_checked(end) else { break };
            if known == name {
                return match value.contains('\\') {
                    true => Cow::Owned(value.replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\")),
                    false => Cow::Borrowed(value),
                };
            }
            rest = behind.strip_prefix('"').unwrap_or(behind).trim_start_matches(',');
        }
        Cow::Borrowed("")
    }

    fn count(&self) -> u64 {
        self.value.parse().unwrap_or_default()
    }

    fn level(&self) -> f64 {
        self.value.parse().unwrap_or_default()
    }
}

impl Histogram {
    /// The bound that 99 of 100 samples since `before` were within, at most the last one; none where there were none.
    pub fn p99_since(&self, before: &Histogram) -> Option<f64> {
        let count = |of: &Histogram, place: usize| of.counts.get(place).copied().unwrap_or_default();
        let since = |place: usize| count(self, place).saturating_sub(count(before, place));
        let all = since(self.counts.len().checked_sub(1)?);
        if all == 0 {
            return None;
        }
        let beyond = |place: &usize| since(*place) >= all - all / 100;
        let place = (0..self.bounds.len()).find(beyond).unwrap_or(self.bounds.len().checked_sub(1)?);
        self.bounds.get(place).copied()
    }
}

/// The quote that ends a value, and not one that is part of it.
fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let end = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP asked_total Limits asked to pay.
# TYPE asked_total counter
asked_total{policy=\"plans\",rule=\"free\",mode=\"enforce\",reason=\"a\"} 3
asked_total{policy=\"plans\",rule=\"free\",mode=\"enforce\",reason=\"b\"} 4
asked_total{policy=\"plans\",rule=\"free\",mode=\"shadow\",reason=\"a\"} 5
asked_total{policy=\"plans\",rule=\"x} 9\",mode=\"enforce\",reason=\"b, \\\"c\\\"=\"} 6

fetched{issuer=\"a\"} 1.5
fetched{issuer=\"b\"} 2
up 1
took_bucket{source=\"one\",le=\"0.5\"} 1
took_bucket{source=\"one\",le=\"2\"} 2
took_bucket{source=\"one\",le=\"+Inf\"} 4
took_bucket{source=\"two\",le=\"0.5\"} 10
took_bucket{source=\"two\",le=\"2\"} 10
took_bucket{source=\"two\",le=\"+Inf\"} 10
took_count{source=\"two\"} 10
";

    #[test]
    fn series_are_summed_over_the_labels_that_are_not_asked_for() {
        let readings = Readings::of(TEXT);
        assert_eq!((readings.total("asked_total"), readings.total("none")), (18, 0));
        assert_eq!((readings.level("up"), readings.level("fetched")), (1.0, 3.5));
        assert_eq!(readings.levels("fetched", "issuer")["a"], 1.5);
        assert_eq!(readings.by("asked_total", "mode"), HashMap::from([("enforce".into(), 13), ("shadow".into(), 5)]));
        assert_eq!(readings.where_both("asked_total", [("mode", "enf"), ("reason", "b")]), 10);
        let limits = readings.by_limit("asked_total");
        assert_eq!(limits[&("plans".into(), "free".into(), "enforce".into())], 7);
        assert_eq!(limits.len(), 3);
    }

    #[test]
    fn a_label_may_hold_whatever_else_ends_one() {
        let readings = Readings::of(TEXT);
        assert_eq!(readings.by("asked_total", "reason")["b, \"c\"="], 6);
        assert_eq!(readings.by("asked_total", "rule")["x} 9"], 6);
    }

    #[test]
    fn of_samples_since_another_reading_99_in_100_are_within_a_bound() {
        let histogram = |counts: &[u64]| Histogram { bounds: vec![1.0, 2.0], counts: counts.to_vec() };
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
        let readings = Readings::of(TEXT);
        assert_eq!(readings.histogram("took"), Histogram { bounds: vec![0.5, 2.0], counts: vec![11, 12, 14] });
        assert_eq!(readings.histogram("none"), Histogram::default());
    }
}
