//! Configuration: reads gateway.yaml into values that cannot be wrong.
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
//! The text becomes a [`tree`] in which every value has its position. The [`reader`] reads typed values from it, by the
//! declarations of [`key`]s, and [`document`] makes a [`Config`] of them, or reports every problem at once. One file for
//! each key of the YAML, named after it, declares and reads that key. This is the only room that reads YAML, and the only one
//! that makes a `Config`. Settings of a room to the left of this one are defined there; those of the gateway are defined
//! here.

pub mod access_log;
mod algorithms;
mod api_keys;
mod attribute;
mod balance;
mod check;
mod claimed_number;
mod client_ip;
mod client_tls;
mod cluster;
mod cors;
mod cost;
mod decide;
pub mod diff;
mod document;
mod drain;
mod duration;
mod environment;
mod error_pages;
mod exempt;
mod expires;
mod hash_key;
mod header_changes;
mod header_names;
mod headers;
mod health;
mod host_ports;
mod jwt;
mod jwt_keys;
pub mod key;
mod key_path;
mod limit_keys;
mod limits;
pub mod lints;
mod list_files;
mod listen_address;
mod listener_protocols;
mod listener_tls;
mod listeners;
mod log;
mod meters;
mod misplaced_keys;
mod names;
mod network;
mod on_store_failure;
mod overrides;
mod overrides_file;
mod path_rewrite;
mod policies;
mod postgres;
pub mod problem;
pub mod ratelimit_import;
mod reader;
mod redis;
mod remarks;
mod restricted_match;
mod retry_after_jitter;
mod rewrite;
mod route_answers;
mod route_diff;
mod route_overrides;
mod route_upstream;
mod routes;
mod rule_limits;
mod rule_match;
mod rules;
mod schema;
mod sentinel;
mod settings;
mod several_buckets;
mod size;
mod socket_mode;
mod socket_path;
mod sources;
mod store;
mod store_login;
mod substitution;
mod suggest;
mod taken_addresses;
mod threads;
mod tree;
mod upstream;
mod upstream_diff;
mod upstream_timeouts;
mod upstreams;
mod valid_rest;
mod value_kind;
mod value_types;
pub mod warning;

pub use api_keys::FILE as API_KEYS_FILE;
pub use balance::Balance;
pub use decide::{Decide, OriginalRequest, RefuseWith};
pub use drain::Drain;
pub use environment::Environment;
pub use headers::HeaderFormat;
pub use health::{Health, HealthCheck};
pub use limits::{Bounds, ResponseBufferSize};
pub use listeners::{HeaderSenders, Listener};
pub use log::{Log, LogFormat};
pub use remarks::{ListSize, has_shrunk};
pub use schema::{mappings, schema};
pub use settings::Config;
pub use socket_mode::SocketMode;
pub use sources::{LoadedConfig, Source, read_file};
pub use threads::Threads;
pub use upstream::{Endpoint, Protocol, Scheme, Upstream};
pub use upstream_timeouts::UpstreamTimeouts;
pub use upstreams::{Ejection, Retries};
