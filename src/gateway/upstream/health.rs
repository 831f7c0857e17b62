//! Checks the endpoints of an upstream repeatedly, and determines which of them are down.
//!
//! Each upstream has one task for the whole process. An endpoint is up until `fall` checks in a row have failed.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use tokio::time::MissedTickBehavior;

use super::Upstream;
use super::endpoint::Endpoint;
use super::health_probe::probe;
use super::health_state::HealthChange;
use super::join_all::join_all;
use base::endpoint_address::EndpointAddress;
use config::Health;

impl Upstream {
    /// Returns whether the caller must start the task that checks the endpoints. Returns `true` at most once for each upstream.
    pub(crate) fn needs_checks(&self) -> bool {
        self.settings.health.is_some() && !self.has_checks.swap(true, Ordering::Relaxed)
    }

    async fn check(
        &self,
        endpoint: &Endpoint,
        settings: &Health,
        report: &impl Fn(&Upstream, &EndpointAddress, HealthChange),
    ) {
        let result = probe(endpoint, &self.settings, settings).await;
        let change = endpoint.condition.health.checked(&result, settings);
        let (upstream, address) = (self.name(), &endpoint.address);
        match (change, &result) {
            (None, Ok(())) => log::debug!(upstream, endpoint:% = address; "health check passed"),
            (None, Err(error)) => log::debug!(upstream, endpoint:% = address, error:%; "health check failed"),
            (Some(HealthChange::Down), Err(error)) => {
                log::warn!(upstream, endpoint:% = address, error:%; "endpoint is down");
            }
            (Some(_), _) => log::info!(upstream, endpoint:% = address; "endpoint is up again"),
        }
        if let Some(change) = change {
            report(self, address, change);
        }
    }
}

/// Checks the endpoints of an upstream repeatedly, until the upstream is dropped or replaced. `report` is called whenever the
/// checks find an endpoint down, or up again.
pub(super) async fn keep_checking(weak: Weak<Upstream>, report: impl Fn(&Upstream, &EndpointAddress, HealthChange)) {
    let Some(settings) = weak.upgrade().and_then(|upstream| upstream.settings.health.clone()) else { return };
    let mut interval = tokio::time::interval(settings.interval.into());
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let Some(upstream) = weak.upgrade().filter(|upstream| !upstream.is_replaced.load(Ordering::Relaxed)) else {
            return;
        };
        if upstream.pool.load().endpoints.is_empty() {
            upstream.first_lookups().await;
        }
        let pool = upstream.pool.load_full();
        join_all(pool.endpoints.iter().map(|endpoint| upstream.check(endpoint, &settings, &report)).collect()).await;
    }
}
