//! The metrics that a collector has received, in the form of Prometheus' text.

use std::collections::BTreeMap;

use prost::Message;

use super::{KeyValue, Resource, find, text};

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Resources>,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<Scope>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9, 11")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Numbers),
    #[prost(message, tag = "7")]
    Sum(Numbers),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
    #[prost(message, tag = "11")]
    Summary(Summary),
}

/// The numbers of a gauge, or of a sum, which has a temporality (2 is cumulative) and can be monotonic.
#[derive(Clone, PartialEq, Message)]
struct Numbers {
    #[prost(message, repeated, tag = "1")]
    points: Vec<Number>,
    #[prost(int32, tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    start: u64,
    #[prost(fixed64, tag = "3")]
    time: u64,
    #[prost(double, optional, tag = "4")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramPoint {
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    bounds: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    points: Vec<SummaryPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryPoint {
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, tag = "5")]
    sum: f64,
}

/// One export of metrics.
#[derive(Debug)]
pub struct ExportedMetrics {
    request: ExportRequest,
}

impl ExportedMetrics {
    pub(super) fn read(body: &[u8]) -> ExportedMetrics {
        ExportedMetrics { request: ExportRequest::decode(body).expect("a request of OTLP") }
    }

    /// Returns an attribute of the resource.
    pub fn resource(&self, key: &str) -> Option<String> {
        find(&self.request.resources.first()?.resource.as_ref()?.attributes, key)
    }

    /// Returns the description and the unit of a metric.
    pub fn described(&self, name: &str) -> Option<(String, String)> {
        let metric = self.metrics().find(|metric| metric.name == name)?;
        Some((metric.description.clone(), metric.unit.clone()))
    }

    /// Returns the value of each series, as Prometheus names it.
    pub fn series(&self) -> BTreeMap<String, f64> {
        let mut series = BTreeMap::new();
        let mut add = |name: &str, attributes: &[KeyValue], bound: Option<f64>, value: f64| {
            let bound = bound.map(|bound| if bound.is_infinite() { "+Inf".to_owned() } else { bound.to_string() });
            let known = series.insert(named(name, attributes, bound), value);
            assert_eq!(known, None, "{name} {attributes:?} is listed twice");
        };
        for metric in self.metrics() {
            let name = &metric.name;
            match metric.data.as_ref().unwrap() {
                Data::Gauge(numbers) | Data::Sum(numbers) => {
                    for point in &numbers.points {
                        let is_sum = matches!(&metric.data, Some(Data::Sum(_)));
                        assert_eq!(
                            (numbers.temporality, numbers.is_monotonic),
                            (2 * i32::from(is_sum), is_sum),
                            "{name}"
                        );
                        assert_eq!(point.start > 0, is_sum, "{name}");
                        assert!(point.time > point.start, "{name}");
                        add(name, &point.attributes, None, point.value.unwrap());
                    }
                }
                Data::Histogram(histogram) => {
                    assert_eq!(histogram.temporality, 2, "{name}");
                    for point in &histogram.points {
                        assert_eq!(point.counts.len(), point.bounds.len() + 1, "{name}");
                        assert_eq!(point.counts.iter().sum::<u64>(), point.count, "{name}");
                        let mut below = 0;
                        for (bound, count) in point.bounds.iter().chain(&[f64::INFINITY]).zip(&point.counts) {
                            below += count;
                            add(&format!("{name}_bucket"), &point.attributes, Some(*bound), number(below));
                        }
                        add(&format!("{name}_count"), &point.attributes, None, number(point.count));
                        add(&format!("{name}_sum"), &point.attributes, None, point.sum.unwrap());
                    }
                }
                Data::Summary(summary) => {
                    for point in &summary.points {
                        add(&format!("{name}_count"), &point.attributes, None, number(point.count));
                        add(&format!("{name}_sum"), &point.attributes, None, point.sum);
                    }
                }
            }
        }
        series
    }

    fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.request.resources.iter().flat_map(|resources| &resources.scopes).flat_map(|scope| &scope.metrics)
    }
}

fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// Returns the name of a series with its labels in the order in which they stand in the message.
fn named(name: &str, attributes: &[KeyValue], bound: Option<String>) -> String {
    let escaped = |value: String| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let known = attributes.iter().map(|attribute| (&*attribute.key, text(attribute.value.as_ref())));
    let labels = known.chain(bound.map(|bound| ("le", bound)));
    let labels: Vec<_> = labels.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
    if labels.is_empty() { name.to_owned() } else { format!("{name}{{{}}}", labels.join(",")) }
}
