//! The scheme of a client connection: whether it is encrypted.

use std::sync::Arc;

use pingora::protocols::tls::SslDigest;

/// What `X-Forwarded-Proto` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    /// Of a stream with this digest, which every stream of TLS has, and no other.
    pub fn of(digest: Option<&Arc<SslDigest>>) -> Scheme {
        if digest.is_some() { Scheme::Https } else { Scheme::Http }
    }

    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}
