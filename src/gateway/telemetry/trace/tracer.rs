//! Holds the state that the traces of all requests share: the sampling, the queue of spans, and the counters.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::HeaderMap;
use metrics::Counter;
use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::trace::SpanData;

use super::ended_request::EndedRequest;
use super::exporter::Exporter;
use super::queue::Queue;
use super::request_trace::RequestTrace;
use super::sampling::Sampling;
use super::settings::TraceSettings;
use super::spans::RequestSpans;
use super::store_span::Server;
use crate::gateway::telemetry::metrics::Metrics;
use base::time::{Clock, Timestamp};
use config::Config;
use stores::Event;

/// The tracer of a process, which makes and sends spans. Contains `None` if requests are not traced.
#[derive(Clone, Debug)]
pub(crate) struct Tracer(Option<Arc<TracerInner>>);

#[derive(Debug)]
struct TracerInner {
    sampling: Sampling,
    queue: Queue,
    declined: Counter,
    scope: InstrumentationScope,
    /// The server that the store calls; `None` if the store is in this process.
    server: Option<Server>,
    clock: Clock,
}

impl Tracer {
    /// Starts the tracer. It traces nothing if the environment names no collector.
    ///
    /// # Errors
    /// If the certificates for the collector cannot be read or used.
    pub(crate) fn start(
        settings: Option<TraceSettings>,
        config: &Config,
        metrics: &Metrics,
        clock: &Clock,
    ) -> Result<Tracer, String> {
        let Some(settings) = settings else { return Ok(Tracer(None)) };
        let registry = &metrics.registry;
        let sent = registry.counter("tollgate_trace_spans_sent_total", &[]);
        let dropped = |reason| registry.counter("tollgate_trace_spans_dropped_total", &[("reason", reason)]);
        let waiting = Arc::new(AtomicUsize::new(0));
        let exporter = Exporter::new(&settings.collector, Arc::clone(&waiting), sent, dropped("not_taken"))?;
        let collector = settings.collector.shown_endpoint();
        let sampling = settings.sampling;
        log::info!(collector, ratio = sampling.ratio, from_clients = sampling.from_clients; "requests are traced");
        Ok(Tracer(Some(Arc::new(TracerInner {
            sampling: Sampling::new(sampling),
            queue: Queue::new(&settings, exporter, waiting, dropped("queue_full")),
            declined: registry.counter("tollgate_traces_declined_total", &[]),
            scope: InstrumentationScope::builder("tollgate").with_version(env!("CARGO_PKG_VERSION")).build(),
            server: Server::of(&config.store),
            clock: clock.clone(),
        }))))
    }

    /// Decides whether to trace a request with these header fields, which arrived at the time `at`.
    pub(crate) fn begin(&self, headers: &HeaderMap, at: Timestamp) -> RequestTrace {
        let Some(inner) = &self.0 else { return RequestTrace::NONE };
        let beginning = inner.sampling.begin(headers, at, &inner.declined);
        beginning.map_or(RequestTrace::NONE, RequestTrace::new)
    }

    /// Sends the spans of a request that has ended. `request` is called only if the request is traced.
    pub(crate) fn end<'r>(&self, trace: &RequestTrace, request: impl FnOnce() -> EndedRequest<'r>) {
        let Some(ids) = trace.span_ids() else { return };
        let request = request();
        let spans = RequestSpans { ids, request: &request };
        // The request's own span is added last, so that it is never shown without its child spans.
        if let Some(upstream) = &request.upstream {
            self.add(|scope| spans.upstream(upstream, scope));
        }
        for failed in spans.failed_attempts() {
            self.add(|scope| spans.failed_attempt(&failed, scope));
        }
        if request.line.waited_us.is_some() {
            self.add(|scope| spans.delay(scope));
        }
        if request.line.decision_us.is_some() {
            self.add(|scope| spans.decision(scope));
        }
        self.add(|scope| spans.request(scope));
    }

    /// Sends the span of a store call if the call served a traced request. Also records the new address of a store.
    pub(crate) fn store_event(&self, event: &Event) {
        let Some(server) = self.0.as_ref().and_then(|inner| inner.server.as_ref()) else { return };
        match event {
            Event::CallEnded(called) if !called.span_links.decisions.is_empty() => {
                let Some(inner) = &self.0 else { return };
                self.add(|scope| server.span(called, inner.clock.wall(), scope));
            }
            Event::Up { server: Some(address), .. } => server.set_address(address),
            _ => {}
        }
    }

    fn add(&self, span: impl FnOnce(InstrumentationScope) -> SpanData) {
        if let Some(inner) = &self.0 {
            inner.queue.add(span(inner.scope.clone()));
        }
    }

    /// Starts to send the spans in the queue, because the process will exit soon. Does not wait for the result.
    pub(crate) fn flush_soon(&self) {
        if let Some(inner) = self.0.clone() {
            tokio::task::spawn_blocking(move || inner.queue.flush());
        }
    }

    /// Sends the spans in the queue, and waits at most `timeout` for the result. No span can be sent after this call.
    pub(crate) async fn finish(&self, timeout: Duration) {
        let Some(inner) = self.0.clone() else { return };
        let spans = inner.queue.waiting();
        let done = tokio::task::spawn_blocking(move || inner.queue.finish(timeout));
        if !done.await.unwrap_or(false) {
            log::warn!(spans; "traces not all sent");
        }
    }
}
