//! Holds what all requests of one thread share while they are forwarded.

use std::sync::Arc;

use super::http2_pool::Http2Pool;
use super::untrusted_forwarded_for::UntrustedForwardedFor;
use super::upstream_pool::UpstreamPool;
use crate::gateway::runtime::log_throttle::LogThrottle;
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use crate::gateway::state::GatewayState;
use stores::Worker;

/// Forwards the requests of one thread, and holds what these requests share.
pub(crate) struct Forwarder {
    pub gateway: Arc<GatewayState>,
    /// The index of the thread.
    pub worker: Worker,
    pub write_backpressure: WriteBackpressure,
    pub logs: Arc<ForwardLogs>,
    pub pool: Arc<UpstreamPool>,
    pub http2_pool: Arc<Http2Pool>,
}

/// Bounds how often log lines about requests are written. All threads share these bounds.
#[derive(Debug, Default)]
pub(crate) struct ForwardLogs {
    pub upstream_failures: LogThrottle,
    pub untrusted_forwarded_for: UntrustedForwardedFor,
}
