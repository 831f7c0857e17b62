//! Reads the keys of gateway.yaml. Each key has a file of its name, which declares the key and reads its value.

pub mod access_log;
pub(crate) mod check;
pub(crate) mod client_tls;
pub(crate) mod cors;
pub(crate) mod definitions;
pub(crate) mod drain;
pub(crate) mod error_pages;
pub(crate) mod for_running;
pub(crate) mod hash_key;
pub(crate) mod headers;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod listeners;
pub(crate) mod llm;
pub(crate) mod log;
pub(crate) mod network_list;
pub(crate) mod other_names;
pub(crate) mod prices;
pub(crate) mod retry_after_jitter;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod store;
pub(crate) mod threads;
pub(crate) mod upstream_results;
pub(crate) mod upstreams;
