//! The protocols that a listener can speak to its clients.

/// A version of HTTP, which a client chooses in the TLS handshake (ALPN, RFC 7301) or by the bytes with which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpProtocol {
    /// HTTP/1.1, and HTTP/1.0.
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 without TLS, for clients that know in advance that the server speaks it.
    H2c,
}

impl HttpProtocol {
    /// The name that is registered for ALPN.
    pub const fn name(self) -> &'static str {
        match self {
            HttpProtocol::Http1 => "http/1.1",
            HttpProtocol::H2 => "h2",
            HttpProtocol::H2c => "h2c",
        }
    }
}
