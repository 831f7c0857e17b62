//! Finds out where the Redis is that accepts writes. Every attempt to connect asks, because the answer can change.

use super::settings::Settings;
use crate::store::error::Fault;

/// A server, by a name or a literal address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

/// Where the settings say that the address can be learnt.
#[derive(Debug)]
pub enum Resolver {
    /// In the URL.
    Fixed(Address),
}

impl Resolver {
    pub fn new(settings: &Settings) -> Resolver {
        Resolver::Fixed(Address { host: settings.host.clone(), port: settings.port })
    }

    /// The address to connect to now.
    ///
    /// # Errors
    ///
    /// When nobody can say where the server is.
    #[expect(clippy::unused_async, reason = "other ways to find the server wait for answers")]
    pub async fn resolve(&self) -> Result<Address, Fault> {
        match self {
            Resolver::Fixed(address) => Ok(address.clone()),
        }
    }
}
