//! Holds the properties of a client's TLS connection that rules may count by.

use super::client_certificate::ClientCertificate;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The name that the client asked for, in lower case and without a final dot.
    pub server_name: Option<String>,
    /// The client's certificate, which has been verified.
    pub certificate: Option<ClientCertificate>,
}

/// Removes the final dot, which marks a DNS name as fully qualified; the host of a request is read in the same way.
pub fn without_final_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}
