//! Runs the process: signals, drain, upgrade, housekeeping, reload and the files it watches.

pub(super) mod api_key_watch;
pub(super) mod bucket_handover;
pub(super) mod bucket_saver;
pub(super) mod certificate_watch;
pub(super) mod config_warnings;
pub(super) mod config_watch;
pub(super) mod drain;
pub(super) mod fallback_events;
pub(super) mod file_fingerprint;
pub(super) mod file_look;
pub(super) mod housekeeping;
pub(super) mod jwks_tasks;
mod own_connection;
mod purse_index;
mod region_stores;
pub(super) mod reload;
pub(super) mod reload_report;
pub(super) mod signal_listener;
pub(super) mod signals;
mod slot_handover;
mod subject_names;
pub(super) mod upgrade;
