//! Keeps the keys of token issuers fresh, and reports when they cannot be fetched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::auth::jwt::jwks::{FetchError, RemoteKeySet};
use crate::base::time::Timestamp;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::EventKind;

/// Keeps one issuer's keys fresh. A failure is reported once, until the keys can be fetched again.
pub async fn keep_fresh(gateway: Arc<GatewayState>, remote: Arc<RemoteKeySet>) {
    let failing = AtomicBool::new(false);
    let report = |issuer: &str, fetched: Result<usize, FetchError>| match fetched {
        Ok(keys) => {
            gateway.metrics.tokens.keys_fetched(issuer, gateway.clock.wall().since(Timestamp(0)).seconds());
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
