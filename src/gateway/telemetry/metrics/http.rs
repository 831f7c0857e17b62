//! Counts the connections of clients, and the faults and refusals on these connections.

use std::sync::Arc;

use metrics::{Counter, Gauge};

use super::counters_by::CountersBy;
use super::counters_on_use::CounterOnUse;
use super::registry::Registry;
use super::tls::HandshakeMetrics;
use decision::reason::Reason;
use stores::Settings;

use crate::gateway::runtime::response_buffers::BufferMetrics;

/// The counters of faults on HTTP/2 connections. Such a fault belongs to no single request.
#[derive(Debug)]
pub(crate) struct Http2Errors {
    /// The number of streams with a forbidden head, or above the allowed number of streams.
    pub stream: CounterOnUse,
    /// The number of connections that ended because their client violated the protocol.
    pub connection: CounterOnUse,
    /// The number of connections that were closed because of too many frames without requests.
    pub flood: CounterOnUse,
    /// The number of connections that were closed because a header block was not complete in time.
    pub header_timeout: CounterOnUse,
}

#[derive(Debug)]
pub(crate) struct HttpMetrics {
    registry: Arc<Registry>,
    refused: CountersBy<Reason>,
    /// Only a gateway with limits over several regions has such refusals.
    home_unavailable: CounterOnUse,
}

impl HttpMetrics {
    pub(crate) fn new(store: &Settings, registry: &Arc<Registry>) -> HttpMetrics {
        let can_occur = |reason: &Reason| match reason {
            Reason::StoreUnavailable => store.is_shared(),
            Reason::HomeUnavailable => false,
            _ => true,
        };
        let of_home = Arc::clone(registry);
        let counter = |registry: &Registry, reason: Reason| {
            registry.counter("tollgate_refused_requests_total", &[("reason", reason.name())])
        };
        HttpMetrics {
            registry: Arc::clone(registry),
            refused: CountersBy::new(Reason::all().filter(can_occur), |reason| counter(registry, *reason)),
            home_unavailable: CounterOnUse::new(move || counter(&of_home, Reason::HomeUnavailable)),
        }
    }

    pub(crate) fn count_refusal(&self, reason: Reason) {
        match reason {
            Reason::HomeUnavailable => self.home_unavailable.increment(1),
            reason => self.refused.increment(&reason),
        }
    }

    /// Returns the gauge of open connections to this listener with this protocol.
    pub(crate) fn connections(&self, listener: &str, protocol: &str) -> Gauge {
        self.registry.gauge("tollgate_http_connections", &[("listener", listener), ("protocol", protocol)])
    }

    /// Makes the HTTP/2 counters of a listener.
    pub(crate) fn http2_errors(&self, listener: &str) -> Http2Errors {
        let counter = |kind| self.counter_of_kind("tollgate_http2_errors_total", listener, kind);
        Http2Errors {
            stream: counter("stream"),
            connection: counter("connection"),
            flood: counter("flood"),
            header_timeout: counter("header_timeout"),
        }
    }

    /// Returns the counter of connections to a `decide` listener that were closed because their peer may not ask for decisions.
    pub(crate) fn decision_connections_closed(&self, listener: &str) -> Counter {
        self.registry.counter("tollgate_decision_connections_closed_total", &[("listener", listener)])
    }

    /// Makes the metrics of the bytes that are held for clients which do not read their responses.
    pub(crate) fn response_buffers(&self) -> BufferMetrics {
        BufferMetrics {
            bytes: self.registry.gauge("tollgate_response_buffers_bytes", &[]),
            limit: self.registry.gauge("tollgate_response_buffers_limit_bytes", &[]),
            closed: self.registry.counter("tollgate_response_buffers_closed_total", &[]),
        }
    }

    /// Makes the counters of TLS handshakes. The call makes them appear in `/metrics`.
    pub(crate) fn handshakes(&self) -> HandshakeMetrics {
        HandshakeMetrics::new(&self.registry)
    }

    /// Returns the counter of connections to this listener that were closed because they did not begin with a valid PROXY
    /// protocol header. `kind` says why, for example that the header was malformed or late.
    pub(crate) fn proxy_protocol_errors(&self, listener: &str, kind: &'static str) -> CounterOnUse {
        self.counter_of_kind("tollgate_proxy_protocol_errors_total", listener, kind)
    }

    fn counter_of_kind(&self, name: &'static str, listener: &str, kind: &'static str) -> CounterOnUse {
        let (registry, listener) = (Arc::clone(&self.registry), listener.to_owned());
        CounterOnUse::new(move || registry.counter(name, &[("listener", &*listener), ("kind", kind)]))
    }
}
