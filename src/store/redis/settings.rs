//! Which Redis to use, and how to reach it.

use super::login::Login;
use crate::base::time::Micros;
use crate::store::breaker;

/// The longest prefix, in bytes: with a separator and the 16 bytes of the bucket, a key fits an allocation of 32 bytes.
pub const LONGEST_PREFIX: usize = 11;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub host: String,
    pub port: u16,
    pub database: i64,
    pub login: Login,
    /// The longest that a decision waits.
    pub timeout: Micros,
    /// The prefix of every key.
    pub prefix: String,
    pub breaker: breaker::Settings,
    /// The least number of gateways that share the limits.
    pub gateways: u64,
}
