//! Tollgate: a rate-limiting reverse proxy.
//!
//! The modules are rooms, in reading order; each looks only at those before it. ARCHITECTURE.md is the map.

pub mod base;

pub mod limit;

pub mod access_log_line;
pub mod auth;
pub mod route;
pub mod store;

pub mod decision;

pub mod config;

pub mod gateway;
pub mod replay;

pub mod cli;
