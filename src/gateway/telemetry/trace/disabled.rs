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

/// The settings of traces: none, in a build without traces.
#[derive(Debug)]
pub struct TraceSettings;

impl TraceSettings {
    /// Warns if the environment names a collector, because nothing will be sent to it.
    ///
    /// # Errors
    /// Never.
    pub fn read() -> Result<TraceSettings, Vec<String>> {
        let set = |name: &&&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        if let Some(variable) = ENDPOINTS.iter().find(set) {
            let hint = "build it with --features opentelemetry";
            log::warn!(variable, hint; "this build has no traces");
        }
        Ok(TraceSettings)
    }
}

#[derive(Clone, Debug)]
pub struct Tracer;

impl Tracer {
    /// Makes a tracer that traces nothing.
    ///
    /// # Errors
    /// Never.
    pub fn start(_: TraceSettings, _: &Config, _: &Metrics, _: &Clock) -> Result<Tracer, String> {
        Ok(Tracer)
    }

    pub fn begin(&self, _: &HeaderMap, _: Timestamp) -> RequestTrace {
        RequestTrace
    }

    pub fn end<'r>(&self, _: &RequestTrace, _: impl FnOnce() -> EndedRequest<'r>) {}

    pub fn store_event(&self, _: &Event) {}

    pub fn flush_soon(&self) {}

    pub async fn finish(&self, _: Duration) {}
}

#[derive(Debug)]
pub struct RequestTrace;

impl RequestTrace {
    pub const NONE: RequestTrace = RequestTrace;

    pub fn is_sampled(&self) -> bool {
        false
    }

    pub fn link(&self, caller: Option<Arc<dyn Caller>>) -> Option<Arc<dyn Caller>> {
        caller
    }

    pub fn next_attempt(&mut self) {}

    pub fn inject(&self, _: &mut HeaderMap) {}
}
