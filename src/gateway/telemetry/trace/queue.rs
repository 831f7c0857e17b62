//! Holds spans until they are sent, as many as fit: who adds one never waits, and what does not fit is counted.
//!
//! The SDK's queue and its thread do the work. It does not tell when it drops a span, so none is given to it for which
//! there may be no room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::Counter;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanProcessor};

use super::exporter::Exporter;
use super::settings::Settings;

#[derive(Debug)]
pub struct Queue {
    processor: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    most: usize,
    full: Counter,
}

impl Queue {
    /// `waiting` counts down in the exporter, when spans leave the queue.
    pub fn new(settings: &Settings, exporter: Exporter, waiting: Arc<AtomicUsize>, full: Counter) -> Queue {
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue)
            .with_max_export_batch_size(settings.batch)
            .with_scheduled_delay(settings.delay)
            .build();
        Queue { processor: BatchSpanProcessor::new(exporter, config), waiting, most: settings.queue, full }
    }

    pub fn add(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.most {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.full.increment(1);
            return;
        }
        self.processor.on_end(span);
    }

    /// How many have not been taken out of it.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Sends what waits, and blocks until that is done or has failed.
    pub fn flush(&self) {
        // It has been counted, and told.
        let _ = self.processor.force_flush();
    }

    /// The same, and nothing after it; whether it came to an end in time.
    pub fn finish(&self, patience: Duration) -> bool {
        self.processor.shutdown_with_timeout(patience).is_ok()
    }
}
