//! Mutated inputs for every parser of untrusted data: each target checks properties, not only that nothing panics.
//!
//! `scripts/fuzz` runs them for a chosen time; otherwise each runs for a second.

#![allow(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![cfg(feature = "test-hooks")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unreachable,
    reason = "a test fails by panicking"
)]

mod buckets;
mod certificates;
mod descriptions;
mod frames;
mod grpc;
mod known_bugs;
mod logs;
mod mutation;
mod own_log;
mod protocols;
mod responses;
mod semantics;
