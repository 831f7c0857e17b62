//! Decides about requests that other proxies hold, and about what services want to do, when these ask. Every call gets one
//! answer, and nothing is forwarded.
//!
//! The description in a call is trusted, so only known peers may ask. The gateway's own proxy (`forward`) uses the
//! same server with the same limits, and the same code in `enforcement` and `decision`.

mod call;
mod call_body;
mod doors;
pub(super) mod ext_authz;
pub mod grpc;
mod http_door;
pub(super) mod json_door;
pub mod original_request;
pub(super) mod rls;
mod serving;

use std::sync::Arc;

use super::enforcement::running_holds::RunningHolds;
use super::enforcement::timed_settlement::UnansweredSettlements;
use super::runtime::log_throttle::LogThrottle;
use super::server::http1::application::{Http1Application, ReceivedRequest};
use super::server::http1::downstream_stream::DownstreamStream;
use super::server::http2::application::{Http2Application, Http2Request};
use super::state::GatewayState;
use super::telemetry::metrics::registry::Registry;
use super::telemetry::metrics::{DoorDecisions, RateLimitMetrics};
use json_door::RememberedTakes;
use json_door::settle_metrics::SettleMetrics;
use request::door::Door;
use stores::Worker;

/// The decision API of one thread. It answers other proxies and services.
#[derive(Clone, Debug)]
pub(super) struct DecisionApi {
    pub gateway: Arc<GatewayState>,
    /// The index of the thread on which this value serves calls.
    pub worker: Worker,
    pub shared: Arc<SharedParts>,
}

/// The counters of the decision API, which all threads share.
#[derive(Debug)]
pub(super) struct SharedParts {
    /// Decisions about calls of `/decide`.
    http: DoorDecisions,
    ext_authz: DoorDecisions,
    rate_limit: RateLimitMetrics,
    /// Decisions about calls of `/take`.
    json: DoorDecisions,
    takes: Arc<RememberedTakes>,
    /// Calls of `/settle`.
    settles: SettleMetrics,
    unanswered_settlements: Arc<UnansweredSettlements>,
    running_holds: Arc<RunningHolds>,
    unusable_calls: LogThrottle,
}

impl SharedParts {
    /// Makes the counters for all kinds of calls. This call makes their series appear in `/metrics`.
    pub(super) fn new(registry: &Registry, running_holds: Arc<RunningHolds>) -> SharedParts {
        SharedParts {
            http: DoorDecisions::new(Door::Http, registry),
            ext_authz: DoorDecisions::new(Door::ExtAuthz, registry),
            rate_limit: RateLimitMetrics::new(registry),
            json: DoorDecisions::new(Door::Json, registry),
            takes: Arc::new(RememberedTakes::new(registry)),
            settles: SettleMetrics::new(registry),
            unanswered_settlements: Arc::default(),
            running_holds,
            unusable_calls: LogThrottle::default(),
        }
    }
}

impl Http1Application for DecisionApi {
    async fn serve(&self, stream: Box<DownstreamStream>, request: ReceivedRequest) -> Option<Box<DownstreamStream>> {
        Box::pin(serving::serve(self, stream, request)).await
    }
}

impl Http2Application for DecisionApi {
    async fn serve(&self, request: Http2Request) {
        Box::pin(serving::serve_http2(self, request)).await;
    }
}
