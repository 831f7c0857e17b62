//! Runs the gateway: sockets, the proxy behind them, telemetry, and the process.
//!
//! The only room that knows Pingora, metrics and OpenTelemetry. Everything is bound before anything is started; there is one
//! thread and one runtime per core, and one snapshot of the configuration per request.

mod admin;
mod bootstrap;
mod decision_api;
pub(crate) mod echo;
mod enforcement;
mod forward;
mod process;
mod response;
mod run;
mod runtime;
pub(crate) mod server;
mod state;
mod telemetry;
mod upstream;

pub(crate) use admin::{bucket_levels, bucket_lookup, bucket_query, bucket_report, buckets};
pub(crate) use bootstrap::bootstrap;
/// For `tests/fuzz`, which tests the requests and descriptors of Envoy's calls separately.
pub use decision_api::ext_authz::checked_request;
/// For `tests/fuzz`, which tests messages separately.
pub use decision_api::grpc;
/// For `tests/fuzz`, which tests described requests separately.
pub use decision_api::original_request;
/// For `tests/fuzz`.
pub use decision_api::rls::descriptors;
pub(crate) use enforcement::authenticate;
/// For `tests/fuzz`, which tests responses separately.
pub use forward::{chunked, download, http1_response_head};
pub(crate) use process::signal_listener::hold_signals;
pub(crate) use runtime::fd_limit::raise as raise_open_files;
/// For `tests/fuzz`, which tests bodies separately.
pub use server::http1::request_body;
pub use server::http1::request_head;
/// For `tests/fuzz`.
pub use server::http2::frame_counts;
/// For `benches/bare`, a proxy without limits on the same listener.
pub use server::listener::ListeningSockets;
pub use server::queued_connections::AcceptingSockets;
pub use server::tls::EncryptedStream;
