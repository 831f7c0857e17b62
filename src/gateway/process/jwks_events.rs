//! Keeps the keys of token issuers fresh, and reports when they cannot be fetched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::Gauge;

use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;
use base::time::Timestamp;
use identity::jwt::jwks::{FetchError, RemoteKeySet};

/// Keeps one issuer's keys fresh, and records in `fetched` when they were last fetched. A failure is reported once, until the
/// keys can be fetched again.
pub async fn keep_fresh(gateway: Arc<GatewayState>, remote: Arc<RemoteKeySet>, fetched: Gauge) {
    let failing = AtomicBool::new(false);
    let report = |issuer: &str, outcome: Result<usize, FetchError>| match outcome {
        Ok(keys) => {
            fetched.set(gateway.clock.wall().since(Timestamp(0)).seconds());
            if failing.swap(false, Ordering::Relaxed) {
                gateway.events.note(EventKind::KeysFetchedAgain, issuer);
                log::info!(issuer, keys; "keys fetched again");
            }
        }
        Err(error) => {
            if !failing.swap(true, Ordering::Relaxed) {
                gateway.events.note(EventKind::KeysNotFetched, issuer);
                log::warn!(issuer, error:% = error; "keys not fetched, the previous ones stay in force");
            }
        }
    };
    remote.keep_fresh(report).await;
}
