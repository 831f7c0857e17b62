//! Tests every parser of untrusted data with mutated inputs. Each target checks properties, not only that the parser
//! does not panic.
//!
//! `scripts/fuzz` runs the targets for a chosen time. Otherwise each target runs for a second.

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

mod answers;
mod buckets;
mod certificates;
mod descriptions;
mod frames;
mod grpc;
mod imports;
mod known_bugs;
mod llm_requests;
mod logs;
mod mutation;
mod own_log;
mod protocols;
mod request_bodies;
mod responses;
mod semantics;
mod take_calls;
