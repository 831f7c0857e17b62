//! Which Redis to use, and how to reach it.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::base::secret::Secret;
use crate::base::time::Micros;
use crate::store::breaker;

/// The longest prefix: with it and what stands behind it, a key fills an allocation of 32 bytes.
pub const LONGEST_PREFIX: usize = 11;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub host: String,
    pub port: u16,
    pub database: i64,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub tls: Option<Tls>,
    /// The most that a decision waits for.
    pub timeout: Micros,
    /// What every key begins with.
    pub prefix: String,
    pub breaker: breaker::Settings,
    /// How many gateways share the limits, at least.
    pub gateways: u64,
}

/// TLS towards Redis: how to verify it, and under which name.
#[derive(Clone, Debug)]
pub struct Tls {
    pub config: Arc<ClientConfig>,
    pub name: ServerName<'static>,
    /// Tells the files apart that the configuration was made of: a hash of what is in them.
    pub source: Box<[u8; 32]>,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.source == other.source && self.name == other.name
    }
}

impl Eq for Tls {}
