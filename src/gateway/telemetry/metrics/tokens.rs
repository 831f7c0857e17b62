//! Counts verified tokens, and keeps when the keys of each issuer were fetched.

use std::sync::Arc;

use super::counters_by::CountersBy;
use super::registry::Registry;
use crate::gateway::telemetry::labels::TokenResult;

#[derive(Debug)]
pub struct TokenMetrics {
    registry: Arc<Registry>,
    verifications: CountersBy<TokenResult>,
}

impl TokenMetrics {
    pub fn new(registry: &Arc<Registry>) -> TokenMetrics {
        let verifications = CountersBy::new(TokenResult::all(), |result| {
            registry.counter("tollgate_jwt_verifications_total", &[("result", result.name())])
        });
        TokenMetrics { registry: Arc::clone(registry), verifications }
    }

    pub fn count(&self, result: TokenResult) {
        self.verifications.increment(&result);
    }

    /// Records when the keys of an issuer were fetched.
    pub fn keys_fetched(&self, issuer: &str, unix_seconds: f64) {
        let labels = [("issuer", issuer)];
        self.registry.gauge("tollgate_jwks_last_success_timestamp_seconds", &labels).set(unix_seconds);
    }
}
