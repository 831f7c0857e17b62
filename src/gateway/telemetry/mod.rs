//! Reports what the gateway does: metrics, events, the access log and traces.

pub(super) mod access_log;
pub(super) mod events;
pub(super) mod held_buckets;
pub(super) mod labels;
pub(super) mod metrics;
pub(super) mod reload_status;
pub(super) mod store_health;
pub(super) mod top_refused;
pub(super) mod trace;
