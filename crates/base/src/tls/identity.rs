//! Defines the properties of a client's TLS connection that rules can read.

use super::client_certificate_properties::ClientCertificate;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The name that the client asked for (SNI), in lower case and without a final dot.
    pub server_name: Option<String>,
    /// The verified certificate of the client. `None` if the client did not present a certificate.
    pub certificate: Option<ClientCertificate>,
}

/// Returns a DNS name without its final dot. The host of a request loses its final dot too.
pub fn without_final_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}
