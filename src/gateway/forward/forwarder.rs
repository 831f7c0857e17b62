//! Holds what the requests of one thread share on their way.

use std::sync::Arc;

use pingora::proxy::HttpProxy;

use super::upstream_pool::UpstreamPool;
use crate::gateway::proxy::{Proxy, ProxyLogs};
use crate::gateway::runtime::write_backpressure::WriteBackpressure;
use crate::gateway::state::GatewayState;
use stores::Worker;

/// One thread's way of requests.
pub struct Forwarder {
    pub gateway: Arc<GatewayState>,
    /// Which of the threads it is.
    pub worker: Worker,
    pub write_backpressure: WriteBackpressure,
    pub logs: Arc<ProxyLogs>,
    pub pool: Arc<UpstreamPool>,
    /// Serves what is not forwarded here: requests while any upstream speaks HTTP/2.
    pub proxy: Arc<HttpProxy<Proxy>>,
}
