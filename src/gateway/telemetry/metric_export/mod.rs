//! Sends the metrics to an OpenTelemetry collector, if the environment names one: the same series and numbers that `/metrics`
//! has.
//!
//! A thread of its own renders the text of `/metrics` and sends it as OTLP. An export that fails is not repeated, because the
//! next one has all numbers again.

mod exposition;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_TYPE;
use metrics::Counter;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use parking_lot::Mutex;
use prost::Message;

use super::metrics::Metrics;
use super::otlp::collector::TIMES;
use super::otlp::http_client::{CollectorClient, Failure};
use super::otlp::{CollectorSettings, METRICS, Variables, resource};
use base::time::{Clock, Timestamp};

const INTERVAL: Duration = Duration::from_secs(60);

/// The settings for the export of metrics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricExportSettings {
    pub collector: CollectorSettings,
    pub interval: Duration,
}

impl MetricExportSettings {
    /// Reads the settings. Returns `None` if metrics are not sent.
    pub(super) fn read(variables: &mut Variables<'_>) -> Option<MetricExportSettings> {
        let collector = CollectorSettings::read(&METRICS, variables)?;
        let interval = variables.duration(&["OTEL_METRIC_EXPORT_INTERVAL"], TIMES, INTERVAL);
        // This variable is checked but not used, because `OTEL_EXPORTER_OTLP_TIMEOUT` already limits each call.
        variables.duration(&["OTEL_METRIC_EXPORT_TIMEOUT"], TIMES, INTERVAL);
        let only = |text: &str, known| text.eq_ignore_ascii_case(known).then_some(());
        let temporality = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
        variables.read(&[temporality], "must be cumulative", |text| only(text, "cumulative"));
        let histograms = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION";
        let known = "explicit_bucket_histogram";
        variables.read(&[histograms], "must be explicit_bucket_histogram", |text| only(text, known));
        Some(MetricExportSettings { collector, interval })
    }
}

/// The export of this process' metrics. Contains `None` if metrics are not sent.
#[derive(Debug)]
pub(crate) struct MetricExport(Mutex<Option<Stage>>);

#[derive(Debug)]
enum Stage {
    /// The thread is not started.
    Ready(Box<Exporter>),
    /// The thread runs.
    Running(Sender<Wanted>),
}

/// What the thread does before its interval is over.
#[derive(Debug)]
enum Wanted {
    /// It sends the metrics.
    Now,
    /// It sends the metrics, reports here that it has, and ends.
    Last(Sender<()>),
}

impl MetricExport {
    /// Makes the export. [`MetricExport::start`] starts it.
    ///
    /// # Errors
    /// If the certificates for the collector cannot be read or used.
    pub(crate) fn new(
        settings: Option<MetricExportSettings>,
        metrics: &Metrics,
        clock: &Clock,
    ) -> Result<MetricExport, String> {
        let stage = settings.map(|settings| Exporter::new(settings, metrics, clock)).transpose()?;
        let stage = stage.map(|exporter| Stage::Ready(Box::new(exporter)));
        Ok(MetricExport(Mutex::new(stage)))
    }

    /// Starts the thread that sends the metrics. `text` returns what `/metrics` has at that moment.
    pub(crate) fn start(&self, text: impl Fn() -> String + Send + 'static) {
        let mut stage = self.0.lock();
        let Some(Stage::Ready(exporter)) = stage.take() else { return };
        let (sender, messages) = channel();
        let collector = exporter.settings.collector.shown_endpoint().to_owned();
        let interval = exporter.settings.interval.as_millis();
        match std::thread::Builder::new().name("metrics".to_owned()).spawn(move || exporter.run(&messages, &text)) {
            Ok(_) => {
                log::info!(collector, interval_ms = interval; "metrics are sent");
                *stage = Some(Stage::Running(sender));
            }
            Err(error) => log::warn!(error:%; "metrics are not sent: no thread for them"),
        }
    }

    /// Sends the metrics now, because the process will exit soon. Does not wait for the result.
    pub(crate) fn flush_soon(&self) {
        if let Some(Stage::Running(thread)) = &*self.0.lock() {
            // A thread that has ended has sent the last metrics.
            let _ = thread.send(Wanted::Now);
        }
    }

    /// Sends the metrics once more, and waits at most `timeout` for that. None are sent after this call.
    pub(crate) async fn finish(&self, timeout: Duration) {
        let Some(Stage::Running(thread)) = self.0.lock().take() else { return };
        let (sender, sent) = channel();
        if thread.send(Wanted::Last(sender)).is_ok() {
            let waited = tokio::task::spawn_blocking(move || sent.recv_timeout(timeout)).await;
            if !matches!(waited, Ok(Ok(()))) {
                log::warn!("the last metrics not sent");
            }
        }
    }
}

#[derive(Debug)]
struct Exporter {
    settings: MetricExportSettings,
    client: CollectorClient,
    failure: Failure,
    resource: Resource,
    clock: Clock,
    started: Timestamp,
    sent: Counter,
    failed: Counter,
}

impl Exporter {
    fn new(settings: MetricExportSettings, metrics: &Metrics, clock: &Clock) -> Result<Exporter, String> {
        let failure = Failure::default();
        let client = CollectorClient::new(&settings.collector, failure.clone())?;
        let resource = Resource::from(&resource(&settings.collector));
        let exports = |result| metrics.registry.counter("tollgate_metric_exports_total", &[("result", result)]);
        let (sent, failed) = (exports("sent"), exports("failed"));
        Ok(Exporter { settings, client, failure, resource, clock: clock.clone(), started: clock.wall(), sent, failed })
    }

    fn run(&self, messages: &Receiver<Wanted>, text: &impl Fn() -> String) {
        let mut failing = false;
        loop {
            let last = match messages.recv_timeout(self.settings.interval) {
                Ok(Wanted::Last(sender)) => Some(sender),
                Ok(Wanted::Now) | Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let is_sent = self.send(&text());
            let counter = if is_sent { &self.sent } else { &self.failed };
            counter.increment(1);
            match (is_sent, failing) {
                (true, true) => log::info!("metrics are sent again"),
                (false, false) => {
                    let error = self.failure.take().unwrap_or_default();
                    log::warn!(error; "metrics not sent");
                }
                _ => {}
            }
            failing = !is_sent;
            if let Some(sender) = last {
                // Nobody waits any more if the timeout is over.
                let _ = sender.send(());
                return;
            }
        }
    }

    /// Sends the series of an exposition. Returns whether the collector has accepted them.
    fn send(&self, text: &str) -> bool {
        let times = exposition::Times { start: nanoseconds(self.started), now: nanoseconds(self.clock.wall()) };
        let scope = InstrumentationScope {
            name: "tollgate".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_metrics =
            ScopeMetrics { scope: Some(scope), metrics: exposition::read(text, times), ..ScopeMetrics::default() };
        let message = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![scope_metrics],
                ..ResourceMetrics::default()
            }],
        };
        let mut request = Request::post(&*self.settings.collector.endpoint);
        if let Some(headers) = request.headers_mut() {
            headers.extend(
                self.settings.collector.headers.iter().map(|(name, value)| (Some(name.clone()), value.clone())),
            );
        }
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").body(Bytes::from(message.encode_to_vec()));
        let Ok(request) = request else { return false };
        self.client.post(request)
    }
}

fn nanoseconds(moment: Timestamp) -> u64 {
    moment.0.saturating_mul(1_000)
}
