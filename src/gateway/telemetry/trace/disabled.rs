//! Stands in for traces in a build that has none.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use pingora::proxy::Session;

use super::{ENDPOINTS, Onward};
use crate::base::time::{Clock, Timestamp};
use crate::config::Config;
use crate::gateway::proxy::request_record::RequestRecord;
use crate::gateway::state::GatewayState;
use crate::gateway::state::snapshot::Snapshot;
use crate::gateway::telemetry::access_log::request_end::RequestEnd;
use crate::gateway::telemetry::metrics::Metrics;
use crate::store::{Caller, Event};

/// What the environment asks for.
#[derive(Debug)]
pub struct TraceSettings;

impl TraceSettings {
    pub fn read() -> Result<TraceSettings, String> {
        // Whoever names a collector would wait for traces in vain.
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
    pub fn start(_: TraceSettings, _: &Config, _: &Metrics, _: &Clock) -> Result<Tracer, String> {
        Ok(Tracer)
    }

    pub fn begin(&self, _: &Arc<Snapshot>, _: &HeaderMap, _: Timestamp) -> RequestTrace {
        RequestTrace
    }

    pub fn hear(&self, _: &Event) {}

    pub fn hurry(&self) {}

    pub async fn finish(&self, _: Duration) {}
}

#[derive(Debug)]
pub struct RequestTrace;

impl RequestTrace {
    pub const NONE: RequestTrace = RequestTrace;

    pub fn is_followed(&self) -> bool {
        false
    }

    pub fn mark(&self, caller: Option<Arc<dyn Caller>>) -> Option<Arc<dyn Caller>> {
        caller
    }

    pub fn lead(&self, _: &mut HeaderMap) {}

    pub fn end(
        &self,
        _: &GatewayState,
        _: &RequestRecord,
        _: &RequestEnd<'_>,
        _: &Session,
        _: impl FnOnce() -> Option<Onward>,
    ) {
    }
}
