//! Holds what every remote store shares.

pub mod call_timer;
pub mod connection;
pub mod deny_cache;
pub mod queue;
