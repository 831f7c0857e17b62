//! Replaces the tracer in a build without the feature `opentelemetry`: types of size 0, and functions that do nothing.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use super::ended_request::EndedRequest;
use super::endpoint::ENDPOINTS;
use crate::gateway::telemetry::metrics::Metrics;
use base::time::{Clock, Timestamp};
use config::Config;
use stores::{Caller, Event};

/// The settings of traces. They are empty in a build without traces.
#[derive(Debug)]
pub(crate) struct TraceSettings;

impl TraceSettings {
    /// Logs a warning if the environment names a collector, because this build sends nothing to it.
    ///
    /// # Errors
    /// This function never fails in a build without traces.
    pub(crate) fn read() -> Result<TraceSettings, Vec<String>> {
        let set = |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if let Some(variable) = ENDPOINTS.iter().find(set) {
            let hint = "build it with --features opentelemetry";
            log::warn!(variable, hint; "this build has no traces");
        }
        Ok(TraceSettings)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tracer;

impl Tracer {
    /// Makes a tracer that traces nothing.
    ///
    /// # Errors
    /// This function never fails in a build without traces.
    pub(crate) fn start(_: TraceSettings, _: &Config, _: &Metrics, _: &Clock) -> Result<Tracer, String> {
        Ok(Tracer)
    }

    pub(crate) fn begin(&self, _: &HeaderMap, _: Timestamp) -> RequestTrace {
        RequestTrace
    }

    pub(crate) fn end<'r>(&self, _: &RequestTrace, _: impl FnOnce() -> EndedRequest<'r>) {}

    pub(crate) fn store_event(&self, _: &Event) {}

    pub(crate) fn flush_soon(&self) {}

    pub(crate) async fn finish(&self, _: Duration) {}
}

#[derive(Debug)]
pub(crate) struct RequestTrace;

impl RequestTrace {
    pub(crate) const NONE: RequestTrace = RequestTrace;

    pub(crate) fn is_sampled(&self) -> bool {
        false
    }

    pub(crate) fn link(&self, caller: Option<Arc<dyn Caller>>) -> Option<Arc<dyn Caller>> {
        caller
    }

    pub(crate) fn next_attempt(&mut self) {}

    pub(crate) fn inject(&self, _: &mut HeaderMap) {}
}
