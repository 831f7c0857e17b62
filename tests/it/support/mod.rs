//! Shared parts of the tests: a gateway, an upstream, a client, a redis-server and others.

pub(crate) mod access_log;
pub(crate) mod authority;
pub(crate) mod bans;
pub(crate) mod browser;
pub(crate) mod bucket_command;
pub(crate) mod budgets;
pub(crate) mod byte_lists;
mod certificates;
pub(crate) mod charge;
mod client;
pub mod collector;
mod command;
mod config_directory;
pub(crate) mod curl;
mod fake_redis;
mod gateway;
mod gateway_builder;
pub(crate) mod http2;
pub(crate) mod http2_frames;
pub(crate) mod http2_upstream;
pub(crate) mod https;
mod lateness;
mod load;
pub(crate) mod mint;
pub(crate) mod model_calls;
mod movable_name;
#[cfg(feature = "test-hooks")]
mod observed_response;
mod orphan;
mod pgbouncer;
mod postgres;
mod proof;
mod redis;
mod redis_cluster;
mod relay;
mod secure_upstream;
pub(crate) mod sentinel;
mod server_process;
pub(crate) mod slots;
#[cfg(feature = "test-hooks")]
mod take_script;
pub(crate) mod tls_client;
mod upstream;
pub(crate) mod websocket;

pub(crate) use certificates::Certificates;
pub(crate) use client::{Client, Response};
pub(crate) use command::{CommandOutput, subcommands, tollgate, tollgate_with};
pub(crate) use config_directory::ConfigDirectory;
pub(crate) use fake_redis::{serve_fake_redis, serve_fake_sentinel};
pub(crate) use gateway::{Gateway, SYSTEM_ROOTS};
pub(crate) use gateway_builder::GatewayBuilder;
pub(crate) use lateness::Lateness;
pub(crate) use load::Load;
pub(crate) use movable_name::MovableName;
#[cfg(feature = "test-hooks")]
pub(crate) use observed_response::{ObservedResponse, observed_response};
pub(crate) use orphan::{Orphan, await_more, hand_over};
pub(crate) use pgbouncer::PgBouncer;
pub(crate) use postgres::Postgres;
pub(crate) use proof::{chosen_runs, short_or_long, shortened_or_real};
pub(crate) use redis::{Redis, free_port, node_list};
pub(crate) use redis_cluster::{RedisCluster, Replicas};
pub(crate) use relay::{Answers, Relay};
pub(crate) use secure_upstream::SecureUpstream;
pub(crate) use server_process::ServerProcess;
#[cfg(feature = "test-hooks")]
pub use take_script::{CompleteReply, TakeScript};
pub(crate) use upstream::{Upstream, continue_upload};

use std::io::Write;
use std::time::{Duration, Instant};

/// Waits until `holds` is true, for at most twenty seconds. A machine that is busy with other tests may need most of this
/// time. If something must happen sooner, the test measures the time.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(20), what, holds);
}

/// Waits until `holds` is true, for at most this time.
#[track_caller]
pub(crate) fn eventually_within(most: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = now() + most;
    while !holds() {
        assert!(now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the time in which an unwanted event would happen. This takes the whole time in every run, so a test limits the
/// number of uses. Prefer an injected clock, or an event after which the unwanted one is impossible.
pub(crate) fn wait_for_nothing(time: Duration) {
    std::thread::sleep(time);
}

/// Prints the measurements of a test. `cargo test -- --nocapture` shows them, and the documentation cites them.
#[allow(clippy::print_stdout, reason = "a test's standard output is kept by cargo unless it is asked for")]
pub(crate) fn print_measured(line: &str) {
    println!("{line}");
}

#[allow(clippy::disallowed_methods, reason = "a test measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Reports what could not be tested on this machine. It writes to the terminal, because cargo hides the output of a passed
/// test. If `CI` is set, the test fails instead, because nobody reads the output there.
#[track_caller]
pub(crate) fn not_checked(why: &str) {
    assert!(!is_continuous_integration(std::env::var("CI").ok().as_deref()), "NOT CHECKED: {why}, and CI is set");
    #[expect(clippy::disallowed_methods, reason = "the tests write for who runs them")]
    let _ = writeln!(std::io::stderr(), "NOT CHECKED: {why}");
}

/// Whether the tests run in continuous integration, which sets the variable `CI`.
fn is_continuous_integration(ci: Option<&str>) -> bool {
    !matches!(ci, None | Some("" | "0" | "false"))
}

#[test]
fn a_check_is_skipped_only_where_somebody_sees_it() {
    for (ci, expected) in
        [(None, false), (Some(""), false), (Some("false"), false), (Some("true"), true), (Some("1"), true)]
    {
        assert_eq!(is_continuous_integration(ci), expected, "{ci:?}");
    }
}
