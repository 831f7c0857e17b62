//! Tollgate: a rate-limiting reverse proxy. This is the program: the running gateway and the commands.
//!
//! The libraries below them are in `crates/`; ARCHITECTURE.md is the map.

pub mod gateway;

pub mod cli;
