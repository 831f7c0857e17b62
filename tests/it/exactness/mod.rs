//! Several gateways on one store never grant more than the limit says.

pub mod history;
#[cfg(feature = "test-hooks")]
mod known_bad_stores;
#[cfg(feature = "test-hooks")]
mod several_gateways;
mod shared_limits;
#[cfg(feature = "test-hooks")]
mod skewed_clocks;
