//! Finds the master that sentinels name, and follows it when they promote another server.
//!
//! The `sentinel` module of the redis crate is not used: it tries sentinels without a deadline for each, cannot report
//! that the master has moved, and opens its own connections, without our TLS settings and limits. Only the crate's
//! protocol is used: RESP3, so that one connection carries both questions and announcements.

mod link;
mod master_watch;
mod sentinels;
pub(super) mod settings;
mod survey;

pub(crate) use master_watch::{MasterWatch, find_master};
pub use settings::{DEFAULT_PORT, Settings};
