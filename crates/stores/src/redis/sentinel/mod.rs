//! Finds the master that sentinels name, and follows it when they promote another server.
//!
//! The `sentinel` module of the redis crate is not used. It has no deadline for each sentinel, and does not report a
//! new master. It also opens connections without our TLS settings. RESP3 is used, so that one connection carries both
//! questions and announcements.

mod link;
mod master_watch;
mod sentinels;
pub(super) mod settings;
mod survey;

pub(crate) use master_watch::{MasterWatch, find_master};
pub use settings::{DEFAULT_PORT, Settings};
