//! Tests of what only a build without features can show: a release has no test hooks, and runs the script that is tested.
//!
//! They are apart from `tests/it`, so that `.ci/run` need not compile all of it a second time.

#![cfg(not(feature = "test-hooks"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[path = "../it/redis/released_script.rs"]
mod released_script;
#[allow(dead_code, unused_imports, reason = "these tests need a part of it")]
#[path = "../it/support/mod.rs"]
mod support;
#[path = "../it/process/test_hooks.rs"]
mod test_hooks;
