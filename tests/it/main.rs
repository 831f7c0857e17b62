//! Everything that is tested from outside, in one binary: it starts the real gateway before a recording upstream.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

mod answers;
mod cli;
mod config;
mod docs;
mod life;
mod metrics;
mod proxying;
mod rules;
mod tidy;
mod timelines;
