//! Runs the gateway: sockets, the proxy behind them, telemetry, and the process.
//!
//! The only room that knows Pingora, metrics and OpenTelemetry. Everything is bound before anything is started; there is one
//! thread and one runtime per core, and one snapshot of the configuration per request.

mod admin;
mod bootstrap;
mod decision_api;
pub mod echo;
mod enforcement;
mod forward;
mod process;
mod response;
mod run;
mod runtime;
pub mod server;
mod state;
mod telemetry;
mod upstream;

pub use admin::{bucket_levels, bucket_lookup, bucket_query, bucket_report, buckets};
pub use bootstrap::{BoundGateway, ListenAddress, StartError, bootstrap};
/// For `tests/fuzz`, which tests the requests and descriptors of Envoy's calls separately.
#[cfg(feature = "test-hooks")]
pub use decision_api::ext_authz::checked_request;
/// For `tests/fuzz`, which tests messages separately.
#[cfg(feature = "test-hooks")]
pub use decision_api::grpc;
/// For `tests/fuzz`, which tests described requests separately.
#[cfg(feature = "test-hooks")]
pub use decision_api::original_request;
/// For `tests/fuzz`.
#[cfg(feature = "test-hooks")]
pub use decision_api::rls::descriptors;
pub use enforcement::authenticate;
/// For `tests/fuzz`, which tests responses separately.
#[cfg(feature = "test-hooks")]
pub use forward::{chunked, download, http1_response_head};
pub use process::reload::Relog;
pub use process::signal_listener::hold_signals;
pub use process::upgrade;
pub use runtime::fd_limit::raise as raise_open_files;
/// For `tests/fuzz`, which tests bodies separately.
#[cfg(feature = "test-hooks")]
pub use server::http1::request_body;
pub use server::http1::request_head;
/// For `tests/fuzz`.
#[cfg(feature = "test-hooks")]
pub use server::http2::frame_counts;
