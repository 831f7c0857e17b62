//! Makes the span of a call to the store.
//!
//! A call serves many requests at once, so its span has a link to each traced decision. The first of these decisions is
//! the parent of the span.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Link, SpanKind, Status};
use opentelemetry::{InstrumentationScope, KeyValue, SpanId};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use parking_lot::Mutex;

use super::sampling::random_span;
use super::span_ids::{context, integer, time};
use base::host_port::HostPort;
use base::time::{Micros, Timestamp};
use stores::redis::Target;
use stores::span_links::SpanLink;
use stores::{CallReport, Endpoint, Settings};

/// The maximum number of links in a span. This is the SDK's default.
const LINKS: usize = 128;

/// The values that name the store's server in the spans of store calls.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// The address; `None` until it is known.
    address: Arc<Mutex<Option<HostPort>>>,
    database: String,
    system: System,
}

/// The names of the database system and of a call to it, in spans.
#[derive(Clone, Copy, Debug)]
struct System {
    name: &'static str,
    operation: &'static str,
}

const REDIS: System = System { name: "redis", operation: "EVALSHA" };

/// The names for PostgreSQL. A call is named a batch, because it is a transaction of several statements.
const POSTGRESQL: System = System { name: "postgresql", operation: "BATCH" };

impl Server {
    pub(super) fn of(settings: &Settings) -> Option<Server> {
        let (address, database, system) = match settings.endpoint()? {
            Endpoint::Redis { target, .. } => {
                let address = match target {
                    Target::Address { address, .. } => Some(address.clone()),
                    Target::Sentinel(_) | Target::Cluster(_) => None,
                };
                (address, target.database().to_string(), REDIS)
            }
            Endpoint::Postgres { hosts, database, .. } => {
                let address = if let [host] = hosts { Some(host.clone()) } else { None };
                (address, database.to_owned(), POSTGRESQL)
            }
        };
        Some(Server { address: Arc::new(Mutex::new(address)), database, system })
    }

    /// Sets the server's address for the spans of later calls.
    pub(super) fn set_address(&self, address: &HostPort) {
        *self.address.lock() = Some(address.clone());
    }

    /// Returns the span of a store call that has just ended. The call must have served at least one traced decision.
    pub(super) fn span(&self, called: &CallReport, ended: Timestamp, scope: InstrumentationScope) -> SpanData {
        let first = called.span_links.decisions.first().copied().unwrap_or(SpanLink { trace: 0, span: 0 });
        let mut attributes = vec![
            KeyValue::new("db.system.name", self.system.name),
            KeyValue::new("db.operation.name", self.system.operation),
            KeyValue::new("db.namespace", self.database.clone()),
            KeyValue::new("tollgate.requests", integer(called.requests)),
        ];
        if let Some(HostPort { host, port }) = self.address.lock().clone() {
            attributes.push(KeyValue::new("server.address", host));
            attributes.push(KeyValue::new("server.port", i64::from(port)));
        }
        if called.healed > 0 {
            attributes.push(KeyValue::new("tollgate.healed", i64::try_from(called.healed).unwrap_or(i64::MAX)));
        }
        let error = called.fault.as_ref().map(|fault| fault.error).or(called.span_links.error);
        let status = match error {
            Some(error) => {
                attributes.push(KeyValue::new("error.type", error.name()));
                Status::error("")
            }
            None => Status::Unset,
        };
        let start_time: SystemTime = time(Timestamp(ended.0.saturating_sub(called.took.0)), Micros(0));
        SpanData {
            span_context: context(SpanLink { trace: first.trace, span: random_span() }),
            parent_span_id: SpanId::from_bytes(first.span.to_be_bytes()),
            parent_span_is_remote: false,
            span_kind: SpanKind::Client,
            name: self.system.operation.into(),
            start_time,
            end_time: time(ended, Micros(0)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: links(&called.span_links.decisions),
            status,
            instrumentation_scope: scope,
        }
    }
}

fn links(decisions: &[SpanLink]) -> SpanLinks {
    let mut links = SpanLinks::default();
    links.links = decisions.iter().take(LINKS).map(|link| Link::new(context(*link), Vec::new(), 0)).collect();
    links.dropped_count = u32::try_from(decisions.len().saturating_sub(LINKS)).unwrap_or(u32::MAX);
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_decisions_are_linked_and_the_others_counted() {
        for (decisions, linked, dropped) in [(0, 0, 0), (1, 1, 0), (128, 128, 0), (129, 128, 1), (300, 128, 172)] {
            let marks: Vec<_> = (1..=decisions).map(|span| SpanLink { trace: 7, span }).collect();
            let links = links(&marks);
            let spans: Vec<_> = links.links.iter().map(|link| link.span_context.span_id()).collect();
            let first: Vec<_> = (1..=linked).map(|span: u64| SpanId::from_bytes(span.to_be_bytes())).collect();
            assert_eq!((spans, links.dropped_count), (first, dropped), "{decisions}");
        }
    }
}
