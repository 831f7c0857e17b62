//! Several gateways on one store never grant more than the limit says.

#[cfg(feature = "test-hooks")]
mod budgets;
#[cfg(feature = "test-hooks")]
mod clock_steps;
pub mod failover;
pub mod history;
#[cfg(feature = "test-hooks")]
mod known_bad_clusters;
#[cfg(feature = "test-hooks")]
mod known_bad_limiters;
#[cfg(feature = "test-hooks")]
mod known_bad_stores;
#[cfg(feature = "test-hooks")]
mod known_bad_windows;
#[cfg(feature = "test-hooks")]
mod queues;
#[cfg(feature = "test-hooks")]
mod random_events;
mod restarts;
#[cfg(feature = "test-hooks")]
mod several_gateways;
mod shared_limits;
#[cfg(feature = "test-hooks")]
mod skewed_clocks;
mod sliding_windows;
