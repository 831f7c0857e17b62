//! All tests from outside, in one binary. They start the real gateway and an upstream that records requests.

#![expect(unreachable_pub, reason = "a program exports nothing: what its modules share is pub")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unreachable,
    reason = "a test fails by panicking"
)]

mod support;

mod auth;
mod bans;
mod bodies;
mod budgets;
mod cli;
mod config;
mod edges;
mod exactness;
mod http2;
mod limits;
mod postgres;
mod process;
mod proxy;
mod raises;
mod records;
mod redis;
mod regions;
mod repository;
mod slots;
mod status;
mod telemetry;
mod tls;
mod usage;
