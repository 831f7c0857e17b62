//! Everything that is tested from outside, in one binary: it starts the real gateway before a recording upstream.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unreachable,
    reason = "a test fails by panicking"
)]

mod history;
mod support;

mod access_log;
mod access_log_places;
mod admin;
#[cfg(feature = "test-hooks")]
mod agreement;
mod answers;
mod api_keys;
mod broken_answers;
mod bucket;
mod chosen;
mod cli;
mod client_address;
mod config;
mod deploy;
mod descriptors;
mod docs;
mod expires;
mod explain;
mod explain_logged;
mod faults;
#[cfg(feature = "test-hooks")]
mod flaws;
mod forged;
mod hasty_upstreams;
mod heads;
#[cfg(feature = "test-hooks")]
mod histories;
mod hooks;
mod lies;
mod life;
mod links;
mod lints;
mod local;
mod many_keys;
mod metrics;
mod mishaps;
mod outage;
mod pipelines;
mod proxying;
mod reasons;
mod recipes;
mod release;
mod reload;
mod replay;
mod replayed;
mod rolling;
mod rules;
mod schema;
mod sharing;
mod shells;
mod silent_upstreams;
mod slow;
mod status;
mod status_events;
mod status_hour;
mod status_others;
mod status_page;
mod status_refused;
mod status_sections;
mod tidy;
mod timelines;
mod tokens;
#[cfg(feature = "opentelemetry")]
mod traces;
#[cfg(not(feature = "opentelemetry"))]
mod untraced;
mod upgrade;
mod wrong_files;
