//! Runs the process: signals, drain, upgrade, housekeeping, reload and the files it watches.

pub mod api_key_watch;
pub mod bucket_handover;
pub mod bucket_saver;
pub mod certificate_watch;
pub mod config_warnings;
pub mod config_watch;
pub mod drain;
pub mod fallback_events;
pub mod file_fingerprint;
pub mod file_look;
pub mod housekeeping;
pub mod jwks_fetches;
pub mod reload;
pub mod reload_report;
pub mod signal_listener;
pub mod signals;
pub mod upgrade;
