//! Metrics, events, the access log and traces: the gateway's records about itself.

pub mod access_log;
pub mod events;
pub mod labels;
pub mod metrics;
pub mod reload_status;
pub mod store_health;
pub mod top_refused;
pub mod trace;
