//! Tollgate: a rate-limiting reverse proxy. This is the program: the running gateway and the commands.
//!
//! The libraries that the program uses are in `crates/`; ARCHITECTURE.md is the map.

pub mod gateway;

pub mod cli;
