//! Sends spans to the collector in batches, counts the results, and logs the first failure and the next success.
//!
//! Only the final result of a batch is counted, not each attempt to send the batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use metrics::Counter;
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use crate::gateway::telemetry::otlp::http_client::{CollectorClient, Failure};
use crate::gateway::telemetry::otlp::{CollectorSettings, resource};

pub(super) struct Exporter {
    otlp: opentelemetry_otlp::SpanExporter,
    failure: Failure,
    /// Whether the last batch was not accepted.
    failing: AtomicBool,
    /// The number of spans in the queue.
    waiting: Arc<AtomicUsize>,
    sent: Counter,
    lost: Counter,
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Exporter {
    /// Makes an exporter to the collector in these settings. It subtracts the spans of each batch from `waiting`. `sent` counts
    /// the spans that the collector has accepted, and `lost` counts all other spans.
    ///
    /// # Errors
    /// If the certificate authorities for the collector cannot be read or used.
    pub(super) fn new(
        settings: &CollectorSettings,
        waiting: Arc<AtomicUsize>,
        sent: Counter,
        lost: Counter,
    ) -> Result<Exporter, String> {
        let failure = Failure::default();
        let builder = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient::new(settings, failure.clone())?)
            .with_endpoint(settings.endpoint.clone())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(settings.timeout);
        let mut otlp = builder.build().map_err(|error| error.to_string())?;
        otlp.set_resource(&resource(settings));
        Ok(Exporter { otlp, failure, failing: AtomicBool::new(false), waiting, sent, lost })
    }

    /// Logs the first failure, and then the next success.
    fn log(&self, outcome: &OTelSdkResult) {
        let failure = self.failure.take();
        match outcome {
            Ok(()) if self.failing.swap(false, Ordering::Relaxed) => log::info!("traces are sent again"),
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                // If the HTTP client knows no reason for the failure, the SDK's error is logged.
                let error = failure.unwrap_or_else(|| error.to_string());
                log::warn!(error; "traces not sent");
            }
            _ => {}
        }
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.waiting.fetch_sub(spans, Ordering::AcqRel);
        let outcome = self.otlp.export(batch).await;
        self.log(&outcome);
        let counter = if outcome.is_ok() { &self.sent } else { &self.lost };
        counter.increment(u64::try_from(spans).unwrap_or(u64::MAX));
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }
}
