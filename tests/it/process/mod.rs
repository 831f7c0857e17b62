//! The process: start, reload, upgrade, drain and faults.

mod admin;
mod admin_write;
mod bucket_file;
mod followed_files;
pub mod lifecycle;
mod process_faults;
mod queues;
mod reload;
mod reload_buckets;
mod reload_invalid_files;
mod rolling_restart;
mod soak;
mod test_hooks;
mod unix_listeners;
pub mod upgrade;
