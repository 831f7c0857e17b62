//! Configuration: reads gateway.yaml, and returns either all of its problems or checked values.
//!
//! ```
//! use std::path::Path;
//!
//! use config::{Config, Environment};
//!
//! let environment = || Environment { variable: &|_| None, folder: Path::new(""), read: &|path| std::fs::read(path) };
//! let text = "\
//! upstream: http://127.0.0.1:9000
//! policies:
//!   - name: plan
//!     rules: [{name: all, limit_keys: [ip:address], algorithm_config: {rps: 5, burst: 10}}]
//! ";
//! let config = Config::parse("gateway.yaml", text.as_bytes(), environment()).unwrap();
//! assert_eq!(config.rules.limits().len(), 1);
//!
//! let problems = Config::parse("gateway.yaml", text.replace("rps", "rsp").as_bytes(), environment()).unwrap_err();
//! assert!(problems.to_string().starts_with("gateway.yaml:4:"), "{problems}");
//! ```
//!
//! The text becomes a [`language::tree`] in which every value has its position. The [`language::reader`] reads typed
//! values from it, by the declarations of [`language::key`]s. [`document`] makes a [`Config`] of these values. Each key
//! of the YAML has a file of its name. No other crate reads YAML or makes a `Config`. The settings of a crate that
//! `config` uses are defined in that crate. The settings of the gateway are defined in `config`.

mod config;
pub mod diff;
mod document;
pub mod import;
mod keys;
mod language;
pub mod lints;
mod log_format;
pub mod log_listing;
mod schema;
mod sources;
#[cfg(test)]
mod undisclosed_values;

pub use config::Config;
pub use keys::access_log;
pub use keys::admin::{AdminToken, AdminWrite};
pub use keys::drain::Drain;
pub use keys::headers::HeaderFormat;
pub use keys::identity::api_keys::FILE as API_KEYS_FILE;
pub use keys::limits::{Bounds, ResponseBufferSize};
pub use keys::listeners::decide::{Decide, OriginalRequest, RefuseWith};
pub use keys::listeners::socket_mode::SocketMode;
pub use keys::listeners::{HeaderSenders, Listener};
pub use keys::llm::ErrorFormats;
pub use keys::log::{Log, LogFormat};
pub use keys::records::Records;
pub use keys::rules::ban::ban_length;
pub use keys::rules::scope::HomeFailure;
pub use keys::store::home::Home;
pub use keys::threads::Threads;
pub use keys::upstreams::Ejection;
pub use keys::upstreams::balance::Balance;
pub use keys::upstreams::health::{Health, HealthCheck};
pub use keys::upstreams::retries::Retries;
pub use keys::upstreams::upstream::{Endpoint, Protocol, Scheme, Upstream};
pub use keys::upstreams::upstream_timeouts::UpstreamTimeouts;
pub use keys::usage::Usage;
pub use language::environment::Environment;
pub use language::remarks::{ListSize, has_shrunk};
pub use language::{key, problem, warning};
pub use schema::{mappings, schema};
pub use sources::{LoadedConfig, Source, read_file};
