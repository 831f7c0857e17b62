//! Holds the properties of a client's TLS connection that rules may count by.

use super::client_certificate::ClientCertificate;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The name that the client asked for, in lower case and without a final dot.
    pub server_name: Option<String>,
    /// The client's certificate, which has been verified.
    pub certificate: Option<ClientCertificate>,
}

/// A name of DNS without the dot that marks it as fully qualified, as the host of a request is read.
pub fn without_final_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}
