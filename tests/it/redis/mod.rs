//! The gateway and its Redis: connections, outages, and replies that cannot be right.

mod bans;
mod breaker;
mod budgets;
mod cluster;
mod cluster_faults;
mod cluster_gateways;
mod cluster_slots;
mod cluster_topology;
mod connection;
mod eviction_policy;
mod fallback_share;
mod fallback_windows;
pub mod faults_under_load;
#[cfg(feature = "test-hooks")]
mod give_back_parity;
mod held_parity;
#[cfg(feature = "test-hooks")]
mod invalid_states;
#[cfg(feature = "test-hooks")]
mod long_logs;
mod long_round_trips;
#[cfg(feature = "test-hooks")]
mod lua_parity;
mod lying_redis;
mod outage;
mod persistence_under_load;
#[cfg(feature = "test-hooks")]
mod purse_parity;
#[cfg(feature = "test-hooks")]
mod random_algorithms;
mod released_script;
#[cfg(feature = "test-hooks")]
mod report_expiry;
mod report_parity;
mod secrets;
mod sentinel;
#[cfg(feature = "test-hooks")]
mod slot_clocks;
mod slots;
mod timed_hold_parity;
#[cfg(feature = "test-hooks")]
mod undone_charges;
mod waiting_requests;
mod without_gateway;
