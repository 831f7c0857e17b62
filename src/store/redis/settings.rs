//! Which Redis to use, and how to reach it.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::base::secret::Secret;
use crate::base::time::Micros;
use crate::store::breaker;

/// The longest prefix, in bytes: with a separator and the 16 bytes of the bucket, a key fits an allocation of 32 bytes.
pub const LONGEST_PREFIX: usize = 11;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub host: String,
    pub port: u16,
    pub database: i64,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub tls: Option<Tls>,
    /// The longest that a decision waits.
    pub timeout: Micros,
    /// The prefix of every key.
    pub prefix: String,
    pub breaker: breaker::Settings,
    /// The least number of gateways that share the limits.
    pub gateways: u64,
}

/// TLS to Redis: how to verify the server, and its name.
#[derive(Clone, Debug)]
pub struct Tls {
    pub config: Arc<ClientConfig>,
    pub name: ServerName<'static>,
    /// A hash of the files that the configuration was made from, by which two are compared.
    pub source: Box<[u8; 32]>,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.source == other.source && self.name == other.name
    }
}

impl Eq for Tls {}
