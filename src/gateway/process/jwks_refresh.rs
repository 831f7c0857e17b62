//! Has the keys of issuers fetched again and again, and says when they cannot be had.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::auth::jwt::jwks::{FetchError, RemoteKeySet};
use crate::base::time::Timestamp;
use crate::gateway::state::GatewayState;
use crate::gateway::telemetry::events::Happened;

/// Keeps an issuer's keys fresh, and says when they cannot be had: once, until they can
/// again.
pub async fn keep_fresh(gateway: Arc<GatewayState>, remote: Arc<RemoteKeySet>) {
    let failing = AtomicBool::new(false);
    let told = |issuer: &str, fetched: Result<usize, FetchError>| match fetched {
        Ok(keys) => {
            gateway.metrics.tokens.keys_fetched(issuer, gateway.clock.wall().since(Timestamp(0)).seconds());
            if failing.swap(false, Ordering::Relaxed) {
                gateway.events.note(Happened::KeysFetchedAgain, issuer);
                log::info!(issuer, keys; "keys fetched again");
            }
        }
        Err(error) => {
            if !failing.swap(true, Ordering::Relaxed) {
                gateway.events.note(Happened::KeysNotFetched, issuer);
                log::warn!(issuer, error:% = error; "keys not fetched, those that are known stay in force");
            }
        }
    };
    remote.keep_fresh(told).await;
}
