//! Runs the gateway: the sockets, the proxy, telemetry, and the process.
//!
//! Only this module knows Pingora, metrics and OpenTelemetry. All sockets are bound before anything is started. There is one
//! thread with one runtime for each core, and each request has one snapshot of the configuration.

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

pub(crate) use admin::{
    ban_listing, ban_lookup, bucket_levels, bucket_lookup, bucket_query, bucket_report, buckets, raise_request,
};
pub(crate) use bootstrap::bootstrap;
/// Exported so that `tests/fuzz` can separately test how the requests in Envoy's authorization calls are read.
pub use decision_api::ext_authz::checked_request;
/// Exported so that `tests/fuzz` can test gRPC messages separately.
pub use decision_api::grpc;
/// Exported so that `tests/fuzz` can test the calls of services separately.
pub use decision_api::json_door::take_call;
/// Exported so that `tests/fuzz` can separately test how Tollgate reads a request that another proxy describes.
pub use decision_api::original_request;
/// Exported so that `tests/fuzz` can test the descriptors in Envoy's rate limit calls separately.
pub use decision_api::rls::descriptors;
pub(crate) use enforcement::authenticate;
/// Exported so that `tests/fuzz` can test responses of upstreams separately.
pub use forward::{chunked, download, http1_response_head};
pub(crate) use process::signal_listener::hold_signals;
pub(crate) use runtime::fd_limit::raise as raise_open_files;
/// Exported so that `tests/fuzz` can test request bodies separately.
pub use server::http1::request_body;
pub use server::http1::request_head;
/// Exported so that `tests/fuzz` can test the counts of HTTP/2 frames separately.
pub use server::http2::frame_counts;
/// Exported for `benches/bare`, a proxy without limits that uses the same listener.
pub use server::listener::ListeningSockets;
pub use server::queued_connections::AcceptingSockets;
pub use server::tls::EncryptedStream;
