//! The protocols that a listener can speak to its clients.

/// A version of HTTP. A client chooses the version in the TLS handshake (ALPN, RFC 7301) or by the first bytes that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpProtocol {
    /// HTTP/1.1 or HTTP/1.0.
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 without TLS, for clients that know in advance that the server supports HTTP/2.
    H2c,
}

impl HttpProtocol {
    /// Returns the name of the protocol that is registered for ALPN.
    pub const fn name(self) -> &'static str {
        match self {
            HttpProtocol::Http1 => "http/1.1",
            HttpProtocol::H2 => "h2",
            HttpProtocol::H2c => "h2c",
        }
    }
}
