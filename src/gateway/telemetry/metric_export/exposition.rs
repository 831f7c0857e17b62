//! Converts the text of `/metrics` to the messages of OTLP, so that both have the same series and the same numbers.
//!
//! Names and labels stay as they are. Numbers are 64-bit floats, as in Prometheus.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum, Summary,
    SummaryDataPoint, number_data_point,
};

/// When the process started, and the moment of the numbers, in nanoseconds of the Unix time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub start: u64,
    pub now: u64,
}

/// Reads the metrics of a text in Prometheus' format, as this process renders it. A line that is of another format is left out.
pub(super) fn read(text: &str, times: Times) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut help = ("", "");
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ').unwrap_or((described, ""));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' ')) {
            let description = if help.0 == name { unescaped(help.1) } else { String::new() };
            metrics.push(Metric {
                name: name.to_owned(),
                description,
                unit: unit(name).to_owned(),
                data: data(kind),
                ..Metric::default()
            });
        } else if let (Some(metric), Some(sample)) = (metrics.last_mut(), Sample::read(line)) {
            add(metric, sample, times);
        }
    }
    metrics
}

/// Returns the unit as OpenTelemetry writes it, of a metric whose name ends with it.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match () {
        () if name.ends_with("_seconds") => "s",
        () if name.ends_with("_bytes") => "By",
        () => "",
    }
}

/// Returns the data of a metric of this kind, without series.
fn data(kind: &str) -> Option<Data> {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    match kind {
        "counter" => Some(Data::Sum(Sum { data_points: Vec::new(), aggregation_temporality, is_monotonic: true })),
        "gauge" => Some(Data::Gauge(Gauge::default())),
        "histogram" => Some(Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality })),
        "summary" => Some(Data::Summary(Summary::default())),
        _ => None,
    }
}

/// A line with a number.
#[derive(Debug, PartialEq)]
struct Sample<'t> {
    name: &'t str,
    labels: Vec<(&'t str, String)>,
    value: f64,
}

impl<'t> Sample<'t> {
    fn read(line: &'t str) -> Option<Sample<'t>> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(mut list) = rest.strip_prefix('{') {
            while !list.starts_with('}') {
                let (label, quoted) = list.split_once("=\"")?;
                let end = closing_quote(quoted)?;
                let (value, behind) = quoted.split_at(end);
                labels.push((label, unescaped(value)));
                list = behind.strip_prefix('"')?;
                list = list.strip_prefix(',').unwrap_or(list);
            }
            rest = list.strip_prefix('}')?;
        }
        let value = rest.trim().parse().ok()?;
        Some(Sample { name, labels, value })
    }
}

/// Returns where the quote stands that ends a value.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

/// Replaces the escapes of the format.
fn unescaped(text: &str) -> String {
    let mut read = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => read.push('\n'),
                Some(other) => read.push(other),
                None => read.push('\\'),
            },
            other => read.push(other),
        }
    }
    read
}

fn add(metric: &mut Metric, sample: Sample<'_>, times: Times) {
    let of = |point: &[KeyValue], sample: &Sample<'_>| {
        let known = point.iter().map(|attribute| (&*attribute.key, text(attribute)));
        known.eq(sample.labels.iter().map(|(name, value)| (*name, &**value)))
    };
    match &mut metric.data {
        Some(Data::Sum(sum)) => sum.data_points.push(number(sample, times.start, times.now)),
        // A gauge has no start.
        Some(Data::Gauge(gauge)) => gauge.data_points.push(number(sample, 0, times.now)),
        Some(Data::Histogram(histogram)) => {
            let (mut sample, mut bound) = (sample, None);
            sample.labels.retain(|(name, value)| {
                let is_bound = *name == "le";
                if is_bound {
                    bound = value.parse::<f64>().ok();
                }
                !is_bound
            });
            let points = &mut histogram.data_points;
            // The lines of a series follow each other.
            if points.last().is_none_or(|point| !of(&point.attributes, &sample)) {
                points.push(HistogramDataPoint {
                    attributes: attributes(&sample),
                    start_time_unix_nano: times.start,
                    time_unix_nano: times.now,
                    ..HistogramDataPoint::default()
                });
            }
            if let Some(point) = points.last_mut() {
                add_to_histogram(point, &sample, bound);
            }
        }
        Some(Data::Summary(summary)) => {
            let points = &mut summary.data_points;
            let place = points.iter().position(|point| of(&point.attributes, &sample)).unwrap_or(points.len());
            if place == points.len() {
                points.push(SummaryDataPoint {
                    attributes: attributes(&sample),
                    start_time_unix_nano: times.start,
                    time_unix_nano: times.now,
                    ..SummaryDataPoint::default()
                });
            }
            if let Some(point) = points.get_mut(place) {
                match sample.name.ends_with("_count") {
                    true => point.count = whole(sample.value),
                    false => point.sum = sample.value,
                }
            }
        }
        Some(Data::ExponentialHistogram(_)) | None => {}
    }
}

/// Adds a line to the series of a histogram. In OTLP each range has its own count; in the text, those below are in it.
fn add_to_histogram(point: &mut HistogramDataPoint, sample: &Sample<'_>, bound: Option<f64>) {
    match bound {
        Some(bound) => {
            let below: u64 = point.bucket_counts.iter().sum();
            point.bucket_counts.push(whole(sample.value).saturating_sub(below));
            if bound.is_finite() {
                point.explicit_bounds.push(bound);
            }
        }
        None if sample.name.ends_with("_count") => point.count = whole(sample.value),
        None => point.sum = Some(sample.value),
    }
}

fn number(sample: Sample<'_>, start: u64, now: u64) -> NumberDataPoint {
    NumberDataPoint {
        attributes: attributes(&sample),
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(number_data_point::Value::AsDouble(sample.value)),
        ..NumberDataPoint::default()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and not below 0")]
fn whole(value: f64) -> u64 {
    value as u64
}

fn attributes(sample: &Sample<'_>) -> Vec<KeyValue> {
    let attribute = |(name, value): &(&str, String)| KeyValue {
        key: (*name).to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value.clone())) }),
        ..KeyValue::default()
    };
    sample.labels.iter().map(attribute).collect()
}

fn text(attribute: &KeyValue) -> &str {
    match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { start: 1, now: 2 };

    #[test]
    fn labels_are_read_with_their_escapes() {
        let sample = Sample::read(r#"a_total{rule="x\"},{\\ \n",policy=""} 1.5e3"#).unwrap();
        let labels = vec![("rule", "x\"},{\\ \n".to_owned()), ("policy", String::new())];
        assert_eq!(sample, Sample { name: "a_total", labels, value: 1500.0 });
        assert_eq!(Sample::read("up 1").unwrap().labels, []);
        for wrong in ["", "up", "up one", "up{a=\"b} 1", "up{a} 1"] {
            assert_eq!(Sample::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_kind_becomes_its_kind_of_data() {
        let text = "# HELP a_total Of a.\n# TYPE a_total counter\na_total{x=\"1\"} 3\na_total{x=\"2\"} 4\n\n\
            # TYPE b_bytes gauge\nb_bytes 0.5\n\n\
            # TYPE c_seconds histogram\nc_seconds_bucket{x=\"1\",le=\"0.1\"} 2\nc_seconds_bucket{x=\"1\",le=\"+Inf\"} 5\n\
            c_seconds_sum{x=\"1\"} 9.5\nc_seconds_count{x=\"1\"} 5\nc_seconds_bucket{x=\"2\",le=\"0.1\"} 0\n\
            c_seconds_bucket{x=\"2\",le=\"+Inf\"} 0\nc_seconds_sum{x=\"2\"} 0\nc_seconds_count{x=\"2\"} 0\n\n\
            # TYPE d_seconds summary\nd_seconds_sum{x=\"1\"} 1.5\nd_seconds_count{x=\"1\"} 2\n";
        let metrics = read(text, TIMES);
        let units: Vec<_> = metrics.iter().map(|metric| (&*metric.name, &*metric.unit)).collect();
        assert_eq!(units, [("a_total", ""), ("b_bytes", "By"), ("c_seconds", "s"), ("d_seconds", "s")]);
        assert_eq!(metrics[0].description, "Of a.");
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        let values: Vec<_> = sum.data_points.iter().map(|point| point.value).collect();
        let number = |value| Some(number_data_point::Value::AsDouble(value));
        assert_eq!((values, sum.is_monotonic), (vec![number(3.0), number(4.0)], true));
        assert_eq!(text_of(&sum.data_points[1].attributes), "x=2");
        assert_eq!((sum.data_points[0].start_time_unix_nano, sum.data_points[0].time_unix_nano), (1, 2));
        let Some(Data::Gauge(gauge)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points[0].value, number(0.5));
        let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{metrics:?}") };
        let [first, second] = &histogram.data_points[..] else { panic!("{histogram:?}") };
        assert_eq!((&first.explicit_bounds[..], &first.bucket_counts[..]), (&[0.1][..], &[2, 3][..]));
        assert_eq!((first.count, first.sum), (5, Some(9.5)));
        assert_eq!((second.count, &second.bucket_counts[..]), (0, &[0, 0][..]));
        assert_eq!(text_of(&second.attributes), "x=2");
        let Some(Data::Summary(summary)) = &metrics[3].data else { panic!("{metrics:?}") };
        assert_eq!((summary.data_points.len(), summary.data_points[0].count, summary.data_points[0].sum), (1, 2, 1.5));
    }

    fn text_of(attributes: &[KeyValue]) -> String {
        let shown = attributes.iter().map(|attribute| format!("{}={}", attribute.key, text(attribute)));
        shown.collect::<Vec<_>>().join(",")
    }
}
