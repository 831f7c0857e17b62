//! Tollgate: a rate-limiting reverse proxy.
//!
//! The modules are rooms, in reading order; each looks only at those before it. ARCHITECTURE.md is the map.

pub mod byte_set;
pub mod hash_key;
pub mod host_name;
pub mod place;
pub mod secret;
pub mod split;
pub mod time;
pub mod tls;

pub mod limit;

pub mod access_line;
pub mod auth;
pub mod store;

pub mod config;

pub mod gateway;
pub mod replay;

pub mod cli;
