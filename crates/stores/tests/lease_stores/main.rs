//! Plays leases on stores of every kind, with real servers: as the store of a region, and as home.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test measures real time")]

mod cluster;
mod failures;
mod keeper;
mod parity;
mod postgres;
#[path = "../random_acts/mod.rs"]
mod random_acts;
mod region;
mod regions;
#[path = "../relay/mod.rs"]
mod relay;
mod support;
