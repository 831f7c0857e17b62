//! The life of the process: signals, drain, upgrade, reload and the files it watches.

pub mod api_key_watch;
pub mod config_watch;
pub mod fallback_events;
pub mod file_fingerprint;
pub mod jwks_refresh;
pub mod reload;
pub mod signals;
pub mod upgrade;
pub mod warned;
