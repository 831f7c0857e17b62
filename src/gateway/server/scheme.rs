//! Determines the scheme of a client connection: whether it is encrypted.

use std::sync::Arc;

use pingora::protocols::tls::SslDigest;

use request::scheme::Scheme;

/// The scheme of a stream with this digest, which TLS streams always have, and other streams never.
pub fn of_digest(digest: Option<&Arc<SslDigest>>) -> Scheme {
    if digest.is_some() { Scheme::Https } else { Scheme::Http }
}
