//! Counts verified tokens, and exports when the keys of each issuer were fetched.

use metrics::Gauge;

use super::counters_by::CountersBy;
use super::registry::{ConfigSeries, Registry};
use crate::gateway::telemetry::labels::TokenResult;

#[derive(Debug)]
pub(crate) struct TokenMetrics {
    verifications: CountersBy<TokenResult>,
}

impl TokenMetrics {
    pub(crate) fn new(registry: &Registry) -> TokenMetrics {
        let verifications = CountersBy::new(TokenResult::all(), |result| {
            registry.counter("tollgate_jwt_verifications_total", &[("result", result.name())])
        });
        TokenMetrics { verifications }
    }

    pub(crate) fn count(&self, result: TokenResult) {
        self.verifications.increment(&result);
    }

    /// Returns the gauge for the time at which the keys of an issuer were last fetched, in seconds since the Unix epoch. Its
    /// value is 0 if the keys were never fetched.
    pub(crate) fn keys_fetched(issuer: &str, series: ConfigSeries<'_>) -> Gauge {
        series.gauge("tollgate_jwks_last_success_timestamp_seconds", &[("issuer", issuer)])
    }
}
