//! Holds whether an endpoint is up, according to its health checks.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use config::Health;

/// The result of an endpoint's health checks: up or down. A new endpoint counts as up.
#[derive(Debug, Default)]
pub(super) struct HealthState {
    is_down: AtomicBool,
    /// How many checks in a row have contradicted `is_down`. 0 if the last check agreed with `is_down`.
    contradictions: Mutex<u32>,
}

/// A change of an endpoint's state that its health checks have caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthChange {
    Down,
    Up,
}

impl HealthState {
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// Resets the state to up, because the endpoint is no longer checked.
    pub(super) fn forget(&self) {
        *self.contradictions.lock() = 0;
        self.is_down.store(false, Ordering::Relaxed);
    }

    /// Records the result of a health check. Returns the new state. `None` if the state has not changed.
    pub(super) fn checked<E>(&self, result: &Result<(), E>, settings: &Health) -> Option<HealthChange> {
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
                '+' => state.checked(&Ok::<(), ()>(()), &settings),
                _ => state.checked(&Err(()), &settings),
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
        assert_eq!(state.checked(&Err(()), &settings), None);
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
