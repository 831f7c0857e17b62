//! Holds spans until they are sent, in bounded memory. Adding a span never blocks. Spans that do not fit are dropped
//! and counted.
//!
//! The SDK does not report that it drops a span. So the SDK gets a span only if its queue has room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::Counter;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanProcessor};

use super::exporter::Exporter;
use super::settings::TraceSettings;

#[derive(Debug)]
pub(super) struct Queue {
    processor: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    most: usize,
    full: Counter,
}

impl Queue {
    /// Makes the queue of spans for an exporter. The exporter decrements `waiting` when spans leave the queue. `full` counts
    /// the spans that are dropped because the queue is full.
    pub(super) fn new(settings: &TraceSettings, exporter: Exporter, waiting: Arc<AtomicUsize>, full: Counter) -> Queue {
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue)
            .with_max_export_batch_size(settings.batch)
            .with_scheduled_delay(settings.delay)
            .build();
        Queue { processor: BatchSpanProcessor::new(exporter, config), waiting, most: settings.queue, full }
    }

    pub(super) fn add(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.most {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.full.increment(1);
            return;
        }
        self.processor.on_end(span);
    }

    /// Returns the number of spans in the queue.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Sends the queued spans. Blocks until the spans are sent or sending has failed.
    pub(super) fn flush(&self) {
        // A failure was already counted and logged by the exporter.
        let _ = self.processor.force_flush();
    }

    /// Sends the queued spans, and closes the queue. Returns whether the spans were sent within `timeout`.
    pub(super) fn finish(&self, timeout: Duration) -> bool {
        self.processor.shutdown_with_timeout(timeout).is_ok()
    }
}
