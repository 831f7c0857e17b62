//! Checks the endpoints of an upstream, and determines which of them are down.
//!
//! One task for each upstream does this for the whole process, whatever its number of threads. An endpoint is up until `fall`
//! checks in a row have failed.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;

use super::Upstream;
use super::endpoint::Endpoint;
use super::health_probe::{ProbeError, probe};
use super::join_all::join_all;
use base::endpoint_address::EndpointAddress;
use config::Health;

/// The result of the checks of an endpoint. It is up until they say otherwise.
#[derive(Debug, Default)]
pub struct HealthState {
    is_down: AtomicBool,
    /// The number of checks in a row that contradict that.
    contradictions: Mutex<u32>,
}

/// A change of an endpoint's state by its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthChange {
    Down,
    Up,
}

impl HealthState {
    pub fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Resets the state, because the endpoint is no longer checked.
    pub fn forget(&self) {
        *self.contradictions.lock() = 0;
        self.is_down.store(false, Ordering::Relaxed);
    }

    /// Notes the result of a check. Returns the change of the state, if any.
    fn checked(&self, result: &Result<(), ProbeError>, settings: &Health) -> Option<HealthChange> {
        let mut contradictions = self.contradictions.lock();
        let is_down = self.is_down();
        if result.is_ok() != is_down {
            *contradictions = 0;
            return None;
        }
        *contradictions = contradictions.saturating_add(1);
        if *contradictions < if is_down { settings.rise } else { settings.fall } {
            return None;
        }
        *contradictions = 0;
        self.is_down.store(!is_down, Ordering::Relaxed);
        Some(if is_down { HealthChange::Up } else { HealthChange::Down })
    }
}

impl Upstream {
    /// Whether the caller must start a task that checks the endpoints. `true` at most once.
    pub fn needs_checks(&self) -> bool {
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

/// Checks the endpoints of `upstream` repeatedly, until it is dropped or replaced. `report` is called whenever one of them goes
/// down, or up again.
pub async fn keep_checking(weak: Weak<Upstream>, report: impl Fn(&Upstream, &EndpointAddress, HealthChange)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Micros;
    use config::HealthCheck;

    #[test]
    fn only_checks_in_a_row_change_what_is_known() {
        let settings = Health { fall: 3, rise: 2, ..settings() };
        let state = HealthState::default();
        let checks = |results: &str| {
            let check = |result: char| match result {
                '+' => state.checked(&Ok(()), &settings),
                _ => state.checked(&Err(ProbeError::Timeout), &settings),
            };
            results.chars().filter_map(check).collect::<Vec<_>>()
        };
        assert_eq!(checks("++--+--+--"), []);
        assert_eq!(checks("-"), [HealthChange::Down]);
        assert_eq!(checks("--+-+--"), []);
        assert_eq!(checks("++"), [HealthChange::Up]);
        assert_eq!(checks("---++---"), [HealthChange::Down, HealthChange::Up, HealthChange::Down]);
        assert!(state.is_down());
        state.forget();
        assert!(!state.is_down());
        assert_eq!(state.checked(&Err(ProbeError::Timeout), &settings), None);
    }

    fn settings() -> Health {
        Health {
            check: HealthCheck::Grpc { service: String::new() },
            interval: Micros(1_000_000),
            timeout: Micros(1_000_000),
            fall: 1,
            rise: 1,
            host: None,
            port: None,
        }
    }
}
