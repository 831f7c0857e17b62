//! Finds the master that sentinels name, and follows it when they promote another server.
//!
//! `redis::sentinel` of the crate is not used: it tries sentinels without a deadline for each, cannot report that the master has
//! moved, and opens connections of its own, without our TLS settings and limits. Only the crate's protocol is used: RESP3, so
//! that one connection carries both questions and announcements.

mod link;
mod master_watch;
mod sentinels;
pub(super) mod settings;
mod survey;

pub(crate) use master_watch::{MasterWatch, find_master};
pub use settings::{DEFAULT_PORT, Settings};
